"""Measures any command: its time, its energy, its use of the machine."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattlaw.devices.nvidia.driver import visible_gpu_ids
from wattlaw.errors import BadInput, NotAvailable
from wattlaw.isolation import user_environment
from wattlaw.launch.finish import write_limits
from wattlaw.launch.job_step import JobStep
from wattlaw.launch.node_setup import lease_boards, restore_stale_limits
from wattlaw.launch.recording import Recording
from wattlaw.limits.guard import LimitLease
from wattlaw.limits.requests import Limits
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.model import Measure, RunSpec, Setting, WorkloadSpec

WORKLOAD, KIND, PHASE = "command", "measure", "command"
#: Exit codes of a shell: for a command that was ended by a signal, and one that cannot be executed.
_SIGNALLED, _CANNOT_RUN = 128, 126
_FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
)


@dataclass(frozen=True)
class MeasuredCommand:
    """The exit code and the run of a measured command.

    Of the tasks of one ``srun``, only the first has the record of their run.
    """

    exit_code: int
    record: RunRecord | None
    folder: RunFolder | None


def measure(
    command: Sequence[str],
    store: Path,
    *,
    limits: Limits,
    prior_clocks_are_default: bool = False,
    sample_hz: float = 10.0,
    assume_cpu_w: float | None = None,
) -> MeasuredCommand:
    """Run a command to its end with a sampler, and store it as a run.

    The command has the input and output of this process, and gets its signals.

    Raises
    ------
    BadInput
        The command does not exist.
    wattlaw.errors.NotAvailable
        The store cannot be written, or the limits cannot be set; the command was not started.
    """
    if not command:
        raise BadInput("measure: a command is required")
    if shutil.which(command[0]) is None:
        raise BadInput(f"measure: no such command: {command[0]!a}")
    restore_stale_limits()
    boards, step = visible_gpu_ids(), JobStep.of_environment()
    nodes = 1 if step is None else step.nodes
    spec = RunSpec(
        workload=WorkloadSpec(name=WORKLOAD, options={"command": [_text(w) for w in command]}),
        setting=Setting(
            gpus=max(1, len(boards)) * nodes,
            power_limit_w=limits.power_limit_w,
            clock_limit_mhz=limits.clock_limit_mhz,
        ),
        repeat=0,
        measure=Measure(
            epochs=1,
            warmup_epochs=0,
            sample_hz=sample_hz,
            evaluate=False,
            assume_cpu_w=assume_cpu_w,
        ),
        launch_kind=KIND,
        nodes=nodes,
    )
    recording = Recording(Store(store), spec, step=step)
    lease = None
    if not limits.are_none and (step is None or step.local_task == 0):
        lease = lease_boards(limits, boards, prior_clocks_are_default=prior_clocks_are_default)
    try:
        applied = lease.apply(limits) if lease is not None else ()
        try:
            recording.begin()
        except NotAvailable as error:
            if step is None or step.task == 0:
                raise
            print(f"wattlaw: {error}", file=sys.stderr)
            return MeasuredCommand(_exit_code(_run(command)), None, None)
        if applied:
            write_limits(recording.live, recording.host, applied)
        start_ns, start_s = time.time_ns(), time.perf_counter()
        code = _run(command)
        duration_s = time.perf_counter() - start_s
    finally:
        notes = _release(lease)
    recording.window(epoch=0, phase=PHASE, warmup=False, start_ns=start_ns, duration_s=duration_s)
    record = recording.end(_reason(code), notes=notes)
    return MeasuredCommand(_exit_code(code), record, recording.folder)


def _exit_code(code: int) -> int:
    """Return a shell's exit code for a code in Popen's convention."""
    return code if code >= 0 else _SIGNALLED - code


def _release(lease: LimitLease | None) -> tuple[str, ...]:
    """Restore the limits; print an error and return it as a note."""
    try:
        if lease is not None:
            lease.release()
    except NotAvailable as error:
        print(f"wattlaw: {error}", file=sys.stderr)
        return (str(error),)
    return ()


def _run(command: Sequence[str]) -> int:
    """Run a command and forward signals to it; return its code in Popen's convention."""
    sys.stdout.flush()
    sys.stderr.flush()
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _: object) -> None:
        if process is None:
            early.append(number)
        elif process.poll() is None and not _came_from_terminal(number):
            process.send_signal(number)

    handled = [n for n in _FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, forward) for n in handled}
    try:
        try:
            process = subprocess.Popen(list(command), env=user_environment())
        except OSError as error:
            print(f"wattlaw: {command[0]}: cannot be run: {error.strerror}", file=sys.stderr)
            return _CANNOT_RUN
        for number in early:
            process.send_signal(number)
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _came_from_terminal(number: int) -> bool:
    """Say whether a key of the terminal sent a signal, which the command then gets directly."""
    if number not in (signal.SIGINT, signal.SIGQUIT):
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _text(word: str) -> str:
    """Return a word of a command line as text; other bytes become escapes."""
    return os.fsencode(word).decode("utf-8", "backslashreplace")


def _reason(code: int) -> str | None:
    if code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}" if code else None
