"""``python -m soak`` runs every part for a while; ``python -m soak replay WORD`` one failure."""

import argparse
import contextlib
import functools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from soak import fuzzing, kills_campaigns, kills_capped, templates
from soak.killing import Fault, Killer
from soak.outcome import Outcome, table
from soak.sandbox import REPOSITORY, Sandbox, bases, sandbox
from wattlaw.common import processes

#: A part that has not ended so long after its time is killed.
GRACE_S = 900.0
#: Between two rounds, so that on two cores most of the time is the fuzzers'.
PAUSE_S = 20.0
#: A round is replayed so often at most, since moments differ.
TRIES = 5
_FORK = multiprocessing.get_context("fork")


class Round(Protocol):
    def go(self) -> None:
        """Carry it out; raise ``Fault`` where something is wrong."""


#: By the name of the part: what the table calls it, and what makes a round.
ROUNDS: dict[str, tuple[str, Callable[[Killer], Round]]] = {
    "caps": (kills_capped.WHAT, kills_capped.CappedRound),
    "amd-caps": (kills_capped.WHAT_AMD, kills_capped.AmdRound),
    "runs": (kills_campaigns.WHAT, kills_campaigns.CampaignRound),
}


def go_round(kind: str, seed: int, end_s: float, _: Path, told: Outcome) -> None:
    """Do round after round, each from its number and the seed."""
    kills: Counter[str] = Counter()
    with sandbox(kind) as own:
        number = 0
        while time.monotonic() < end_s:
            kills += one_round(kind, f"{seed}:{number}", own, told)
            number += 1
            time.sleep(max(0.0, min(PAUSE_S, end_s - time.monotonic())))
    killed = ", ".join(f"{count} {name}" for name, count in sorted(kills.items()))
    told.notes[ROUNDS[kind][0]] = f"killed: {killed}" if killed else ""


def one_round(kind: str, seed: str, own: Sandbox, told: Outcome) -> Counter[str]:
    own.end_all()
    own.empty()
    what, make = ROUNDS[kind]
    killer = Killer(own, random.Random(f"{kind}:{seed}"))
    told.tried[what] += 1
    try:
        make(killer).go()
    except Fault as fault:
        cause, detail = map(str, fault.args)
        logs = sorted([*own.work.rglob("*.log"), *own.work.rglob("log.txt")])
        output = "\n".join(path.read_text("utf-8", "replace") for path in logs)
        told.failed(what, cause, detail, seed, "\n".join([*killer.log, output[-20_000:]]))
    finally:
        own.end_all()
    return killer.kills


Part = Callable[[int, float, Path, Outcome], None]
PARTS: dict[str, Part] = {
    "fuzz": fuzzing.fuzz,
    **{kind: functools.partial(go_round, kind) for kind in ROUNDS},
}


def main() -> int:
    if sys.argv[1:2] == ["replay"]:
        return replay(sys.argv[2])
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    minutes, seed = (os.environ.get(f"SOAK_{name}") for name in ("MINUTES", "SEED"))
    parser.add_argument("--minutes", type=float, default=float(minutes or 60))
    parser.add_argument("--seed", type=int, default=int(seed or 1))
    parser.add_argument("--parts", default=",".join(PARTS), help="some of: %(default)s")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "tests" / "output" / "soak")
    given = parser.parse_args()
    shutil.rmtree(given.output, ignore_errors=True)
    given.output.mkdir(parents=True)
    told = soak(given.seed, given.minutes, given.parts.split(","), given.output)
    tried = sum(part.tried.total() for part in told)
    failed = sum(one.count for part in told for one in part.failures)
    print(table(told))
    print(f"\n{tried:,} tried, {failed:,} failed; seed {given.seed}; {given.output}")
    return 1 if failed else 0


def soak(seed: int, minutes: float, names: list[str], output: Path) -> list[Outcome]:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with bases() as base, contextlib.ExitStack() as end:
        made = _templates(base)
        end_s = time.monotonic() + minutes * 60
        parts = [
            _FORK.Process(target=_part, args=(name, seed, end_s, made, output)) for name in names
        ]
        for process in parts:
            process.start()
            end.callback(_end, process)
        for process in parts:
            process.join(max(0.0, end_s + GRACE_S - time.monotonic()))
    found = []
    for name, process in zip(names, parts, strict=True):
        path = output / f"{name}.json"
        told = Outcome.read(path) if path.exists() else Outcome(name)
        if process.exitcode:
            told.failed(f"part {name}", "the part itself", f"exit code {process.exitcode}", "")
        found.append(told)
    return found


def _part(name: str, seed: int, end_s: float, made: Path, output: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    processes.end_with_parent(os.getppid())
    told = Outcome(name)
    try:
        PARTS[name](seed, end_s, made, told)
    finally:
        told.write(output)


def _end(process: multiprocessing.process.BaseProcess) -> None:
    """Let a part that has not ended tidy up, and then end it."""
    if process.is_alive():
        process.terminate()
        process.join(20)
        process.kill()
        process.join()


def _templates(base: Path) -> Path:
    """Make the inputs that are damaged, in a process that may start threads."""
    made = base / "templates"
    made.mkdir()
    builder = _FORK.Process(target=templates.build, args=(made,))
    builder.start()
    builder.join()
    if builder.exitcode:
        raise RuntimeError("the templates cannot be made")
    return made


def replay(word: str) -> int:
    """Carry out a failure, such as ``fuzz:1:234``, again; return 1 when it still fails."""
    kind, _, seed = word.partition(":")
    told = Outcome(kind)
    with bases() as base:
        if kind == "fuzz":
            for problem in fuzzing.replay(seed, _templates(base)):
                told.failed("input", problem.cause, problem.detail, seed)
        else:
            with sandbox(kind) as own:
                while not told.failures and told.tried.total() < TRIES:
                    one_round(kind, seed, own, told)
    print(table([told]), *(one.log for one in told.failures), sep="\n")
    print("fails" if told.failures else "does not fail any more")
    return 1 if told.failures else 0


if __name__ == "__main__":
    sys.exit(main())
