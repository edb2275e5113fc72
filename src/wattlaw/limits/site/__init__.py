"""Root's part of limits: Slurm's prolog and epilog, with the files that a site installs."""
