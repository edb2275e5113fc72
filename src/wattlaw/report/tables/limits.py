"""Caps and clocks: exponents compared, what a limit costs and saves, and the best limit."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from wattlaw.analysis.caps.comparison import LimitComparison
from wattlaw.analysis.caps.limits import LIMITS, format_limit
from wattlaw.analysis.caps.rules import LeastEnergyWithin
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import groups
from wattlaw.formatting import NONE, change, interval, known, number, p_value
from wattlaw.report.tables.measured import in_words, setting_columns
from wattlaw.report.tables.table import Column, Table, make, words

KIND = {"power_limit_w": "power cap", "clock_limit_mhz": "SM clock"}


def comparisons(findings: Findings) -> Table | None:
    """Return, per family and kind of limit, whether limits change the exponent."""
    columns = [
        Column("series", lambda one: one[0], numeric=False),
        Column("limit", lambda one: KIND[one[1].limit], numeric=False),
        Column("verdict", lambda one: one[1].verdict, numeric=False),
        Column("p of a difference", lambda one: p_value(one[1].difference_p)),
        Column("p of equivalence", lambda one: p_value(one[1].equivalence_p)),
        Column("β differs by at most", lambda one: number(_most(one)["beta_difference"], 2)),
        Column(
            "90 % interval",
            lambda one: interval(
                _most(one)["beta_difference_low"], _most(one)["beta_difference_high"], 2
            ),
        ),
        Column("at", lambda one: format_limit(one[1].limit, _most(one)["limit"]), numeric=False),
        Column("margin", lambda one: number(one[1].margin)),
        Column("computed from", lambda one: one[1].basis, numeric=False),
    ]
    return make(
        "comparisons",
        "Does a limit change the exponent β?",
        columns,
        findings.comparisons,
        note="Analysis of covariance of ln t over limits and ln N. A difference is shown where its "
        "p is below 0.05; that β is the same is shown only by the equivalence test (two one-sided "
        "tests against the margin), never by a difference that is not significant.",
    )


def exponents_by_limit(findings: Findings) -> Table | None:
    """Return β and the shift of α of each limit of each comparison."""
    columns = [
        words("series", "family"),
        words("limit", "words"),
        Column("β", lambda row: number(row["beta"])),
        Column("SE", lambda row: number(row["beta_se"], 2)),
        Column("95 % interval", lambda row: interval(row["beta_ci_low"], row["beta_ci_high"])),
        Column("R²", lambda row: number(row["r2"], 4)),
        Column("β less the reference's", lambda row: number(row["beta_difference"], 2)),
        Column("90 % interval", lambda row: interval(
            row["beta_difference_low"], row["beta_difference_high"], 2)),
        Column("factor on time", lambda row: number(row["alpha_ratio"])),
        Column("95 % interval ", lambda row: interval(
            row["alpha_ratio_low"], row["alpha_ratio_high"])),
        Column("runs", lambda row: number(row["n"])),
    ]  # fmt: skip
    rows = [
        {"family": label, "words": format_limit(one.limit, row["limit"]), **row}
        for label, one in findings.comparisons
        for row in one.limits.to_dict("records")
    ]
    return make(
        "exponents_by_limit",
        "Exponents by limit, and the factor by which a limit lengthens an epoch",
        columns,
        rows,
        note="The first limit of a series is its reference.",
    )


def effects(findings: Findings) -> Table | None:
    """Return time and energy of each limit against none, over all settings of a workload."""
    columns = [
        words("workload", "workload"),
        words("limit", "words"),
        words("against", "against"),
        Column("settings", lambda row: number(row["settings"])),
        Column("time: median", lambda row: change(row["time"])),
        Column("from … to", lambda row: _spread(row, "time")),
        Column("energy: median", lambda row: change(row["energy"])),
        Column("from … to ", lambda row: _spread(row, "energy")),
        words("energy is", "energy_is"),
    ]
    return make(
        "effects",
        "What a limit costs in time and saves in energy, over all measured N",
        columns,
        effects_by_workload(findings),
        note="Changes of an epoch's time and energy against the same setting without the limit "
        "(or with the highest one).",
        most_open=40,
    )


def effects_by_setting(findings: Findings) -> Table | None:
    """Return time and energy of each limit at each setting, with intervals."""
    rows = _changed(findings)
    columns = [
        *setting_columns(_others(findings)),
        Column("limit", lambda row: format_limit(row["limit_kind"], row["limit"]), numeric=False),
        Column("time", lambda row: change(row["time_ratio"])),
        Column("95 % interval", lambda row: _ratio_interval(row, "time")),
        Column("energy", lambda row: change(row["energy_ratio"])),
        Column("95 % interval ", lambda row: _ratio_interval(row, "energy")),
        Column("runs", lambda row: number(row["n"])),
    ]
    smallest = rows.groupby("workload")["gpus"].transform("min") == rows["gpus"]
    largest = rows.groupby("workload")["gpus"].transform("max") == rows["gpus"]
    rows = in_words(rows, _others(findings)).assign(_rank=(~(smallest | largest)).astype(int))
    return make(
        "effects_by_setting",
        "What a limit costs and saves, by setting",
        columns,
        rows.to_dict("records"),
        rank=lambda row: row["_rank"],
    )


def best(findings: Findings) -> Table | None:
    """Return the best limit of each setting that has several, under the rule of a small cost."""
    rule = LeastEnergyWithin().description
    rows = findings.best_limits[findings.best_limits["rule"] == rule]
    columns = [
        *setting_columns(_others(findings)),
        Column("limit", lambda row: KIND[row["limit_kind"]], numeric=False),
        Column("best", lambda row: format_limit(row["limit_kind"], row["limit"])
               if known(row["verdict"]) else NONE, numeric=False),
        Column("how sure", lambda row: row["verdict"] if known(row["verdict"]) else "no choice",
               numeric=False),
        Column("energy", lambda row: change(1 - row["saving"])),
        Column("95 % interval", lambda row: _bounds(1 - row["saving_high"], 1 - row["saving_low"])),
        Column("time", lambda row: change(1 + row["slowdown"])),
        Column("95 % interval ", lambda row: _bounds(
            1 + row["slowdown_low"], 1 + row["slowdown_high"])),
        words("why", "why"),
    ]  # fmt: skip
    return make(
        "best_limits",
        f"The best limit of each setting: {rule}",
        columns,
        in_words(rows, _others(findings)).to_dict("records"),
        note="Energy and time are changes against no limit (or the highest).",
    )


def effects_by_workload(findings: Findings) -> list[dict[str, Any]]:
    """Return the median, least and greatest ratios of each limit, per workload and hardware."""
    return list(_by_workload(_changed(findings)))


def _by_workload(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    by = ["workload", "hardware", "limit_kind", "limit"]
    for group, alike in groups(rows, by):
        kind, limit = group["limit_kind"], group["limit"]
        references = alike["reference"].drop_duplicates()
        name = str(group["workload"])
        if rows["hardware"].nunique() > 1:
            name += f", {group['hardware']}"
        row = {
            "workload": name, "kind": kind, "limit": limit, "words": format_limit(kind, limit),
            "against": ", ".join(format_limit(kind, one) for one in references),
            "settings": len(alike),
        }  # fmt: skip
        for quantity in ("time", "energy"):
            ratios = alike[f"{quantity}_ratio"].dropna()
            row |= {
                quantity: ratios.median() if len(ratios) else None,
                f"{quantity}_least": ratios.min() if len(ratios) else None,
                f"{quantity}_most": ratios.max() if len(ratios) else None,
            }
        told = alike.loc[alike["energy_ratio"].notna(), "energy_is"].dropna().unique()
        yield row | {"energy_is": "; ".join(sorted(told)) or None}


def _most(one: tuple[str, LimitComparison]) -> dict[str, Any]:
    """Return the limit whose exponent differs most from the reference's."""
    others = one[1].limits.iloc[1:]
    return dict(others.iloc[int(others["beta_difference"].abs().argmax())])


def _changed(findings: Findings) -> pd.DataFrame:
    """Return the effects of limits, without the rows of the references and each once.

    A setting that belongs to two series is the same setting.
    """
    rows = findings.limit_effects
    same = (rows["limit"] == rows["reference"]) | (rows["limit"].isna() & rows["reference"].isna())
    once = [name for name in rows.columns if name not in ("family", "rule", "batch")]
    return rows[~same].drop_duplicates(once)


def _others(findings: Findings) -> tuple[str, ...]:
    return tuple(name for name in findings.varying_settings if name not in ("workload", *LIMITS))


def _spread(row: dict[str, Any], name: str) -> str:
    if not known(row[name]) or row["settings"] < 2:
        return NONE
    return _bounds(row[f"{name}_least"], row[f"{name}_most"])


def _ratio_interval(row: dict[str, Any], name: str) -> str:
    return _bounds(row[f"{name}_ratio_low"], row[f"{name}_ratio_high"])


def _bounds(low: Any, high: Any) -> str:
    return f"{change(low)} to {change(high)}" if known(low) and known(high) else NONE
