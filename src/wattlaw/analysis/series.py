"""Scaling series: runs that differ in the number of workers alone, and one batch rule.

A series keeps either the global batch (strong scaling) or the local batch. A run of one worker
has both, so it belongs to a series of each kind.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from wattlaw.analysis.power_law import Fits, fit_groups

RULES = ("global_batch", "local_batch")
ENERGY = "energy_per_epoch_j"
_FIXED = (
    "workload", "options", "hardware", "precision", "power_limit_w", "clock_limit_mhz",
    "dataset_fraction", "threads_per_worker",
)  # fmt: skip


def scaling_series(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``run_metrics``, once per series to which a run belongs.

    Adds ``rule`` (global_batch or local_batch), ``batch``, and ``series``: a label that says
    what tells this series from the others of the table. A series has at least two worker counts.
    """
    parts = []
    for rule in RULES:
        for _, rows in table.groupby([*_FIXED, rule], dropna=False, sort=True):
            if rows["gpus"].nunique() > 1:
                parts.append(rows.assign(rule=rule, batch=rows[rule]))
    if not parts:
        return table.iloc[:0].assign(rule="", batch=0, series="")
    series = pd.concat(parts, ignore_index=True)
    names = telling(series)
    return series.assign(series=[_label(row, names) for row in series.to_dict("records")])


def fit_series(series: pd.DataFrame, y: str = "epoch_time_s") -> Fits:
    """Fit a law of the column ``y`` to each series of ``scaling_series``.

    A group says workload, the batch rule with its value, whatever else differs in the table, and
    caps and clocks that are set; a law of energy also says what the energy is.
    """
    if series.empty:
        return Fits((), ())
    names = telling(series)
    fits = [
        fit_groups(
            rows, "gpus", y,
            ["workload", rule, *(name for name in names if name != "workload"),
             *(["energy_is"] if y == ENERGY else [])],
        )
        for rule, rows in ((str(rule), rows) for rule, rows in series.groupby("rule"))
    ]  # fmt: skip
    return Fits(
        tuple(law for found in fits for law in found.laws),
        tuple(refusal for found in fits for refusal in found.refusals),
    )


def group_label(group: dict[str, object]) -> str:
    """Return a fit's group in the words of ``series`` labels, with the workload in front."""
    words = [
        f"{name.replace('_', ' ')} {value}" for name, value in group.items() if value is not None
    ]
    return ", ".join(words).removeprefix("workload ")


def speedups(series: pd.DataFrame) -> pd.DataFrame:
    """Return speedup and parallel efficiency of each series against its smallest worker count.

    ``speedup = T(ref) / T(N)`` of geometric means over repeats, with a 95 % interval from a pooled
    t test on log times (missing without repeats); ``efficiency = speedup * ref / N``.
    """
    groups = series.groupby("series", sort=False)
    rows = [row for label, one in groups for row in _speedup(str(label), one)]
    columns = [
        "series",
        "gpus",
        "reference",
        "speedup",
        "speedup_low",
        "speedup_high",
        "efficiency",
    ]
    return pd.DataFrame(rows, columns=columns)


def _speedup(label: str, series: pd.DataFrame) -> Iterator[dict[str, object]]:
    logs = {
        gpus: np.log(series.loc[series["gpus"] == gpus, "epoch_time_s"].to_numpy(float))
        for gpus in sorted(int(count) for count in series["gpus"].unique())
    }
    reference = min(logs)
    freedom = sum(len(values) - 1 for values in logs.values())
    pooled = sum(float(((values - values.mean()) ** 2).sum()) for values in logs.values())
    for gpus, values in logs.items():
        gain = logs[reference].mean() - values.mean()
        half = np.nan
        if gpus == reference:
            half = 0.0
        elif freedom:
            spread = pooled / freedom * (1 / len(values) + 1 / len(logs[reference]))
            half = stats.t.ppf(0.975, freedom) * np.sqrt(spread)
        yield {
            "series": label,
            "gpus": gpus,
            "reference": reference,
            "speedup": float(np.exp(gain)),
            "speedup_low": float(np.exp(gain - half)),
            "speedup_high": float(np.exp(gain + half)),
            "efficiency": float(np.exp(gain)) * reference / gpus,
        }


def telling(series: pd.DataFrame) -> list[str]:
    """Return the columns beside workers and batch that differ, and caps and clocks that are set."""
    return [
        name
        for name in _FIXED
        if series[name].nunique(dropna=False) > 1
        or (name.endswith(("_w", "_mhz")) and series[name].notna().any())
    ]


def _label(row: dict[Any, Any], names: list[str]) -> str:
    words = [f"{str(row['rule']).replace('_', ' ')} {row['batch']}"]
    words += [f"{row[name]:g} W" if name == "power_limit_w" else
              f"{row[name]:g} MHz" if name == "clock_limit_mhz" else
              f"{row[name]:g} threads" if name == "threads_per_worker" else f"{row[name]}"
              for name in names if not pd.isna(row[name])]  # fmt: skip
    return ", ".join(words)
