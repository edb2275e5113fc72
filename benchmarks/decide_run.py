"""Real decisions: digits-cnn on 1, 2 and 4 workers of this machine, against the full grid.

``wattlaw run`` with ``decide`` is interrupted with SIGINT after two runs, and resumed. The same
study without ``decide`` then makes all runs, in a store of its own. Their means are the truth.

Usage: python benchmarks/decide_run.py
"""

import os
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
    "measure": {"steps": 400, "warmup_steps": 40, "evaluate": False},
    "launch": {"kind": "local", "gpus_per_node": 4, "threads_per_worker": 1},
}
#: What is decided, with the column of the grid's truth.
GOALS = {"time": "time_per_sample_s", "gpu_hours": "gpu_s_per_sample"}
DECIDE = {"tolerance": "10%", "confidence": 0.9}
_DONE_BEFORE = 2
_COLUMNS = ["gpus", "local_batch"]


def main() -> None:
    """Make both studies, and write the results file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = os.getloadavg()
        decided = {goal: _decided(folder, goal) for goal in GOALS}
        grid = _run(folder, "grid", STUDY)
        outcome = _grid(grid) | {goal: _compared(decided[goal], grid, goal) for goal in GOALS}
    setup = {
        "study": STUDY,
        "decide": DECIDE,
        "interrupted_after_runs": _DONE_BEFORE,
        "load_average": [load, os.getloadavg()],
    }
    write_results("decide-run", f"cpu{os.cpu_count()}", {**setup, **outcome})


def _decided(folder: Path, goal: str) -> Results:
    """Return the results of a decision that is interrupted once."""
    decided = STUDY | {"decide": DECIDE | {"minimize": goal}}
    process = subprocess.Popen(_line(_write(folder, goal, decided), folder / goal))
    while process.poll() is None and _ended(folder / goal) < _DONE_BEFORE:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    if process.wait() != 1:
        raise SystemExit("the decision ended before it could be interrupted")
    print(f"interrupted after {_ended(folder / goal)} runs", flush=True)
    return _run(folder, goal, decided)


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


def _grid(grid: Results) -> dict[str, object]:
    """Return what the grid took, and how much its repeats differ."""
    times = grid.metrics.groupby(_COLUMNS)["time_per_sample_s"]
    return {
        "runs": len(_records(grid.paths[0])),
        "worker_hours": _worker_hours(grid),
        "largest_ratio_of_repeats": float((times.max() / times.min()).max()),
        "time_per_sample_s": [
            dict(zip(_COLUMNS, map(float, setting), strict=True)) | {"mean": float(value)}
            for setting, value in times.mean().items()
        ],
    }


def _compared(decided: Results, grid: Results, goal: str) -> dict[str, object]:
    """Return a decision, and how good it is by the means of the grid."""
    metrics = grid.metrics.assign(
        gpu_s_per_sample=grid.metrics["gpus"] * grid.metrics["time_per_sample_s"]
    )
    truth = metrics.groupby(_COLUMNS)[GOALS[goal]].mean()
    decision = decided.decision or {}
    chosen = tuple(decision["setting"][name] for name in _COLUMNS)
    return {
        "best_by_the_grid": dict(zip(_COLUMNS, map(float, truth.idxmin()), strict=True)),
        "regret_by_the_grid": float(truth[chosen] / truth.min() - 1),
        "share_of_grid_hours": decision["gpu_hours_spent"] / _worker_hours(grid),
        "decision": decision,
    }


if __name__ == "__main__":
    main()
