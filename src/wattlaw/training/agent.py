"""The node agent: one process per host and run. It starts the sampler and the ranks.

``python -m wattlaw.training.agent RUN_FOLDER ATTEMPT --workers N --parent-pid PID``. Unknown
options are passed to torchrun: they configure the rendezvous of several nodes.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from wattlaw import processes
from wattlaw.devices.meter import Target
from wattlaw.errors import BadInput, NotAvailable, WattlawError
from wattlaw.files import read_end, write_text
from wattlaw.isolation import isolate, isolated_python
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.command import substitute
from wattlaw.telemetry.sampler_process import SamplerProcess
from wattlaw.text import collapse_whitespace
from wattlaw.training import command_rank, failures
from wattlaw.training.clocks import Clocks, Endpoint
from wattlaw.training.command_steps import CommandSteps
from wattlaw.training.environment import AGENT_PID, ATTEMPT, DISK_FULL, RUN_FOLDER, WARNS, host_name
from wattlaw.training.rank_processes import (
    EndedBySignal,
    Node,
    run_launcher,
    run_ranks,
    run_torchrun,
)
from wattlaw.workloads import catalogue

#: How long a shared file system may take to show what another host has written.
_LATE_S = 60.0
_FORWARD_POLL_S = 0.2
#: The last line of a traceback, and error messages of Python and argparse.
_ERROR = re.compile(
    r"^(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?"
    r"|\S+: error: .*|.*: can't open file .*)$",
    re.MULTILINE,
)
_LONGEST = 300
WORKER = "wattlaw.training.worker"


def main() -> int:
    """Run this node's part of an attempt."""
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

    SIGUSR1 is forwarded to the workers. The record of the run may appear up to a minute late.
    ``rendezvous`` are options of torchrun; none for a single node. In the attempt's live folder
    this writes ``ended.HOST.json`` with the exit code, after the sampler has ended, and if it
    failed ``failure.HOST.json`` with the reason. The code is 0 if every worker succeeded or stopped
    after a preemption notice (``stopped.json``), ``environment.DISK_FULL`` if the disk is too full
    to write the reason of a failure, otherwise 1.
    """
    live, host, code = folder.live(attempt), host_name(), 1
    os.environ[AGENT_PID] = str(os.getpid())
    try:
        with forward_signals():
            code = _run(folder, attempt, workers, rendezvous, clock)
    except Exception as error:
        code = _fail(live, "error", failures.reason_of(error))
        if not isinstance(error, WattlawError):
            _log(traceback.format_exc())
    finally:
        try:
            write_text(live / f"ended.{host}.json", json.dumps({"code": code}))
        except OSError as error:
            _log(str(error))
    return code


def _run(
    folder: RunFolder, attempt: int, workers: int, rendezvous: Sequence[str], clock: Endpoint | None
) -> int:
    record, live = _wait_for_record(folder, attempt), folder.live(attempt)
    live.mkdir(parents=True, exist_ok=True)
    measure, is_command = record.spec.measure, record.spec.workload.command is not None
    run = _run_command if is_command else _run_workers
    target = Target(os.getpid(), 1 / measure.sample_hz, measure.assume_cpu_w)
    sampling = SamplerProcess(live, host_name(), target, handles_sigterm=WARNS not in os.environ)
    with sampling as sampler, Clocks(clock, live) as clocks:
        if is_command:
            sampler.wait_until_ready()  # the command may be one window from its start
        try:
            code = run(record, folder, workers, rendezvous, clocks)
        except EndedBySignal as error:
            _log(f"ended by {error}")
            code = _fail(live, "terminated", f"the node agent was ended by {error}")
        return code


def _run_workers(
    record: RunRecord, folder: RunFolder, workers: int, rendezvous: Sequence[str], clocks: Clocks
) -> int:
    """Run the ranks of a workload with torchrun; return the agent's exit code."""
    line = isolated_python("-u", "-m", WORKER, str(folder.path), str(record.attempts))
    line = [*(rendezvous or ["--standalone"]), "--nproc-per-node", str(workers), "--no-python",
            *line]  # fmt: skip
    if importlib.util.find_spec("torch") is None:
        raise NotAvailable(
            "torch is not installed; the ranks of a workload need it; try: "
            'pip install "wattlaw[train]"'
        )
    with processes.collector_paused():  # imported before a run begins, since that takes seconds
        import torch.distributed.run  # noqa: F401
    clocks.compare("begin")
    failed = run_torchrun(line)
    if failed:
        live = folder.live(record.attempts)
        return _fail(live, *failures.reason_of_ranks(live, failed))
    clocks.compare("end")
    return 0


def _run_command(
    record: RunRecord, folder: RunFolder, workers: int, rendezvous: Sequence[str], clocks: Clocks
) -> int:
    """Run the ranks of a command and write its windows; return the agent's exit code."""
    attempt, live, program = record.attempts, folder.live(record.attempts), launch_program(record)
    node = _node(rendezvous)
    line = [*isolated_python("-u", "-m", command_rank.__name__)]
    words = command_arguments(record)
    os.environ[RUN_FOLDER], os.environ[ATTEMPT] = str(folder.path.resolve()), str(attempt)
    code, failed, launcher_code = 0, dict[int, int](), 0
    with CommandSteps(record.spec, live, node.number) as steps:
        clocks.compare("begin")
        start_ns, start_s = time.time_ns(), time.perf_counter()
        try:
            if program is None:
                failed = run_ranks([*line, *words], workers, node, steps.are_complete)
            else:
                launch = _launcher_line(program, workers, rendezvous)
                launched = [*launch, *line, command_rank.LAUNCHED, *words]
                launcher_code = run_launcher(
                    [*line, command_rank.LAUNCHER, *launched], steps.are_complete
                )
            duration_s = time.perf_counter() - start_s
            if (wrong := steps.wrong_ranks()) is not None:
                code = _fail(live, "error", wrong)
            elif (failed or launcher_code) and not steps.were_complete():
                kind: failures.Kind = "exited"
                reason = f"{program} {failures.describe_exit(launcher_code)}"
                if failed:
                    kind, reason = failures.reason_of_ranks(live, failed)
                error = first_error(folder.log_path, attempt)
                code = _fail(live, kind, f"{reason}: {error}" if error else reason)
        except EndedBySignal:
            steps.write(start_ns, time.perf_counter() - start_s)
            raise
        if code == 0:
            clocks.compare("end")  # all nodes have ended, and their steps are recorded
        steps.write(start_ns, duration_s)
    return code


def launch_program(record: RunRecord) -> str | None:
    """Return the program that starts the ranks of a command; None if wattlaw starts them.

    Raises ``NotAvailable`` if it is missing here.
    """
    name = record.spec.workload.launch_with
    if name in ("auto", "none"):
        return None
    catalogue.check_launch_program(name)
    return name


def _launcher_line(program: str, workers: int, rendezvous: Sequence[str]) -> list[str]:
    """Return the start of the command line with which a program starts ranks on this node."""
    if program == "torchrun":
        where = rendezvous if "--nnodes" in rendezvous else ["--standalone"]
        return [program, *where, "--nproc-per-node", str(workers), "--no-python"]
    if program == "srun":
        return [program, "--overlap", "--nodes", "1", "--ntasks", str(workers)]
    return [program, "-n", str(workers)]


def _node(rendezvous: Sequence[str]) -> Node:
    """Return this node's place from torchrun's options for several nodes."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int)
    options, _ = parser.parse_known_args([*rendezvous])
    return Node(options.node_rank, options.nnodes, options.master_addr, options.master_port)


def command_arguments(record: RunRecord) -> list[str]:
    """Return the command of a run with the values of its setting inserted."""
    spec = record.spec
    values: dict[str, object] = {
        **spec.setting.model_dump(),
        **spec.measure.model_dump(),
        "python": sys.executable,
        "seed": record.seed,
        "repeat": spec.repeat,
    }
    return [substitute(word, values) for word in spec.workload.command or ()]


def first_error(log: Path, attempt: int) -> str | None:
    """Return the first error message of a Python program in the log of an attempt."""
    try:
        text = read_end(log)
    except OSError:
        return None
    error = _ERROR.search(text.rpartition(f"== attempt {attempt},")[2])
    return collapse_whitespace(error[1])[:_LONGEST] if error else None


def _wait_for_record(folder: RunFolder, attempt: int) -> RunRecord:
    """Return the record of a run once it shows an attempt, or a later one."""
    end_s = time.monotonic() + _LATE_S
    while True:
        record = folder.read()
        if record is not None and record.attempts >= attempt:
            return record
        if time.monotonic() > end_s:
            state = "not there" if record is None else f"the record of attempt {record.attempts}"
            raise BadInput(f"{folder.record_path}: {state}; needed: the record of {attempt}")
        time.sleep(0.2)


def _fail(live: Path, kind: failures.Kind, reason: str) -> int:
    """Write why this node's part failed; return the agent's exit code."""
    try:
        failures.write_failure(live, host_name(), kind, reason)
    except OSError as error:
        _log(f"{reason}; {error}")
        return DISK_FULL if failures.disk_full_error(error) else 1
    return 1


def _log(message: str) -> None:
    """Print to the run's log, which may be on a full disk."""
    with contextlib.suppress(OSError):
        print(f"agent: {message}", file=sys.stderr)


@contextlib.contextmanager
def forward_signals() -> Iterator[None]:
    """Forward the SIGUSR1 of this process to every worker; to be called on the main thread.

    Workers that start after the signal get it too. Processes that are started in the block inherit
    SIGUSR1 blocked, so that a signal to the full process tree kills neither the sampler nor a
    worker that still imports its libraries. The worker unblocks it (``training.preemption``).
    """
    forwarder = _SignalForwarder()
    handler = signal.signal(signal.SIGUSR1, forwarder.notice)
    forwarder.start()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        forwarder.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, handler)


class _SignalForwarder(threading.Thread):
    """Sends signals in its own thread, because torchrun occupies the main thread."""

    def __init__(self) -> None:
        super().__init__(name="wattlaw-signal-forwarder", daemon=True)
        self._received = False
        self._over = threading.Event()
        self._signalled: set[psutil.Process] = set()

    def notice(self, *_: object) -> None:
        """Handle SIGUSR1."""
        self._received = True

    def run(self) -> None:
        """Signal new workers until the end; SIGUSR1 is unblocked in this thread only."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        while not self._over.wait(_FORWARD_POLL_S):
            if self._received:
                self._signal_workers()

    def end(self) -> None:
        """End the thread."""
        self._over.set()
        self.join()

    def _signal_workers(self) -> None:
        for child in psutil.Process(os.getpid()).children():
            with contextlib.suppress(psutil.Error):
                if child not in self._signalled and WORKER in child.cmdline():
                    child.send_signal(signal.SIGUSR1)
                    self._signalled.add(child)


if __name__ == "__main__":
    code = main()
    if code == DISK_FULL:
        os._exit(code)  # output that does not fit on the disk would change the exit code
    sys.exit(code)
