"""AMD GPUs: by the kernel's files, and by the library of AMD SMI where it can be used."""
