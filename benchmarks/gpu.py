"""On an NVIDIA GPU: cost of sampling, agreement of energy counter and integral, throughput.

``make bench-gpu``, or ``python benchmarks/gpu.py [throughput] [sampling]``, about 9 and 5 minutes.
No setting of the GPU is changed. Needs torch with CUDA. Results go to ``benchmarks/results``, or to
``$OUT``.
"""

import argparse
import dataclasses
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from common import cores_used, end_tree, start_sampler, training_block, write_results
from wattlaw.devices.meter import Target
from wattlaw.devices.nvidia.driver import Driver
from wattlaw.errors import NotAvailable
from wattlaw.launch.selftest import median_interval, paired_slowdowns
from wattlaw.store.live import read_live
from wattlaw.store.record import SamplerReport
from wattlaw.store.schema import SAMPLES, WINDOWS
from wattlaw.telemetry import sampler
from wattlaw.telemetry.energy import energy_of_windows

#: Program of a steady load: large matrix products until it is ended.
LOAD = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
while True:
    for _ in range(50):
        b = a @ a
    torch.cuda.synchronize()
"""
#: Program of a pulsed load: half a second of load, half a second idle.
PULSES = LOAD.replace(
    "    for _ in range(50):\n        b = a @ a\n    torch.cuda.synchronize()",
    "    end = time.time() // 1 + 0.5\n    while time.time() < end:\n        b = a @ a\n"
    "        torch.cuda.synchronize()\n    time.sleep(1 - time.time() % 1)",
).replace("import torch", "import time, torch")


def start_load(code: str) -> "subprocess.Popen[str]":
    """Start a load program on the GPU and wait until it runs."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    if process.stdout is None or process.stdout.readline() != "ready\n":
        raise SystemExit("the load could not be started; it needs torch with CUDA")
    return process


def record(code: str | None, hz: float, seconds: float) -> tuple[SamplerReport, pa.Table, float]:
    """Record the GPU under a load; return the report, the samples and the share of a core."""
    host = socket.gethostname()
    with tempfile.TemporaryDirectory() as name:
        load_process = start_load(code) if code else None
        process = start_sampler(Path(name), hz)
        try:
            share = cores_used(process, 3.0, seconds)
        finally:
            end_tree(process)
            if load_process is not None:
                end_tree(load_process)
        report = SamplerReport.model_validate_json(
            sampler.report_path(Path(name), host).read_text()
        )
        samples = read_live(sampler.stream_path(Path(name), host), SAMPLES, host)
    return report, samples, share


def compare_energies(samples: pa.Table, window_s: float, count: int) -> dict[str, object]:
    """Return how counter and integral differ in windows at random times."""
    host = socket.gethostname()
    gpu = samples.filter(pa.compute.field("kind") == "gpu")
    first, last = pa.compute.min(gpu["t_ns"]).as_py(), pa.compute.max(gpu["t_ns"]).as_py()
    rng = random.Random(0)  # noqa: S311
    latest = last - round(window_s * 1e9) - 1_500_000_000
    starts = [rng.randint(first + 1_500_000_000, latest) for _ in range(count)]
    rows = [{"host": host, "start_ns": start, "duration_s": window_s} for start in starts]
    windows = energy_of_windows(pa.Table.from_pylist(rows, schema=WINDOWS), gpu).to_pylist()
    differences = [
        row["gpu_energy_counter_j"] / row["gpu_energy_integral_j"] - 1
        for row in windows
        if row["gpu_energy_counter_j"] and row["gpu_energy_integral_j"]
    ]
    return {
        "window_s": window_s,
        "windows": len(differences),
        "counter_over_integral_minus_1_median": statistics.median(differences)
        if differences
        else None,
        "largest": max(differences, key=abs) if differences else None,
        "power_mean_w": statistics.median(row["gpu_power_mean_w"] or 0.0 for row in windows),
        "verdicts": {v: [r["energy_verdict"] for r in windows].count(v) for v in ("ok", "suspect")},
    }


def main() -> None:
    """Measure, and write the results files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="throughput, sampling, or none for both")
    parts = parser.parse_args().parts or ["throughput", "sampling"]
    try:
        driver = Driver.open()
        names = [board.name for board in driver.gpus()]
        version = driver.version
        driver.close()
    except NotAvailable as error:
        raise SystemExit(f"benchmarks/gpu.py: {error}") from None
    if "throughput" in parts:  # in a process of its own, which uses one GPU only
        line = [sys.executable, str(Path(__file__).with_name("gpu_throughput.py"))]
        subprocess.run(line, check=False)
    if "sampling" in parts:
        measure_sampling(names, version)


def measure_sampling(names: list[str], version: str) -> None:
    """Measure the cost of sampling and the agreement of energies; write the results file."""
    costs, energies = [], []
    facts: list[object] = []
    for load_name, code in (("idle", None), ("steady", LOAD), ("pulses of 0.5 s", PULSES)):
        for hz in (10.0, 100.0):
            report, samples, share = record(code, hz, 40.0 if hz == 10.0 else 15.0)
            settings = {"load": load_name, "hz": hz, "boards": len(names)}
            meters = {name: meter.model_dump() for name, meter in report.meters.items()}
            costs.append(settings | {"share_of_a_core": share, "meters": meters})
            facts = [device.model_dump() for device in report.devices]
            windows = [compare_energies(samples, s, 50) for s in (1.0, 5.0, 10.0)]
            energies.append(settings | {"agreement": windows, "problems": report.problems})
            print(json.dumps(costs[-1]), json.dumps(energies[-1]), flush=True)
    block = training_block(batch=64, steps=100)
    with tempfile.TemporaryDirectory() as name:
        process = start_sampler(Path(name), 10.0)
        slowdowns = paired_slowdowns(process.pid, block, 200)
        end_tree(process)
    low, high = median_interval(slowdowns)
    write_results(
        "gpu",
        re.sub(r"[^a-z0-9]+", "-", names[0].lower()).strip("-"),
        {
            "gpus": names,
            "driver": version,
            "devices": facts,
            "sampling": costs,
            "energy": energies,
            "training_slowdown": {
                "training": "digits-cnn, batch 64, 100 steps per block",
                "pairs": len(slowdowns),
                "median": statistics.median(slowdowns),
                "median_95_low": low,
                "median_95_high": high,
            },
            "settings": dataclasses.asdict(Target(0)),
        },
    )


if __name__ == "__main__":
    main()
