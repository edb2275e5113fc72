"""Do intervals of measured settings hold on other nodes, and is a slow node named?

Made studies of 18 settings on 8 nodes (``made_studies.placed``), 3 repeats each on the same nodes
or one run; the truth is the mean time on other healthy nodes. Deadlines of 0.95 and 1.05 times the
truth ask each setting whether it meets them.

With ``--model``, the settings are predicted from all runs, and those of 16 GPUs from the others:
90 % intervals of a run, and the same deadlines.

With ``--few``, the coverage of few settings with two or three repeats by the noise of runs, and
where the first setting is four times as noisy.

    python benchmarks/placement.py --seeds 40
    python benchmarks/placement.py --seeds 1000 --few
    python benchmarks/placement.py --seeds 8 --model
"""

import argparse
import sys
from itertools import product
from math import log
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from made_studies import coverage, placed
from wattlaw.analysis.advise.certainty import draw
from wattlaw.analysis.advise.possible_options import options_of_runs
from wattlaw.analysis.advise.whole_job import needed_epochs
from wattlaw.analysis.metrics.comparable_runs import comparable_runs
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.predict.intervals import LEVEL, quantiles
from wattlaw.analysis.predict.job import jobs_of
from wattlaw.study.question import Question


def of_seed(seed: int, slow: float, repeats: int) -> dict[str, list[float]]:
    made, truth = placed(seed, slow=slow, repeats=repeats)
    job = comparable_runs(run_metrics(made.runs, made.epochs), "job")
    options = options_of_runs(job, needed_epochs(job, made.epochs, Question(epochs=1))[0])
    found: dict[str, list[float]] = {"covered": [], "width": [], "sure": [], "right": []}
    draws = draw(options, options) if repeats > 1 else None
    for at, item in enumerate(options):
        setting, time = item.setting, item.time_s
        true_s = truth[setting.gpus, int(setting.local_batch or 0), setting.power_limit_w]
        if time.low is not None and time.high is not None:
            found["covered"].append(time.low <= true_s <= time.high)
            found["width"].append(log(time.high / time.low))
        for share in (0.95, 1.05) if draws is not None else ():
            meets = float((draws.time_s[:, at] <= share * true_s).mean())
            if max(meets, 1 - meets) >= 0.9:
                found["sure"].append(max(meets, 1 - meets))
                found["right"].append((meets > 0.5) == (share > 1))
    texts = [item.text for item in job.warnings if item.code == "slow-node"]
    named = [text for text in texts if text.startswith("Node n3 ")]
    return found | {"named": [bool(named)], "misnamed": [len(texts) > len(named)]}


def of_model(seed: int, slow: float, repeats: int, most: int) -> dict[str, list[float]]:
    """Return how the model of the runs on up to ``most`` GPUs predicts the settings."""
    made, truth = placed(seed, slow=slow, repeats=repeats)
    table = run_metrics(made.runs, made.epochs)
    (every,), (job,) = jobs_of(table, "job"), jobs_of(table[table["gpus"] <= most], "job")
    settings = [item for item in dict.fromkeys(every.settings) if most == 16 or item.gpus > most]
    times_s, _ = job.amounts(settings)
    found: dict[str, list[float]] = {"covered": [], "width": [], "sure": [], "right": []}
    for at, setting in enumerate(settings):
        true_s = truth[setting.gpus, int(setting.local_batch or 0), setting.power_limit_w]
        low, _, high = quantiles(times_s[:, at], LEVEL)
        found["covered"].append(low <= true_s <= high)
        found["width"].append(log(high / low))
        for share in (0.95, 1.05):
            meets = float((times_s[:, at] <= share * true_s).mean())
            if max(meets, 1 - meets) >= 0.9:
                found["sure"].append(max(meets, 1 - meets))
                found["right"].append((meets > 0.5) == (share > 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--few", action="store_true")
    options = parser.parse_args()
    seeds = options.seeds
    if options.few:
        print("repeats settings noise coverage of_a_noisy_one of_the_others")
        for repeats, settings, noise in product((2, 3), (2, 4, 8), (0.01, 0.05, 0.2)):
            first, others = coverage(noise, settings, repeats, count=seeds)
            noisy = coverage(noise, settings, repeats, noisier=4.0, count=seeds)
            equal = (first + (settings - 1) * others) / settings
            shares = " ".join(f"{share:.3f}" for share in (equal, *noisy))
            print(repeats, settings, noise, shares, flush=True)
        return
    if options.model:
        print("slow repeats known_to coverage high/low stated right")
        for slow, repeats, most in product((0.0, 0.25), (1, 3), (16, 8)):
            rows = [of_model(seed, slow, repeats, most) for seed in range(seeds)]
            values = {key: [value for row in rows for value in row[key]] for key in rows[0]}
            mean = {key: np.mean(own or [np.nan]) for key, own in values.items()}
            print(
                f"{slow:.2f} {repeats} {most} {mean['covered']:.2f} "
                f"{np.exp(np.median(values['width'])):.2f} {mean['sure']:.3f} {mean['right']:.2f}"
            )
        return
    print("slow repeats coverage high/low stated right named misnamed")
    for slow in (0.0, 0.25):
        for repeats in (1, 3):
            rows = [of_seed(seed, slow, repeats) for seed in range(seeds)]
            values = {key: [value for row in rows for value in row[key]] for key in rows[0]}
            mean = {key: np.mean(own or [np.nan]) for key, own in values.items()}
            print(
                f"{slow:.2f} {repeats} {mean['covered']:.2f} {np.exp(mean['width']):.2f} "
                f"{mean['sure']:.3f} {mean['right']:.2f} {mean['named']:.2f} {mean['misnamed']:.2f}"
            )


if __name__ == "__main__":
    main()
