"""What launcher, agent and workers of a run tell each other by environment and exit code."""

import os
import socket

#: The file through which the ranks of one machine meet; unset: torchrun's own rendezvous.
RENDEZVOUS_FILE = "WATTLAW_RENDEZVOUS_FILE"
#: The process id of the node agent, with which its workers end.
AGENT_PID = "WATTLAW_AGENT_PID"
#: The folder of the run that a command belongs to, and the number of its attempt.
RUN_FOLDER = "WATTLAW_RUN_FOLDER"
ATTEMPT = "WATTLAW_ATTEMPT"
#: Set where SIGUSR1 may come before the end: ranks then agree about once a second whether it has.
WARNS = "WATTLAW_WARNS"
#: What this machine is called in a run; unset: as the system calls it.
HOST = "WATTLAW_HOST"

#: The exit code by which a process says that the disk is full when it can write no file.
DISK_FULL = os.EX_IOERR


def host_name() -> str:
    """Return what this machine is called in windows, samples and the names of their files."""
    return os.environ.get(HOST) or socket.gethostname()
