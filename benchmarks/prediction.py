"""Checks predictions on families of public data, left out one by one, and on a zoo of truths.

Run with ``make bench-prediction``; it prints the tables of docs/prediction.md. Public data are read
from the folder that ``WATTLAW_PUBLIC_DATA`` names (docs/benchmarks.md). Priors are learned without
the origin of what is predicted; ``--learn`` prints those of all, which the package ships as
``LEARNED`` in src/wattlaw/analysis/predict/parameters.py.
"""

import argparse
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

import truths
from common import write_results
from prediction_data import Case, cases, series
from prediction_learning import learned
from prediction_rivals import EXTRAP, OF_GPUS, OF_LIMITS, forecast
from published import markdown
from wattlaw.analysis.predict import Observation, fit
from wattlaw.analysis.predict.intervals import LEVEL, quantiles
from wattlaw.analysis.predict.parameters import LEARNED, Priors
from wattlaw.study.setting import Setting

Floats = npt.NDArray[np.float64]
#: Threads of the linear algebra would compete with the processes: OMP_NUM_THREADS=1.
PROCESSES = 2
OURS = "wattlaw"
#: On these families sizes of errors and priors are chosen; all others only report.
CHOSE = (
    "MLPerf",
    "InternEvo",
    "vTrain",
    "ring",
    "buckets",
    "slow ranks",
    "small batches",
    "cliff",
    "storage, seen beyond",
)
#: Columns of scores, each a row of these for one prediction.
SCORES = ("error", "covered", "high_over_low", "log_score", "crps")
Scores = dict[str, dict[str, list[Floats]]]  # by family and method
LEAST_LOG_SCORE = -20.0
Z = float(stats.norm.ppf(0.95))
BEYOND = "seen beyond"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learn", action="store_true", help="print the shipped priors")
    parser.add_argument("--seeds", type=int, default=2, help="of the sampler, in each public case")
    parser.add_argument("--zoo", type=int, default=60, metavar="N", help="jobs of each kind")
    parser.add_argument(
        "--only",
        default="",
        metavar="REGEX",
        help="print the tables of these families, and write no results",
    )
    arguments = parser.parse_args()
    priors = learned(job for job in series() if job.family != "pollux_T4_const_lbs")
    if arguments.learn:
        print(priors[""])
        return
    begun_s = time.perf_counter()
    wanted = [case for case in cases() if re.search(arguments.only, case.family)]
    kinds = [kind for kind in zoo_kinds() if re.search(arguments.only, kind)]
    jobs = [(kind, number) for kind in kinds for number in range(arguments.zoo)]
    with ProcessPoolExecutor(PROCESSES) as pool:
        scored = pool.map(partial(score_case, priors, arguments.seeds), wanted, chunksize=2)
        public = merged(scored)
        zoo = merged(pool.map(score_truth, jobs, chunksize=4))
        results = {
            "what": "predictions of step time, power and energy of settings that were not measured",
            "seeds": arguments.seeds,
            "zoo_jobs": arguments.zoo,
            "extra_p": EXTRAP.exists(),
            "public": summaries(public),
            "pooled": pooled(public),
            "zoo": summaries(zoo),
        }
        if not arguments.only:
            results |= {"fits": speed(pool), "wall_s": round(time.perf_counter() - begun_s)}
            write_results("prediction", f"cpu{os.cpu_count()}", results, show=False)
    print("\n\n".join(tables(results)))


def merged(found: Iterable[Scores]) -> Scores:
    total: Scores = defaultdict(lambda: defaultdict(list))
    for scores in found:
        for family, by_method in scores.items():
            for method, rows in by_method.items():
                total[family][method] += rows
    return total


def score_case(priors: Mapping[str, Priors], seeds: int, case: Case) -> Scores:
    """Return the scores of a case by family (of limits: by quantity too) and method.

    Ours are means over the seeds of the sampler.
    """
    quantities = {"": lambda item: item.step_time_s}
    if case.test[0].power_per_gpu_w:
        quantities = {
            ", time": lambda item: item.step_time_s,
            ", power": lambda item: item.power_per_gpu_w,
            ", energy": lambda item: item.step_time_s * item.power_per_gpu_w,
        }
    seen, wanted = ([item.setting for item in part] for part in (case.train, case.test))
    known = priors.get(case.origin, priors[""])
    runs = [fit(case.train, seed=seed, priors=known).runs(wanted)[1:] for seed in range(seeds)]
    scores: Scores = {}
    for index, (name, value) in enumerate(quantities.items()):
        values, true = (np.array([value(row) for row in p]) for p in (case.train, case.test))
        draws = [(times, powers, times * (powers if name else 1))[index] for times, powers in runs]
        ours = np.mean([of_draws(own, true) for own in draws], axis=0)
        laws = OF_LIMITS if name else OF_GPUS
        scores[case.family + name] = {OURS: [ours]} | {
            rival: [of_normal(*forecast(law, seen, values, wanted), true)]
            for rival, law in laws.items()
        }
    return scores


def of_draws(draws: Floats, true: Floats) -> Floats:
    """Return the scores of draws, shape (draws, predictions), in the columns ``SCORES``."""
    low, middle, high = quantiles(draws, LEVEL)
    logs, at = np.sort(np.log(draws), axis=0), np.log(true)
    density = [stats.gaussian_kde(own)(one)[0] for own, one in zip(logs.T, at, strict=True)]
    count = len(logs)
    # The mean distance to the truth minus half of that between draws (Gneiting and Raftery 2007).
    order = 2 * np.arange(1, count + 1) - count - 1
    crps = np.abs(logs - at).mean(0) - order @ logs / count**2
    return _columns(low, middle, high, true, np.log(np.maximum(density, 1e-300)), crps)


def of_normal(center: Floats, sd: Floats, true: Floats) -> Floats:
    """Return the scores of log-normal predictions."""
    z = (np.log(true) - center) / sd
    crps = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - np.pi**-0.5)
    low, high = np.exp(center - Z * sd), np.exp(center + Z * sd)
    return _columns(low, np.exp(center), high, true, stats.norm.logpdf(z) - np.log(sd), crps)


def _columns(
    low: Floats, middle: Floats, high: Floats, true: Floats, logs: Floats, crps: Floats
) -> Floats:
    covered = (low <= true) & (true <= high)
    error = np.abs(middle / true - 1)
    return np.column_stack([error, covered, high / low, np.maximum(logs, LEAST_LOG_SCORE), crps])


def zoo_kinds() -> list[str]:
    changing = [kind for kind, (_, changes) in truths.KINDS.items() if changes]
    return [*truths.KINDS, *(f"{kind}, {BEYOND}" for kind in changing)]


def score_truth(job: tuple[str, int]) -> Scores:
    """Return the scores of a job of the zoo by doublings ahead; each third has three repeats."""
    name, number = job
    kind = name.removesuffix(f", {BEYOND}")
    repeats = 3 if number % 3 == 2 else 1
    made = truths.draw(kind, number, repeats=repeats, beyond=kind != name)

    def setting(at: truths.Place) -> Setting:
        return Setting.packed(at.gpus, made.node_gpus, local_batch=float(at.batch))

    seen = [Observation(setting(run.at), run.step_s, session=run.session) for run in made.runs]
    draws = fit(seen, priors=LEARNED).runs([setting(run.at) for run in made.targets])[1]
    found = of_draws(draws, np.array([run.step_s for run in made.targets]))
    by_factor = {f"{factor}x": [row[None]] for factor, row in zip((2, 4, 8), found, strict=True)}
    return {name: {**by_factor, "all": [found]}}


def summaries(scores: Scores) -> dict[str, dict[str, object]]:
    return {
        family: {"chose": family.startswith(CHOSE)}
        | {name: summary(rows) for name, rows in methods.items()}
        for family, methods in scores.items()
    }


def summary(rows: Sequence[Floats]) -> dict[str, float]:
    table = np.concatenate(rows)
    error, covered, width, logs, crps = table.T
    return {
        "n": len(table),
        "median_error": round(float(np.median(error)), 4),
        "p90_error": round(float(np.quantile(error, 0.9)), 4),
        "coverage": round(float(covered.mean()), 4),
        "high_over_low": round(float(np.median(width)), 3),
        "log_score": round(float(logs.mean()), 3),
        "crps": round(float(crps.mean()), 4),
    }


def pooled(public: Scores) -> dict[str, object]:
    """Return the figures of all predictions of GPU counts, and of the times at limits."""
    groups = {
        "more GPUs": lambda family: not family.startswith("caps"),
        "more GPUs, families that only report": lambda family: (
            not family.startswith(("caps", *CHOSE))
        ),
        "power limits": lambda family: family.startswith("caps"),
    }
    found: dict[str, object] = {}
    for group, condition in groups.items():
        kept = [m for family, m in public.items() if condition(family) and "parts" not in family]
        if kept:
            found[group] = {name: summary([r for m in kept for r in m[name]]) for name in kept[0]}
    return found


def speed(pool: ProcessPoolExecutor, jobs: int = 500) -> dict[str, object]:
    """Return the time of fits and predictions of 10 settings each."""
    begun_s, load = time.perf_counter(), os.getloadavg()[0]
    list(pool.map(_predict_job, range(jobs), chunksize=10))
    wall_s = round(time.perf_counter() - begun_s, 1)
    return {"jobs": jobs, "processes": PROCESSES, "wall_s": wall_s, "load_before": load}


def _predict_job(number: int) -> None:
    dice = np.random.default_rng(number)
    seen = [
        Observation(
            Setting.packed(gpus, 4, local_batch=batch),
            (0.1 + 0.01 * batch) * (1 + 0.1 * np.log2(gpus)) * np.exp(dice.normal(0, 0.01)),
        )
        for gpus in (1, 2, 4, 8, 16)
        for batch in (16.0, 32.0)
    ]
    fit(seen).runs([Setting.packed(64, 4, local_batch=32.0)])


def tables(results: Mapping[str, dict]) -> list[str]:
    """Return the tables of docs/prediction.md: figures by family, of rivals, pooled, of the zoo."""
    ours = [
        {"family": name, "chose sizes": "yes" * found["chose"], **_cells(found[OURS])}
        for name, found in sorted(results["public"].items())
    ]
    rivals = [
        {"family": name}
        | {
            method: f"{figures['median_error']:.1%}, {figures['log_score']:+.2f}"
            for method, figures in found.items()
            if method != "chose"
        }
        for name, found in sorted(results["public"].items())
        if "parts" not in name
    ]
    every = [
        {"predictions of": group, "method": method, **_cells(figures)}
        for group, found in results["pooled"].items()
        for method, figures in sorted(found.items(), key=lambda item: item[1]["median_error"])
    ]
    best = [
        f"{group}: median error {found[OURS]['median_error'] / least:.2f} times the best other one"
        for group, found in results["pooled"].items()
        for least in [min(f["median_error"] for name, f in found.items() if name != OURS)]
    ]
    zoo = [
        {"kind": kind, "chose sizes": "yes" * found["chose"]}
        | {f"coverage {x}": f"{found[x]['coverage']:.0%}" for x in ("2x", "4x", "8x", "all")}
        | {f"high / low {x}": f"{found[x]['high_over_low']:.2f}" for x in ("2x", "4x", "8x")}
        | {
            "median error": f"{found['all']['median_error']:.1%}",
            "log score": f"{found['all']['log_score']:+.2f}",
            "CRPS": f"{found['all']['crps']:.3f}",
        }
        for kind, found in results["zoo"].items()
    ]
    shown = [markdown(pd.DataFrame(rows).fillna("")) for rows in (ours, rivals, every, zoo) if rows]
    missing = [] if results["extra_p"] else ["Extra-P is not installed: make test-extrap."]
    return [*shown, *best, *missing]


def _cells(figures: Mapping[str, float]) -> dict[str, str]:
    return {
        "n": str(int(figures["n"])),
        "median error": f"{figures['median_error']:.1%}",
        "p90": f"{figures['p90_error']:.0%}",
        "coverage of 90 %": f"{figures['coverage']:.0%}",
        "high / low": f"{figures['high_over_low']:.2f}",
        "log score": f"{figures['log_score']:+.2f}",
        "CRPS": f"{figures['crps']:.3f}",
    }


if __name__ == "__main__":
    main()
