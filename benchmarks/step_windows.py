"""Full epochs beside 100 steps: seconds per sample, and the time that a measurement takes.

``make bench-steps``. A repeat is a run of epochs and a run of steps of one workload, one after the
other in random order, so that a drift of the machine is in both. The nets are reduced so that a
processor trains them. Two of three workloads have epochs of hundreds of steps; an epoch of
digits-cnn has 23, and little time can be saved. All take 15 minutes on a machine that is idle.
"""

import argparse
import json
import math
import os
import random
import statistics
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t as student

from common import write_results
from wattlaw.api.progress_lines import LineProgress
from wattlaw.common import machine
from wattlaw.running.campaign import Campaign
from wattlaw.running.local import LocalLauncher
from wattlaw.store.store import Store
from wattlaw.study.model import Study
from wattlaw.study.plan import PlannedRun, expand

#: With options, and the batch; an epoch of bert-base takes about 40 s, so that a run is long.
WORKLOADS: dict[str, tuple[dict[str, Any], int]] = {
    "digits-cnn": ({}, 64),
    "resnet50": (
        {"classes": 100, "image_size": 32, "blocks": [1, 1, 1, 1], "train_samples": 480}, 2,
    ),
    "bert-base": (
        {"hidden_size": 128, "layers": 2, "heads": 2, "intermediate_size": 512,
         "vocab_size": 850, "train_samples": 3200}, 4,
    ),
}  # fmt: skip
MEASURES: dict[str, dict[str, Any]] = {
    "epochs": {"epochs": 3, "warmup_epochs": 1, "evaluate": False},
    "steps": {"steps": 100, "warmup_steps": 20},
}


def study_of(workload: str, measure: dict[str, Any], repeats: int) -> Study:
    """Return a study of one setting."""
    options, batch = WORKLOADS[workload]
    return Study.model_validate_json(
        json.dumps(
            {
                "name": "step-windows",
                "workloads": [{"name": workload, "options": options}],
                "sweeps": [{"gpus": [1], "local_batch": [batch]}],
                "repeats": repeats,
                "order": "as_written",
                "measure": measure,
                "launch": {"kind": "local", "gpus_per_node": 1, "threads_per_worker": 1},
            }
        )
    )


def measured(store: Store, runs: dict[str, list[PlannedRun]]) -> dict[str, list[dict[str, float]]]:
    """Return time per sample and duration of each run, by what was measured, in order of repeat."""
    windows = store.pandas("epochs")
    windows = windows[~windows["warmup"]]
    sums = windows.groupby("run_id")[["duration_s", "samples", "steps"]].sum()
    table = store.pandas("runs").set_index("run_id")
    wall_s = (table["finished_at"] - table["started_at"]).dt.total_seconds()
    return {
        name: [
            {
                "s_per_sample": sums["duration_s"][run.run_id] / sums["samples"][run.run_id],
                "steps": int(sums["steps"][run.run_id]),
                "wall_s": wall_s[run.run_id],
            }
            for run in planned
        ]
        for name, planned in runs.items()
    }


def interval(values: list[float]) -> dict[str, float]:
    """Return the geometric mean of values and its 95 % interval, of Student's t on logarithms."""
    logs = [math.log(value) for value in values]
    mean = statistics.mean(logs)
    half = statistics.stdev(logs) / math.sqrt(len(logs)) * float(student.ppf(0.975, len(logs) - 1))
    low, high = mean - half, mean + half
    return {"mean": math.exp(mean), "low": math.exp(low), "high": math.exp(high)}


def compared(workload: str, repeats: int, folder: Path) -> dict[str, Any]:
    """Run both measurements of a workload in turns; return what they say."""
    studies = {name: study_of(workload, measure, repeats) for name, measure in MEASURES.items()}
    runs = {name: expand(study) for name, study in studies.items()}
    order = [run for pair in zip(*runs.values(), strict=True) for run in random.sample(pair, 2)]
    store = Store(folder / workload)
    store.create()
    study = studies["steps"]
    with closing(LocalLauncher(study.launch, gpus=[], board_of={})) as launcher:
        progress = LineProgress(lambda line: print(line, flush=True), len(order))
        Campaign(study, order, store, launcher, [progress]).run()
    results = measured(store, runs)
    per_sample = {name: [one["s_per_sample"] for one in rows] for name, rows in results.items()}
    pairs = list(zip(per_sample["steps"], per_sample["epochs"], strict=True))
    wall = {name: statistics.mean(one["wall_s"] for one in rows) for name, rows in results.items()}
    notes = pd.Series([note for notes in store.pandas("runs")["notes"] for note in notes])
    return {
        "workload": workload,
        "options": WORKLOADS[workload][0],
        "batch": WORKLOADS[workload][1],
        "s_per_sample": {name: interval(values) for name, values in per_sample.items()},
        "steps_over_epochs": interval([steps / epochs for steps, epochs in pairs]),
        "wall_s": wall,
        "wall_ratio": wall["epochs"] / wall["steps"],
        "runs": results,
        "notes": sorted({str(note) for note in notes}),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    """Compare, print a line for each workload, and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--quick", action="store_true", help="two repeats, no results file")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for workload in options.workloads:
            row = compared(workload, 2 if options.quick else options.repeats, Path(folder))
            rows.append(row)
            ratio = row["steps_over_epochs"]
            print(
                f"{workload}: {row['s_per_sample']['epochs']['mean']:.4g} s per sample by epochs; "
                f"by steps {ratio['mean']:.3f} times ({ratio['low']:.3f} to {ratio['high']:.3f}); "
                f"{row['wall_ratio']:.1f} times less time",
                flush=True,
            )
    if not options.quick:
        settings = {"repeats": options.repeats, "measures": MEASURES, "threads": 1}
        settings |= {"order": "epochs and steps in random order within a repeat"}
        versions = machine.software(("torchvision", "transformers"))
        results = {"versions": versions, "settings": settings, "workloads": rows}
        write_results("step-windows", f"cpu{os.cpu_count()}", results)


if __name__ == "__main__":
    main()
