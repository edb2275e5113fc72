"""Power caps and clocks: exponents compared, and the effect on time and energy."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_comparison import DIFFERENT, MARGIN, SAME, LimitComparison
from wattlaw.analysis.metrics.groups import groups
from wattlaw.common import formatting as fmt
from wattlaw.report import tables


def comparisons(findings: Findings) -> tables.Table | None:
    """Return, per family and kind of limit, whether limits change the exponent."""
    rows = [
        {"series": series, "comparison": comparison, **_largest_difference(comparison)}
        for series, comparison in findings.comparisons
    ]
    columns = [
        tables.text("series", "series"),
        tables.text("limit", lambda row: fmt.LIMIT_NAMES[row["comparison"].limit]),
        tables.text("verdict", lambda row: row["comparison"].verdict),
        tables.p_value("p of a difference", lambda row: row["comparison"].difference_p),
        tables.p_value("p of equivalence", lambda row: row["comparison"].equivalence_p),
        tables.number("largest difference of β", "beta_difference", 2),
        tables.interval("90 % interval", "beta_difference", 2),
        tables.text("at", lambda row: fmt.limit_label(row["comparison"].limit, row["limit"])),
        tables.number("margin", lambda _: MARGIN),
        tables.text("computed from", lambda row: row["comparison"].basis),
    ]
    return tables.build(
        "comparisons",
        "Does a limit change the exponent β?",
        columns,
        rows,
        note="Analysis of covariance of ln t over limits and ln N. A difference is shown where its "
        "p is below 0.05. Only the equivalence test (two one-sided tests against the margin) shows "
        "that β is the same; a difference that is not significant does not.",
    )


def effects(findings: Findings) -> tables.Table | None:
    """Return the change of time and energy under each limit, over all settings of a workload."""
    columns = [
        tables.text("workload", "workload"),
        tables.text("limit", "label"),
        tables.text("relative to", "reference"),
        tables.number("settings", "settings"),
        tables.change("time: median", "time"),
        tables.Column("range", lambda row: _range(row, "time")),
        tables.change("energy: median", "energy"),
        tables.Column("range", lambda row: _range(row, "energy")),
        tables.text("energy is", "energy_is"),
    ]
    return tables.build(
        "effects",
        "Change of time and energy under a limit, over all measured N",
        columns,
        effects_by_workload(findings),
        note="Changes of time and energy of the same work relative to the same setting without the "
        "limit (or with the highest one).",
        max_open_rows=40,
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
            "workload": name, "kind": kind, "label": fmt.limit_label(kind, limit),
            "reference": ", ".join(fmt.limit_label(kind, reference) for reference in references),
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
    """Yield the effect of limits on the exponent, time and energy."""
    for kind, name in fmt.LIMIT_NAMES.items():
        compared = [
            comparison for _, comparison in findings.comparisons if comparison.limit == kind
        ]
        if compared:
            yield _comparison_counts(compared, name)
    yield from _effect_sentences(findings)


def _comparison_counts(compared: Sequence[LimitComparison], name: str) -> str:
    counts = Counter(comparison.verdict for comparison in compared)
    undecided = len(compared) - counts[SAME] - counts[DIFFERENT]
    verdicts = (
        (counts[SAME], f"the same within {MARGIN:g}"),
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
        energies = [row["energy"] for row in same if fmt.known(row["energy"])]
        if energies:
            text += f", energy {_change_range(energies)}"
        settings = fmt.plural(sum(row["settings"] for row in same), "setting")
        medians = "median" if len(same) == 1 else f"{len(same)} medians, one per {per},"
        yield f"{text} ({medians} of {settings})."


def _largest_difference(comparison: LimitComparison) -> dict[str, Any]:
    """Return the limit whose exponent differs most from the reference's."""
    others = comparison.limits.iloc[1:]
    return dict(others.iloc[int(others["beta_difference"].abs().argmax())])


def _limited_effects(findings: Findings) -> pd.DataFrame:
    """Return the effects of limits without the rows of the references."""
    rows = findings.limit_effects
    same = (rows["limit"] == rows["reference"]) | (rows["limit"].isna() & rows["reference"].isna())
    return rows[~same]


def _range(row: dict[str, Any], name: str) -> str:
    if not fmt.known(row[name]) or row["settings"] < 2:
        return fmt.MISSING
    return f"{fmt.change(row[f'{name}_least'])} to {fmt.change(row[f'{name}_most'])}"


def _change_range(ratios: Iterable[float]) -> str:
    values = list(ratios)
    low, high = fmt.change(min(values)), fmt.change(max(values))
    return low if low == high else f"{low} to {high}"
