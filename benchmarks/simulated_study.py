"""Time and memory of two complete studies: ``run --launch simulated``, then the report.

Each command runs in a process of its own, as a user starts it. Memory is the maximum over time of
the proportional set sizes of the command and all its children. Run with
``make bench-simulator``.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
EXAMPLES = ROOT / "src" / "wattlaw" / "examples"
#: By template of the report: study files that share a store, and the machines to simulate.
STUDIES = {
    "mit-2022": (["mit-2022-all"], ["mit-v100"]),
    "kit-2025": (
        ["kit-2025-resnet50", "kit-2025-fourcastnet-pretrain", "kit-2025-fourcastnet-finetune"],
        ["kit-a100", "kit-h100"],
    ),
}
TARGETS = {"seconds": 180, "memory_gb": 4, "store_gb": 1}


def main() -> None:
    """Measure all studies, and print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="keep stores and reports in this folder")
    kept_folder = parser.parse_args().keep
    folder = kept_folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        results = {name: measure_study(name, folder) for name in STUDIES}
    finally:
        if kept_folder is None:
            shutil.rmtree(folder)
    content = {
        "what": "studies simulated and reported", "cores": os.cpu_count(),
        "machine": platform.processor() or platform.machine(), "python": platform.python_version(),
        "targets": TARGETS, "studies": results,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"simulated-study-cpu{os.cpu_count()}-{datetime.now(UTC):%Y-%m}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(content, indent=1))


def measure_study(name: str, folder: Path) -> dict[str, object]:
    """Return time, memory and file sizes of one study."""
    files, machines = STUDIES[name]
    store, page = folder / name, folder / f"{name}.html"
    seconds, most = 0.0, 0.0
    for file in files:
        for machine in machines:
            study = str(EXAMPLES / f"{file}.yaml")
            line = ["run", study, "--launch", "simulated", "--hardware", machine]
            took_s, bytes_used = run_command([*line, "--store", str(store)])
            seconds, most = seconds + took_s, max(most, bytes_used)
    report_s, bytes_used = run_command(["report", str(store), "-o", str(page), "--template", name])
    return {
        "runs": len(list((store / "runs").iterdir())),
        "run_s": round(seconds, 1),
        "report_s": round(report_s, 1),
        "seconds": round(seconds + report_s, 1),
        "memory_gb": round(max(most, bytes_used) / 1e9, 2),
        "store_gb": round(sum(f.stat().st_size for f in store.rglob("*")) / 1e9, 3),
        "page_mb": round(page.stat().st_size / 1e6, 2),
    }


def run_command(line: list[str]) -> tuple[float, float]:
    """Run a command of wattlaw; return its time in s and its peak memory in bytes.

    Raises
    ------
    subprocess.CalledProcessError
        The command failed.
    """
    begun_s, most = time.perf_counter(), 0.0
    with tempfile.TemporaryFile() as output:
        process = psutil.Popen(
            [sys.executable, "-m", "wattlaw", *line], stdout=output, stderr=output
        )
        while process.poll() is None:
            most = max(most, memory_bytes(process))
            time.sleep(0.25)
        if process.returncode:
            output.seek(0)
            sys.stderr.write(output.read().decode(errors="replace")[-2000:])
            raise subprocess.CalledProcessError(process.returncode, line)
    return time.perf_counter() - begun_s, most


def memory_bytes(process: psutil.Process) -> float:
    """Return the memory of a process and its children, in bytes."""
    total = 0.0
    try:
        for member in [process, *process.children(recursive=True)]:
            total += member.memory_full_info().pss
    except psutil.Error:  # it has just ended
        pass
    return total


if __name__ == "__main__":
    main()
