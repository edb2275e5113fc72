"""Calls of Slurm's commands, and parsers of their output.

Formats: manual pages squeue(1) and sbatch(1) of Slurm 22.05.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from wattlaw.common.errors import BadInput, NotAvailable, WattlawError
from wattlaw.common.isolation import user_environment
from wattlaw.common.processes import run_captured
from wattlaw.common.text import collapse_whitespace
from wattlaw.running.launcher import ResourcesBusy

_TIMEOUT_S = 90
#: Error messages for a controller that is down or too busy.
_UNREACHABLE = (
    "unable to contact slurm controller|unable to establish controller machine|socket timed out|"
    "communication connection failure|connection refused|zero bytes were transmitted|"
    "message receive failure|resource temporarily unavailable|munge"
)
#: Error messages of sbatch for a user who has reached the limit of jobs.
_JOB_LIMIT = "submitjob|too many jobs"
#: The states of a job that has ended and left its nodes.
FINAL = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
}
_COLUMNS = {"JobID": 20, "State": 24, "exit_code": 12, "Name": 64, "Reason": 60}
#: Variables that Slurm's commands read as options ("Input environment variables" in their manual
#: pages) begin so; SLURM_CONF says where Slurm is configured.
_INPUTS = (
    *("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_"),
    *("SCANCEL_", "SACCT_", "SCONTROL_", "SINFO_"),
)
#: What a user sets for all jobs on a login node: who pays, and which part of the cluster. Within a
#: job these are of that job.
_DEFAULTS = frozenset(
    f"SBATCH_{name}"
    for name in ("ACCOUNT", "CLUSTERS", "CONSTRAINT", "PARTITION", "QOS", "RESERVATION", "WCKEY")
)


class Unreachable(WattlawError):
    """Slurm's controller does not respond; it may later."""


@dataclass(frozen=True)
class Job:
    id: str
    state: str
    name: str
    reason: str = ""
    exit_code: int | None = None
    signal: int = 0  # that ended the batch script; 0 for none

    @property
    def is_over(self) -> bool:
        return self.state in FINAL

    @property
    def is_queued(self) -> bool:
        return self.state == "PENDING"


def submit(arguments: Sequence[str]) -> str:
    """Submit a job and return its id.

    Raises ``ResourcesBusy`` if the user has reached the site's limit of jobs, ``Unreachable`` if
    the controller does not respond, so that the job may be in the queue, and ``NotAvailable`` if
    the site refuses the job or Slurm is not installed here.
    """
    output = _run(["sbatch", "--parsable", *arguments])
    job_id = output.strip().rpartition("\n")[2].split(";")[0].strip()
    if not job_id:
        raise Unreachable("sbatch printed no job id; 'squeue --me' shows whether the job is queued")
    return job_id


def queue() -> list[Job]:
    """Return all jobs of this user, including those that have just ended (``MinJobAge``)."""
    columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    return parse_jobs(_run(["squeue", "--me", "--noheader", "--states=all", f"--Format={columns}"]))


def parse_jobs(output: str) -> list[Job]:
    jobs = []
    ends = list(accumulate(_COLUMNS.values(), initial=0))
    for line in output.splitlines():
        cells = (line[start:end].strip() for start, end in pairwise(ends))
        job_id, state, code, name, reason = cells
        if job_id:
            is_known = re.fullmatch("[0-9]{1,9}", code) is not None
            ended = divmod(int(code), 256) if is_known else (None, 0)  # the status of wait(2)
            jobs.append(Job(job_id, state, name, reason, ended[0], ended[1] & 0x7F))
    return jobs


def cancel(job_ids: Sequence[str]) -> None:
    if job_ids:
        _run(["scancel", "--quiet", *job_ids])


def requeue(job_id: str) -> bool:
    """Requeue the job of this process; return whether Slurm accepts that."""
    try:
        _run(["scontrol", "requeue", job_id])
    except WattlawError:
        return False
    return True


def hostnames(node_list: str) -> tuple[str, ...]:
    """Return the nodes of a list such as ``node[1-2,7]``; does not call the controller."""
    try:
        return tuple(_run(["scontrol", "show", "hostnames", node_list]).split())
    except WattlawError:
        return ()


@dataclass(frozen=True)
class Partition:
    """The nodes of a partition; of several kinds, the one with the most GPUs, or else cores."""

    nodes: int
    cores: int  # of a node
    gpus: int = 0  # of a node
    gres: str = ""  # the generic resource of a GPU, such as ``gpu:a100``


def partition(name: str) -> Partition:
    found = parse_partition(
        _run(["sinfo", "--noheader", f"--partition={name}", "--format=%D|%c|%G"])
    )
    if found is None:
        raise BadInput(f"{name}: no such partition with nodes; 'sinfo' lists them")
    return found


def parse_partition(output: str) -> Partition | None:
    kinds = []
    for line in output.splitlines():
        nodes, cores, gres = line.strip().split("|", 2)
        gpu = re.search(r"(?:^|,)(gpu(?::[^:,()]+)?):([0-9]+)(?=[,(]|$)", gres)
        of_node = (int(gpu[2]), gpu[1]) if gpu else (0, "")
        kinds.append(Partition(int(nodes), int(cores.rstrip("+")), *of_node))
    return max(
        kinds, key=lambda kind: (kind.nodes * kind.gpus, kind.nodes * kind.cores), default=None
    )


def without_options(environ: Mapping[str, str]) -> dict[str, str]:
    """An outer job, and options such as SBATCH_GRES or SQUEUE_PARTITION, would change what a job of
    ours requests, and what we see of the queue.
    """
    is_in_job = "SLURM_JOB_ID" in environ or "SLURM_JOBID" in environ
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_INPUTS)
        or name.startswith("SLURM_CONF")
        or (name in _DEFAULTS and not is_in_job)
    }


def _run(line: list[str]) -> str:
    environment = without_options(user_environment()) | {"SLURM_TIME_FORMAT": "%s"}
    try:
        done = run_captured(line, _TIMEOUT_S, environment)
    except FileNotFoundError:
        raise NotAvailable(f"{line[0]}: command not found; Slurm is needed here") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{line[0]}: no response within {_TIMEOUT_S} s") from None
    if done.returncode == 0:
        return done.stdout
    errors = [error.removeprefix(f"{line[0]}: ") for error in done.stderr.splitlines()]
    errors = list(dict.fromkeys(collapse_whitespace(error) for error in errors if error.strip()))
    message = "; ".join(errors).replace("error: ", "")[:500] or f"exit code {done.returncode}"
    message = f"{line[0]}: {message}"
    if re.search(_UNREACHABLE, message.lower()):
        raise Unreachable(message)
    if re.search(_JOB_LIMIT, message.lower()):
        raise ResourcesBusy(message)
    raise NotAvailable(message)
