"""Why an attempt failed: told by the rank that failed, by its host's agent, read by who asks."""

import errno
import json
import math
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from wattlaw.errors import one_line
from wattlaw.files import read_text, write_text
from wattlaw.training.environment import DISK_FULL

#: How sure a host can be that its reason is no consequence of another's, from most to least.
Kind = Literal["killed", "told", "ended", "asked"]
_KINDS = ("killed", "told", "ended", "asked")
#: Exit codes of a rank that was killed or crashed: not SIGTERM, with which torchrun ends the rest.
_KILLS = {-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_FULL = "the disk is full"


def reason_of(error: BaseException) -> str:
    """Return an error on one line; with what to do where a batch or a file does not fit."""
    words = one_line(error)
    full = no_room(error)
    if full is not None:
        return f"{_FULL}: {one_line(full)[:300]}; make room there, and the run can be started again"
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in words:
        return (
            "out of memory: the local batch does not fit; try a smaller one, "
            f"or train.gradient_accumulation, which keeps the global batch ({words[:300]})"
        )
    return words


def no_room(error: BaseException | None) -> OSError | None:
    """Return the error that a disk or a quota is full, which another one may come from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def write_error(live: Path, rank: int, error: BaseException) -> None:
    """Tell why a rank failed.

    Raises
    ------
    OSError
        It cannot be written.
    """
    told = {"rank": rank, "time_s": time.time(), "reason": reason_of(error)}
    write_text(live / f"error.{rank}.json", json.dumps(told))


def write_failure(live: Path, host: str, kind: Kind, reason: str) -> None:
    """Tell why a host's part of an attempt failed; what it has told already stays.

    Raises
    ------
    OSError
        It cannot be written.
    """
    path = live / f"failure.{host}.json"
    if not path.exists():
        told = {"reason": reason, "kind": kind, "time_s": time.time()}
        write_text(path, json.dumps(told))


def first_failure(live: Path) -> str | None:
    """Return why an attempt failed, from the host that is most likely the first; None if untold."""
    told = read_failures(live)
    error = _first_error(live)  # of a rank whose agent may not have lived to pass it on
    if error is not None:
        told.append(_Told(reason=error, time_s=math.inf))
    told.sort(key=lambda one: (_KINDS.index(one.kind), one.time_s))
    return told[0].reason if told else None


class _Told(BaseModel):
    """``failure.HOST.json`` and ``error.RANK.json``."""

    reason: str
    kind: Kind = "told"
    time_s: float = 0.0
    rank: int | None = None


def read_failures(live: Path, pattern: str = "failure.*.json") -> list[_Told]:
    """Return what an attempt's files of a kind tell; a damaged one tells that it is."""
    found = []
    for path in sorted(live.glob(pattern)):
        try:
            found.append(_Told.model_validate_json(read_text(path)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            found.append(_Told(reason=f"{path} cannot be read", kind="ended", time_s=math.inf))
    return found


def _first_error(live: Path) -> str | None:
    """Return what the first rank to fail said of it."""
    told = read_failures(live, "error.*.json")
    if not told:
        return None
    first = min(told, key=lambda one: one.time_s)
    return first.reason if first.rank is None else f"rank {first.rank}: {first.reason}"


def of_ranks(live: Path, codes: Mapping[int, int], first: int) -> tuple[Kind, str]:
    """Return why a host's ranks failed.

    A kill from outside comes first: what the other ranks say then is a consequence. Otherwise the
    first rank of the run that has told its error is right, whichever host it is on.

    Parameters
    ----------
    live
        The attempt's live folder.
    codes
        The exit codes of the ranks that failed.
    first
        Which of them failed first.
    """
    for rank, code in sorted(codes.items()):
        if code in _KILLS:
            return "killed", f"rank {rank} {ended(code)}"
    told = _first_error(live)
    if told is not None:
        return "told", told
    for rank, code in sorted(codes.items()):
        if code == DISK_FULL:
            return "told", f"rank {rank}: {_FULL}, so that it could not write more than that"
    return "ended", f"rank {first} {ended(codes[first])}"


def ended(code: int) -> str:
    """Return in words how a process ended, from its code as ``subprocess`` tells it."""
    if code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def of_agent(code: int) -> str:
    """Return in words how a node agent ended that has told nothing, from its exit code."""
    if code == DISK_FULL:
        return f"{_FULL}, so that the node agent could not write why the run failed"
    return f"the node agent {'was ' if code < 0 else ''}{ended(code)}"
