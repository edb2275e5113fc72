"""The settings and observations of runs in a table of ``run_metrics``."""

import json
from collections.abc import Mapping
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.metrics.groups import group_numbers
from wattlaw.analysis.metrics.time_errors import SHORT
from wattlaw.analysis.predict.observation import PARTS, Observation
from wattlaw.study.setting import Setting

#: With more runs, the repeats of a setting count as one observation: inference takes time.
_MOST = 100
#: Columns of ``metrics.run_metrics`` of each of ``PARTS``.
_SHARES = ("communication_share", "rank_wait_share", "data_wait_share")
_SETTING = (
    "gpus", "nodes", "global_batch", "local_batch", "precision", "power_limit_w", "clock_limit_mhz",
    "train", "layout",
)  # fmt: skip


def observations_of(rows: pd.DataFrame, watts: pd.Series, unit: str) -> list[Observation]:
    number = group_numbers(rows, _SETTING)
    first = ~number.duplicated()
    settings = {
        code: setting_of_row(row, unit)
        for code, row in zip(
            number[first], rows.loc[first, list(_SETTING)].to_dict("records"), strict=True
        )
    }
    of_runs = [settings[code] for code in number]
    if unit == "step":
        times_s = rows["step_time_s"]
    else:
        per_sample_s = rows["time_per_sample_s"]
        unit_s = per_sample_s.where(per_sample_s.notna() & (per_sample_s != 0), rows["time_s"])
        times_s = unit_s * [setting.samples for setting in of_runs]
    is_of_epochs = (rows["basis"] == "epochs") & (unit == "epoch")
    is_of_epochs &= rows["time_per_sample_s"].notna()
    samples = rows["samples_per_epoch"].where(is_of_epochs)
    if is_of_epochs.all() and samples.nunique() < 2:
        samples[:] = np.nan  # epochs of one length do not tell their fixed time from their steps
    columns = {
        "step_time_s": times_s,
        "power_per_gpu_w": watts,
        "epoch_steps": samples / [setting.samples for setting in of_runs],
        **{part: rows[share] * times_s for part, share in zip(PARTS, _SHARES, strict=True)},
    }
    # A rank that loads its samples itself does not wait for them.
    columns["input_s"] = columns["input_s"].where(rows["loader_workers"].astype(float) > 0)
    is_slow = rows["slow_log"] > 0  # healthy nodes wait there, so that the parts are others
    columns |= {part: columns[part].mask(is_slow) for part in PARTS}
    short = rows["is_short"].astype(bool) if "is_short" in rows else rows["step_time_s"] < 0
    error = rows.get("time_error", short * np.nan)
    columns |= {"slow_log": rows["slow_log"], "time_error": error.fillna(short * SHORT)}
    table = pd.DataFrame(columns, dtype=float).astype(object)
    records: Any = table.where(table.notna(), None).to_dict("records")
    return [
        Observation(item, **values, is_short=bool(is_short))
        for item, values, is_short in zip(of_runs, records, short, strict=True)
    ]


def setting_of_row(row: Mapping[Any, Any], unit: str) -> Setting:
    """Return the setting of a run or of runs that share it; with steps, the batch is unknown."""

    def value(name: str) -> Any:
        return row[name] if pd.notna(row[name]) else None

    train = value("train")
    parts = json.loads(train).get("gradient_accumulation", 1) if isinstance(train, str) else 1
    nodes, local, batch = value("nodes"), value("local_batch"), value("global_batch")
    if local is None and batch is not None:  # copies of the model on several GPUs share samples
        local = batch / int(row["gpus"])
    layout: dict[str, Any] = {"gradient_accumulation": int(parts)}
    if (text := value("layout")) is not None:
        layout |= json.loads(text)
    return Setting(
        int(row["gpus"]),
        nodes=None if nodes is None else min(int(nodes), int(row["gpus"])),
        local_batch=None if unit == "step" else local,
        precision=value("precision"),
        power_limit_w=value("power_limit_w"),
        clock_limit_mhz=value("clock_limit_mhz"),
        **layout,
    )


def merged(observations: list[Observation]) -> tuple[Observation, ...]:
    """Return the observations; of very many, one with the geometric means for each setting."""
    if len(observations) <= _MOST:
        return tuple(observations)
    alike: dict[object, list[Observation]] = {}
    for item in observations:
        alike.setdefault((item.setting, item.epoch_steps, item.slow_log), []).append(item)

    def mean(items: list[Observation], name: str) -> Any:
        values = [getattr(item, name) for item in items]
        if None in values:
            return None
        return geometric_mean(values) if min(values) > 0 else sum(values) / len(values)

    means = ("step_time_s", "power_per_gpu_w", "time_error", *PARTS)
    return tuple(
        replace(items[0], **{name: mean(items, name) for name in means}) for items in alike.values()
    )
