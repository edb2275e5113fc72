"""Slurm's own commands, called with lists of words; what they print as data.

Formats: manual pages squeue(1), sbatch(1), sacct(1) of Slurm 22.05.
"""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from wattlaw.errors import NotAvailable, WattlawError
from wattlaw.isolation import user_environment
from wattlaw.launch.launcher import ResourcesBusy

_ANSWERS_S = 90
#: What commands say of a controller that is not there now, or too busy.
_NO_CONTACT = (
    "unable to contact slurm controller",
    "socket timed out",
    "communication connection failure",
    "connection refused",
    "zero bytes were transmitted",
    "message receive failure",
    "unable to establish controller machine",
    "resource temporarily unavailable",
    "munge",
)
#: What sbatch says where a user has as many jobs as one may have.
_LIMIT_OF_JOBS = ("submitjob", "too many jobs")
#: The states of a job that is over, with what it left on its nodes.
FINAL = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
_COLUMNS = {"JobID": 20, "State": 24, "exit_code": 12, "Name": 64, "Reason": 60}
_ACCOUNTS = ("JobIDRaw", "State", "ExitCode", "ConsumedEnergyRaw", "Start", "End")

#: Larger values are Slurm's marks of an unknown one (NO_VAL64) or damage. The time is of year 9999.
_MAX_ENERGY_J, _MAX_TIME_S = 1e18, 253_402_300_799.0


class Unreachable(WattlawError):
    """Slurm's controller does not answer; it may later."""


@dataclass(frozen=True)
class Job:
    """One job as the queue tells it."""

    id: str
    state: str
    name: str
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None  # that ended the batch script; 0 for none

    @property
    def is_over(self) -> bool:
        """Say whether it has ended for good."""
        return self.state in FINAL

    @property
    def is_queued(self) -> bool:
        """Say whether it waits for its nodes."""
        return self.state == "PENDING"


@dataclass(frozen=True)
class Account:
    """One job, or step of one, as the accounting tells it."""

    id: str
    state: str
    exit_code: int | None
    signal: int | None
    energy_j: float | None
    start_s: float | None
    end_s: float | None


def submit(words: Sequence[str]) -> str:
    """Submit a job and return its id.

    Raises
    ------
    ResourcesBusy
        The site lets a user have only so many jobs, and they are there.
    Unreachable
        The controller does not answer; the job may be in the queue all the same.
    NotAvailable
        The site refuses the job, or there is no Slurm here.
    """
    answer = _run(["sbatch", "--parsable", *words])
    job_id = answer.strip().rpartition("\n")[2].split(";")[0].strip()
    if not job_id:
        raise Unreachable("sbatch printed no job id; 'squeue --me' shows whether the job is queued")
    return job_id


def queue() -> list[Job]:
    """Return this user's jobs, those that ended lately (``MinJobAge``) too; one question for all.

    Raises
    ------
    Unreachable
        The controller does not answer.
    NotAvailable
        There is no Slurm here.
    """
    columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    told = _run(["squeue", "--me", "--noheader", "--states=all", f"--Format={columns}"])
    return parse_jobs(told)


def parse_jobs(told: str) -> list[Job]:
    """Return the jobs in what ``squeue`` printed, in columns of fixed width."""
    found = []
    for line in told.splitlines():
        values, place = {}, 0
        for name, width in _COLUMNS.items():
            values[name] = line[place : place + width].strip()
            place += width
        if values["JobID"]:
            found.append(
                Job(
                    id=values["JobID"],
                    state=values["State"],
                    name=values["Name"],
                    reason=values["Reason"],
                    exit_code=_ended(values["exit_code"])[0],
                    signal=_ended(values["exit_code"])[1],
                )
            )
    return found


def cancel(job_ids: Sequence[str]) -> None:
    """Cancel jobs; those that have ended already are no error.

    Raises
    ------
    Unreachable
        The controller does not answer.
    """
    if job_ids:
        _run(["scancel", "--quiet", *job_ids])


def requeue(job_id: str) -> bool:
    """Put a job back into the queue, from inside of it; return whether Slurm does it."""
    try:
        _run(["scontrol", "requeue", job_id])
    except WattlawError:
        return False
    return True


def accounts(job_ids: Sequence[str]) -> list[Account]:
    """Return what the accounting knows of jobs and their steps; nothing where there is none.

    Raises
    ------
    Unreachable
        The accounting does not answer.
    """
    if not job_ids:
        return []
    line = ["sacct", "--noheader", "--parsable2", f"--format={','.join(_ACCOUNTS)}"]
    try:
        return parse_accounts(_run([*line, f"--jobs={','.join(job_ids)}"]))
    except NotAvailable:  # accounting is switched off at this site, or has no command here
        return []


def parse_accounts(told: str) -> list[Account]:
    """Return the rows that ``sacct --parsable2`` printed, times in seconds since 1970."""
    found = []
    for line in told.splitlines():
        words = line.split("|")
        if len(words) == len(_ACCOUNTS) and words[0]:
            job_id, state, code, energy, start, end = words
            found.append(
                Account(
                    id=job_id,
                    state=state.split()[0] if state else "",  # as "CANCELLED by 1000"
                    exit_code=_ended(code)[0],
                    signal=_ended(code)[1],
                    energy_j=_number(energy, _MAX_ENERGY_J) or None,  # 0: a site without meters
                    start_s=_number(start, _MAX_TIME_S),
                    end_s=_number(end, _MAX_TIME_S),
                )
            )
    return found


def hostnames(node_list: str) -> tuple[str, ...]:
    """Return the nodes that a list such as ``node[1-2,7]`` names; no question to the controller."""
    try:
        return tuple(_run(["scontrol", "show", "hostnames", node_list]).split())
    except WattlawError:
        return ()


def version() -> str | None:
    """Return Slurm's version as its commands tell it."""
    try:
        return _run(["srun", "--version"]).split()[-1]
    except (WattlawError, IndexError):
        return None


def _run(line: list[str]) -> str:
    """Run a command and return what it printed.

    Variables of a job that we may be in ourselves would be taken for options of a new one.
    """
    inherited = {
        name: value
        for name, value in user_environment().items()
        if not name.startswith("SLURM_") or name.startswith("SLURM_CONF")
    }
    try:
        done = subprocess.run(
            line,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_ANSWERS_S,
            check=False,
            env=inherited | {"SLURM_TIME_FORMAT": "%s"},
        )
    except FileNotFoundError:
        raise NotAvailable(f"{line[0]}: not there; Slurm's commands are needed here") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{line[0]}: no answer within {_ANSWERS_S} s") from None
    if done.returncode == 0:
        return done.stdout
    lines = [one.removeprefix(f"{line[0]}: ") for one in done.stderr.splitlines()]
    said = "; ".join(dict.fromkeys(" ".join(one.split()) for one in lines if one.strip()))
    words = said.replace("error: ", "")[:500] or f"exit code {done.returncode}"
    told = words.lower()
    if any(sign in told for sign in _NO_CONTACT):
        raise Unreachable(f"{line[0]}: {words}")
    if any(sign in told for sign in _LIMIT_OF_JOBS):
        raise ResourcesBusy(f"{line[0]}: {words}")
    raise NotAvailable(f"{line[0]}: {words}")


def _ended(told: str) -> tuple[int | None, int | None]:
    """Return exit code and signal: sacct tells them as ``1:0``, squeue as wait(2) does."""
    code, colon, number = told.partition(":")
    if not re.fullmatch("[0-9]{1,9}", code) or (colon and not re.fullmatch("[0-9]{1,9}", number)):
        return None, None
    return (int(code), int(number)) if colon else (int(code) >> 8, int(code) & 0x7F)


def _number(told: str, largest: float) -> float | None:
    """Return a number that sacct printed; None where it is none, negative, or too large."""
    try:
        number = float(told)
    except ValueError:
        return None
    return number if 0 <= number <= largest else None
