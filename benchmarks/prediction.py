"""The contest of predictions: wattlaw's model and seven others on public data and known truth.

Run with ``make bench-prediction``. Public data are read from the folder that
``WATTLAW_PUBLIC_DATA`` names (docs/benchmarks.md). The priors of every case are learned from
data of other origins; the package ships with the priors that are learned from all, ``LEARNED`` in
src/wattlaw/analysis/predict/parameters.py. ``--learn`` only prints those.
"""

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.interpolate import PchipInterpolator

from common import write_results
from prediction_cases import FIRST, Case, cases, t4_cases
from prediction_data import by_origin, caps, pollux, series
from prediction_learning import job_draws, learn
from prediction_rivals import IN_N, RIVALS
from prediction_truth import draw
from wattlaw.analysis.predict import Observation, fit, predict
from wattlaw.analysis.predict.parameters import Priors
from wattlaw.study.setting import Setting

Floats = npt.NDArray[np.float64]
#: Jobs of each origin from which priors are learned.
JOBS_OF_ORIGIN = 6
SLOWDOWN, NEAR_BEST = 1.10, 1.02
OURS = "wattlaw"
#: Of simulated jobs; threads of the linear algebra would compete with them (OMP_NUM_THREADS=1).
PROCESSES = os.cpu_count() or 1
#: Random numbers of the sets of simulated jobs.
SETS = (19, 987)
#: Contests of few jobs pool the scores of several seeds.
SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Score:
    """How one prediction did: relative error, whether its interval has the truth, high/low."""

    error: float
    covered: bool
    width: float | None
    log_score: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learn", action="store_true", help="print the shipped priors")
    parser.add_argument("--truths", type=int, default=1000, help="simulated jobs")
    parser.add_argument(
        "--only", nargs="+", metavar="PART", help="print these parts, and write no results"
    )
    parser.add_argument(
        "--prior", nargs=3, action="append", default=[], metavar=("PARAMETER", "MEDIAN", "SD"),
        help="another prior of a positive parameter, with the sd of its logarithm; needs --only",
    )  # fmt: skip
    arguments = parser.parse_args()
    if arguments.prior and not arguments.only:
        parser.error("--prior needs --only")
    np.seterr(over="ignore")  # a rival's interval may be infinite
    others = {name: (float(np.log(float(at))), float(sd)) for name, at, sd in arguments.prior}
    priors = {
        origin: Priors({**known.values, **others}, known.source)
        for origin, known in learned().items()
    }
    if arguments.learn:
        print(priors[""])
        return
    parts: dict[str, Callable[[], object]] = {
        "contests": lambda: contests(priors),
        "step_parts": lambda: step_parts(priors, arguments.truths),
        "caps": lambda: caps_contest(priors),
        "simulated_truth": lambda: simulated(priors[""], arguments.truths),
        "speed": lambda: speed(priors[""]),
    }
    if arguments.only:
        print(json.dumps({name: parts[name]() for name in arguments.only}, indent=1))
        return
    what = "predictions of step time, power and energy of settings that were not measured"
    results = {"what": what} | {name: part() for name, part in parts.items()}
    write_results("prediction", f"cpu{os.cpu_count()}", results)


def learned() -> dict[str, Priors]:
    """Return the priors without each origin, and under "" those of all."""
    jobs = [job for job in series() if job.family != "pollux_T4_const_lbs"]
    families = {
        origin: [job_draws(observations) for observations in each]
        for origin, each in by_origin(jobs, most=JOBS_OF_ORIGIN).items()
    }
    origins = {job.origin for job in [*jobs, *pollux(), *caps()]}
    without = {"": ()} | {origin: (origin,) for origin in origins}
    return {name: learn(families, left_out) for name, left_out in without.items()}


def step_parts(priors: dict[str, Priors], truths: int) -> dict[str, object]:
    """Return the scores without and with the measured parts of steps.

    The cases are those of T4 GPUs, each single run on 8 of them, and a third of the
    simulated jobs of the first set.
    """
    found: dict[str, dict[str, list[Score]]] = defaultdict(lambda: defaultdict(list))
    for with_sync in (False, True):
        how = "with parts" if with_sync else "without"
        every = list(t4_cases(with_sync=with_sync))
        every += [
            Case("T4: one run on 8 to 16-64 GPUs", case.family, case.origin, [run], case.test)
            for case in every if case.contest == FIRST
            for run in case.train if run.setting.gpus == 8
        ]  # fmt: skip
        for case in every:
            found[case.contest][how] += ours(case, priors[case.origin])
        with ProcessPoolExecutor(PROCESSES) as pool:
            work = partial(_simulated_score, priors[""], with_parts=with_sync)
            for is_across, score_of in pool.map(work, range(truths // 3), chunksize=10):
                place = "across nodes" if is_across else "on seen nodes"
                found[f"simulated jobs, {place}"][how].append(score_of)
    return {
        contest: {how: summary(rows) for how, rows in by_how.items()}
        for contest, by_how in found.items()
    }


def _simulated_score(priors: Priors, number: int, *, with_parts: bool) -> tuple[bool, Score]:
    """Return whether a job's target has more nodes than its runs, and the score of its time."""
    truth = draw(np.random.default_rng([SETS[0], number]), with_parts=with_parts)
    posterior = fit(truth.observations, seed=number, priors=priors)
    times = posterior.runs([truth.target])[1]
    return truth.is_across_nodes, score(times[:, 0], truth.step_time_s)


def contests(priors: dict[str, Priors]) -> dict[str, object]:
    """Return the scores of all contestants by contest, and by family for wattlaw and the best."""
    scores: dict[str, dict[str, dict[str, list[Score]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for case in cases():
        found = {OURS: ours(case, priors[case.origin])}
        found |= {name: rival_scores(name, case) for name in RIVALS}
        for name, rows in found.items():
            scores[case.contest][name][case.family] += rows
    return {
        contest: {
            name: {"all": summary([row for rows in families.values() for row in rows])}
            | {family: summary(rows) for family, rows in families.items()}
            for name, families in contestants.items()
        }
        for contest, contestants in scores.items()
    }


def summary(scores: list[Score]) -> dict[str, float | int | None]:
    """Return the figures of a list of scores. No interval counts as a miss of the truth."""
    errors = [score.error for score in scores]
    widths = [score.width for score in scores if score.width is not None]
    logs = [score.log_score for score in scores if score.log_score is not None]
    return {
        "cases": len(scores),
        "median_error": round(float(np.median(errors)), 4),
        "p90_error": round(float(np.quantile(errors, 0.9)), 4),
        "coverage": round(float(np.mean([score.covered for score in scores])), 4),
        "median_high_over_low": _rounded(float(np.median(widths))) if widths else None,
        "mean_log_score": round(float(np.mean(np.maximum(logs, -20))), 3) if logs else None,
        "without_interval": len(scores) - len(widths),
    }


def _rounded(width: float) -> float | None:
    """Return a width for a table; None where it says nothing."""
    return round(width, 3) if width < 1e6 else None


def ours(case: Case, priors: Priors) -> list[Score]:
    """Return the scores of wattlaw; those of placed settings for each of several seeds."""
    found = []
    for seed in SEEDS if case.contest.startswith("T4") else SEEDS[:1]:
        posterior = fit(case.train, seed=seed, priors=priors)
        draws = posterior.runs([item.setting for item in case.test])[1]
        found += [score(d, item.step_time_s) for d, item in zip(draws.T, case.test, strict=True)]
    return found


def score(draws: Floats, true: float) -> Score:
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95])
    density = stats.gaussian_kde(np.log(draws))(np.log(true))[0]
    return Score(
        abs(middle / true - 1), bool(low <= true <= high), float(high / low),
        float(np.log(max(density, 1e-12))),
    )  # fmt: skip


def rival_scores(name: str, case: Case) -> list[Score]:
    found = []
    batches = {item.setting.local_batch for item in case.test} if name in IN_N else {None}
    for batch in sorted(batches, key=lambda value: value or 0):
        train, test = (
            [item for item in part if name not in IN_N or item.setting.local_batch == batch]
            for part in (case.train, case.test)
        )
        times = np.array([item.step_time_s for item in test])
        forecast = RIVALS[name](train, [item.setting for item in test])
        errors = np.abs(np.exp(forecast.center) / times - 1)
        interval, logs = forecast.interval(), forecast.log_score(times)
        for index, error in enumerate(errors):
            if interval is None or logs is None:
                found.append(Score(float(error), False, None, None))
                continue
            low, high = interval[0][index], interval[1][index]
            covered = bool(low <= times[index] <= high)
            found.append(Score(float(error), covered, float(high / low), float(logs[index])))
    return found


def caps_contest(priors: dict[str, Priors]) -> dict[str, object]:
    """Return how well three caps predict the others and the best cap, cell by cell.

    ``near_best``: the chosen cap's measured slowdown is at most 10 %, and its energy is at most
    2 % above the least of such caps. ``energy_near_best`` is without the condition on the slowdown.
    """
    errors: dict[str, dict[str, list[Score]]] = defaultdict(lambda: defaultdict(list))
    chosen: dict[str, dict[str, list[tuple[bool, bool]]]] = defaultdict(lambda: defaultdict(list))
    for job in caps():
        rows = job.observations
        if len(rows) < 4:
            continue
        seen = [0, len(rows) // 2, len(rows) - 1]
        others = [index for index in range(len(rows)) if index not in seen]
        measured_s = np.array([item.step_time_s for item in rows])
        measured_w = np.array([item.power_per_gpu_w or np.nan for item in rows])
        posterior = fit([rows[index] for index in seen], priors=priors[job.origin])
        _, times, powers = posterior.runs([item.setting for item in rows])
        assert powers is not None
        logs = np.log([item.setting.power_limit_w or np.nan for item in rows])
        curves = (
            np.exp(PchipInterpolator(logs[seen], np.log(values[seen]))(logs))[None]
            for values in (measured_s, measured_w)
        )
        for name, (time_s, power_w) in {
            OURS: (times, powers),
            "monotone interpolation": tuple(curves),
        }.items():
            for what, draws, true in (
                ("time", time_s, measured_s),
                ("power", power_w, measured_w),
                ("energy", time_s * power_w, measured_s * measured_w),
            ):
                errors[name][what] += [
                    score(draws[:, index], true[index])
                    if name == OURS
                    else Score(abs(draws[0, index] / true[index] - 1), False, None, None)
                    for index in others
                ]
            near = _choice(np.median(time_s, 0), np.median(time_s * power_w, 0), seen, measured_s,
                           measured_s * measured_w)  # fmt: skip
            for group in ("all", job.origin):
                chosen[name][group].append(near)
    return {
        name: {what: summary(scores) for what, scores in found.items()}
        | {
            "choice": {
                group: {
                    "cells": len(cells),
                    "near_best": round(float(np.mean([both for both, _ in cells])), 4),
                    "energy_near_best": round(float(np.mean([near for _, near in cells])), 4),
                }
                for group, cells in chosen[name].items()
            }
        }
        for name, found in errors.items()
    }


def _choice(
    time_s: Floats, energy_j: Floats, seen: list[int], true_s: Floats, true_j: Floats
) -> tuple[bool, bool]:
    """Return whether the cap that predictions choose is near the best; measured caps count so."""
    time_s[seen], energy_j[seen] = true_s[seen], true_j[seen]
    index = _best(time_s, energy_j)
    is_near = bool(true_j[index] <= NEAR_BEST * true_j[_best(true_s, true_j)])
    return is_near and bool(true_s[index] <= SLOWDOWN * true_s.min()), is_near


def _best(time_s: Floats, energy_j: Floats) -> int:
    allowed = np.flatnonzero(time_s <= SLOWDOWN * time_s.min())
    return int(allowed[np.argmin(energy_j[allowed])])


def simulated(priors: Priors, count: int) -> dict[str, object]:
    """Return the coverage of random jobs with known truth, and its 99 % binomial interval.

    ``both`` pools the two sets of jobs, which differ in their random numbers alone.
    """
    covered: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    with ProcessPoolExecutor(PROCESSES) as pool:
        for entropy in SETS:
            work = partial(_covered, priors, entropy)
            for found in pool.map(work, range(count), chunksize=10):
                for name, is_inside in found.items():
                    for of in (f"set {entropy}", "both"):
                        covered[of][name].append(is_inside)
    return {"jobs": count} | {
        of: {name: _coverage(found) for name, found in by_name.items()}
        for of, by_name in covered.items()
    }


def _coverage(found: list[bool]) -> dict[str, object]:
    low, high = stats.binomtest(sum(found), len(found)).proportion_ci(0.99)
    return {
        "n": len(found), "coverage": round(float(np.mean(found)), 4),
        "interval": [round(low, 4), round(high, 4)], "contains_0.9": bool(low <= 0.9 <= high),
    }  # fmt: skip


def _covered(priors: Priors, entropy: int, number: int) -> dict[str, bool]:
    """Return whether the intervals of a random job contain its truth."""
    truth = draw(np.random.default_rng([entropy, number]))
    posterior = fit(truth.observations, seed=number, priors=priors)
    _, times, powers = posterior.runs([truth.target])
    assert powers is not None
    true = {"time": truth.step_time_s, "power": truth.power_per_gpu_w}
    true["energy"] = true["time"] * true["power"]
    draws = {"time": times[:, 0], "power": powers[:, 0], "energy": (times * powers)[:, 0]}
    groups = ["all"]
    groups += ["across nodes"] if truth.is_across_nodes else []
    groups += ["at a cap"] if truth.target.power_limit_w else []
    return {
        f"{name}, {group}": score(values, true[name]).covered
        for name, values in draws.items()
        for group in groups
    }


def speed(priors: Priors, jobs: int = 500) -> dict[str, object]:
    """Return the time of predictions of 500 jobs of 10 settings, on all cores."""
    wall_s, load = time.perf_counter(), os.getloadavg()[0]
    with ProcessPoolExecutor(PROCESSES) as pool:
        list(pool.map(partial(_predict_job, priors), range(jobs), chunksize=10))
    return {
        "jobs": jobs, "settings": 10, "processes": PROCESSES,
        "wall_s": round(time.perf_counter() - wall_s, 1), "load_before": load,
    }  # fmt: skip


def _predict_job(priors: Priors, number: int) -> None:
    dice = np.random.default_rng(number)
    seen = [
        Observation(
            Setting.packed(gpus, 4, local_batch=batch),
            (0.1 + 0.01 * batch) * (1 + 0.1 * np.log2(gpus)) * np.exp(dice.normal(0, 0.01)),
        )
        for gpus in (1, 2, 4, 8, 16) for batch in (16.0, 32.0)
    ]  # fmt: skip
    predict(seen, [Setting.packed(64, 4, local_batch=32.0)], priors=priors)


if __name__ == "__main__":
    main()
