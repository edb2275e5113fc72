"""The fuzzers' workers: each input from its number and the seed, in a process that may be lost."""

import contextlib
import functools
import json
import multiprocessing
import os
import random
import resource
import select
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import typer.main

from soak import fuzz_bombs, fuzz_documents, fuzz_machine, fuzz_stores, fuzz_tables
from soak.case import Case
from soak.judge import MOST_WALL_S, Problem, judge
from soak.outcome import Outcome
from soak.sandbox import Sandbox, default_signals, sandbox
from wattlaw.common import processes

#: A worker is replaced after so many inputs, so that what they leave in it does not add up.
PER_WORKER = 1500
_MAX_EXTENSIONS = 4  # of the longest time of an input
Make = Callable[[random.Random, str, Path], Case]
_WEIGHTED: tuple[tuple[float, Make], ...] = (
    (14, lambda dice, seed, _: fuzz_documents.studies(dice, seed)),
    (13, lambda dice, seed, _: fuzz_tables.tables(dice, seed)),
    (13, fuzz_stores.stores),
    (8, fuzz_stores.live_runs),
    (8, fuzz_stores.streams),
    (5, lambda dice, seed, _: fuzz_stores.energies(dice, seed)),
    (9, lambda dice, seed, _: fuzz_machine.environments(dice, seed)),
    (7, lambda dice, seed, _: fuzz_documents.hardware(dice, seed)),
    (5, lambda dice, seed, _: fuzz_machine.saved_limits(dice, seed)),
    (4, lambda dice, seed, _: fuzz_machine.sites(dice, seed)),
    (5, lambda dice, seed, _: fuzz_machine.slurm(dice, seed)),
    (6, lambda dice, seed, _: fuzz_machine.arguments(dice, seed)),
    (3, lambda dice, seed, _: fuzz_machine.drivers(dice, seed)),
    (1, lambda dice, seed, _: fuzz_bombs.bombs(dice, seed)),
)


def case_of(seed: str, templates: Path) -> Case:
    """Return the input of a seed such as ``7:1234``."""
    dice = random.Random(seed)
    make = dice.choices([one for _, one in _WEIGHTED], [weight for weight, _ in _WEIGHTED])[0]
    return make(dice, seed, templates)


def prepare(own: Sandbox) -> None:
    """Make this process one that carries out inputs: confined, with fake boards of its own."""
    default_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    own.make_boards().load()  # the driver is the one of this process's folder of temporary files
    os.environ.update(own.environment())
    tempfile.tempdir = None
    # The parser of the command line is built once for each worker: that is most of a short input.
    typer.main.get_command = functools.cache(typer.main.get_command)


def carry_out(case: Case, own: Sandbox, templates: Path) -> list[Problem]:
    """Carry out one input, between two cleanings of the sandbox."""
    own.empty()
    own.make_boards()
    mask = os.umask(0o022)
    try:
        return judge(case, own, templates)
    finally:
        os.umask(mask)


def _work(
    pipe: Connection, own: Sandbox, templates: Path, seed: int, first: int, step: int
) -> None:
    os.setsid()
    processes.end_with_parent(os.getppid())
    prepare(own)
    for number in range(first, first + step * PER_WORKER, step):
        pipe.send(("begin", number))
        case = case_of(f"{seed}:{number}", templates)
        problems = carry_out(case, own, templates)
        pipe.send(("end", number, case.reader, [(p.cause, p.detail) for p in problems]))
    own.empty()
    os._exit(0)


@dataclass
class _Worker:
    process: multiprocessing.Process
    pipe: Connection
    own: Sandbox
    number: int
    since_s: float = field(default_factory=time.monotonic)
    cpu_s: float = 0.0
    extensions: int = 0

    def begin(self, number: int) -> None:
        """Note that an input begins or ends."""
        self.number, self.since_s, self.extensions = number, time.monotonic(), 0
        self.cpu_s = self._cpu_s()

    def computes(self) -> bool:
        """Say whether an input that takes long still computes, and give it more time if so.

        On a busy machine an input that needs seconds of processor time can take minutes.
        """
        before_s, self.cpu_s = self.cpu_s, self._cpu_s()
        self.since_s, self.extensions = time.monotonic(), self.extensions + 1
        return self.cpu_s - before_s > 1.0 and self.extensions <= _MAX_EXTENSIONS

    def _cpu_s(self) -> float:
        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)


class Fuzzing:
    """So many workers at once, until a moment."""

    def __init__(self, seed: int, workers: int, templates: Path, outcome: Outcome) -> None:
        self._seed, self._workers, self._templates = seed, workers, templates
        self._outcome = outcome
        self._fork = multiprocessing.get_context("fork")

    def run(self, end_s: float, most: int | None = None) -> None:
        """Fuzz until a moment of the monotonic clock, or until so many inputs."""
        import wattlaw.cli.main  # noqa: F401 - once, not in every worker

        _import_all()
        with contextlib.ExitStack() as end:
            owns = [
                end.enter_context(sandbox("fuzz", in_memory=True)) for _ in range(self._workers)
            ]
            workers = [self._start(own, place) for place, own in enumerate(owns)]
            try:
                while time.monotonic() < end_s and (most is None or self._outcome.inputs < most):
                    ready, _, _ = select.select([one.pipe for one in workers], [], [], 1.0)
                    for place, worker in enumerate(workers):
                        if worker.pipe in ready:
                            workers[place] = self._hear(worker)
                        elif (
                            time.monotonic() - worker.since_s > MOST_WALL_S
                            and not worker.computes()
                        ):
                            workers[place] = self._lost(worker, "it does not end")
            finally:
                for worker in workers:
                    self._end(worker)

    def _start(self, own: Sandbox, first: int) -> _Worker:
        ours, theirs = self._fork.Pipe(duplex=False)
        given = (theirs, own, self._templates, self._seed, first, self._workers)
        process = self._fork.Process(target=_work, args=given, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, own, first)

    def _hear(self, worker: _Worker) -> _Worker:
        try:
            told = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(10)
            code = worker.process.exitcode
            if code == 0:
                self._end(worker)
                return self._start(worker.own, worker.number + self._workers)
            return self._lost(worker, f"the process dies with {code}")
        worker.begin(told[1])
        if told[0] == "end":
            _, number, reader, problems = told
            self._outcome.tried(reader)
            for cause, detail in problems:
                self._note(number, reader, Problem(cause, detail))
        return worker

    def _lost(self, worker: _Worker, why: str) -> _Worker:
        """Note an input that has cost its worker, and go on with the next one."""
        self._end(worker)
        case = case_of(f"{self._seed}:{worker.number}", self._templates)
        self._outcome.tried(case.reader)
        self._note(
            worker.number, case.reader, Problem(f"{why} ({case.argv[:2] or case.call})", why)
        )
        return self._start(worker.own, worker.number + self._workers)

    def _note(self, number: int, reader: str, problem: Problem) -> None:
        case = case_of(f"{self._seed}:{number}", self._templates)

        def save(path: Path) -> None:
            case.save(path, f"{problem.cause}: {problem.detail}")

        self._outcome.failed(reader, problem.cause, problem.detail, save)

    def _end(self, worker: _Worker) -> None:
        worker.pipe.close()
        if worker.process.is_alive():
            worker.process.kill()
        worker.process.join()
        worker.own.end_all()


def _import_all() -> None:
    """Import what commands import when they are called; nothing of it may start a thread."""
    import importlib
    import pkgutil

    import wattlaw

    skipped = ("training", "callbacks", "workloads", "examples", "__main__")
    for module in pkgutil.walk_packages(wattlaw.__path__, "wattlaw."):
        if not any(part in module.name for part in skipped):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def counts(outcome: Outcome) -> Counter[str]:
    """Return how many inputs each reader has had."""
    return Counter({name: row.tried for name, row in outcome.rows.items()})


def replay(told: dict[str, object], templates: Path) -> list[Problem]:
    """Carry out an input from its file, in a process that is confined as a worker is."""
    case = Case.load(dict(told))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    with sandbox("replay", in_memory=True) as own:

        def work() -> None:
            prepare(own)
            theirs.send([(p.cause, p.detail) for p in carry_out(case, own, templates)])

        process = context.Process(target=work)
        process.start()
        theirs.close()
        try:
            if not ours.poll(MOST_WALL_S):
                return [Problem("it does not end", "the process is killed")]
            return [Problem(*one) for one in json.loads(json.dumps(ours.recv()))]
        except EOFError:
            process.join()
            return [Problem(f"the process dies with {process.exitcode}", "")]
        finally:
            process.kill()
            process.join()
