"""Whether other jobs use this node at the same time."""

import os
import re
from collections.abc import Mapping

_CPUS = re.compile(r"(?<![0-9x])[0-9]{1,6}(?![0-9])")
_EXCLUSIVE = ("SBATCH_EXCLUSIVE", "SLURM_EXCLUSIVE")


def shares_node(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a Slurm job may share its node with other jobs.

    It may if it does not have all processors of the machine and did not request the node for
    itself. A process outside Slurm has the machine to itself. ``SLURM_CPUS_ON_NODE`` counts the
    processors of the job or of its step on this node, and ``SLURM_JOB_CPUS_PER_NODE`` those of the
    job on each of its nodes, such as ``64(x2),32`` (sbatch(1)).
    """
    if "SLURM_JOB_ID" not in environ or any(name in environ for name in _EXCLUSIVE):
        return False
    nodes = _CPUS.findall(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    counts = [min(map(int, nodes), default=0)]
    counts += map(int, _CPUS.findall(environ.get("SLURM_CPUS_ON_NODE", "")))
    return max(counts) < (os.cpu_count() or 1)
