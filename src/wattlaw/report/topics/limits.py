"""Power caps and clocks: exponents compared, effect on time and energy, and the best limit."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from wattlaw.analysis.caps.choice import LeastEnergyWithin
from wattlaw.analysis.caps.comparison import DIFFERENT, SAME, LimitComparison
from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import groups
from wattlaw.formatting import (
    LIMIT_NAMES,
    LIMIT_UNITS,
    MISSING,
    change,
    known,
    limit_label,
    number,
    p_value,
    plural,
)
from wattlaw.report.topics.measured import setting_columns, with_labels
from wattlaw.report.topics.table import (
    Column,
    Table,
    build_table,
    interval_column,
    number_column,
    text_column,
)


def comparisons(findings: Findings) -> Table | None:
    """Return, per family and kind of limit, whether limits change the exponent."""
    rows = [
        {"series": series, "comparison": comparison, **_largest_difference(comparison)}
        for series, comparison in findings.comparisons
    ]
    columns = [
        text_column("series", "series"),
        text_column("limit", lambda row: LIMIT_NAMES[row["comparison"].limit]),
        text_column("verdict", lambda row: row["comparison"].verdict),
        Column("p of a difference", lambda row: p_value(row["comparison"].difference_p)),
        Column("p of equivalence", lambda row: p_value(row["comparison"].equivalence_p)),
        number_column("largest difference of β", "beta_difference", 2),
        interval_column("90 % interval", "beta_difference", 2),
        text_column("at", lambda row: limit_label(row["comparison"].limit, row["limit"])),
        Column("margin", lambda row: number(row["comparison"].margin)),
        text_column("computed from", lambda row: row["comparison"].basis),
    ]
    return build_table(
        "comparisons",
        "Does a limit change the exponent β?",
        columns,
        rows,
        note="Analysis of covariance of ln t over limits and ln N. A difference is shown where its "
        "p is below 0.05. Only the equivalence test (two one-sided tests against the margin) shows "
        "that β is the same; a difference that is not significant does not.",
    )


def exponents_by_limit(findings: Findings) -> Table | None:
    """Return β and the factor on time of each limit of each comparison."""
    columns = [
        text_column("series", "series"),
        text_column("limit", "label"),
        number_column("β", "beta"),
        number_column("SE", "beta_se", 2),
        interval_column("95 % interval", "beta_ci"),
        number_column("R²", "r2", 4),
        number_column("β minus reference", "beta_difference", 2),
        interval_column("90 % interval", "beta_difference", 2),
        number_column("factor on time", "alpha_ratio"),
        interval_column("95 % interval", "alpha_ratio"),
        number_column("runs", "n"),
    ]
    rows = [
        {"series": series, "label": limit_label(comparison.limit, row["limit"]), **row}
        for series, comparison in findings.comparisons
        for row in comparison.limits.to_dict("records")
    ]
    return build_table(
        "exponents_by_limit",
        "Exponents by limit, and the factor of a limit on the time of an epoch",
        columns,
        rows,
        note="The first limit of a series is its reference.",
    )


def effects(findings: Findings) -> Table | None:
    """Return the change of time and energy under each limit, over all settings of a workload."""
    columns = [
        text_column("workload", "workload"),
        text_column("limit", "label"),
        text_column("relative to", "reference"),
        number_column("settings", "settings"),
        Column("time: median", lambda row: change(row["time"])),
        Column("range", lambda row: _range(row, "time")),
        Column("energy: median", lambda row: change(row["energy"])),
        Column("range", lambda row: _range(row, "energy")),
        text_column("energy is", "energy_is"),
    ]
    return build_table(
        "effects",
        "Change of time and energy under a limit, over all measured N",
        columns,
        effects_by_workload(findings),
        note="Changes of an epoch's time and energy relative to the same setting without the limit "
        "(or with the highest one).",
        max_open_rows=40,
    )


def effects_by_setting(findings: Findings) -> Table | None:
    """Return the change of time and energy under each limit at each setting, with intervals."""
    rows = _limited_effects(findings)
    columns = [
        *setting_columns(_other_settings(findings)),
        text_column("limit", lambda row: limit_label(row["limit_kind"], row["limit"])),
        Column("time", lambda row: change(row["time_ratio"])),
        _change_interval_column("time_ratio"),
        Column("energy", lambda row: change(row["energy_ratio"])),
        _change_interval_column("energy_ratio"),
        number_column("runs", "n"),
    ]
    smallest = rows.groupby("workload")["gpus"].transform("min") == rows["gpus"]
    largest = rows.groupby("workload")["gpus"].transform("max") == rows["gpus"]
    rows = with_labels(rows, _other_settings(findings))
    rows = rows.assign(_rank=(~(smallest | largest)).astype(int))
    return build_table(
        "effects_by_setting",
        "Change of time and energy under a limit, by setting",
        columns,
        rows.to_dict("records"),
        rank=lambda row: row["_rank"],
    )


def best(findings: Findings) -> Table | None:
    """Return the best limit of each setting that has several, under the rule of a small cost."""
    rule = LeastEnergyWithin().description
    rows = findings.best_limits[findings.best_limits["rule"] == rule]
    columns = [
        *setting_columns(_other_settings(findings)),
        text_column("limit", lambda row: LIMIT_NAMES[row["limit_kind"]]),
        text_column("best", lambda row: limit_label(row["limit_kind"], row["limit"])
                    if known(row["verdict"]) else MISSING),
        text_column("certainty", lambda row: row["verdict"] if known(row["verdict"])
                    else "no choice"),
        Column("energy", lambda row: change(1 - row["saving"])),
        Column("95 % interval", lambda row: _changes(
            1 - row["saving_high"], 1 - row["saving_low"])),
        Column("time", lambda row: change(1 + row["slowdown"])),
        Column("95 % interval", lambda row: _changes(
            1 + row["slowdown_low"], 1 + row["slowdown_high"])),
        text_column("reason", "why"),
    ]  # fmt: skip
    return build_table(
        "best_limits",
        f"The best limit of each setting: {rule}",
        columns,
        with_labels(rows, _other_settings(findings)).to_dict("records"),
        note="Energy and time are changes relative to no limit (or the highest).",
    )


def effects_by_workload(findings: Findings) -> list[dict[str, Any]]:
    """Return median, least and greatest ratio of each limit, per workload and hardware."""
    rows = _limited_effects(findings)
    table = []
    for group, effects in groups(rows, ["workload", "hardware", "limit_kind", "limit"]):
        kind, limit = group["limit_kind"], group["limit"]
        name = str(group["workload"])
        if rows["hardware"].nunique() > 1:
            name += f", {group['hardware']}"
        references = effects["reference"].drop_duplicates()
        energy_is = effects.loc[effects["energy_ratio"].notna(), "energy_is"].dropna().unique()
        row = {
            "workload": name, "kind": kind, "label": limit_label(kind, limit),
            "reference": ", ".join(limit_label(kind, reference) for reference in references),
            "settings": len(effects), "energy_is": "; ".join(sorted(energy_is)) or None,
        }  # fmt: skip
        for quantity in ("time", "energy"):
            ratios = effects[f"{quantity}_ratio"].dropna()
            row |= {
                quantity: ratios.median() if len(ratios) else None,
                f"{quantity}_least": ratios.min() if len(ratios) else None,
                f"{quantity}_most": ratios.max() if len(ratios) else None,
            }
        table.append(row)
    return table


def limit_sentences(findings: Findings) -> Iterator[str]:
    """Yield the effect of limits on the exponent, time and energy, and the best limits."""
    for kind, name in LIMIT_NAMES.items():
        compared = [
            comparison for _, comparison in findings.comparisons if comparison.limit == kind
        ]
        if compared:
            yield _comparison_counts(compared, name)
    yield from _effect_sentences(findings)
    yield from _best_limit_sentences(findings)


def _comparison_counts(compared: Sequence[LimitComparison], name: str) -> str:
    counts = Counter(comparison.verdict for comparison in compared)
    undecided = len(compared) - counts[SAME] - counts[DIFFERENT]
    verdicts = (
        (counts[SAME], f"the same within {compared[0].margin:g}"),
        (counts[DIFFERENT], "different"),
        (undecided, "undecided"),
    )
    text = ", ".join(f"{verdict} in {count}" for count, verdict in verdicts if count)
    return f"Exponent β under each {name}: {text} of {len(compared)} series compared."


def _effect_sentences(findings: Findings) -> Iterator[str]:
    """Yield the effect of each limit over all workloads: the range of their medians."""
    rows = effects_by_workload(findings)
    per = "workload and hardware" if "hardware" in findings.varying_settings else "workload"
    for kind, label in dict.fromkeys((row["kind"], row["label"]) for row in rows):
        same = [row for row in rows if (row["kind"], row["label"]) == (kind, label)]
        reference = " or ".join(dict.fromkeys(row["reference"] for row in same))
        text = f"{label} relative to {reference}: time {_change_range(row['time'] for row in same)}"
        energies = [row["energy"] for row in same if known(row["energy"])]
        if energies:
            text += f", energy {_change_range(energies)}"
        settings = plural(sum(row["settings"] for row in same), "setting")
        medians = "median" if len(same) == 1 else f"{len(same)} medians, one per {per},"
        yield f"{text} ({medians} of {settings})."


def _best_limit_sentences(findings: Findings) -> Iterator[str]:
    rule = LeastEnergyWithin().description
    rows = findings.best_limits
    rows = rows[(rows["rule"] == rule) & rows["verdict"].notna()]
    for kind, of_kind in rows.groupby("limit_kind"):
        limits = Counter(float(limit) if known(limit) else None for limit in of_kind["limit"])
        counts = ", ".join(
            f"{'none' if limit is None else f'{limit:g} {LIMIT_UNITS[str(kind)]}'} in {count}"
            for limit, count in limits.most_common()
        )
        significant = int((of_kind["verdict"] == "best").sum())
        yield (
            f"Best {LIMIT_NAMES[str(kind)]} of each setting ({rule}): {counts} of "
            f"{plural(len(of_kind), 'setting')}; significantly better than the others in "
            f"{significant}."
        )


def _largest_difference(comparison: LimitComparison) -> dict[str, Any]:
    """Return the limit whose exponent differs most from the reference's."""
    others = comparison.limits.iloc[1:]
    return dict(others.iloc[int(others["beta_difference"].abs().argmax())])


def _limited_effects(findings: Findings) -> pd.DataFrame:
    """Return the effects of limits without the rows of the references, each setting once.

    A setting can be in two series.
    """
    rows = findings.limit_effects
    same = (rows["limit"] == rows["reference"]) | (rows["limit"].isna() & rows["reference"].isna())
    columns = [name for name in rows.columns if name not in ("family", "rule", "batch")]
    return rows[~same].drop_duplicates(columns)


def _other_settings(findings: Findings) -> tuple[str, ...]:
    return tuple(name for name in findings.varying_settings if name not in ("workload", *LIMITS))


def _change_interval_column(key: str) -> Column:
    return Column("95 % interval", lambda row: _changes(row[f"{key}_low"], row[f"{key}_high"]))


def _range(row: dict[str, Any], name: str) -> str:
    if not known(row[name]) or row["settings"] < 2:
        return MISSING
    return _changes(row[f"{name}_least"], row[f"{name}_most"])


def _changes(low: Any, high: Any) -> str:
    return f"{change(low)} to {change(high)}" if known(low) and known(high) else MISSING


def _change_range(ratios: Iterable[float]) -> str:
    values = list(ratios)
    low, high = change(min(values)), change(max(values))
    return low if low == high else f"{low} to {high}"
