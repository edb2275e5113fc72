"""Why an attempt failed: files that ranks and node agents write, and the first failure of all."""

import errno
import json
import math
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel

from wattlaw.errors import one_line
from wattlaw.files import read_text, write_text
from wattlaw.training.environment import DISK_FULL

#: How a host's part ended, from the most to the least likely to be the first failure: a rank was
#: killed, a rank raised an error, a rank exited without an error, the agent was terminated.
Kind = Literal["killed", "error", "exited", "terminated"]
_KINDS = get_args(Kind)
#: Exit codes of a rank that was killed or crashed. torchrun ends the other ranks with SIGTERM.
_KILLS = {-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS}
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL = "the disk is full"


def reason_of(error: BaseException) -> str:
    """Return an error on one line, with advice if the memory or the disk is full."""
    text = one_line(error)
    full = disk_full_error(error)
    if full is not None:
        return f"{_FULL}: {one_line(full)[:300]}; free some space and start the run again"
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in text:
        return (
            "out of memory: the local batch does not fit; try a smaller one, "
            f"or train.gradient_accumulation, which keeps the global batch ({text[:300]})"
        )
    return text


def disk_full_error(error: BaseException | None) -> OSError | None:
    """Return the error of a full disk or quota that ``error`` is or was raised from, or None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def write_error(live: Path, rank: int, error: BaseException) -> None:
    """Write ``error.RANK.json`` with the reason why a rank failed.

    Raises ``OSError`` if the file cannot be written.
    """
    failure = {"rank": rank, "time_s": time.time(), "reason": reason_of(error)}
    write_text(live / f"error.{rank}.json", json.dumps(failure))


def write_failure(live: Path, host: str, kind: Kind, reason: str) -> None:
    """Write ``failure.HOST.json`` with the reason why a host failed, unless the file exists.

    Raises ``OSError`` if the file cannot be written.
    """
    path = live / f"failure.{host}.json"
    if not path.exists():
        failure = {"reason": reason, "kind": kind, "time_s": time.time()}
        write_text(path, json.dumps(failure))


def first_failure(live: Path) -> str | None:
    """Return the reason of the most likely first failure of an attempt; None without any."""
    failures = read_failures(live)
    error = _first_error(live)  # the rank's agent may have been killed before it wrote a file
    if error is not None:
        failures.append(Failure(reason=error, time_s=math.inf))
    failures.sort(key=lambda failure: (_KINDS.index(failure.kind), failure.time_s))
    return failures[0].reason if failures else None


class Failure(BaseModel):
    """``failure.HOST.json`` and ``error.RANK.json``."""

    reason: str
    kind: Kind = "error"
    time_s: float = 0.0
    rank: int | None = None


def read_failures(live: Path, pattern: str = "failure.*.json") -> list[Failure]:
    """Return the failures in an attempt's files; a damaged file is a failure by itself."""
    failures = []
    for path in sorted(live.glob(pattern)):
        try:
            failures.append(Failure.model_validate_json(read_text(path)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            reason = f"{path} cannot be read"
            failures.append(Failure(reason=reason, kind="exited", time_s=math.inf))
    return failures


def _first_error(live: Path) -> str | None:
    """Return the error of the rank that failed first."""
    errors = read_failures(live, "error.*.json")
    if not errors:
        return None
    first = min(errors, key=lambda error: error.time_s)
    return first.reason if first.rank is None else f"rank {first.rank}: {first.reason}"


def reason_of_ranks(live: Path, codes: Mapping[int, int]) -> tuple[Kind, str]:
    """Return why a host's ranks failed, from their exit codes in the order of their failures.

    A kill comes first, because errors of other ranks are its consequences. The next candidate is
    the earliest error of any rank of the run, on any host.
    """
    for rank, code in sorted(codes.items()):
        if code in _KILLS:
            return "killed", f"rank {rank} {describe_exit(code)}"
    error = _first_error(live)
    if error is not None:
        return "error", error
    for rank, code in sorted(codes.items()):
        if code == DISK_FULL:
            return "error", f"rank {rank}: {_FULL}; details could not be written"
    rank, code = next(iter(codes.items()))
    return "exited", f"rank {rank} {describe_exit(code)}"


def describe_exit(code: int) -> str:
    """Return how a process ended, from its return code in ``subprocess``'s convention."""
    if code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def reason_of_agent(code: int) -> str:
    """Return how a node agent without a failure file ended, from its exit code."""
    if code == DISK_FULL:
        return f"{_FULL}; the node agent could not write why the run failed"
    return f"the node agent {'was ' if code < 0 else ''}{describe_exit(code)}"
