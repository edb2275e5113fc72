"""GPU-hours until a decision, and its regret: wattlaw's planner, random order and Optuna.

Run with ``make bench-decisions``; ``--tables`` prints the tables of docs/benchmarks.md.
Public data are read from the folder that ``WATTLAW_PUBLIC_DATA`` names (docs/benchmarks.md). Every
run has the same number of steps. The opponents do not stop by themselves: their GPU-hours are those
after which the setting that they measured as the best has a true regret within the limit, which
only someone with the whole grid knows. Optuna's slowdown is relative to the truly fastest setting.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from common import RESULTS, write_results
from decisions_data import STEPS, Grid, Outcome, grids
from decisions_opponents import OPPONENTS
from wattlaw.analysis.decide.evidence import Candidate, is_long_enough
from wattlaw.analysis.decide.next_runs import plan
from wattlaw.analysis.predict import Observation
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

OURS, SHORT = "wattlaw", "wattlaw, runs ended early"
CORES = f"cpu{os.cpu_count()}"
#: Runs that end early: the steps of a full run, and the coefficient of variation of a step. The
#: standard error of the mean step time is then what ``is_long_enough`` admits.
LONG_STEPS, STEP_VARIATION = 1000, 0.1
#: The time of each opponent, relative to wattlaw's.
OPPONENTS_TIME = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=15, help="of planning, for each contest")
    parser.add_argument("--only", default="", help="contests whose name starts with this")
    parser.add_argument("--method", default="", help="this method only")
    parser.add_argument("--tables", action="store_true", help="print tables of the last results")
    parser.add_argument("--show", action="store_true", help="print figures, write no file")
    parser.add_argument("--processes", type=int, default=None, help="by default one for each core")
    parser.add_argument(
        "--keep", type=Path, help="a file of outcomes of this version: they are not computed again"
    )
    arguments = parser.parse_args()
    if arguments.tables:
        print(tables(last_results()))
        return
    chosen = [grid for grid in grids() if grid.contest.startswith(arguments.only)]
    earlier = last_results() if arguments.method else {}
    found: list[Outcome] = []
    for contest_name in dict.fromkeys(grid.contest for grid in chosen):
        part = [grid for grid in chosen if grid.contest == contest_name]
        for name in METHODS:
            limit_s = arguments.minutes * 60 * (1 if name == OURS else OPPONENTS_TIME)
            if name.startswith(arguments.method):
                found += contest(
                    part, name, arguments.seeds, limit_s, arguments.processes, arguments.keep
                )
        if not arguments.show:  # what has been measured is kept if the next contest is interrupted
            write_results("decisions", CORES, content(found, earlier), show=False)
    results = content(found, earlier)
    if arguments.show:
        print(tables(results))
        return
    results["planning"] = planning_speed()
    write_results("decisions", CORES, results)


def last_results() -> dict[str, Any]:
    """Return the content of the last results file."""
    return dict(json.loads(max(RESULTS.glob("decisions-*.json")).read_text()))


def content(found: Sequence[Outcome], earlier: dict[str, Any]) -> dict[str, object]:
    """Return the content of the results file; other methods keep their earlier figures."""
    contests = summaries(found)
    for name, methods in earlier.get("contests", {}).items():
        contests[name] = {**contests.get(name, {}), **{
            method: row for method, row in methods.items() if method not in contests.get(name, {})
        }}  # fmt: skip
    return {
        "what": "GPU-hours until a decision as a share of the grid's, and its regret",
        "steps_of_a_run": STEPS,
        "contests": contests,
    }


def contest(
    chosen: Sequence[Grid],
    name: str,
    seeds: int,
    limit_s: float,
    processes: int | None,
    keep: Path | None,
) -> Iterator[Outcome]:
    """Yield the outcomes of a method until the time is over: all cases of a seed, then the next.

    The cases of a seed are in random order, so that what is left out is. Each process takes
    the next case. Outcomes are added to the file ``keep``; those in it count as well.
    """
    end_s = time.monotonic() + limit_s
    kept = {}
    if keep is not None and keep.exists():
        rows = [Outcome(**json.loads(line)) for line in keep.read_text().splitlines()]
        wanted = (chosen[0].contest, name)
        kept = {
            (row.grid, row.question, row.seed): row
            for row in rows
            if (row.contest, row.method) == wanted and row.seed < seeds
        }
    questions = [[title for title, _ in grid.questions()] for grid in chosen]
    cases = [
        (index, question, seed)
        for seed in range(seeds)
        for index, question in np.random.default_rng([seed, 3]).permutation(
            [(index, place) for index, grid in enumerate(chosen)
             for place in range(len(list(grid.questions())))]
        )
        if (chosen[index].name, questions[index][question], seed) not in kept
    ]  # fmt: skip
    yield from kept.values()
    with multiprocessing.get_context("fork").Pool(
        processes, initializer=_begin, initargs=(chosen, name, end_s)
    ) as pool:
        for item in pool.imap(_case, cases):
            if item is not None:
                if keep is not None:
                    with keep.open("a") as file:
                        file.write(json.dumps(asdict(item), default=bool) + "\n")
                yield item


_work: tuple[Sequence[Grid], str, float]


def _begin(*work: Any) -> None:
    global _work  # noqa: PLW0603
    _work = work


def _case(case: tuple[int, int, int]) -> Outcome | None:
    """Return the outcome of one case; None if the time is over."""
    chosen, method, end_s = _work
    index, question, seed = case
    if time.monotonic() > end_s:
        return None
    return METHODS[method](chosen[index], *list(chosen[index].questions())[question], seed)


def ours(grid: Grid, name: str, question: Question, seed: int, *, error: float = 0.0) -> Outcome:
    """Return the outcome of wattlaw's planner, which stops by itself.

    ``error`` is the standard error of the mean step time of a run.
    """
    dice = np.random.default_rng([seed, 1])
    left = [Candidate(setting, STEPS) for setting in grid.settings]
    seen: list[Observation] = []
    hours, seconds = 0.0, []
    # The first runs do not depend on results, so that they are planned together.
    state = plan(question, left, seen, seed=seed, at_once=len(left))
    while not state.stopped_because:
        for proposal in state.proposals:
            left.remove(proposal.candidate)
            shown = grid.measure(proposal.candidate.setting, dice)
            step_s = shown.step_time_s * float(np.exp(error * dice.standard_normal()))
            seen.append(replace(shown, step_time_s=step_s))
            hours += proposal.candidate.gpu_hours(seen[-1].step_time_s)
        begun_s = time.perf_counter()
        state = plan(question, left, seen, seed=seed)
        seconds.append(time.perf_counter() - begun_s)
    assert state.setting is not None
    regret = grid.regrets(question)[state.setting]
    return Outcome(
        grid.contest, grid.name, name, OURS, seed, hours / grid.grid_hours, regret,
        grid.tolerance, len(seen), state.probability, regret <= question.tolerance,
        float(np.mean(seconds)), state.stopped_because,
    )  # fmt: skip


def ours_ended_early(grid: Grid, name: str, question: Question, seed: int) -> Outcome:
    """Return the outcome where runs end as soon as their step time is precise enough."""
    steps = next(
        count for count in range(1, LONG_STEPS + 1)
        if is_long_enough(STEP_VARIATION / np.sqrt(count), question.tolerance)
        or count == LONG_STEPS
    )  # fmt: skip
    full = ours(grid, name, question, seed, error=STEP_VARIATION / np.sqrt(steps))
    return replace(full, method=SHORT, share=full.share * steps / LONG_STEPS)


METHODS: dict[str, Callable[[Grid, str, Question, int], Outcome]] = {
    OURS: ours, SHORT: ours_ended_early, **OPPONENTS,
}  # fmt: skip


def summaries(found: Sequence[Outcome]) -> dict[str, dict[str, dict[str, object]]]:
    """Return the figures by contest, method and question; "all" pools the questions."""
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for item in found:
        for question in ("all", item.question):
            groups[item.contest, item.method, question].append(item)
    result: dict[str, dict[str, dict[str, object]]] = defaultdict(lambda: defaultdict(dict))
    for (contest_name, method, question), items in groups.items():
        result[contest_name][method][question] = summary(items)
    return result


def summary(items: Sequence[Outcome]) -> dict[str, object]:
    """Return the figures of a list of outcomes."""
    shares = [item.share for item in items]
    figures: dict[str, object] = {
        "cases": len(items),
        "grids": len({item.grid for item in items}),
        "seeds": len({item.seed for item in items}),
        "median_share": round(float(np.median(shares)), 4),
        "p90_share": round(float(np.quantile(shares, 0.9)), 4),
        "within": round(float(np.mean([item.regret <= item.tolerance for item in items])), 3),
        "tolerance": items[0].tolerance,
        "median_runs": float(np.median([item.runs for item in items])),
    }
    declared = [item for item in items if item.stopped_because == "certain"]
    if declared:
        figures["stated"] = round(float(np.mean([item.stated for item in declared])), 3)
        kept = [item.is_within_own for item in declared]
        figures["declared"] = round(len(declared) / len(items), 3)
        figures["declared_within_own_tolerance"] = round(float(np.mean(kept)), 3)
        figures["planning_s_per_step"] = round(float(np.mean([item.step_s for item in items])), 2)
    return figures


def planning_speed() -> dict[str, float]:
    """Return the seconds of a step of planning for 1,000 candidates, in a campaign."""
    settings = [
        Setting.packed(gpus, 4, local_batch=float(batch), power_limit_w=float(limit))
        for gpus in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
        for batch in range(8, 88, 8)
        for limit in range(100, 300, 20)
    ]
    candidates = [Candidate(item, STEPS) for item in settings]
    start = [
        item.candidate.setting for item in plan(Question(), candidates, [], at_once=9).proposals
    ]
    found = {}
    for count in (0, 10):
        seen = [
            Observation(item, 0.1 + 0.002 * (item.local_batch or 0), item.power_limit_w)
            for item in [*start, *settings[55::97][:count]]
        ]
        question = Question(tolerance=1e-4, confidence=0.999)
        plan(question, candidates, seen[:-1])  # the step before, as in a campaign
        begun_s = time.perf_counter()
        plan(question, candidates, seen)
        found[f"{len(seen)} runs"] = round(time.perf_counter() - begun_s, 2)
    return found


def tables(results: dict[str, object]) -> str:
    """Return the tables of the documentation."""
    contests = results["contests"]
    assert isinstance(contests, dict)
    lines = []
    for contest_name, methods in contests.items():
        pooled = next(iter(methods.values()))["all"]
        lines += [
            f"### {contest_name}", "",
            f"Tolerance {pooled['tolerance']:.0%}. Of the planner: {pooled['cases']} decisions on "
            f"{pooled['grids']} grids, at most {pooled['seeds']} seeds of each question.", "",
            "| question | method | cases | median | p90 | within | runs "
            "| declared and within | s per step |",
            "|---|---|--:|--:|--:|--:|--:|--:|--:|",
        ]  # fmt: skip
        for question in sorted(pooled_questions(methods), key=lambda name: name != "all"):
            lines += [
                _row(question, method, figures[question])
                for method, figures in methods.items()
                if question in figures
            ]
        lines.append("")
    speed = results.get("planning")
    if isinstance(speed, dict):
        lines += [f"- Planning of 1,000 candidates after {key}: {s} s." for key, s in speed.items()]
    return "\n".join(lines)


def pooled_questions(methods: dict[str, dict[str, object]]) -> list[str]:
    """Return the questions that any method answered."""
    return list(dict.fromkeys(question for figures in methods.values() for question in figures))


def _row(question: str, method: str, row: dict[str, float]) -> str:
    kept = row.get("declared_within_own_tolerance")
    step_s = row.get("planning_s_per_step")
    cells = [
        question, method, row["cases"], f"{row['median_share']:.1%}", f"{row['p90_share']:.1%}",
        f"{row['within']:.0%}", f"{row['median_runs']:.0f}",
        "" if kept is None else f"{kept:.0%}", "" if step_s is None else f"{step_s:.2f}",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
