"""Environment variables and exit codes that launcher, agent and workers of a run share."""

import os
import re
import socket
from collections.abc import Mapping

#: The rendezvous file of ranks on one machine; if unset, they meet at MASTER_ADDR.
RENDEZVOUS_FILE = "WATTLAW_RENDEZVOUS_FILE"
#: The process id of the node agent. Its workers end when it ends.
AGENT_PID = "WATTLAW_AGENT_PID"
#: The folder of the run that a command belongs to, and the number of its attempt.
RUN_FOLDER = "WATTLAW_RUN_FOLDER"
ATTEMPT = "WATTLAW_ATTEMPT"
#: The named pipe to which the first rank of a command writes its output, if it is searched.
FIRST_OUTPUT = "WATTLAW_FIRST_OUTPUT"
#: The rank that wattlaw has launched; the hook records it (instrumentation.hook).
LAUNCHED_RANK = "WATTLAW_LAUNCHED_RANK"
#: Set if SIGUSR1 may announce the end: ranks then agree about once a second whether it has come.
WARNS = "WATTLAW_WARNS"
#: How many workers share the cores of this machine, those of other runs included.
SHARING_WORKERS = "WATTLAW_SHARING_WORKERS"
#: The number of processor threads of a process, for OpenMP and with it for torch.
THREADS = "OMP_NUM_THREADS"
#: The name of this machine in a run; if unset, its host name.
HOST = "WATTLAW_HOST"

#: The MIG instances of all ranks of this node.
MIG_INSTANCES = "WATTLAW_MIG_INSTANCES"

#: The exit code of a process that could not write a file because the disk is full.
DISK_FULL = os.EX_IOERR


def take_device(local_rank: int) -> int:
    """The number in CUDA: a process can use one MIG instance, so each rank lists its own."""
    instances = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if not all(entry.startswith("MIG-") for entry in instances):
        return local_rank
    os.environ[MIG_INSTANCES] = ",".join(instances)
    os.environ["CUDA_VISIBLE_DEVICES"] = instances[min(local_rank, len(instances) - 1)]
    return 0


def threads_of(environment: Mapping[str, str]) -> int | None:
    """Return the number that a user has set; of a list by nesting, the first."""
    number = re.match(r"\s*([1-9][0-9]{0,5})\s*(?:,|$)", environment.get(THREADS, ""))
    return int(number[1]) if number else None


def host_name() -> str:
    return os.environ.get(HOST) or socket.gethostname()
