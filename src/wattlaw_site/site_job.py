"""The job for which Slurm starts a prolog or epilog, its state in Slurm, and the site's paths.

This module imports only Python's own modules until it needs more, because most jobs request no
limit and should start without delay.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import syslog
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattlaw.common.errors import BadInput
from wattlaw.measure.limits.prolog_request import REPORTS

_SQUEUE_TIMEOUT_S = 10
#: A Slurm that sets this variable also sets that of the comment, if a job has one.
_COMMENT_SUPPORT_VARIABLE = "SLURM_JOB_RESTART_COUNT"


@dataclass(frozen=True)
class SitePaths:
    config: Path = Path("/etc/wattlaw/site.yaml")
    state: Path = Path("/var/lib/wattlaw/limits")
    reports: Path = REPORTS

    def report(self, job_id: str, node: str) -> Path:
        return self.reports / f"{job_id}.{node}.json"


@dataclass(frozen=True)
class NodeJob:
    """The job for which Slurm has started a hook, and this node's name in Slurm."""

    job_id: str
    node: str
    user: str = ""
    gpus: str = ""
    environ: Mapping[str, str] | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "NodeJob":
        """Read the environment of a prolog or epilog; ``BadInput`` if it is another one."""
        job_id = environ.get("SLURM_JOB_ID", "")
        node = environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
        if not re.fullmatch(r"[0-9]{1,12}", job_id):
            raise BadInput(f"SLURM_JOB_ID is {job_id!a}: Slurm sets it for a prolog or epilog")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,255}", node) or node.startswith("."):
            raise BadInput(f"SLURMD_NODENAME is {node!a}: not the name of a node")
        user, gpus = environ.get("SLURM_JOB_USER", ""), environ.get("SLURM_JOB_GPUS", "")
        return cls(job_id, node, user, gpus, environ)

    def comment(self) -> str:
        """Return the job's comment, from squeue if an old Slurm does not set its variable."""
        environ = self.environ or {}
        if "SLURM_JOB_COMMENT" in environ or _COMMENT_SUPPORT_VARIABLE in environ:
            return environ.get("SLURM_JOB_COMMENT", "")
        return self._query("%k")

    def account(self) -> str:
        return (self.environ or {}).get("SLURM_JOB_ACCOUNT") or self._query("%a")

    def _query(self, field: str) -> str:
        lines = squeue(f"--jobs={self.job_id}", f"--format=%A {field}") or ""
        # An array's first job has the number of the array, so the others are listed with it.
        rows = [line.partition(" ") for line in lines.splitlines()]
        return next((value for job_id, _, value in rows if job_id == self.job_id), "")


def squeue(*options: str) -> str | None:
    """Return the output of ``squeue``, None if it is missing or the controller does not answer."""
    program = shutil.which("squeue")
    if program is None:
        return None
    from wattlaw.common.processes import run_captured

    try:
        done = run_captured([program, "--noheader", *options], _SQUEUE_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def job_steps(job_id: str) -> dict[int, str]:
    """Return the steps of a job that have a slurmstepd of this user on this node, by its pid; any
    user can give a process that name."""
    begin, steps = f"slurmstepd: [{job_id}.", {}
    for pid, arguments in _own_processes():
        line = " ".join(arguments)
        if line.startswith(begin):
            steps[pid] = line.removeprefix(begin).partition("]")[0]
    return steps


def is_over(job_id: str, node: str) -> bool | None:
    """Return whether a job has left this node; None if Slurm does not answer. A job without a step
    here may be between two steps. Only Slurm knows, unless there is neither slurmd nor any step,
    not even the container of ``PrologFlags=Contain``. Without slurmd, a completing job starts
    nothing more."""
    steps, lines = set(job_steps(job_id).values()), [line for _, line in _own_processes()]
    daemons = ["\0".join(line) for line in lines if Path(line[0]).name == "slurmd"]
    names = [re.search(r"\0-N\0?([^\0]*)", daemon) for daemon in daemons]
    has_slurmd = any(name is None or name[1] == node for name in names)
    if steps - {"extern"}:
        return False
    if not steps and not has_slurmd:
        return True
    output = squeue(f"--nodelist={node}", "--format=%A %T")
    if output is None:
        return None
    states = dict(line.split()[:2] for line in output.splitlines() if len(line.split()) > 1)
    state = states.get(job_id, "PENDING")
    return state == "PENDING" or (state == "COMPLETING" and not has_slurmd)


def log(message: str, *, is_error: bool = True) -> None:
    """Write a line for administrators to the system log, and to stderr, which slurmd may log."""
    line = message if message.isprintable() else ascii(message)
    syslog.openlog("wattlaw", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR if is_error else syslog.LOG_INFO, line)
    print(f"wattlaw: {line}", file=sys.stderr, flush=True)


def _own_processes() -> list[tuple[int, list[str]]]:
    import psutil

    uid = os.getuid()
    return [
        (process.pid, process.info["cmdline"])
        for process in psutil.process_iter(["cmdline", "uids"])
        if process.info["cmdline"] and process.info["uids"] and process.info["uids"].real == uid
    ]
