"""Five scripts that do not import wattlaw: steps and step times beside the scripts' own timers.

``make bench-scripts``; it takes 25 minutes on a machine that is idle. In each round, each script of
``support/scripts`` of the tests is run under ``measure``, in a study of 100 steps, and with
``track`` or the callback of its trainer. Its own timer says how many steps it took, how long each.

A study of each script also has the batch of its setting, and others: the wrong placeholder, a fixed
batch, gradient accumulation. What ``runs``, ``advise``, ``fit`` and the report say is compared with
what the script trains.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import wattlaw
from common import write_results
from wattlaw.common import machine
from wattlaw.store.store import Store
from wattlaw.study.not_as_declared import OTHER_BATCH

SCRIPTS = Path(__file__).parents[1] / "tests" / "support" / "scripts"
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_ACCELERATE = (
    "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no",
)  # fmt: skip
#: World size and launcher of each script; a study starts the ranks without the launcher.
LAUNCHERS: dict[str, tuple[int, Sequence[str]]] = {
    "plain": (1, ()),
    "ddp": (2, _TORCHRUN),
    "lightning_fit": (1, ()),
    "hugging_face": (1, ()),
    "accelerated": (1, _ACCELERATE),
}
WARMUP_STEPS, STEPS = 20, 100
ENVIRONMENT = {"EPOCHS": "25", "STEP_S": "0.02", "OMP_NUM_THREADS": "1"}
STUDY_ENVIRONMENT = ENVIRONMENT | {"EPOCHS": "100000"}  # the study ends the script
#: Environment of a script, by the way in which it gets its batch.
VARIANTS = {
    "as declared": ("BATCH={local_batch}", "ACCUMULATE=1"),
    "wrong placeholder": ("BATCH={global_batch}", "ACCUMULATE=1"),
    "fixed": ("BATCH=6", "ACCUMULATE=1"),
    "accumulation": ("BATCH={local_batch}", "ACCUMULATE=4"),
}
LOCAL_BATCH = 8
BATCH_ENVIRONMENT = {"EPOCHS": "100000", "STEP_S": "0.005", "SAMPLES": "200"}
#: The largest relative difference of a step time from the script's own.
TARGET = 0.02


def run(line: Sequence[object], environment: Mapping[str, str]) -> str:
    """Run a command line of this Python; return its output."""
    done = subprocess.run(
        [sys.executable, *map(str, line)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    if done.returncode:
        raise SystemExit(f"{line} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Run a script under ``wattlaw measure``; compare its steps with those of its own timer."""
    summary = folder / "summary.json"
    command = [sys.executable, *LAUNCHERS[name][1], SCRIPTS / f"{name}.py"]
    options = ["-o", folder / "measured", "--json", summary, "--warmup-steps", WARMUP_STEPS]
    output = run(["-m", "wattlaw", "measure", *options, "--", *command], ENVIRONMENT)
    results = [json.loads(line) for line in re.findall(r"RESULT (.*)", output)]
    (own,) = [result for result in results if result["rank"] == 0]
    times_s = own["times_s"][WARMUP_STEPS:]
    ours = json.loads(summary.read_text())
    return {
        "steps": ours["steps"],
        "own_steps": own["steps"],
        "world_size": ours["world_size"],
        "own_world_size": len(results),
        "p50_ratio": ours["step_time_p50_s"] / statistics.median(times_s),
        "mean_ratio": ours["step_time_mean_s"] / statistics.mean(times_s),
        "pauses": ours["pauses"],
    }


def s_per_sample(folder: Path) -> float:
    """Return the seconds per sample of the measured steps of a store's only run."""
    windows = Store(folder).pandas("epochs")
    steady = windows[(windows["phase"] == "steps") & ~windows["warmup"].astype(bool)]
    return float(steady["duration_s"].sum() / steady["samples"].sum())


def studied(name: str, folder: Path) -> float:
    """Return the seconds per sample of a script in a study of 100 steps."""
    study = {
        "name": "own-scripts",
        "workloads": [{"name": name, "command": ["{python}", str(SCRIPTS / f"{name}.py")]}],
        "sweeps": [{"gpus": [LAUNCHERS[name][0]], "local_batch": [10]}],
        "measure": {"steps": STEPS, "warmup_steps": WARMUP_STEPS},
        "launch": {"gpus_per_node": 2, "threads_per_worker": 1},
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    run(["-m", "wattlaw", "run", path, "--store", folder / "study"], STUDY_ENVIRONMENT)
    return s_per_sample(folder / "study")


def tracked(name: str, folder: Path) -> float:
    """Return the seconds per sample of a script that calls ``track``, or has a callback."""
    environment = {**ENVIRONMENT, "TRACK": str(folder / "tracked")}
    run([*LAUNCHERS[name][1], SCRIPTS / f"{name}.py"], environment)
    return s_per_sample(folder / "tracked")


def expected_batch(variant: str, gpus: int) -> int:
    """Return the samples of an optimizer step of a variant on all GPUs."""
    local = {"wrong placeholder": gpus * LOCAL_BATCH, "fixed": 6, "accumulation": 4 * LOCAL_BATCH}
    return gpus * local.get(variant, LOCAL_BATCH)


def batches(name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the batch that each variant of a script trains, and the one that each answer has."""
    counts = sorted({1, LAUNCHERS[name][0] if name == "plain" else 2})  # plain has no DDP
    script = ["{python}", str(SCRIPTS / f"{name}.py")]
    study = {
        "name": "batches",
        "workloads": [
            {"name": variant.replace(" ", "-"), "command": ["env", *words, *script]}
            for variant, words in VARIANTS.items()
        ],
        "sweeps": [{"gpus": counts, "local_batch": [LOCAL_BATCH]}],
        "measure": {"steps": 30, "warmup_steps": 5},
        "launch": {"gpus_per_node": 2, "threads_per_worker": 1},
    }
    path, store, page = folder / "study.yaml", folder / "store", folder / "page.html"
    path.write_text(yaml.safe_dump(study))
    run(["-m", "wattlaw", "run", path, "--store", store], BATCH_ENVIRONMENT)
    run(["-m", "wattlaw", "report", store, "-o", page], {})
    report, opened = page.read_text(), wattlaw.open(store)
    series = [fitted.group for fitted in opened.fit().rows]  # two counts are too few for a law
    rows = []
    for variant in VARIANTS:
        workload = variant.replace(" ", "-")
        runs = opened.runs[opened.runs["workload"] == workload].sort_values("gpus")
        advice = opened.advise(workload, any_batch=True)
        expected = [expected_batch(variant, gpus) for gpus in counts]
        declared = [gpus * LOCAL_BATCH for gpus in counts]
        own = [group for group in series if group["workload"] == workload]
        row = {
            "script": name,
            "variant": variant,
            "gpus": counts,
            "declared": declared,
            "trained": expected,
            "runs": [int(batch) for batch in runs["global_batch"]],
            "advise": sorted(
                {item.global_batch for item in advice.pareto if not item.is_predicted}
            ),
            "fit": [int(group["local_batch"]) for group in own if "local_batch" in group],
            "advise_warns": any(w.code == OTHER_BATCH for w in advice.warnings),
            "report_warns": f" of {workload} trained with another global batch" in report,
        }
        # A series has one local batch for both counts of GPUs.
        local = {batch // gpus for batch, gpus in zip(expected, counts, strict=True)}
        wanted = [*local] if len(local) == 1 and len(counts) > 1 else []
        row["is_right"] = (
            row["runs"] == expected
            and set(row["advise"]) <= set(expected)
            and row["fit"] == wanted
            and row["advise_warns"] is row["report_warns"] is (expected != declared)
        )
        rows.append(row)
    return rows


def compared(name: str, rounds: int) -> dict[str, Any]:
    """Measure a script in each way, in every round; return the results."""
    results = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            result = measured(name, Path(folder))
            result["study_s_per_sample"] = studied(name, Path(folder))
            result["track_s_per_sample"] = tracked(name, Path(folder))
        result["study_over_track"] = result["study_s_per_sample"] / result["track_s_per_sample"]
        results.append(result | {"load_average": os.getloadavg()[0]})
    ratios = ("p50_ratio", "mean_ratio", "study_over_track")
    return {
        "script": name,
        "steps_are_exact": all(r["steps"] == r["own_steps"] for r in results),
        "world_size_is_exact": all(r["world_size"] == r["own_world_size"] for r in results),
        "within_target": all(abs(r[n] - 1) <= TARGET for r in results for n in ratios[:2]),
        **{n: statistics.median(r[n] for r in results) for n in ratios},
        "rounds": results,
    }


def main() -> None:
    """Compare, print a line for each script, and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scripts", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS))
    parser.add_argument("--batches", action="store_true", help="compare the batches only")
    parser.add_argument("--quick", action="store_true", help="one round, no results file")
    options = parser.parse_args()
    rows, of_batches = [], []
    for name in options.scripts:
        with tempfile.TemporaryDirectory() as folder:
            found = batches(name, Path(folder))
        of_batches += found
        for item in found:
            print(
                f"{name}, {item['variant']}: declared {item['declared']}, trained "
                f"{item['trained']}; runs {item['runs']}, advise {item['advise']}, fit of local "
                f"batches {item['fit']}; warned by advise {item['advise_warns']}, by the report "
                f"{item['report_warns']}: {'right' if item['is_right'] else 'WRONG'}",
                flush=True,
            )
        if options.batches:
            results = {
                "settings": {"local_batch": LOCAL_BATCH, "environment": BATCH_ENVIRONMENT},
                "met": all(item["is_right"] for item in of_batches),
                "batches": of_batches,
            }
            write_results("own-scripts-batches", f"cpu{os.cpu_count()}", results)
            continue
        row = compared(name, 1 if options.quick else options.rounds)
        rows.append(row)
        result = row["rounds"][0]
        print(
            f"{name}: {result['steps']} steps of {result['own_steps']}, world size "
            f"{result['world_size']} of {result['own_world_size']}; step time over the script's "
            f"own {row['p50_ratio']:.4f} (p50), {row['mean_ratio']:.4f} (mean); seconds per "
            f"sample, study over track {row['study_over_track']:.3f}",
            flush=True,
        )
    if options.quick or options.batches:
        return
    settings = {"rounds": options.rounds, "environment": ENVIRONMENT, "steps": STEPS}
    results = {
        "versions": machine.software(("torch", "accelerate", "lightning", "transformers")),
        "settings": settings | {"warmup_steps": WARMUP_STEPS},
        "target": f"steps and world size exact, step times within {TARGET:.0%} of the script's own",
        "batches": of_batches,
        "met": all(item["is_right"] for item in of_batches)
        and all(r["steps_are_exact"] and r["world_size_is_exact"] and r["within_target"]
                   for r in rows),
        "scripts": rows,
    }  # fmt: skip
    write_results("own-scripts", f"cpu{os.cpu_count()}", results)


if __name__ == "__main__":
    main()
