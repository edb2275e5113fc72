"""Measures any command: its time, its energy, its use of the machine."""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.isolation import user_environment
from wattlaw.common.processes import handling
from wattlaw.common.terminal import escape_invisible
from wattlaw.measure.devices.inventory import visible_devices
from wattlaw.measure.limits.requests import Limits
from wattlaw.running.command_processes import CommandProcesses
from wattlaw.running.finish import write_limits
from wattlaw.running.instrumentation import instrumented_environment
from wattlaw.running.instrumentation.observer import RUN, StepObserver
from wattlaw.running.instrumentation.printed_progress import ProgressReader, progress_pattern
from wattlaw.running.instrumentation.steady_state import MeasuredPart, StepSummary
from wattlaw.running.node_setup import lease_boards, restore_stale_limits
from wattlaw.running.recording import JobStep, Recording
from wattlaw.running.training.environment import threads_of
from wattlaw.running.training.failures import KILLED_FOR_MEMORY, oom_kills
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.base_model import PowerProfile
from wattlaw.study.model import Measure, RunSpec, WorkloadSpec
from wattlaw.study.setting import Setting

WORKLOAD, KIND = "command", "measure"
#: Exit codes of a shell: of a command that a signal ended, that cannot be executed, that is absent.
_SIGNALLED, _CANNOT_RUN, _ABSENT = 128, 126, 127
_FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
)
#: Those that stop a command from outside.
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How often steps and output are read.
_POLL_S = 0.1
#: A second Ctrl-C within this time is the first one, from the terminal and from a parent process.
_SAME_KEY_S = 0.1
_PIECE_BYTES = 64 * 1024


class CommandUnusable(BadInput):
    """A command that is absent or not executable; the exit code is that of a shell."""

    def __init__(self, command: str) -> None:
        is_absent = shutil.which(command, os.F_OK) is None and not Path(command).is_dir()
        reason = "no such command" if is_absent else "not an executable file"
        super().__init__(f"{command!a}: {reason}")
        self.exit_code = _ABSENT if is_absent else _CANNOT_RUN


@dataclass(frozen=True)
class MeasuredCommand:
    exit_code: int
    record: RunRecord | None = None  # of several tasks of one srun, only the first has it
    folder: RunFolder | None = None
    steps: StepSummary | None = None


def measure(
    command: Sequence[str],
    store: Path,
    *,
    limits: Limits,
    prior_clocks_are_default: bool,
    sample_hz: float,
    assume_cpu_w: float | None,
    part: MeasuredPart,
    instrument: bool,
    pattern: str | None,
    variables: Mapping[str, str] | None = None,
) -> MeasuredCommand:
    """Run a command with a sampler, and store it as a run.

    The command has the input and output of this process, and gets its signals. It runs to its end,
    or until every rank has the steps of a limited ``part``; then the exit code is 0. Steps are seen
    by the hook (``instrument``) or by a pattern for lines of the output. ``variables`` are added to
    its environment. Raises ``BadInput`` for a
    command that cannot be used, and ``NotAvailable``, before it starts, for a store or limits that
    cannot be written.
    """
    progress = _progress(command, part, pattern, instrument=instrument)
    restore_stale_limits()
    devices, step = visible_devices(), JobStep.of_environment()
    nodes = 1 if step is None else step.nodes
    measured = Measure(
        epochs=1, warmup_epochs=0, sample_hz=sample_hz, evaluate=False, assume_cpu_w=assume_cpu_w
    )
    spec = RunSpec(
        workload=WorkloadSpec(name=WORKLOAD, options=_options(command, part)),
        setting=Setting(
            gpus=max(1, len(devices)) * nodes,
            power_limit_w=limits.power_limit_w,
            clock_limit_mhz=limits.clock_limit_mhz,
            power_profile=cast(PowerProfile | None, limits.power_profile),
        ),
        repeat=0,
        measure=measured,
        launch_kind=KIND,
        nodes=nodes,
    )
    recording = Recording(Store(store), spec, step=step)
    lease, notes = None, list[str]()
    if not limits.are_none and (step is None or step.local_task == 0):
        boards = list(dict.fromkeys(devices.values()))
        lease = lease_boards(limits, boards, prior_clocks_are_default=prior_clocks_are_default)
    try:
        applied = lease.apply(limits) if lease is not None else ()
        environment = user_environment() | dict(variables or {})
        try:
            recording.begin()
        except NotAvailable as error:
            if step is None or step.task == 0:
                raise
            print(f"wattlaw: {error}", file=sys.stderr)
            ended = _run(command, environment, StepObserver(Path(os.devnull), part, progress))
            return MeasuredCommand(ended.exit_code)
        if applied:
            write_limits(recording.live, recording.host, applied)
        observer = StepObserver(recording.live / "steps", part, progress)
        if instrument:
            environment = instrumented_environment(environment, observer.folder)
        kills, start_ns, start_s = oom_kills(), time.time_ns(), time.perf_counter()
        ended = _run(command, environment, observer)
        duration_s = ended.at_s - start_s
    finally:
        try:
            if lease is not None:
                lease.release()
        except NotAvailable as error:
            print(f"wattlaw: {error}", file=sys.stderr)
            notes.append(str(error))
    recording.window(epoch=0, phase=RUN, warmup=False, start_ns=start_ns, duration_s=duration_s)
    steps = observer.summary()
    recording.facts = recording.facts.model_validate(steps.facts(threads_of(environment)))
    for window in observer.window_columns(steps):
        if nodes > 1 and window.get("samples") is not None:
            window["samples"] //= nodes  # every node writes its own part
        recording.window(**window)
    notes += [*ended.notes, *steps.notes]
    reason = _with_memory(ended, observer, has_kills=oom_kills() > kills)
    record = recording.end(reason, tuple(notes), interrupted=ended.interrupted)
    return MeasuredCommand(ended.exit_code, record, recording.folder, steps)


def _progress(
    command: Sequence[str], part: MeasuredPart, pattern: str | None, *, instrument: bool
) -> ProgressReader | None:
    if not command:
        raise BadInput("a command is required")
    if shutil.which(command[0]) is None:
        raise CommandUnusable(command[0])
    if pattern is None and part.is_limited and not instrument:
        raise BadInput("measure: a number of steps or seconds needs a progress pattern")
    progress = None if pattern is None else ProgressReader(progress_pattern(pattern))
    if progress is not None and part.is_limited and "step" not in progress.pattern.groupindex:
        raise BadInput("measure: the progress pattern needs a group step, to count steps")
    return progress


def _options(command: Sequence[str], part: MeasuredPart) -> dict[str, JsonValue]:
    # With other limits it is another run, not a repeat. Bytes that are not UTF-8 become escapes.
    words = [os.fsencode(word).decode("utf-8", "backslashreplace") for word in command]
    given = {name: value for name, value in vars(part).items() if value is not None}
    return {"command": [*words], **given}


@dataclass(frozen=True)
class _Ended:
    """The end of a command; ``code``, in Popen's convention, is 0 if it has its steps."""

    code: int
    at_s: float  # of ``perf_counter``
    interrupted: bool = False  # by a user
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return self.code if self.code >= 0 else _SIGNALLED - self.code

    @property
    def reason(self) -> str | None:
        if self.code < 0:
            return f"ended by signal {-self.code} ({signal.Signals(-self.code).name})"
        return f"exit code {self.code}" if self.code else None


def _with_memory(ended: _Ended, observer: StepObserver, *, has_kills: bool) -> str | None:
    if ended.reason is not None and (error := observer.memory_error()):
        return f"{ended.reason}: {error}"
    is_killed = ended.code == -signal.SIGKILL and has_kills
    return f"{ended.reason}, {KILLED_FOR_MEMORY}" if is_killed else ended.reason


def _run(command: Sequence[str], environment: Mapping[str, str], observer: StepObserver) -> _Ended:
    """Run a command and forward signals to it; a signal that stops it ends all its processes."""
    output = None if observer.progress is None else subprocess.PIPE
    if output is not None:
        environment = {"PYTHONUNBUFFERED": "1", **environment}  # lines come when they are printed
    sys.stdout.flush()
    sys.stderr.flush()
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []
    stops: list[tuple[int, float]] = []
    processes = CommandProcesses()

    def forward(number: int, _: object) -> None:
        if process is None:
            early.append(number)
            return
        if process.poll() is None and (number in early or not _came_from_terminal(number)):
            process.send_signal(number)
        if number in _STOPS:
            stops.append((number, time.monotonic()))
            processes.end(all_at_once=False)
        if number == signal.SIGINT and stops[-1][1] - stops[0][1] > _SAME_KEY_S:
            processes.kill()  # the second Ctrl-C

    handled = [n for n in _FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
    with handling(handled, forward), processes:
        try:
            process = subprocess.Popen(list(command), env=environment, stdout=output)
        except OSError as error:
            print(f"wattlaw: {command[0]}: cannot be run: {error.strerror}", file=sys.stderr)
            return _Ended(_CANNOT_RUN, time.perf_counter())
        processes.started(process)
        for number in early:  # the terminal has not sent it to the command
            forward(number, None)
        early.clear()
        has_steps = False
        if observer.progress is not None or observer.part.is_limited:
            has_steps = _watch(process, observer, processes)
        code = 0 if has_steps else process.wait()
        processes.wait_for_end()
        at_s = time.perf_counter()
        why = f"got {signal.Signals(stops[0][0]).name}" if stops else "reached its steps"
        note = processes.end_note(why)
    if note is not None:
        print(f"wattlaw: {escape_invisible(note)}", file=sys.stderr)
    return _Ended(code, at_s, bool(stops), () if note is None else (note,))


def _watch(
    process: "subprocess.Popen[bytes]", observer: StepObserver, processes: CommandProcesses
) -> bool:
    """Watch a command to its end; say whether it was ended because it has its steps."""
    has_steps = False
    with selectors.DefaultSelector() as output:
        if process.stdout is not None:
            output.register(process.stdout, selectors.EVENT_READ)
        while process.poll() is None:
            _pass_on(output, observer, _POLL_S)
            if not has_steps and observer.is_complete():
                has_steps = True
                print("\nwattlaw: enough steps are measured: ending the command", file=sys.stderr)
                processes.end(all_at_once=True)  # in a thread: its output is read while it ends
        while _pass_on(output, observer, 0.0):
            pass
    return has_steps


def _pass_on(output: selectors.BaseSelector, observer: StepObserver, wait_s: float) -> bool:
    if not output.get_map():
        time.sleep(wait_s)
        return False
    for key, _ in output.select(wait_s):
        piece = os.read(key.fd, _PIECE_BYTES)
        try:
            observer.take_output(piece)
        except BrokenPipeError:
            piece = b""  # the reader has gone, and the command learns it when it writes
        if not piece:
            output.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
        return bool(piece)
    return False


def _came_from_terminal(number: int) -> bool:
    """Say whether a key of the terminal sent a signal, which the command then gets directly."""
    if number not in (signal.SIGINT, signal.SIGQUIT):
        return False
    with contextlib.suppress(OSError), Path("/dev/tty").open("rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False
