"""Limits for Slurm jobs: the prolog and epilog of root, and the files that a site installs."""

from wattlaw.common.registry import Command

SITE_FILES = Command(
    "Write the Slurm prolog and epilog that let jobs set limits.",
    "wattlaw_site.site_files",
    "site_files",
    "Measure",
)
