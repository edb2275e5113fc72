"""Why an attempt failed: files that ranks and node agents write, and the first failure of all."""

import contextlib
import errno
import json
import math
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel

from wattlaw.common.errors import one_line
from wattlaw.common.files import read_text, write_text
from wattlaw.running.training.environment import DISK_FULL
from wattlaw.study.out_of_memory import memory_that_ran_out

#: How a rank or a host's part ended, from the most to the least likely to be the first failure: it
#: did not start, as its limits cannot be set; a rank was killed, raised an error, exited without
#: one, or lost the connection to another rank; the agent was terminated.
Kind = Literal["refused", "killed", "error", "exited", "disconnected", "terminated"]
_KINDS = get_args(Kind)
#: Errors of a rank that another one has left: of torch.distributed, Gloo, NCCL and sockets; and of
#: torchrun, whose ranks have failed.
_DISCONNECTED = re.compile(
    r"\b(Dist(Backend|Network|Store)?|Rendezvous\w*|ChildFailed)Error\b|\bSignalException\b"
    r"|\bgloo/|\bNCCL\b"
    r"|\b(Connection(Reset|Aborted|Refused)|BrokenPipe)Error\b"
    r"|\b(connection|socket) (was )?(closed|reset|lost)\b|\bbroken pipe\b",
    re.IGNORECASE,
)
#: Exit codes of a rank that was killed or crashed. The agent ends the other ranks with SIGTERM.
_KILLS = {-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS}
_FULL = "the disk is full"
#: What the reason of a kill ends with where the kernel counted one for lack of memory.
KILLED_FOR_MEMORY = "by the kernel's out-of-memory killer"


class Failure(BaseModel):
    """``failure.HOST.json`` and ``error.RANK.json``."""

    reason: str
    kind: Kind = "error"
    time_s: float = 0.0
    rank: int | None = None


def reason_of(error: BaseException) -> str:
    text = one_line(error)
    full = disk_full_error(error)
    if full is not None:
        return f"{_FULL}: {one_line(full)[:300]}; free some space and start the run again"
    if memory_that_ran_out(text):
        return (
            "out of memory: the local batch does not fit; try a smaller one, "
            f"or train.gradient_accumulation, which keeps the global batch ({text[:300]})"
        )
    return text


def disk_full_error(error: BaseException | None) -> OSError | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def kind_of_error(text: str) -> Kind:
    return "disconnected" if _DISCONNECTED.search(text) else "error"


def write_error(live: Path, rank: int, error: BaseException) -> None:
    reason = reason_of(error)
    kind = "exited" if isinstance(error, KeyboardInterrupt) else kind_of_error(reason)
    failure = {"rank": rank, "time_s": time.time(), "reason": reason, "kind": kind}
    write_text(live / f"error.{rank}.json", json.dumps(failure))


def write_failure(live: Path, host: str, kind: Kind, reason: str) -> None:
    path = live / f"failure.{host}.json"
    if not path.exists():  # the first one counts
        failure = {"reason": reason, "kind": kind, "time_s": time.time()}
        write_text(path, json.dumps(failure))


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


def _first(failures: list[Failure]) -> Failure | None:
    return min(failures, key=lambda one: (_KINDS.index(one.kind), one.time_s), default=None)


def _first_error(live: Path) -> Failure | None:
    first = _first(read_failures(live, "error.*.json"))
    if first is None or first.rank is None:
        return first
    return first.model_copy(update={"reason": f"rank {first.rank}: {first.reason}"})


def first_failure(live: Path) -> Failure | None:
    failures = read_failures(live)
    error = _first_error(live)  # the rank's agent may have been killed before it wrote a file
    if error is not None:
        failures.append(error.model_copy(update={"time_s": math.inf}))
    return _first(failures)


def cause(live: Path) -> str | None:
    failure = first_failure(live)
    return failure.reason if failure and failure.kind in ("killed", "error") else None


def oom_kills() -> int:
    """Return how many processes of this control group the kernel has killed for lack of memory;
    without a group, of this machine."""
    counts = []
    with contextlib.suppress(OSError):
        group = Path("/proc/self/cgroup").read_text(encoding="ascii").rpartition("::")[2].strip()
        counts.append(Path(f"/sys/fs/cgroup{group}/memory.events"))
    for path in (*counts, Path("/proc/vmstat")):
        with contextlib.suppress(OSError):
            if found := re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE):
                return int(found[1])
    return 0


def reason_of_ranks(
    live: Path, codes: Mapping[int, int], oom_kills_before: int | None = None
) -> tuple[Kind, str]:
    """Return why a host's ranks failed, from their exit codes in the order of their failures.

    A kill comes first, because errors of other ranks are its consequences. The next candidate is
    the earliest error of any rank of the run, on any host. A lost connection is the last one.
    """
    for rank, code in sorted(codes.items()):
        if code in _KILLS:
            reason = f"rank {rank} {describe_exit(code)}"
            is_counted = oom_kills_before is not None and oom_kills() > oom_kills_before
            is_for_memory = code == -signal.SIGKILL and is_counted
            return "killed", f"{reason}, {KILLED_FOR_MEMORY}" if is_for_memory else reason
    error = _first_error(live)
    if error is not None and error.kind == "error":
        return error.kind, error.reason
    for rank, code in sorted(codes.items()):
        if code == DISK_FULL:
            return "error", f"rank {rank}: {_FULL}; details could not be written"
    without_error = [rank for rank in codes if not (live / f"error.{rank}.json").exists()]
    if error is not None and not without_error:
        return error.kind, error.reason
    rank = next(iter(without_error or codes))
    return "exited", f"rank {rank} {describe_exit(codes[rank])}"


def describe_exit(code: int) -> str:
    if code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def reason_of_agent(code: int) -> str:  # one without a failure file
    if code == DISK_FULL:
        return f"{_FULL}; the node agent could not write why the run failed"
    return f"the node agent {'was ' if code < 0 else ''}{describe_exit(code)}"
