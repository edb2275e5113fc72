"""``python -m soak``: runs every part for a while; ``python -m soak replay FILE``: one failure."""

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from soak import fuzzing, outcome, rounds, templates
from soak.outcome import OUTPUT, Outcome
from soak.sandbox import bases, sandbox
from wattlaw.common import processes

PROGRESS_S = 30.0
#: A part that has not ended so long after its time is killed.
GRACE_S = 600.0
#: A round is replayed so often at most.
TRIES = 5
Part = Callable[[int, float, Path, Outcome], None]


def fuzz(seed: int, end_s: float, made: Path, told: Outcome) -> None:
    """Damage inputs of every reader."""
    fuzzing.Fuzzing(seed, max(2, len(os.sched_getaffinity(0)) // 2), made, told).run(end_s)


PARTS: dict[str, Part] = {"fuzz": fuzz, **{kind: rounds.part(kind) for kind in rounds.ROUNDS}}


def main() -> int:
    """Run the soak; return 1 when anything has failed."""
    if sys.argv[1:2] == ["replay"]:
        return replay(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES") or 60)
    )
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SOAK_SEED") or 1))
    parser.add_argument("--parts", default=",".join(PARTS), help="some of: %(default)s")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    return soak(given.seed, given.minutes, given.parts.split(","), given.output)


def soak(seed: int, minutes: float, names: list[str], output: Path) -> int:
    """Run parts side by side for so many minutes; print the table and write the results."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    begin_s, context = time.monotonic(), multiprocessing.get_context("fork")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    parts: dict[str, multiprocessing.process.BaseProcess] = {}
    with bases() as base, contextlib.ExitStack() as end:
        end.callback(_end, parts)
        made = _templates(base)
        end_s = time.monotonic() + minutes * 60
        for name in names:
            parts[name] = context.Process(target=_part, args=(name, seed, end_s, made, output))
            parts[name].start()
        _watch(parts, begin_s, end_s, output)
    told = outcome.read_all(output)
    for name, process in parts.items():
        if process.exitcode:
            row = {"tried": 1, "failed": 1, "note": ""}
            detail = f"exit code {process.exitcode}; its traceback is above"
            fault = {
                "what": name,
                "cause": "the part itself",
                "detail": detail,
                "count": 1,
                "reproducers": [],
            }
            told.append({"part": name, "rows": {f"part {name}": row}, "failures": [fault]})
    found = outcome.results(told, seed, minutes, time.monotonic() - begin_s)
    (output / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    print(outcome.table(told))
    print(
        f"\n{found['tried']:,} tried, {found['failed']:,} failed; seed {seed}; "
        f"{output / 'results.json'}"
    )
    return 1 if found["failed"] else 0


def _templates(base: Path) -> Path:
    """Make the inputs that are damaged, in a process that may start threads."""
    made = base / "templates"
    made.mkdir()
    builder = multiprocessing.get_context("fork").Process(target=templates.build, args=(made,))
    builder.start()
    builder.join()
    if builder.exitcode:
        raise RuntimeError("the templates cannot be made")
    return made


def _end(parts: dict[str, multiprocessing.process.BaseProcess]) -> None:
    """Let parts that have not ended tidy up, and then end them."""
    late = {name: process for name, process in parts.items() if process.is_alive()}
    for name, process in late.items():
        print(f"soak: {name} has not ended", file=sys.stderr)
        process.terminate()
    for process in late.values():
        process.join(20)
        if process.is_alive():
            process.kill()


def _part(name: str, seed: int, end_s: float, made: Path, output: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    processes.end_with_parent(os.getppid())
    told = Outcome(name, output)
    try:
        PARTS[name](seed, end_s, made, told)
    finally:
        told.write()


def _watch(
    parts: dict[str, multiprocessing.process.BaseProcess],
    begin_s: float,
    end_s: float,
    output: Path,
) -> None:
    """Wait for the parts, with a line on stderr now and then."""
    next_s = time.monotonic() + PROGRESS_S
    while any(process.is_alive() for process in parts.values()):
        time.sleep(0.2)
        now_s = time.monotonic()
        if now_s > end_s + GRACE_S:
            return
        if now_s >= next_s:
            next_s += PROGRESS_S
            said = []
            for part in outcome.read_all(output):
                tried, failed = (
                    sum(row[k] for row in part["rows"].values()) for k in ("tried", "failed")
                )
                said.append(
                    f"{part['part']} {tried:,}" + (f" ({failed:,} failed)" if failed else "")
                )
            print(
                f"soak: {(now_s - begin_s) / 60:.1f} min: {', '.join(said)}",
                file=sys.stderr,
                flush=True,
            )


def replay(path: Path) -> int:
    """Carry out a failure again; return 1 when it still fails."""
    told = json.loads(path.read_text())
    before = told.pop("problem", "")
    print(f"was: {before!a}")
    kind = told.pop("kind")
    with bases() as base:
        if kind != "input":
            return replay_round(kind, told["seed"], path.parent)
        problems = fuzzing.replay(told, _templates(base))
    for problem in problems:
        print(f"now: {problem.cause}: {problem.detail!a}")
    print("fails" if problems else "does not fail any more")
    return 1 if problems else 0


def replay_round(kind: str, seed: str, output: Path) -> int:
    """Do a round again, several times, since moments differ; return 1 when it fails."""
    if reason := rounds.missing(kind):
        print(f"cannot be replayed here: {reason}")
        return 2
    told = Outcome(f"replay-{kind}", output)
    with sandbox(kind) as own:
        for number in range(TRIES):
            if not rounds.one_round(kind, seed, own, told):
                print(f"fails at try {number + 1} of {TRIES}")
                break
    told.write()
    print(outcome.table([json.loads(told.path.read_text())]))
    told.path.unlink()
    return 1 if told.failures else 0


if __name__ == "__main__":
    sys.exit(main())
