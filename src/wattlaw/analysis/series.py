"""Scaling series: runs that differ in the number of GPUs alone, and what goes with it.

A series keeps either the global batch (strong scaling) or the local batch. Its data set is the
same throughout, or grows in proportion to the GPUs. A run may belong to several series: one of a
single GPU has both batches.
"""

from collections import Counter
from typing import Any

import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.groups import JSON_COLUMNS, differing_options
from wattlaw.analysis.laws.fits import SeriesFits, fit_groups
from wattlaw.formatting import group_label

RULES = ("global_batch", "local_batch")
ENERGY = "energy_per_epoch_j"
FIXED = (
    "workload", "options", "train", "hardware", "launcher", "precision", *LIMITS,
    "dataset_fraction", "threads_per_worker",
)  # fmt: skip
#: With fewer counts, the data set may grow with the GPUs by chance.
_MIN_GROWING_COUNTS = 3
_ADDED = ("rule", "batch", "fraction_per_gpu", "series", "family")


def scaling_series(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``run_metrics``, once per series to which a run belongs.

    Adds ``rule`` (global_batch, local_batch, or unknown_batch where a table has neither) and
    ``batch``; ``fraction_per_gpu`` (missing where the data set does not grow with the GPUs);
    ``series``, a label that names the settings in which the series of a table differ; and
    ``family``, the same without cap and clock. A series has at least two GPU counts. ``options``
    and ``train`` that are missing are taken as none.
    """
    table = table.assign(**{name: table[name].astype(object).fillna("{}") for name in JSON_COLUMNS})
    known = table[list(RULES)].notna().any(axis=1)
    named = [(rule, table[table[rule].notna()].assign(batch=table[rule])) for rule in RULES]
    parts = []
    for rule, rows_of_rule in [*named, ("unknown_batch", table[~known].assign(batch=float("nan")))]:
        rows = rows_of_rule.assign(rule=rule, fraction_per_gpu=float("nan"))
        parts += _with_enough_counts(rows, [*FIXED, "batch"], 2)
        shares = (rows["dataset_fraction"] / rows["gpus"]).round(12)
        growing = rows.assign(fraction_per_gpu=shares)
        fixed = [name for name in FIXED if name != "dataset_fraction"]
        parts += _with_enough_counts(
            growing, [*fixed, "batch", "fraction_per_gpu"], _MIN_GROWING_COUNTS
        )
    if not parts:
        return table.iloc[:0].assign(**dict.fromkeys(_ADDED, ""))
    series = pd.concat(parts, ignore_index=True)
    names = varying_columns(series)
    series["series"] = _labels(series, names)
    series["family"] = _labels(series, [name for name in names if name not in LIMITS])
    return series


def _with_enough_counts(rows: pd.DataFrame, by: list[str], least: int) -> list[pd.DataFrame]:
    counts = rows.groupby(by, dropna=False)["gpus"].transform("nunique")
    return [part for _, part in rows[counts >= least].groupby(by, dropna=False, sort=True)]


def fit_series(series: pd.DataFrame, y: str = "epoch_time_s") -> SeriesFits:
    """Fit a law of the column ``y`` to each series of ``scaling_series``.

    A group says workload, the batch rule with its value, the other settings that differ in the
    table, and caps and clocks that are set; a law of energy also says what the energy is.
    """
    if series.empty:
        return SeriesFits(())
    names = [name for name in varying_columns(series) if name != "workload"]
    energy = ["energy_is"] if y == ENERGY else []
    fits = []
    for rule in (*RULES, "unknown_batch"):
        rows_of_rule = series[series["rule"] == rule]
        batch = [rule] if rule in RULES else []
        for grows in (False, True):
            rows = rows_of_rule[rows_of_rule["fraction_per_gpu"].notna() == grows]
            others = [*names, "fraction_per_gpu"] if grows else names
            others = [name for name in others if not (grows and name == "dataset_fraction")]
            fits.append(fit_groups(rows, "gpus", y, ["workload", *batch, *others, *energy]))
    return SeriesFits(tuple(row for series_fits in fits for row in series_fits.rows))


def varying_columns(series: pd.DataFrame) -> list[str]:
    """Return the columns beside GPUs and batch that differ, and caps and clocks that are set."""
    return [
        name
        for name in FIXED
        if series[name].nunique(dropna=False) > 1 or (name in LIMITS and series[name].notna().any())
    ]


def _labels(series: pd.DataFrame, names: list[str]) -> list[str]:
    """Return each row's label: workload if it differs, batch, then whatever else differs.

    Labels that would be equal, such as those of fractions that differ in the seventh digit, are
    numbered.
    """
    shown = series.assign(
        **{name: series[name].map(differing_options(series[name])) for name in JSON_COLUMNS}
    )
    columns = ["rule", "batch", "fraction_per_gpu", *names]
    fixed = series["dataset_fraction"].where(series["fraction_per_gpu"].isna())
    label_parts = series.assign(dataset_fraction=fixed)
    codes = label_parts.groupby(columns, dropna=False, sort=False).ngroup()
    labels: dict[Any, str] = {}
    label_counts: Counter[str] = Counter()
    for code, row in zip(codes, shown[columns].to_dict("records"), strict=True):
        if code not in labels:
            label = _label(row, names)
            label_counts[label] += 1
            labels[code] = f"{label} ({label_counts[label]})" if label_counts[label] > 1 else label
    return [labels[code] for code in codes]


def _label(row: dict[Any, Any], names: list[str]) -> str:
    grows = not pd.isna(row["fraction_per_gpu"])
    label_parts: dict[str, Any] = {"workload": row["workload"]} if "workload" in names else {}
    if row["rule"] in RULES:
        label_parts[row["rule"]] = row["batch"]
    label_parts |= {name: row[name] for name in names if not (grows and name == "dataset_fraction")}
    labels = group_label(label_parts)
    return f"{labels}, data grows with N" if grows else labels or "all runs"
