"""The node agent: one process per host and run. It starts the sampler and the ranks.

``python -m wattlaw.running.training.agent RUN_FOLDER ATTEMPT --parent-pid PID``. Other options are
for several nodes, which share the folder of the run: when the ranks of one fail, the agents of the
others end theirs.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Self

from wattlaw.common import processes
from wattlaw.common.errors import BadInput, NotAvailable, WattlawError
from wattlaw.common.files import read_end, write_text
from wattlaw.common.isolation import isolate, isolated_python
from wattlaw.common.text import collapse_whitespace
from wattlaw.measure.devices.meter import Target
from wattlaw.measure.telemetry.sampler import SamplerProcess
from wattlaw.running.instrumentation import STEPS_FOLDER
from wattlaw.running.instrumentation.observer import RUN, StepObserver
from wattlaw.running.instrumentation.printed_progress import ProgressReader, progress_pattern
from wattlaw.running.instrumentation.steady_state import MeasuredPart
from wattlaw.running.steps import other_batch
from wattlaw.running.training import command_rank, failures
from wattlaw.running.training.environment import (
    AGENT_PID,
    ATTEMPT,
    DISK_FULL,
    FIRST_OUTPUT,
    RUN_FOLDER,
    WARNS,
    host_name,
    threads_of,
)
from wattlaw.running.training.rank_processes import (
    SIGNALS,
    EndedBySignal,
    Node,
    block_notices,
    run_launcher,
    run_ranks,
)
from wattlaw.store.live import open_windows, windows_path, write_facts, write_window
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.command import setting_values, substitute
from wattlaw.study.model import RunSpec
from wattlaw.workloads import catalogue

WORKER = "wattlaw.running.training.worker"
#: How long a shared file system may take to show what another host has written.
_LATE_S = 60.0
#: How often the shared folder is searched for failures of other nodes.
_OTHERS_POLL_S = 1.0
#: How often the steps of a command are read, and how long another host may take to show that all
#: ranks have theirs.
_STEPS_POLL_S, _LATE_STEPS_S = 0.25, 10.0
#: When it is looked at whether the ranks are those that were launched, besides at the end.
_CHECKS_S = (2.0, 10.0, 60.0, 300.0)
_PIECE_BYTES, _MOST_PIECES = 64 * 1024, 16
#: The last line of a traceback, and error messages of Python and argparse.
_ERROR = re.compile(
    r"^(?:\[rank\d+\]: )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?"
    r"|\S+: error: .*|.*: can't open file .*)$",
    re.MULTILINE,
)
_LONGEST = 300


class _FailedElsewhere(Exception):
    """The part of another node has failed, and the ranks of this one have ended."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("attempt", type=int)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--node", type=int, default=0, help="number of this node, the first is 0")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--address", default="127.0.0.1", help="of the first node")
    parser.add_argument("--port", type=int, help="of the first rank")
    options = parser.parse_args()
    isolate()
    processes.end_with_parent(options.parent_pid)
    node = Node(options.node, options.nodes, options.address, options.port)
    return run_agent(RunFolder(options.folder), options.attempt, node)


def run_agent(folder: RunFolder, attempt: int, node: Node) -> int:
    """Run this node's part of an attempt; to be called on the main thread, which blocks SIGUSR1.

    The record of the run may appear up to a minute late. This writes ``ended.HOST.json`` with the
    exit code, after the sampler has ended, and if it failed ``failure.HOST.json`` with the reason.
    The code is 0 also if workers stopped after a preemption notice (``stopped.json``), and
    ``environment.DISK_FULL`` if the disk is too full to write the reason of a failure.
    """
    live, code = folder.live(attempt), 1
    os.environ[AGENT_PID] = str(os.getpid())
    try:
        # Blocked for all that starts here: a signal to the full process tree kills neither the
        # sampler nor a worker that still imports its libraries and unblocks it later.
        block_notices()
        code = _run(_wait_for_record(folder, attempt), folder, node)
    except Exception as error:
        code = _fail(live, "error", failures.reason_of(error))
        if not isinstance(error, WattlawError):
            _log(traceback.format_exc())
    finally:
        try:
            write_text(live / f"ended.{host_name()}.json", json.dumps({"code": code}))
        except OSError as error:
            _log(str(error))
    return code


def _wait_for_record(folder: RunFolder, attempt: int) -> RunRecord:
    end_s = time.monotonic() + _LATE_S
    while True:
        record = folder.read()
        if record is not None and record.attempts >= attempt:
            return record
        if time.monotonic() > end_s:
            state = "not there" if record is None else f"the record of attempt {record.attempts}"
            raise BadInput(f"{folder.record_path}: {state}; needed: the record of {attempt}")
        time.sleep(0.2)


def _run(record: RunRecord, folder: RunFolder, node: Node) -> int:
    live, measure = folder.live(record.attempts), record.spec.measure
    live.mkdir(parents=True, exist_ok=True)
    try:
        catalogue.check_installed(record.spec.workload)
    except NotAvailable as error:  # before it trains, so that one line says why
        raise NotAvailable(f"{host_name()}: {error} ({sys.executable})") from None
    is_command = record.spec.workload.command is not None
    target = Target(os.getpid(), 1 / measure.sample_hz, measure.assume_cpu_w)
    sampling = SamplerProcess(live, host_name(), target, handles_sigterm=WARNS not in os.environ)
    with sampling as sampler:
        if is_command:
            sampler.wait_until_ready()  # the command may be one window from its start
        run = _run_command if is_command else _run_workers
        try:
            return run(record, folder, record.spec.setting.gpus // node.nodes, node)
        except EndedBySignal as error:
            _log(f"ended by {error}")
            return _fail(live, "terminated", f"the node agent was ended by {error}")
        except _FailedElsewhere as error:
            _log(str(error))
            return _fail(live, "terminated", str(error))


def _run_workers(record: RunRecord, folder: RunFolder, workers: int, node: Node) -> int:
    line = isolated_python("-u", "-m", WORKER, str(folder.path), str(record.attempts))
    live = folder.live(record.attempts)
    # SIGTERM is a notice where Slurm sends it to announce the end.
    signals = SIGNALS - {signal.SIGTERM} if WARNS in os.environ else SIGNALS
    kills = failures.oom_kills()
    check = _OtherNodes(live, node).check
    failed = run_ranks(line, workers, node, check, signals, forwards_notice=True)
    return _fail(live, *failures.reason_of_ranks(live, failed, kills)) if failed else 0


def _run_command(record: RunRecord, folder: RunFolder, workers: int, node: Node) -> int:
    live, spec = folder.live(record.attempts), record.spec
    program = spec.workload.launch_with
    values: dict[str, object] = {
        **setting_values(spec.setting),
        **spec.measure.model_dump(),
        "python": sys.executable,
        "seed": record.seed,
        "repeat": spec.repeat,
    }
    words = [substitute(word, values) for word in spec.workload.command or ()]
    os.environ |= {RUN_FOLDER: str(folder.path.resolve()), ATTEMPT: str(record.attempts)}
    line = [*isolated_python("-u", "-m", command_rank.__name__)]
    others = _OtherNodes(live, node)
    with _CommandSteps(spec, live, node.number) as steps:

        def is_over() -> bool:
            return steps.are_complete() or others.check()

        failed, launcher_code, code = dict[int, int](), 0, 0
        kills = failures.oom_kills()
        start_ns, start_s = time.time_ns(), time.perf_counter()
        try:
            if program in ("auto", "none"):
                failed = run_ranks([*line, *words], workers, node, is_over)
            else:
                launch = _launcher_line(program, workers, node)
                launched = [*launch, *line, command_rank.LAUNCHED, *words]
                launcher_code = run_launcher([*line, command_rank.LAUNCHER, *launched], is_over)
        except (EndedBySignal, _FailedElsewhere):
            steps.write(start_ns, time.perf_counter() - start_s)
            raise
        duration_s = time.perf_counter() - start_s
        if (wrong := steps.wrong_ranks(spec.setting.gpus)) is not None:
            code = _fail(live, "error", wrong)
        elif (failed or launcher_code) and not steps.were_complete():
            kind: failures.Kind = "exited"
            reason = f"{program} {failures.describe_exit(launcher_code)}"
            if failed:
                kind, reason = failures.reason_of_ranks(live, failed, kills)
            elif failures.oom_kills() > kills:
                reason = f"{reason}; a process was ended {failures.KILLED_FOR_MEMORY}"
            if error := steps.memory_error() or first_error(folder.log_path, record.attempts):
                kind = kind if kind == "killed" else failures.kind_of_error(error)
                reason = f"{reason}: {error}"
            code = _fail(live, kind, reason)
        steps.write(start_ns, duration_s)
    return code


def _launcher_line(program: str, workers: int, node: Node) -> list[str]:
    if program == "torchrun":
        where = ["--standalone"]
        if node.nodes > 1:
            where = ["--nnodes", str(node.nodes), "--node-rank", str(node.number)]
            where += ["--master-addr", node.address, "--master-port", str(node.port)]
        return [program, *where, "--nproc-per-node", str(workers), "--no-python"]
    if program == "srun":
        return [program, "--overlap", "--nodes", "1", "--ntasks", str(workers)]
    return [program, "-n", str(workers)]


class _CommandSteps(StepObserver):
    """Observes a command from before its ranks start, by environment variables that they get.

    Its nodes share ``live``. Node 0 writes samples and notes of all ranks.
    """

    def __init__(self, spec: RunSpec, live: Path, node: int = 0) -> None:
        measure, progress = spec.measure, spec.workload.progress
        self._spec, self._live, self._node = spec, live, node
        part = MeasuredPart()
        if measure.is_by_steps:
            part = MeasuredPart(measure.warmup_steps, measure.steps, measure.seconds)
        reader = ProgressReader(progress_pattern(progress.pattern)) if progress else None
        super().__init__(live / "steps", part, reader)
        self._marker = live / "has-steps"
        self._output: int | None = None
        self._folder: str | None = None
        self._next_s = 0.0
        self._checks_s = [time.monotonic() + after_s for after_s in _CHECKS_S]

    def __enter__(self) -> Self:
        os.environ.pop(STEPS_FOLDER, None)
        if self._spec.workload.instrument == "auto":
            os.environ[STEPS_FOLDER] = str(self.folder.absolute())
        if self.progress is not None:
            self._folder = tempfile.mkdtemp(prefix="wattlaw-")
            path = Path(self._folder) / "output"
            os.mkfifo(path, 0o600)
            # Open for both ends: the first rank finds a reader, and its end is no end of the file.
            self._output = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            os.environ[FIRST_OUTPUT] = str(path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._output is not None and self._folder is not None:
            os.close(self._output)
            shutil.rmtree(self._folder, ignore_errors=True)

    def are_complete(self) -> bool:
        """Say whether the ranks can be ended: they have the steps of the limit, or are others."""
        self._pass_output_on()
        if self._checks_s and time.monotonic() > self._checks_s[0]:
            del self._checks_s[0]
            if self.wrong_ranks(self._spec.setting.gpus) is not None:
                return True
        if not self.part.is_limited or time.monotonic() < self._next_s:
            return False
        self._next_s = time.monotonic() + _STEPS_POLL_S
        if not self._marker.exists() and not self.is_complete():
            return False
        self._marker.touch()
        return True

    def were_complete(self) -> bool:
        """Say whether ranks of this host failed because those of another were ended."""
        end_s = time.monotonic() + (_LATE_STEPS_S if self._spec.nodes > 1 else 0.0)
        while self.part.is_limited:
            self._next_s = 0.0
            if self.are_complete():
                return True
            if time.monotonic() >= end_s:
                break
            time.sleep(_STEPS_POLL_S)
        return False

    def write(self, start_ns: int, duration_s: float) -> None:
        """Write this host's facts and windows, unless the command has marked windows itself.

        Steps that were seen become windows ``steps``. A command without epochs, or without
        measured steps where the study requests them, is also one window ``run``.
        """
        while self._pass_output_on():
            pass
        host, summary = host_name(), self.summary()
        if not windows_path(self._live, host).exists():
            windows = self.window_columns(summary)
            wanted = "steps" if self._spec.measure.is_by_steps else "train"
            is_measured = any(w["phase"] == wanted and not w["warmup"] for w in windows)
            if not is_measured:
                whole = {"epoch": 0, "phase": RUN, "warmup": False}
                windows.insert(0, whole | {"start_ns": start_ns, "duration_s": duration_s})
            with open_windows(self._live, host) as stream:
                for window in windows:
                    own = {"samples": None} if self._node else {}
                    write_window(stream, host, **window | own)
        batch, note = other_batch(summary.steps_by_samples, self._spec.global_batch)
        notes = [*summary.notes, *note]
        if notes and self._node == 0:
            write_text(self._live / f"notes.{host}.json", json.dumps(notes))
        seen = summary.facts(threads_of(os.environ)) | {"global_batch": batch}
        if self._spec.setting.dataset_fraction != 1:  # the data set that was seen is a part
            seen["dataset_samples"] = None
        write_facts(self._live, host, seen)

    def _pass_output_on(self) -> bool:
        """Write output of the first rank to the log and search it; say whether more may come."""
        for _ in range(_MOST_PIECES if self._output is not None else 0):
            try:
                piece = os.read(self._output or 0, _PIECE_BYTES)
            except BlockingIOError:
                return False
            with contextlib.suppress(OSError):  # a full disk is reported elsewhere
                self.take_output(piece)
        return self._output is not None


class _OtherNodes:
    def __init__(self, live: Path, node: Node) -> None:
        self._live, self._has_others, self._next_s = live, node.nodes > 1, 0.0

    def check(self) -> bool:
        if self._has_others and time.monotonic() > self._next_s:
            self._next_s = time.monotonic() + _OTHERS_POLL_S
            names = list[str]()
            with contextlib.suppress(OSError):  # a moment of a shared file system
                names = [path.name for path in self._live.iterdir()]
            for name in names:
                if name.startswith("failure."):
                    raise _FailedElsewhere(f"ended because another node failed ({name})")
        return False


def first_error(log: Path, attempt: int) -> str | None:
    """Of Python programs in the log; errors of ranks that have lost another one come last."""
    try:
        text = read_end(log)
    except OSError:
        return None
    errors = _ERROR.findall(text.rpartition(f"== attempt {attempt},")[2])
    error = min(errors, key=lambda error: failures.kind_of_error(error) != "error", default=None)
    return collapse_whitespace(error)[:_LONGEST] if error else None


def _fail(live: Path, kind: failures.Kind, reason: str) -> int:
    try:
        failures.write_failure(live, host_name(), kind, reason)
    except OSError as error:
        _log(f"{reason}; {error}")
        return DISK_FULL if failures.disk_full_error(error) else 1
    return 1


def _log(message: str) -> None:
    with contextlib.suppress(OSError):
        print(f"agent: {message}", file=sys.stderr)


if __name__ == "__main__":
    code = main()
    if code == DISK_FULL:
        os._exit(code)  # output that does not fit on the disk would change the exit code
    sys.exit(code)
