"""The fuzzers' workers: each input from its number and the seed, in a process that may be lost."""

import contextlib
import functools
import importlib
import multiprocessing
import os
import pkgutil
import random
import resource
import select
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

import typer.main

import wattlaw
from soak import fuzz_files, fuzz_stores
from soak.case import Case
from soak.judge import Problem, judge
from soak.outcome import Outcome
from soak.sandbox import Sandbox, default_signals, sandbox
from wattlaw.common import processes

#: A worker is replaced after so many inputs, so that what they leave in it does not add up.
PER_WORKER = 1500
#: An input that takes longer is lost; the machine may be busy.
MOST_WALL_S = 300.0
_FORK = multiprocessing.get_context("fork")
_WEIGHTED: tuple[tuple[float, Callable[[random.Random, Path], Case]], ...] = (
    (14, fuzz_files.studies),
    (13, fuzz_files.tables),
    (13, fuzz_stores.stores),
    (12, fuzz_stores.live_runs),
    (5, fuzz_stores.saved_limits),
    (4, fuzz_stores.sites),
)


def case_of(seed: str, templates: Path) -> Case:
    """Return the input of a seed such as ``7:1234``."""
    dice = random.Random(seed)
    make = dice.choices([one for _, one in _WEIGHTED], [weight for weight, _ in _WEIGHTED])[0]
    return make(dice, templates)


def _prepare(own: Sandbox) -> None:
    """Make this process one that carries out inputs: confined, with fake boards of its own."""
    os.setsid()
    processes.end_with_parent(os.getppid())
    default_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    own.make_boards().load()  # the driver is the one of this process's folder of temporary files
    os.environ.update(own.environment())
    tempfile.tempdir = None
    # The parser of the command line is built once for each worker: that is most of a short input.
    typer.main.get_command = functools.cache(typer.main.get_command)


def _carry_out(case: Case, own: Sandbox, templates: Path) -> list[Problem]:
    own.empty()
    own.make_boards()
    mask = os.umask(0o022)
    try:
        return judge(case, own, templates)
    finally:
        os.umask(mask)


def _work(pipe: Connection, own: Sandbox, templates: Path, seeds: list[str]) -> None:
    _prepare(own)
    for seed in seeds:
        problems = _carry_out(case_of(seed, templates), own, templates)
        pipe.send([(one.cause, one.detail) for one in problems])
    own.empty()
    os._exit(0)


class Worker:
    """A process that carries out the inputs of some seeds, one after the other."""

    def __init__(self, own: Sandbox, templates: Path, seeds: list[str]) -> None:
        self.pipe, theirs = _FORK.Pipe(duplex=False)
        self.own, self.seeds, self.since_s = own, seeds, time.monotonic()
        self.is_lost = False
        given = (theirs, own, templates, seeds)
        self.process: ForkProcess = _FORK.Process(target=_work, args=given, daemon=True)
        self.process.start()
        theirs.close()

    def problems(self, *, is_ready: bool) -> list[Problem] | None:
        if is_ready:
            self.since_s = time.monotonic()
            with contextlib.suppress(EOFError, OSError):
                return [Problem(*one) for one in self.pipe.recv()]
            self.process.join(10)
            self.is_lost = True
            return [Problem(f"the process dies with {self.process.exitcode}", "")]
        if time.monotonic() - self.since_s < MOST_WALL_S:
            return None
        self.is_lost = True
        return [Problem("it does not end", f"after {MOST_WALL_S:.0f} s")]

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.own.end_all()


def fuzz(seed: int, end_s: float, templates: Path, told: Outcome) -> None:
    """Damage inputs of every reader, until a moment of the monotonic clock."""
    # What commands import when they are called; nothing of it may start a thread.
    skipped = ("training", "callbacks", "workloads", "examples", "__main__")
    for module in pkgutil.walk_packages(wattlaw.__path__, "wattlaw."):
        if not any(part in module.name for part in skipped):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    count = max(2, len(os.sched_getaffinity(0)) // 2)

    def worker(own: Sandbox, first: int) -> Worker:
        seeds = [f"{seed}:{first + count * place}" for place in range(PER_WORKER)]
        return Worker(own, templates, seeds)

    with contextlib.ExitStack() as end:
        owns = [end.enter_context(sandbox("fuzz", in_memory=True)) for _ in range(count)]
        workers = [worker(own, place) for place, own in enumerate(owns)]
        end.callback(lambda: [one.end() for one in workers])
        while time.monotonic() < end_s:
            ready, _, _ = select.select([one.pipe for one in workers], [], [], 1.0)
            for place, one in enumerate(workers):
                problems = one.problems(is_ready=one.pipe in ready)
                if problems is None:
                    continue
                this = one.seeds.pop(0)
                reader = case_of(this, templates).reader
                told.tried[reader] += 1
                for problem in problems:
                    told.failed(reader, problem.cause, problem.detail, this)
                if one.is_lost or not one.seeds:
                    one.end()
                    workers[place] = worker(one.own, int(this.partition(":")[2]) + count)


def replay(seed: str, templates: Path) -> list[Problem]:
    with sandbox("replay", in_memory=True) as own:
        worker = Worker(own, templates, [seed])
        try:
            return worker.problems(is_ready=worker.pipe.poll(MOST_WALL_S)) or []
        finally:
            worker.end()
