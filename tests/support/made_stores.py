"""Writes synthetic tables as a store."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from wattlaw.store.record import Facts, RunRecord
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.store import Store
from wattlaw.study.model import Measure, RunSpec, WorkloadSpec
from wattlaw.study.setting import Setting

SETTING = (
    "gpus", "global_batch", "local_batch", "power_limit_w", "clock_limit_mhz", "precision",
    "dataset_fraction",
)  # fmt: skip


def write_store(path: Path, runs: pd.DataFrame, epochs: pd.DataFrame, *, samples: int = 0) -> Store:
    """Write runs and windows as a store; done runs get so many samples of one GPU and host."""
    store = Store(path)
    store.create()
    windows = dict(list(epochs.groupby("run_id")))
    dice = np.random.default_rng(0)
    for row in runs.to_dict("records"):
        folder = store.folder(row["run_id"])
        folder.write(record(row), durable=False)
        if row["status"] == "done":
            own = windows.get(row["run_id"], epochs.iloc[:0])
            table = pa.Table.from_pandas(own, EPOCHS, preserve_index=False)
            pq.write_table(table, folder.epochs_path)  # not made to last, so no wait for the disk
            pq.write_table(telemetry(own, samples, dice), folder.telemetry_path)
    return store


def with_command(path: Path, runs: pd.DataFrame, epochs: pd.DataFrame) -> Store:
    """Write a store in which a command ran too, at the same settings, and in no study."""
    ids = {run_id: f"c{run_id[1:]}" for run_id in runs["run_id"]}
    others = runs.replace({"run_id": ids}).assign(workload="command", study="command")
    windows = pd.concat([epochs, epochs.replace({"run_id": ids})])
    return write_store(path, pd.concat([runs, others]), windows)


def record(row: dict[Any, Any]) -> RunRecord:
    known = {n: v for n, v in row.items() if not (pd.api.types.is_scalar(v) and pd.isna(v))}
    setting = {name: known[name] for name in SETTING if name in known}
    setting |= json.loads(known.get("layout", "{}"))
    for name in ("gpus", "global_batch", "local_batch"):
        setting[name] = int(setting[name])
    spec = RunSpec(
        workload=WorkloadSpec(name=row["workload"], options=json.loads(known.get("options", "{}"))),
        setting=Setting.of_record(setting),
        repeat=int(row["repeat"]),
        measure=Measure(),
        launch_kind=row["launcher"],
        hardware=known.get("hardware"),
        nodes=int(known.get("nodes", 1)),
    )
    return RunRecord(
        run_id=row["run_id"],
        study=row["study"],
        spec=spec,
        seed=0,
        order_seed=0,
        status=row["status"],
        reason=known.get("reason"),
        notes=tuple(row["notes"]),
        attempts=1,
        **{
            name: known[name].isoformat() for name in ("started_at", "finished_at") if name in known
        },
        facts=Facts(
            hosts=("a",),
            metric=known.get("metric_name"),
            parallelism=known.get("parallelism"),
            software=json.loads(known.get("software", "{}")),
            network=known.get("network"),
            parameters=int(known["parameters"]) if "parameters" in known else None,
        ),
    )


def telemetry(windows: pd.DataFrame, samples: int, dice: np.random.Generator) -> pa.Table:
    """Return samples of one GPU that lie in the training windows, the windows' means apart."""
    training = windows[(windows["phase"] == "train") & windows["sm_util_mean"].notna()]
    if not samples or training.empty:
        return TELEMETRY.empty_table()
    which = training.iloc[np.arange(samples) % len(training)]
    share = dice.uniform(0.05, 0.95, samples)
    sm, mem = (
        which[f"{part}_util_mean"] * (1 + which[f"{part}_util_cv"] * dice.normal(size=samples))
        for part in ("sm", "mem")
    )
    frame = pd.DataFrame(
        {
            "run_id": which["run_id"], "host": which["host"], "device": "GPU-0", "kind": "gpu",
            "t_ns": (which["start_ns"] + share * which["duration_s"] * 1e9).astype("int64"),
            "power_w": which["gpu_power_mean_w"], "power_source": "measured",
            "sm_util": sm.clip(0, 1), "mem_util": mem.clip(0, 1),
            "sm_clock_mhz": which["sm_clock_mean_mhz"],
        }
    )  # fmt: skip
    frame = frame.reindex(columns=TELEMETRY.names)
    return pa.Table.from_pandas(frame, TELEMETRY, preserve_index=False)
