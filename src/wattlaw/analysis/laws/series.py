"""Scaling series: runs that differ in the number of GPUs alone, and what goes with it.

A series keeps either the global batch (strong scaling) or the local batch. Its data set is the
same throughout, or grows in proportion to the GPUs. With a constant global batch, it also keeps the
number of micro-batches of a step or their size. A run may belong to several series: one of a single
GPU has both batches.

The number of nodes normally follows from that of the GPUs. Where a GPU count was run on several
numbers of nodes, each number of nodes is a series, and so are the counts on their fewest nodes.

A series is of data-parallel jobs whose workers cooperate, on as many GPUs as it says.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.fitting import Fit, Fits, fit_groups
from wattlaw.analysis.laws.limit_effects import LIMITS, POWER_SETTINGS
from wattlaw.analysis.metrics.comparable_runs import NOT_DATA_PARALLEL, uncooperative
from wattlaw.analysis.metrics.groups import JSON_COLUMNS, differing_options, group_numbers, groups
from wattlaw.analysis.metrics.metrics import ESTIMATED, WHY_NO_LAW, missing_energy, unit_of
from wattlaw.analysis.metrics.setting_means import ENERGIES
from wattlaw.analysis.metrics.variation import Variation, variations
from wattlaw.common.formatting import plural
from wattlaw.study.labels import group_label

RULES = ("global_batch", "local_batch")
FIXED = (
    "workload", "options", "train", "hardware", "launcher", "precision", *POWER_SETTINGS,
    "dataset_fraction", "threads_per_worker", "layout", "unit", "run_length",
)  # fmt: skip
#: With fewer counts, the data set may grow with the GPUs by chance.
_MIN_GROWING_COUNTS = 3
_ADDED = ("rule", "batch", "fraction_per_gpu", "placement", "series", "family")
_COLUMNS = [
    "series", "unit", "gpus", "reference", "speedup", "speedup_low", "speedup_high", "efficiency",
    "energy_ratio", "energy_ratio_low", "energy_ratio_high", "energy_is",
]  # fmt: skip


def scaling_series(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``run_metrics``, once per series to which a run belongs.

    Adds ``rule`` (global_batch, local_batch, or unknown_batch where a row has neither) and
    ``batch``; ``fraction_per_gpu`` (missing where the data set does not grow with the GPUs);
    ``placement``, the nodes if they do not follow from the GPUs: ``2 nodes`` or ``fewest nodes``;
    ``series``, a label; and ``family``, the same without cap and clock. A series has at least two
    GPU counts. Rows with one of ``law_refusals`` are left out.
    """
    table = table[law_refusals(table).isna()]
    table = table.assign(**{name: table[name].astype(object).fillna("{}") for name in JSON_COLUMNS})
    known = table[list(RULES)].notna().any(axis=1)
    named = [(rule, table[table[rule].notna()].assign(batch=table[rule])) for rule in RULES]
    parts = []
    for rule, rows_of_rule in [*named, ("unknown_batch", table[~known].assign(batch=float("nan")))]:
        if rows_of_rule.empty:
            continue
        rows = rows_of_rule.assign(rule=rule, fraction_per_gpu=float("nan"))
        by = [*FIXED, "batch"]
        parts += _with_enough_counts(_placed(rows, by), [*by, "placement"], 2)
        if rule == "global_batch" and len(sized := _by_size_of_micro_batches(rows, by)):
            parts += _with_enough_counts(_placed(sized, by), [*by, "placement"], 2)
        if rows["dataset_fraction"].nunique() < _MIN_GROWING_COUNTS:
            continue
        shares = (rows["dataset_fraction"] / rows["gpus"]).round(12)
        by = [name for name in by if name != "dataset_fraction"] + ["fraction_per_gpu"]
        growing = _placed(rows.assign(fraction_per_gpu=shares), by)
        parts += _with_enough_counts(growing, [*by, "placement"], _MIN_GROWING_COUNTS)
    if not parts:
        return table.iloc[:0].assign(**dict.fromkeys(_ADDED, ""))
    series = pd.concat(parts, ignore_index=True)
    names = varying_columns(series)
    series["series"] = _labels(series, names)
    series["family"] = _labels(series, [name for name in names if name not in LIMITS])
    return series


def law_refusals(table: pd.DataFrame) -> pd.Series:
    """Return why each row is in no series and no law; None for a row that is in one."""
    kind = table["parallelism"]
    reason = pd.Series(None, index=table.index, dtype=object)
    reason[kind.isin(NOT_DATA_PARALLEL)] = (
        kind.astype(str) + " parallelism: laws and speedups are for data-parallel jobs"
    )
    emulated = table["emulated_gpus"]
    reason[emulated.notna()] = emulated.map(
        lambda count: f"emulates the local batch of {count:g} GPUs on fewer", na_action="ignore"
    )
    reason[uncooperative(table)] = "the workers do not cooperate: each trained a model of its own"
    return reason


def _by_size_of_micro_batches(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the rows whose micro-batches have one size and grow in number on fewer GPUs; the size
    replaces the number in ``layout``."""
    layouts = rows["layout"].fillna("{}").map(json.loads)
    numbers = layouts.map(lambda layout: layout.pop("gradient_accumulation", 1))
    sizes = (rows["local_batch"] / numbers).map("{:g}".format)
    named = zip(layouts, sizes, strict=True)
    sized = rows.assign(
        layout=[json.dumps(layout | {"micro_batch": size}) for layout, size in named]
    )
    differ = numbers.groupby(group_numbers(sized, by)).transform("nunique") > 1
    return sized[differ & rows["local_batch"].notna()]


def _placed(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Add ``placement``, with rows on the fewest nodes once more where these grow with the GPUs."""
    group = group_numbers(rows, by)
    of_count = rows["nodes"].groupby([group, rows["gpus"]])
    split = (of_count.transform("nunique") > 1).groupby(group).transform("any")
    if not split.any():
        return rows.assign(placement=None)
    nodes = rows["nodes"].map(
        lambda count: f"{count:g} node{'s' * (count > 1)}", na_action="ignore"
    )
    placed = rows.assign(placement=nodes.astype(object).where(split, None))
    fewest = rows[split & (rows["nodes"] == of_count.transform("min"))]
    grows = fewest["nodes"].groupby(group).transform("nunique") > 1
    if not grows.any():
        return placed
    return pd.concat([placed, fewest[grows].assign(placement="fewest nodes")], ignore_index=True)


def _with_enough_counts(rows: pd.DataFrame, by: list[str], least: int) -> list[pd.DataFrame]:
    group = group_numbers(rows, by)
    counts = rows["gpus"].groupby(group).transform("nunique")
    return [part for _, part in rows[counts >= least].groupby(group)]


def fit_metrics(
    table: pd.DataFrame, x: str = "gpus", y: str = "time_s", by: str | Sequence[str] | None = None
) -> Fits:
    """Fit the metrics of runs: by default their scaling series, else groups of the columns ``by``.

    Groups never mix energies that count different things, or quantities of different units.
    """
    missing: list[Fit] = []
    if y in ENERGIES:
        without = ((name, missing_energy(rows)) for name, rows in table.groupby("workload"))
        missing = [Fit({"workload": name}, refusal=why) for name, why in without if why]
    if missing:  # and not once more as series of no worker counts
        table = table[table[y].notna()]
    if by is None and x == "gpus" and y in table.columns:
        return Fits((*fit_table(table, y).rows, *missing), x, y)
    names = [by] if isinstance(by, str) else list(by or ())
    if by is None:  # one group for each job: what else varies than x and the batches
        others = (name for name in (*FIXED, "gpus", "nodes") if name != x and name in table)
        names = [name for name in others if table[name].nunique(dropna=False) > 1]
    names += ["energy_is"] if y in ENERGIES else []
    units = {unit: unit_of(y, unit) for unit in table["unit"].dropna().unique()}
    if len({*units.values()}) > 1:
        names.append("unit")
    fits = fit_groups(table, x, y, names)
    rows = [
        replace(fit, unit=units.get(fit.group.get("unit", table["unit"].iloc[0])))
        for fit in map(_without_estimated, fits.rows)
    ]
    return Fits((*rows, *missing), x, y, fits.left_out)


def fit_table(table: pd.DataFrame, y: str = "time_s", series: pd.DataFrame | None = None) -> Fits:
    """Fit a law to each scaling series; rows in no series get a refusal by workload and reason."""
    left = table[["workload"]].assign(reason=law_refusals(table)).dropna(subset="reason")
    refused = [
        Fit(group, refusal=f"{plural(len(rows), 'run')}: {group.pop('reason')}")
        for group, rows in groups(left, ["workload", "reason"])
    ]
    series = scaling_series(table) if series is None else series
    return Fits((*fit_series(series, y).rows, *refused), "gpus", y)


def fit_series(series: pd.DataFrame, y: str = "time_s") -> Fits:
    """Fit a law of the column ``y`` to each series of ``scaling_series``.

    A group says workload, the batch rule with its value, the other settings that differ in the
    table, and caps and clocks that are set; a law of energy also says what the energy is.
    """
    fits: list[Fit] = []
    names = [name for name in varying_columns(series) if name != "workload"] if len(series) else []
    for rule in (*RULES, "unknown_batch"):
        for grows in (False, True):
            is_kept = (series["rule"] == rule) & (series["fraction_per_gpu"].notna() == grows)
            by = ["workload", *([rule] if rule in RULES else []), *names]
            if grows:
                by = [*(name for name in by if name != "dataset_fraction"), "fraction_per_gpu"]
            by += ["energy_is"] if y in ENERGIES else []
            for unit, rows in series[is_kept].groupby("unit", sort=False):
                fitted = zip(fit_groups(rows, "gpus", y, by).rows, groups(rows, by), strict=True)
                for fit, (_, of_fit) in fitted:
                    known, nodes = of_fit["nodes"], None
                    if known.notna().all() and not are_imported_without_nodes(of_fit):
                        nodes = int(known.min()), int(known.max())
                    fits.append(replace(fit, unit=unit_of(y, str(unit)), nodes=nodes))
    return Fits(tuple(map(_without_estimated, fits)), "gpus", y)


def _without_estimated(fit: Fit) -> Fit:
    is_estimated = ESTIMATED in str(fit.group.get("energy_is"))
    return Fit(fit.group, refusal=WHY_NO_LAW) if is_estimated else fit


def are_imported_without_nodes(rows: pd.DataFrame) -> bool:
    """Say whether the nodes of runs are unknown: a table without nodes is imported with 1."""
    return bool((rows["launcher"] == "imported").all() and (rows["nodes"] == 1).all())


def varying_columns(series: pd.DataFrame) -> list[str]:
    """Return the columns beside GPUs and batch that differ, and caps and clocks that are set.

    The nodes of runs differ if one GPU count was run on several numbers of them.
    """
    names = [
        name
        for name in (*FIXED, "emulated_gpus", "placement")
        if name in series
        and (
            series[name].nunique(dropna=False) > 1
            or (name in POWER_SETTINGS and series[name].notna().any())
        )
    ]
    if "placement" in series:
        return names
    nodes = series["nodes"].groupby(group_numbers(series, [*FIXED, "gpus"])).nunique()
    return [*names, "nodes"] if (nodes > 1).any() else names


def _labels(series: pd.DataFrame, names: list[str]) -> list[str]:
    """Return each row's label: workload if it differs, batch, then whatever else differs.

    Labels that would be equal, such as those of fractions that differ in the seventh digit, are
    numbered.
    """
    cut_down = {name: series[name].map(differing_options(series[name])) for name in JSON_COLUMNS}
    columns = ["rule", "batch", "fraction_per_gpu", *names]
    fixed = series["dataset_fraction"].where(series["fraction_per_gpu"].isna())
    label_parts = series.assign(dataset_fraction=fixed)
    codes = group_numbers(label_parts, columns)
    labels: dict[Any, str] = {}
    label_counts: Counter[str] = Counter()
    first = ~codes.duplicated()
    rows = series.assign(**cut_down).loc[first, columns].to_dict("records")
    for code, row in zip(codes[first], rows, strict=True):
        grows = not pd.isna(row["fraction_per_gpu"])
        parts: dict[str, Any] = {"workload": row["workload"]} if "workload" in names else {}
        if row["rule"] in RULES:
            parts[row["rule"]] = row["batch"]
        parts |= {name: row[name] for name in names if not (grows and name == "dataset_fraction")}
        label = group_label(parts)
        label = f"{label}, data grows with N" if grows else label or "all runs"
        label_counts[label] += 1
        labels[code] = f"{label} ({label_counts[label]})" if label_counts[label] > 1 else label
    return [labels[code] for code in codes]


def speedups(series: pd.DataFrame, reference: int | None = None) -> pd.DataFrame:
    """Return each series of ``scaling_series`` relative to one of its GPU counts R.

    R is ``reference`` where a series has it (2 in Frey et al. 2022), else the smallest. One row per
    series and GPU count N: ``speedup`` = T(R) / T(N); ``efficiency`` = speedup R / N, or T(R) /
    T(N) where the data set grows with N and each GPU has as much to do; ``energy_ratio`` = E(N) /
    E(R) of the unit or, where the data set grows, of a sample. All
    are of geometric means over repeats, with the 95 % intervals of ``Variation.ratio``. A series in
    steps has none: how much work a step is at another count is not known. Energy ratios are missing
    where energies count different things.
    """
    runs = series.drop_duplicates("run_id").set_index("run_id")
    of_runs = dict(variations(runs, ("time_s", "energy_j", "energy_per_sample_j")))
    rows = [
        row
        for label, rows_of_series in series[series["unit"] != "step"].groupby("series", sort=False)
        for row in _of_series(
            str(label), rows_of_series, reference, of_runs[rows_of_series["run_id"].iloc[0]]
        )
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _of_series(
    label: str, series: pd.DataFrame, wanted: int | None, varied: Mapping[str, Variation]
) -> Iterator[tuple[object, ...]]:
    counts = sorted(int(count) for count in series["gpus"].unique())
    reference = wanted if wanted in counts else counts[0]
    runs = {gpus: pd.Index(series.loc[series["gpus"] == gpus, "run_id"]) for gpus in counts}
    # Of a growing data set an epoch or a run is more work, a sample is not.
    grows = bool((series["fraction_per_gpu"].notna() & (series["unit"] != "sample")).any())
    energy_j = "energy_per_sample_j" if grows else "energy_j"
    kinds = series.loc[series[energy_j].notna(), "energy_is"].dropna().unique()
    unit = series["unit"].iloc[0]
    for gpus in counts:
        time, high, low = (1 / end for end in varied["time_s"].ratio(runs[gpus], runs[reference]))
        energy = energy_low = energy_high = np.nan
        if len(kinds) == 1:
            pair = runs[gpus], runs[reference]
            energy, energy_low, energy_high = varied[energy_j].ratio(*pair)
        yield (
            label, unit, gpus, reference, time, low, high,
            time * (1.0 if grows else reference / gpus), energy, energy_low, energy_high,
            kinds[0] if len(kinds) == 1 else None,
        )  # fmt: skip
