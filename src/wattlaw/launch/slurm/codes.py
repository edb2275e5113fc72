"""Exit codes by which a job's driver tells what it may not be able to write (sysexits.h)."""

import os

from wattlaw.training.environment import DISK_FULL

#: The store is not there on the node.
NO_FOLDER = os.EX_NOINPUT
#: A line of the user's setup ended with an error.
SETUP_FAILED = os.EX_CONFIG
#: Something else than the run ended it, and Slurm did not put the job back into the queue.
INTERRUPTED = os.EX_TEMPFAIL

REASONS = {
    SETUP_FAILED: "a line of launch.slurm.setup failed",
    NO_FOLDER: "the store is not there on the job's first node; it must be on a file system that "
    "login node and compute nodes share",
    DISK_FULL: "the disk is full, or a quota is; make room there, and the run can be started again",
}
