"""Time of statistics of 100 million samples, and of a plain DuckDB query; a store of 3,000 runs.

Run with ``python benchmarks/telemetry.py`` (about 2 GB in the temporary folder, removed at the
end). The measured functions take turns. Each runs in a process of its own, which prints its time
and peak memory. The first turn of each is not counted.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from wattlaw.store.record import Facts, RunRecord, now
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.statistics import joint_utilisation
from wattlaw.store.statistics import statistics as statistics_of
from wattlaw.store.store import Store
from wattlaw.study.model import Measure, RunSpec, WorkloadSpec, run_id
from wattlaw.study.setting import Setting

ROUNDS = 5
#: Few windows, because the join of the plain query gets slower with their number.
EPOCHS_OF_RUNS = (3, 5, 10)
BEGIN_NS, PERIOD_NS = 1_700_000_000 * 10**9, 10**8
QUANTITIES = ("sm_util", "mem_util", "power_w", "sm_clock_mhz", "temperature_c")
RESULTS = Path(__file__).parent / "results"
#: The plain query, as a user of DuckDB would write it.
PLAIN_QUERY = """
with windows as (
    select run_id, host, start_ns, start_ns + cast(round(duration_s * 1e9) as bigint) as end_ns
    from read_parquet('{store}/runs/*/epochs.parquet') where phase = 'train' and not warmup
)
select t.run_id, t.host, t.device, count(*) as samples, {columns},
       corr(sm_util, mem_util) as utilisation_correlation
from read_parquet('{store}/runs/*/telemetry.parquet') t
join windows w on t.run_id = w.run_id and t.host = w.host
    and t.t_ns between w.start_ns and w.end_ns
where t.kind = 'gpu'
group by all
"""


def samples(identity: str, hosts: int, gpus: int, times: int, seed: int) -> pa.Table:
    """Return the telemetry of a run, in the order in which a store has it: by host, by time."""
    rng = np.random.default_rng(seed)
    rows = hosts * gpus * times
    devices = pa.array([f"GPU-{seed:08}-{number}" for number in range(gpus)])
    at_ns = BEGIN_NS + np.repeat(np.arange(times) * PERIOD_NS, gpus)
    host, device = np.repeat(np.arange(hosts), gpus * times), np.tile(np.arange(gpus), times)
    load = np.repeat(rng.normal(0.8, 0.1, times * hosts).clip(0, 1), gpus)
    known = {
        "run_id": pa.repeat(identity, rows),
        "host": pa.array([f"node{number:03}" for number in range(hosts)]).take(pa.array(host)),
        "device": devices.take(pa.array(np.tile(device, hosts))),
        "kind": pa.repeat("gpu", rows),
        "t_ns": pa.array(np.tile(at_ns, hosts) + rng.integers(0, 10**6, rows)),
        "power_w": pa.array((load * 250 + rng.normal(40, 5, rows)).round(3)),
        "energy_j": pa.array(np.arange(rows) * 20.0),
        "power_source": pa.repeat("measured", rows),
        "sm_util": pa.array((load + rng.normal(0, 0.05, rows)).clip(0, 1).round(2)),
        "mem_util": pa.array((load / 2 + rng.normal(0, 0.05, rows)).clip(0, 1).round(2)),
        "mem_used_bytes": pa.array(rng.integers(10**10, 10**10 + 10**6, rows)),
        "sm_clock_mhz": pa.array(rng.integers(90, 132, rows) * 15.0),
        "temperature_c": pa.array(rng.integers(45, 70, rows) * 1.0),
        "throttle": pa.array(np.zeros(rows, dtype=np.int64)),
    }
    missing = {field.name: pa.nulls(rows, field.type) for field in TELEMETRY}
    return pa.table({**missing, **known}, schema=TELEMETRY)


def windows(identity: str, hosts: int, epochs: int, seconds: float) -> pa.Table:
    """Return windows that fill a run: training, and evaluation for a tenth of each epoch."""
    rows = [
        {
            "run_id": identity, "host": f"node{host:03}", "epoch": epoch, "phase": phase,
            "warmup": epoch == 0, "duration_s": seconds / epochs * share,
            "start_ns": BEGIN_NS + round(seconds / epochs * (epoch + begin) * 1e9),
            "samples": 1000, "steps": 10, "loss": 1.0, "energy_source": "counter",
            "energy_verdict": "ok", "gpu_energy_j": 1000.0, "sm_util_mean": 0.8,
        }
        for epoch in range(epochs) for host in range(hosts)
        for phase, begin, share in (("train", 0.0, 0.89), ("evaluate", 0.9, 0.09))
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=EPOCHS)


def add_run(store: Store, number: int, hosts: int, gpus: int, times: int, epochs: int) -> None:
    """Write a done run."""
    spec = RunSpec(
        workload=WorkloadSpec(name="resnet50"),
        setting=Setting(gpus=hosts * gpus, local_batch=64),
        repeat=number,
        measure=Measure(epochs=epochs),
        launch_kind="local",
        nodes=hosts,
    )
    identity = run_id(spec)
    folder = store.folder(identity)
    record = RunRecord(
        run_id=identity, study="benchmark", spec=spec, seed=0, order_seed=0, status="done",
        attempts=1, started_at=now(), finished_at=now(), facts=Facts(software={"torch": "2"}),
    )  # fmt: skip
    folder.write(record, durable=False)
    seconds = times * PERIOD_NS * 1e-9
    for path, table in (
        (folder.telemetry_path, samples(identity, hosts, gpus, times, number)),
        (folder.epochs_path, windows(identity, hosts, epochs, seconds)),
    ):
        pq.write_table(table, path, compression="zstd")


def plain_query(path: Path) -> pd.DataFrame:
    """Return the statistics of GPUs by the plain query."""
    names = {"sm_util": "sm_util_{}", "mem_util": "mem_util_{}", "power_w": "power_{}_w",
             "sm_clock_mhz": "sm_clock_{}_mhz", "temperature_c": "temperature_{}_c"}  # fmt: skip
    functions = {"mean": "avg", "sd": "stddev_pop", "min": "min", "max": "max"}
    columns = ", ".join(
        f"{function}({column}) as {names[column].format(name)}"
        for column in QUANTITIES
        for name, function in functions.items()
    )
    return duckdb.sql(PLAIN_QUERY.format(store=path, columns=columns)).df()


def ours(path: Path) -> pd.DataFrame:
    """Return the statistics of GPUs by ``statistics``."""
    statistics = statistics_of(Store(path))
    return statistics[statistics["part"] == "gpu"]


def tables(path: Path) -> pd.DataFrame:
    """Read the tables of a store that a report needs."""
    store = Store(path)
    store.pandas("runs")
    return store.pandas("epochs")


FUNCTIONS = {"ours": ours, "by hand": plain_query, "runs and epochs": tables,
         "joint": lambda path: joint_utilisation(Store(path))}  # fmt: skip


def measure(name: str, path: Path, output: Path) -> None:
    """Call a measured function; write its result, and print time and peak memory."""
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    table = FUNCTIONS[name](path)
    took_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    table.to_parquet(output)
    # getrusage would include the peak of the process that started this one.
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(json.dumps({"s": took_s, "cpu_s": cpu_s, "peak_gb": int(peak) * 1024 / 1e9}))


def measure_in_process(name: str, path: Path, output: Path) -> dict[str, float]:
    """Measure a function in a new process."""
    line = [sys.executable, __file__, "--measure", name, str(path), str(output)]
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure_rounds(
    names: list[str], path: Path, scratch: Path, rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield rounds in which each function is measured once, after one that is not counted."""
    for number in range(rounds + 1):
        times = {
            name: measure_in_process(name, path, scratch / f"{name}.parquet") for name in names
        }
        print(number, {name: round(time["s"], 2) for name, time in times.items()}, flush=True)
        if number:
            yield times


def largest_difference(scratch: Path) -> float:
    """Return the largest relative difference between the statistics and the plain query."""
    keys = ["run_id", "host", "device"]
    ours, plain = (
        pd.read_parquet(scratch / f"{name}.parquet").sort_values(keys, ignore_index=True)
        for name in ("ours", "by hand")
    )
    assert ours[keys].equals(plain[keys])
    numbers = [name for name in plain.columns if name not in keys]
    a, b = ours[numbers].to_numpy(float), plain[numbers].to_numpy(float)
    return float(np.max(np.abs(a - b) / np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-12)))


def large(rows: int, scratch: Path) -> dict[str, Any]:
    """Measure the statistics of a store of many samples."""
    store = Store(scratch / "large")
    store.create()
    hosts, gpus, times = 2, 4, 312_500
    runs = -(-rows // (hosts * gpus * times))
    for number in range(runs):
        add_run(store, number, hosts, gpus, times, EPOCHS_OF_RUNS[number % len(EPOCHS_OF_RUNS)])
    print(f"{runs} runs, {runs * hosts * gpus * times:,} samples", flush=True)
    rounds = list(measure_rounds(["ours", "by hand"], store.path, scratch, ROUNDS))
    ratios = [times["ours"]["s"] / times["by hand"]["s"] for times in rounds]
    peak_gb = max(times["ours"]["peak_gb"] for times in rounds)
    return {
        "samples": runs * hosts * gpus * times,
        "runs": runs,
        "epochs_of_runs": EPOCHS_OF_RUNS,
        "file_gb": sum(path.stat().st_size for path in store.path.rglob("*.parquet")) / 1e9,
        "median_s": {
            name: statistics.median(times[name]["s"] for times in rounds) for name in rounds[0]
        },
        "median_cpu_s": {
            name: statistics.median(times[name]["cpu_s"] for times in rounds) for name in rounds[0]
        },
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "peak_gb": {name: max(times[name]["peak_gb"] for times in rounds) for name in rounds[0]},
        "largest_relative_difference": largest_difference(scratch),
        "target": "at most 1.5 times the plain query, in under 4 GB",
        "met": statistics.median(ratios) <= 1.5 and peak_gb < 4,
        "rounds": len(rounds),
    }


def many(runs: int, scratch: Path) -> dict[str, Any]:
    """Measure the functions that a report calls on a store of many small runs."""
    store = Store(scratch / "many")
    store.create()
    for number in range(runs):
        add_run(store, number, 1, 4, 100, 4)
    names = ["runs and epochs", "ours", "joint"]
    rounds = list(measure_rounds(names, store.path, scratch, 3))
    medians = {name: statistics.median(times[name]["s"] for times in rounds) for name in names}
    return {
        "runs": runs,
        "median_s": medians,
        "target": "runs and epochs under 10 s, statistics under 10 s",
        "met": medians["runs and epochs"] < 10 and medians["ours"] < 10,
        "rounds": len(rounds),
    }


def main() -> None:
    """Build, measure, print, and write the results with their settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--measure", nargs=3, metavar=("NAME", "STORE", "OUTPUT"))
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], Path(options.measure[1]), Path(options.measure[2]))
        return
    with tempfile.TemporaryDirectory(prefix="wattlaw-telemetry-") as folder:
        scratch = Path(folder)
        result = {
            "what": "statistics of telemetry and a plain query; reading a store of many runs",
            "large_store": large(options.rows, scratch),
            "many_runs": many(options.runs, scratch),
            "python": platform.python_version(),
            "duckdb": duckdb.__version__,
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores, no GPU used",
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    print(json.dumps(result, indent=1))
    if options.rows >= 100_000_000 and options.runs >= 3000:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"telemetry-cpu{os.cpu_count()}-{datetime.now(UTC):%Y-%m}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
