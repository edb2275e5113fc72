"""A real decision: digits-cnn on 1, 2 and 4 workers of this machine, against the full grid.

``wattlaw run`` with ``decide`` is interrupted with SIGINT after two runs, and resumed. The same
study without ``decide`` then makes all runs, in a store of its own. Their means are the truth.

Usage: python benchmarks/decide_run.py
"""

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

import wattlaw
from common import write_results
from wattlaw.api.results import Results
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store

STUDY = {
    "name": "digits",
    "workloads": [{"name": "digits-cnn"}],
    "sweeps": [{"gpus": [1, 2, 4], "local_batch": [16, 64, 128]}],
    "repeats": 2,
    "measure": {"steps": 100, "warmup_steps": 20, "evaluate": False},
    "launch": {"kind": "local", "gpus_per_node": 4, "threads_per_worker": 1},
}
DECIDE = {"minimize": "time", "tolerance": "10%", "confidence": 0.9}
_DONE_BEFORE = 2


def main() -> None:
    """Make both studies, and write the results file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = os.getloadavg()
        decided = _decided(folder)
        grid = _run(folder, "grid", STUDY)
        outcome = _compared(decided, grid)
    setup = {"study": STUDY, "decide": DECIDE, "load_average": [load, os.getloadavg()]}
    write_results(
        "decide-run", f"cpu{os.cpu_count()}", {"cpu": platform.machine(), **setup, **outcome}
    )


def _decided(folder: Path) -> Results:
    """Return the results of a decision that is interrupted once."""
    study = _write(folder, "decided", STUDY | {"decide": DECIDE})
    process = subprocess.Popen(_line(study, folder / "decided"))
    while process.poll() is None and _ended(folder / "decided") < _DONE_BEFORE:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    if process.wait() != 1:
        raise SystemExit("the decision ended before it could be interrupted")
    print(f"interrupted after {_ended(folder / 'decided')} runs", flush=True)
    return _run(folder, "decided", STUDY | {"decide": DECIDE})


def _run(folder: Path, name: str, study: dict[str, object]) -> Results:
    subprocess.run(_line(_write(folder, name, study), folder / name), check=True)
    return wattlaw.open(folder / name)


def _write(folder: Path, name: str, study: dict[str, object]) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


def _line(study: Path, store: Path) -> list[str]:
    return [sys.executable, "-m", "wattlaw", "run", str(study), "--store", str(store)]


def _records(store: Path) -> list[RunRecord]:
    return [item for item in Store(store).records() if item.status == "done"]


def _ended(store: Path) -> int:
    return len(_records(store)) if store.exists() else 0


def _worker_hours(results: Results) -> float:
    return sum(
        item.spec.setting.gpus * (item.finished_at - item.started_at).total_seconds() / 3600
        for item in _records(results.paths[0])
        if item.started_at and item.finished_at
    )


def _compared(decided: Results, grid: Results) -> dict[str, object]:
    """Return the decision, the truth by the grid, and what both took."""
    columns = ["gpus", "local_batch"]
    truth = grid.metrics.groupby(columns)["time_per_sample_s"].mean()
    spread = grid.metrics.groupby(columns)["time_per_sample_s"].agg(
        lambda item: item.max() / item.min()
    )
    decision = decided.decision or {}
    chosen = tuple(decision["setting"][name] for name in columns)
    hours = _worker_hours(grid)
    best = truth.idxmin()
    return {
        "interrupted_after_runs": _DONE_BEFORE,
        "decision": decision,
        "worker_hours": decision["gpu_hours_spent"],
        "worker_hours_grid": hours,
        "share_of_grid": decision["gpu_hours_spent"] / hours,
        "runs": decision["runs"],
        "runs_grid": len(_records(grid.paths[0])),
        "best_setting_by_the_grid": dict(zip(columns, map(float, best), strict=True)),
        "regret_by_the_grid": float(truth[chosen] / truth.min() - 1),
        "repeats_differ_by": float(spread.max() - 1),
        "time_per_sample_s": {f"{gpus:g} x {batch:g}": float(value)
                              for (gpus, batch), value in truth.items()},
    }  # fmt: skip


if __name__ == "__main__":
    main()
