"""Runs that the real packages of W&B (offline) and MLflow write, each in a process of its own."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from conftest import environment, python

History = list[dict[str, float]]
#: The time of the first step; the others follow each second, the validation takes 5 s.
BEGIN_S = 1_769_860_000
CONFIG = {"batch_size": 64, "lr": 0.1, "optimizer": {"name": "sgd"}, "seed": 3, "gpu_count": 2}

_WANDB = """
import json, sys, time, wandb
settings = wandb.Settings(silent=True, console="off", x_stats_sampling_interval=0.1)
history, wait_s = json.loads(sys.argv[2]), float(sys.argv[3])
with wandb.init(project="nets", dir=sys.argv[1], config=json.loads(sys.argv[4]),
                settings=settings) as run:
    for values in history:
        run.log(values)
        time.sleep(wait_s)
"""
_MLFLOW = """
import json, sys, time, mlflow
mlflow.set_tracking_uri("file://" + sys.argv[1])
mlflow.set_experiment("nets")
history, wait_s = json.loads(sys.argv[2]), float(sys.argv[3])
with mlflow.start_run(log_system_metrics=wait_s > 0) as run:
    mlflow.log_params(json.loads(sys.argv[4]))
    for values in history:
        step, time_s = values.pop("_step"), values.pop("_timestamp", None)
        for name, value in values.items():
            at_ms = None if time_s is None else int(time_s * 1000)
            mlflow.log_metric(name, value, step=step, timestamp=at_ms)
        time.sleep(wait_s)
print(run.info.artifact_uri.removeprefix("file://").removesuffix("/artifacts"))
"""


def history(steps: int = 20, *, has_times: bool = True) -> History:
    rows, time_s = [], BEGIN_S
    for step in range(steps):
        row = {"_step": step, "train/loss": 1 / (step + 1), "samples": 64 * step}
        if step == 10:
            row["val/acc"], time_s = 0.5, time_s + 5
        rows.append(row | ({"_timestamp": time_s + step} if has_times else {}))
    return rows


def _written(script: str, folder: Path, *arguments: object, **variables: str) -> str:
    own = {name: str(folder) for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")}
    quiet = {
        "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL": "0.1",
        "MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING": "1",
    }  # fmt: skip
    variables = environment() | own | quiet | variables
    return python("-c", script, folder, *arguments, check=True, cwd=folder, env=variables).stdout


def wandb_run(folder: Path, rows: History, wait_s: float = 0, **variables: str) -> Path:
    """Return the log of an offline run that wandb has written."""
    _written(_WANDB, folder, json.dumps(rows), wait_s, json.dumps(CONFIG), **variables)
    (path,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    return path


def mlflow_run(folder: Path, rows: History, wait_s: float = 0, **variables: str) -> Path:
    """Return the folder of a run that mlflow has written."""
    config = {name: value for name, value in CONFIG.items() if not isinstance(value, Mapping)}
    done = _written(_MLFLOW, folder, json.dumps(rows), wait_s, json.dumps(config), **variables)
    return Path(done.split()[-1])


@cache
def wandb_log() -> bytes:
    with TemporaryDirectory() as folder:
        return wandb_run(Path(folder), history()).read_bytes()


@cache
def mlflow_files() -> dict[str, bytes]:
    """Return the files of a run by their place in its folder."""
    with TemporaryDirectory() as folder:
        run = mlflow_run(Path(folder), history())
        files = (path for path in run.rglob("*") if path.is_file())
        return {str(path.relative_to(run)): path.read_bytes() for path in files}
