"""What a Slurm prolog or epilog is told: the site's places, and the job.

Nothing here imports more than Python's own modules until it is needed: most jobs want no limit,
and none shall wait for us.
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

from wattlaw.errors import BadInput

#: Begins the word of a job's comment that asks for a limit.
WORD = "wattlaw:"
_SQUEUE_TIMEOUT_S = 10
#: A Slurm that tells this tells the comment too, where a job has one.
_COMES_WITH_THE_COMMENT = "SLURM_JOB_RESTART_COUNT"


@dataclass(frozen=True)
class Place:
    """Where the site's file, the saved states and the public reports are."""

    config: Path = Path("/etc/wattlaw/site.yaml")
    state: Path = Path("/var/lib/wattlaw/limits")
    reports: Path = Path("/run/wattlaw")

    def report(self, job_id: str, node: str) -> Path:
        """Return the file in which a job finds what became of its request on a node."""
        return self.reports / f"{job_id}.{node}.json"

    def has_states(self) -> bool:
        """Say whether something is to be given back, now or later."""
        return any(self.state.glob("*.json"))


@dataclass(frozen=True)
class Job:
    """The job on whose behalf Slurm has started us, and this node's name in Slurm."""

    job_id: str
    node: str
    user: str = ""
    gpus: str = ""
    told: Mapping[str, str] | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Job":
        """Read what slurmd puts into the environment of a prolog or epilog.

        Raises
        ------
        BadInput
            It is not that of a prolog or epilog.
        """
        job_id = environ.get("SLURM_JOB_ID", "")
        node = environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
        if not re.fullmatch(r"[0-9]{1,12}", job_id):
            raise BadInput(f"SLURM_JOB_ID is {job_id!a}: Slurm sets it for a prolog or epilog")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,255}", node) or node.startswith("."):
            raise BadInput(f"SLURMD_NODENAME is {node!a}: not the name of a node")
        user, gpus = environ.get("SLURM_JOB_USER", ""), environ.get("SLURM_JOB_GPUS", "")
        return cls(job_id, node, user, gpus, environ)

    def comment(self) -> str:
        """Return the job's comment; where an old Slurm does not tell it, by asking for it."""
        told = self.told or {}
        if "SLURM_JOB_COMMENT" in told or _COMES_WITH_THE_COMMENT in told:
            return told.get("SLURM_JOB_COMMENT", "")
        return self._asked("%k")

    def account(self) -> str:
        """Return the job's account, empty where it has none or nobody tells it."""
        return (self.told or {}).get("SLURM_JOB_ACCOUNT") or self._asked("%a")

    def _asked(self, field: str) -> str:
        lines = squeue(f"--jobs={self.job_id}", f"--format=%A {field}") or ""
        # An array's first job has the number of the array, so the others are listed with it.
        told = [line.partition(" ") for line in lines.splitlines()]
        return next((value for job_id, _, value in told if job_id == self.job_id), "")


def mentions(comment: str) -> bool:
    """Say whether a comment asks for a limit, well or badly written."""
    return any(word.startswith(WORD) for word in comment.split())


def squeue(*options: str) -> str | None:
    """Return what ``squeue`` prints, None where there is none or the controller does not answer."""
    program = shutil.which("squeue")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--noheader", *options],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_SQUEUE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def state_on_node(job_id: str, node: str) -> str | None:
    """Return a job's state if Slurm has it on a node, else empty; None if Slurm does not answer."""
    told = squeue(f"--nodelist={node}", "--format=%A %T")
    if told is None:
        return None
    states = dict(line.split()[:2] for line in told.splitlines() if len(line.split()) > 1)
    return states.get(job_id, "").replace("PENDING", "")  # that waits for a node


def steps(job_id: str) -> dict[int, str]:
    """Return the steps of a job that have a slurmstepd on this node, by the pid of that.

    Only those of our own user count: anybody can give a process that name.
    """
    begin, found = f"slurmstepd: [{job_id}.", {}
    for pid, words in _ours():
        line = " ".join(words)
        if line.startswith(begin):
            found[pid] = line.removeprefix(begin).partition("]")[0]
    return found


def working(job_id: str) -> list[int]:
    """Return the pids that look after steps with work, so not after the job's empty container."""
    return [pid for pid, step in steps(job_id).items() if step != "extern"]


def slurmd_lives(node: str) -> bool:
    """Say whether the slurmd of a node runs; on one machine there may be several, with ``-N``."""
    return any(
        Path(line[0]).name == "slurmd" and _named(line) in (None, node) for _, line in _ours()
    )


def is_over(job_id: str, node: str) -> bool | None:
    """Say whether a job has left this node; None if only Slurm knows, and does not answer.

    A job without a step here may be before its first one, or between two. Only Slurm can tell,
    unless slurmd is gone and no step either, not even the container that a job has all the time
    with ``PrologFlags=Contain``. Without slurmd a completing job begins nothing more.
    """
    found, lives = set(steps(job_id).values()), slurmd_lives(node)
    if found - {"extern"}:
        return False
    if not found and not lives:
        return True
    state = state_on_node(job_id, node)
    if state is None:
        return None
    return not state or (state == "COMPLETING" and not lives)


def tell(words: str, *, is_wrong: bool = True) -> None:
    """Tell the administrators: in the system's log, and on stderr, which slurmd may log."""
    line = words if words.isprintable() else ascii(words)
    syslog.openlog("wattlaw", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR if is_wrong else syslog.LOG_INFO, line)
    print(f"wattlaw: {line}", file=sys.stderr, flush=True)


def _ours() -> list[tuple[int, list[str]]]:
    """Return pid and command line of every process of our user."""
    import psutil

    own = os.getuid()
    found = psutil.process_iter(["cmdline", "uids"])
    return [
        (process.pid, process.info["cmdline"])
        for process in found
        if process.info["cmdline"] and process.info["uids"] and process.info["uids"].real == own
    ]


def _named(line: list[str]) -> str | None:
    """Return the name that a slurmd was given on its command line."""
    for word, following in zip(line, [*line[1:], ""], strict=True):
        if word == "-N":
            return following
        if word.startswith("-N"):
            return word[2:]
    return None
