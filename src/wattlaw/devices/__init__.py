"""One file per kind of hardware: what it is and how it is read."""
