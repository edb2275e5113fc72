"""Limits for Slurm jobs: the prolog and epilog of root, and the files that a site installs."""
