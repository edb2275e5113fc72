"""The node agent: one per host and run. It holds the sampler and torchrun's elastic agent.

``python -m wattlaw.training.agent RUN_FOLDER ATTEMPT --workers N --parent-pid PID``. Options that
it does not know go to torchrun: how the agents of several nodes meet.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from wattlaw import processes
from wattlaw.devices.meter import Target
from wattlaw.errors import BadInput, WattlawError
from wattlaw.files import write_text
from wattlaw.isolation import isolate, isolated_python
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import Measure
from wattlaw.telemetry import sampler
from wattlaw.training import command, failures
from wattlaw.training.clocks import Clocks, Endpoint
from wattlaw.training.environment import AGENT_PID, ATTEMPT, DISK_FULL, RUN_FOLDER, WARNS, host_name
from wattlaw.training.signal_forwarding import WORKER, forward_signals

#: A sampler notices after 15 s at most that a driver hangs.
_SAMPLER_GRACE_S = 20.0
_READY_S = 15.0
#: How long a shared file system may take to show what another host has written.
_LATE_S = 60.0
_COMMAND_RANK = "wattlaw.training.command_rank"


def main() -> int:
    """Run this node's part of a run, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("attempt", type=int)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--clock-endpoint", help="HOST:PORT of the first node")
    parser.add_argument("--clock-node", type=int, help="number of this node, the first is 0")
    parser.add_argument("--clock-nodes", type=int)
    options, rendezvous = parser.parse_known_args()
    isolate()
    processes.end_with_parent(options.parent_pid)
    clock = None
    if options.clock_endpoint:
        address, _, port = options.clock_endpoint.rpartition(":")
        clock = Endpoint(address, int(port), options.clock_node, options.clock_nodes)
    folder = RunFolder(options.folder)
    return run_agent(folder, options.attempt, options.workers, rendezvous, clock=clock)


def run_agent(
    folder: RunFolder,
    attempt: int,
    workers: int,
    rendezvous: Sequence[str],
    *,
    clock: Endpoint | None = None,
) -> int:
    """Run this node's part of an attempt; to be called on the main thread.

    A SIGUSR1 that this process gets is passed on to the workers. What it leaves in the attempt's
    live folder: ``failure.HOST.json`` with the reason, if it failed, and always
    ``ended.HOST.json`` with its code, after the sampler has ended.

    Parameters
    ----------
    folder, attempt
        Of the run, whose record may come up to a minute late.
    workers
        How many ranks this node has.
    rendezvous
        Options of torchrun that say how nodes meet; none for a single node.
    clock
        Where the clocks of several nodes are compared.

    Returns
    -------
    int
        0 when every worker ended well: at the run's end, or after a warning
        (``stopped.json`` says so). Otherwise ``handover.DISK_FULL`` where the disk is so full that
        it cannot be told, and else 1.
    """
    live, host, code = folder.live(attempt), host_name(), 1
    os.environ[AGENT_PID] = str(os.getpid())
    try:
        with forward_signals():
            code = _run(folder, attempt, workers, rendezvous, clock)
    except Exception as error:
        code = _fail(live, "told", failures.reason_of(error))
        if not isinstance(error, WattlawError):
            _say(traceback.format_exc())
    finally:
        try:
            write_text(live / f"ended.{host}.json", json.dumps({"code": code}))
        except OSError as error:
            _say(str(error))
    return code


def _run(
    folder: RunFolder,
    attempt: int,
    workers: int,
    rendezvous: Sequence[str],
    clock: Endpoint | None,
) -> int:
    record, live = _awaited(folder, attempt), folder.live(attempt)
    live.mkdir(parents=True, exist_ok=True)
    is_command = record.spec.workload.command is not None
    line = [*(rendezvous or ["--standalone"]), "--nproc-per-node", str(workers)]
    line += ["--no-python", *isolated_python("-u", "-m")]
    with _sampling(live, record.spec.measure, wait=is_command), Clocks(clock, live) as clocks:
        if is_command:
            os.environ[RUN_FOLDER] = str(folder.path.resolve())
            os.environ[ATTEMPT] = str(attempt)
            line += [_COMMAND_RANK, *command.command_arguments(record)]
        else:
            line += [WORKER, str(folder.path), str(attempt)]
        with processes.collector_paused():
            import torch.distributed.run  # noqa: F401 - seconds that are no part of a command
        clocks.compare("begin")
        start_ns, start_s = time.time_ns(), time.perf_counter()
        code = _train(folder, attempt, line)
        if is_command:
            command.bring_windows(live, start_ns, time.perf_counter() - start_s)
        if code == 0:
            clocks.compare("end")
        return code


def _awaited(folder: RunFolder, attempt: int) -> RunRecord:
    """Return the record of a run once it is of an attempt, or a later one."""
    end_s = time.monotonic() + _LATE_S
    while True:
        record = folder.read()
        if record is not None and record.attempts >= attempt:
            return record
        if time.monotonic() > end_s:
            found = "not there" if record is None else f"of attempt {record.attempts}"
            raise BadInput(f"{folder.record_path}: {found}; needed: the record of {attempt}")
        time.sleep(0.2)


@contextlib.contextmanager
def _sampling(live: Path, measure: Measure, *, wait: bool) -> Iterator[None]:
    """Keep a sampler on this process tree; when it goes away early, training goes on.

    With ``wait`` its meters are open first: for a command, which may be one window from its start.
    """
    target = Target(os.getpid(), 1 / measure.sample_hz, measure.assume_cpu_w)
    line = sampler.command(live, host_name(), target, handles_sigterm=WARNS not in os.environ)
    process = subprocess.Popen(line, start_new_session=True)
    stream, end_s = sampler.stream_path(live, host_name()), time.monotonic() + _READY_S
    while wait and not stream.exists() and process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.005)
    try:
        yield
    finally:
        process.send_signal(sampler.END)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SAMPLER_GRACE_S)
        process.kill()


def _train(folder: RunFolder, attempt: int, line: list[str]) -> int:
    """Run the workers of a torchrun command line; 0 when all of them ended well."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    live = folder.live(attempt)
    try:
        run(get_args_parser().parse_args(line))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        codes = {rank: found.exitcode for rank, found in error.failures.items()}
        kind, reason = failures.of_ranks(live, codes, error.get_first_failure()[0])
        if _COMMAND_RANK in line:
            said = command.first_error(folder.log_path, attempt)
            reason += f": {said}" if said else ""
        return _fail(live, kind, reason)
    except SignalException as error:
        _say(f"ended by {error.sigval.name}")
        return _fail(live, "asked", f"the node agent was ended by {error.sigval.name}")
    return 0


def _fail(live: Path, kind: failures.Kind, reason: str) -> int:
    """Tell why this node's part failed; return the agent's exit code."""
    try:
        failures.write_failure(live, host_name(), kind, reason)
    except OSError as error:
        _say(f"{reason}; {error}")
        return DISK_FULL if failures.no_room(error) else 1
    return 1


def _say(words: str) -> None:
    """Print for the run's log, which may be on a disk that is full."""
    with contextlib.suppress(OSError):
        print(f"agent: {words}", file=sys.stderr)


if __name__ == "__main__":
    code = main()
    if code == DISK_FULL:
        os._exit(code)  # what is printed at the end may find no room, and would change the code
    sys.exit(code)
