"""Exit codes of a job's driver, for reasons that it may not be able to write (sysexits.h)."""

import os

from wattlaw.training.environment import DISK_FULL

#: The store does not exist on the node.
NO_FOLDER = os.EX_NOINPUT
#: A line of ``launch.slurm.setup`` failed.
SETUP_FAILED = os.EX_CONFIG
#: The run was interrupted, and Slurm did not requeue the job.
INTERRUPTED = os.EX_TEMPFAIL

REASONS = {
    SETUP_FAILED: "a line of launch.slurm.setup failed",
    NO_FOLDER: "the store does not exist on the job's first node; it must be on a file system that "
    "login node and compute nodes share",
    DISK_FULL: "the disk is full, or a quota is exceeded; free some space and start the run again",
}
