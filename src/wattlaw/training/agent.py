"""The node agent: one per host and run. It holds the sampler and torchrun's elastic agent.

``python -m wattlaw.training.agent RUN_FOLDER ATTEMPT --workers N --parent-pid PID``. Options that
it does not know go to torchrun: how the agents of several nodes meet.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from wattlaw import processes
from wattlaw.devices.meter import Target
from wattlaw.errors import BadInput
from wattlaw.store.files import write_text
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import Measure
from wattlaw.telemetry import sampler
from wattlaw.training import command
from wattlaw.training.handover import AGENT_PID, ATTEMPT, RUN_FOLDER

#: A sampler notices after 15 s at most that a driver hangs.
_SAMPLER_GRACE_S = 20.0
_READY_S = 15.0
#: Exit codes of a rank that was killed or crashed: not SIGTERM, with which torchrun ends the rest.
_KILLS = {-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS}


def main() -> int:
    """Run this node's part of a run; 0 when every worker ended well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("attempt", type=int)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    options, rendezvous = parser.parse_known_args()
    processes.end_with_parent(options.parent_pid)
    os.environ[AGENT_PID] = str(os.getpid())
    folder = RunFolder(options.folder)
    record = folder.read()
    if record is None:
        raise BadInput(f"{folder.record_path}: not there")
    live = folder.live(options.attempt)
    is_command = record.spec.workload.command is not None
    with _sampling(live, record.spec.measure, wait=is_command):
        line = [*(rendezvous or ["--standalone"]), "--nproc-per-node", str(options.workers), "-m"]
        if not is_command:
            line += ["wattlaw.training.worker", str(folder.path), str(options.attempt)]
            return _train(folder, options.attempt, line)
        os.environ[RUN_FOLDER] = str(folder.path.resolve())
        os.environ[ATTEMPT] = str(options.attempt)
        line += ["wattlaw.training.command_rank", *command.words_of(record)]
        import torch.distributed.run  # noqa: F401 - seconds that are no part of the command

        start_ns, start_s = time.time_ns(), time.perf_counter()
        code = _train(folder, options.attempt, line)
        command.bring_windows(live, start_ns, time.perf_counter() - start_s)
        return code


@contextlib.contextmanager
def _sampling(live: Path, measure: Measure, *, wait: bool) -> Iterator[None]:
    """Keep a sampler on this process tree; when it goes away early, training goes on.

    With ``wait`` its meters are open first: for a command, which may be one window from its start.
    """
    target = Target(os.getpid(), 1 / measure.sample_hz, measure.assume_cpu_w)
    line = sampler.command(live, socket.gethostname(), target)
    process = subprocess.Popen(line, start_new_session=True)
    stream, end_s = sampler.stream_path(live, socket.gethostname()), time.monotonic() + _READY_S
    while wait and not stream.exists() and process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.005)
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SAMPLER_GRACE_S)
        process.kill()


def _train(folder: RunFolder, attempt: int, line: list[str]) -> int:
    """Run the workers of a torchrun command line; 0 when all of them ended well."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    try:
        run(get_args_parser().parse_args(line))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        live = folder.live(attempt)
        codes = {rank: found.exitcode for rank, found in error.failures.items()}
        reason = _killed(codes) or _told(live) or f"rank {rank} {_ended(failure.exitcode)}"
        if "wattlaw.training.command_rank" in line:
            said = command.first_error(folder.log_path, attempt)
            reason += f": {said}" if said else ""
        write_text(live / f"failure.{socket.gethostname()}.json", json.dumps({"reason": reason}))
        return 1
    except SignalException as error:
        print(f"agent ended by {error.sigval.name}", file=sys.stderr)
        return 1
    return 0


def _killed(codes: dict[int, int]) -> str | None:
    """Return which rank was killed from outside; what the others say then is a consequence."""
    for rank, code in sorted(codes.items()):
        if code in _KILLS:
            return f"rank {rank} {_ended(code)}"
    return None


def _told(live: Path) -> str | None:
    """Return what the first rank to fail said of it."""
    told = [json.loads(path.read_text(encoding="utf-8")) for path in live.glob("error.*.json")]
    if not told:
        return None
    first = min(told, key=lambda one: float(one["time_s"]))
    return f"rank {first['rank']}: {first['reason']}"


def _ended(code: int) -> str:
    if code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


if __name__ == "__main__":
    sys.exit(main())
