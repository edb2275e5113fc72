"""Times and memory of commands on large stores.

Run with ``make bench-store``. Three stores are made: the 3,402 simulated runs of the MIT study;
100,000 rows of a table, imported; and 100,000 run folders, from a seed. Each command runs in a
process of its own and its time includes the start of Python. ``first`` is the call that fills the
cache. Of the later ones, the shortest time counts, since other processes can only make a call
slower.
"""

import argparse
import csv
import functools
import io
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from common import write_results
from wattlaw.store.record import RunRecord
from wattlaw.store.schema import EPOCHS, TELEMETRY, rows_table
from wattlaw.store.store import Store
from wattlaw.study.model import Measure, RunSpec, WorkloadSpec
from wattlaw.study.setting import Setting

EXAMPLES = Path(__file__).parents[1] / "src" / "wattlaw" / "examples"
RUNS = 100_000
WORKLOADS = 7
#: Seconds, by store and command; of a later call unless it says ``first``.
TARGETS: dict[str, dict[str, float]] = {
    "simulated": {"status": 0.7, "fit": 4, "advise": 4, "report": 20},
    "imported": {"import": 20, "status first": 60, "status": 2, "fit": 5, "advise": 5},
    "folders": {"status first": 300, "status": 2, "fit": 5, "advise": 5},
}
MEMORY_GB = 2.0


def main() -> None:
    """Make the stores, time the commands, and print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep the stores in this folder")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of the made stores")
    parser.add_argument("--times", type=int, default=3, help="later calls of each command")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        results = {
            "simulated": simulated(folder / "simulated", options.times),
            "imported": imported(folder / "imported", options.runs, options.times),
            "folders": run_folders(folder / "folders", options.runs, options.times),
        }
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    missed = [
        f"{store}: {command}"
        for store, limits in TARGETS.items()
        for command, limit_s in limits.items()
        if results[store][command]["seconds"] > limit_s
    ]
    missed += [f"{store}: memory" for store, of_store in results.items()
               if max(item["memory_gb"] for item in of_store.values()) > MEMORY_GB]  # fmt: skip
    write_results(
        "large-store",
        f"cpu{os.cpu_count()}",
        {
            "what": "commands on large stores",
            "runs_made": options.runs,
            "load_average": os.getloadavg()[0],
            "targets_s": TARGETS,
            "target_memory_gb": MEMORY_GB,
            "missed": missed,
            "stores": results,
        },
    )


Times = dict[str, dict[str, float]]


def simulated(store: Path, times: int) -> Times:
    """Return the times on the simulated MIT study."""
    if not store.exists():
        study = str(EXAMPLES / "mit-2022-all.yaml")
        run("run", study, "--launch", "simulated", "--hardware", "mit-v100", "--store", str(store))
    page = str(store.parent / "report.html")
    return commands(store, times) | {
        "report": shortest(["report", str(store), "-o", page], times),
    }


def imported(store: Path, runs: int, times: int) -> Times:
    """Return the time of an import, and the times on its store."""
    table = store.parent / "rows.csv"
    dice = random.Random(1)  # noqa: S311
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["workload", "gpus", "cap", "time", "energy"])
        for number in range(runs):
            workload, gpus, cap, time_s, energy_j = made_row(number, dice)
            rows.writerow([workload, gpus, cap, time_s, energy_j])
    shutil.rmtree(store, ignore_errors=True)
    mapping = "gpus=gpus,epoch_time_s=time,workload=workload,power_limit_w=cap,gpu_energy_j=energy"
    mapping += ",local_batch=@32,hardware=@V100"
    line = ["import", str(table), "--map", mapping, "--store", str(store)]
    return {"import": run(*line)} | commands(store, times)


def run_folders(store: Path, runs: int, times: int) -> Times:
    """Return the times on a store of run folders, made with the same values."""
    if not store.exists():
        make_folders(store, runs)
    return commands(store, times)


def commands(store: Path, times: int) -> Times:
    """Return the times of the first call of status and fit, and of later calls of all commands."""
    shutil.rmtree(store / ".cache", ignore_errors=True)
    first = {name: run(name, str(store)) for name in ("status", "fit")}
    time.sleep(1.0)
    later = {name: shortest([name, str(store)], times) for name in ("status", "fit", "advise")}
    return {f"{name} first": of_name for name, of_name in first.items()} | later


def made_row(number: int, dice: random.Random) -> tuple[str, int, float, float, float]:
    """Return workload, GPUs, power limit, time of an epoch and energy of a made run."""
    gpus, cap_w = dice.choice((1, 2, 4, 8, 16, 32, 64)), dice.choice((100.0, 150.0, 200.0, 250.0))
    which = number % WORKLOADS
    time_s = (500 + 100 * which) * gpus**-0.85 * (1 + 20 / cap_w) * dice.lognormvariate(0, 0.02)
    return f"w{which}", gpus, cap_w, time_s, 0.8 * cap_w * gpus * time_s


def make_folders(path: Path, runs: int) -> None:
    """Write run folders with one window each and no samples.

    Files of a run are those of a template with other values, which is many times faster.
    """
    store = Store(path)
    store.create()
    dice = random.Random(1)  # noqa: S311
    samples = io.BytesIO()
    pq.write_table(TELEMETRY.empty_table(), samples)
    for number in range(runs):
        workload, gpus, cap_w, time_s, energy_j = made_row(number, dice)
        run_id = f"{number:016x}"
        folder = store.folder(run_id)
        folder.path.mkdir()
        text, windows = template(workload, gpus, cap_w)
        text = text.replace(_RUN_ID, run_id).replace(f'"repeat":{_REPEAT}', f'"repeat":{number}')
        windows = windows.replace(_RUN_ID.encode(), run_id.encode())
        for placeholder, value in ((_TIME_S, time_s), (_ENERGY_J, energy_j)):
            windows = windows.replace(struct.pack("<d", placeholder), struct.pack("<d", value))
        folder.record_path.write_text(text)
        folder.epochs_path.write_bytes(windows)
        folder.telemetry_path.write_bytes(samples.getvalue())


_RUN_ID, _REPEAT, _TIME_S, _ENERGY_J = "~" * 16, 7654321, 1234.56789, 98765.4321


@functools.cache
def template(workload: str, gpus: int, cap_w: float) -> tuple[str, bytes]:
    """Return the record and the windows of a run, with placeholders."""
    setting = Setting(gpus=gpus, local_batch=32, power_limit_w=cap_w)
    spec = RunSpec(
        workload=WorkloadSpec(name=workload), setting=setting, repeat=_REPEAT,
        measure=Measure(), launch_kind="local", hardware="V100",
    )  # fmt: skip
    record = RunRecord(run_id=_RUN_ID, study="made", spec=spec, seed=0, order_seed=0, status="done")
    window = {
        "run_id": _RUN_ID, "host": "a", "phase": "train", "epoch": 0, "warmup": False,
        "interrupted": False, "duration_s": _TIME_S, "gpu_energy_j": _ENERGY_J,
        "energy_source": "counter", "energy_verdict": "ok",
    }  # fmt: skip
    table, file = rows_table([window], EPOCHS), io.BytesIO()
    # One plain copy of each value, to be replaced.
    pq.write_table(table, file, compression="none", use_dictionary=False, write_statistics=False)
    return record.model_dump_json(), file.getvalue()


def shortest(line: Sequence[str], times: int) -> dict[str, float]:
    """Return the shortest time of several calls, and the most memory."""
    calls = [run(*line) for _ in range(times)]
    return {
        "seconds": min(call["seconds"] for call in calls),
        "processor_s": min(call["processor_s"] for call in calls),
        "memory_gb": max(call["memory_gb"] for call in calls),
    }


def run(*line: str) -> dict[str, float]:
    """Run a command; return its time, its processor time and its largest resident memory.

    Raises
    ------
    SystemExit
        The command failed.
    """
    print(*line, file=sys.stderr)
    begun_s = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "wattlaw", *line], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed with {process.returncode}: {' '.join(line)}")
    return {
        "seconds": round(seconds, 2),
        "processor_s": round(usage.ru_utime + usage.ru_stime, 2),
        "memory_gb": round(usage.ru_maxrss * 1024 / 1e9, 3),
    }


if __name__ == "__main__":
    main()
