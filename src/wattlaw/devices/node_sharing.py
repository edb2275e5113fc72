"""Whether other jobs use this node at the same time."""

import os
from collections.abc import Mapping

_EXCLUSIVE = ("SBATCH_EXCLUSIVE", "SLURM_EXCLUSIVE")


def shares_node(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a Slurm job may share its node with other jobs.

    It may if it does not have all processors of the machine and did not request the node for
    itself. A process outside Slurm has the machine to itself. ``SLURM_CPUS_ON_NODE`` counts the
    processors of the job on this node (sbatch(1)).
    """
    if "SLURM_JOB_ID" not in environ or any(name in environ for name in _EXCLUSIVE):
        return False
    cpus = environ.get("SLURM_CPUS_ON_NODE", "")
    return not (cpus.isascii() and cpus.isdigit() and int(cpus) >= (os.cpu_count() or 1))
