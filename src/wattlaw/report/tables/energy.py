"""Energy against GPU-hours: the factor of each workload and hardware, what it depends on."""

import re
from typing import Any

from wattlaw.analysis.findings import Findings
from wattlaw.report.format import interval, joules, number, p_value, with_interval
from wattlaw.report.tables.table import Column, Table, make, words

_COMMAND = "wattlaw export STORE runs -o runs.csv"


def factors(findings: Findings) -> Table | None:
    """Return the factor between energy and GPU-hours, per workload and hardware."""
    laws = findings.energy_laws
    columns = [
        words("workload", "workload"),
        words("hardware", "hardware"),
        words("energy is", "energy_is"),
        Column("factor (W per GPU)", lambda row: number(row["factor_w"], 4)),
        Column("95 % interval", lambda row: interval(row["factor_w_low"], row["factor_w_high"], 4)),
        Column("R²", lambda row: number(row["r2_origin"], 4)),
        Column("settings", lambda row: number(row["n"])),
        Column("GPU-hours per epoch", lambda row: interval(row["hours_min"], row["hours_max"])),
        words("note", "note"),
    ]
    return make(
        "factors",
        "Energy factor by workload and hardware: E = factor · GPU-hours",
        columns,
        laws[laws["reason"].isna()].to_dict("records"),
        note="The slope through the origin: mean power of a GPU (and its share of the host, where "
        "that is counted) while training.",
        command=_COMMAND,
    )


def forms(findings: Findings) -> Table | None:
    """Return whether energy is proportional to GPU-hours: three forms of the law."""
    laws = findings.energy_laws
    size, unit = joules(laws["intercept_j"])
    columns = [
        words("workload", "workload"),
        words("hardware", "hardware"),
        words("fits best", "best"),
        Column("R² through origin", lambda row: number(row["r2_origin"], 4)),
        Column(f"intercept ({unit})", lambda row: with_interval(
            *(row[f"intercept_j{end}"] / size for end in ("", "_low", "_high")))),
        Column("R² with it", lambda row: number(row["r2_intercept"], 4)),
        Column("exponent", lambda row: with_interval(
            row["exponent"], row["exponent_low"], row["exponent_high"])),
        Column("R² of the power", lambda row: number(row["r2_log_log"], 4)),
    ]  # fmt: skip
    return make(
        "energy_forms",
        "Is energy proportional to GPU-hours?",
        columns,
        laws[laws["reason"].isna()].to_dict("records"),
        note="It is where the interval of the intercept holds 0 and that of the exponent holds 1. "
        "Fits best: least AICc.",
        command=_COMMAND,
    )


def without_law(findings: Findings) -> Table | None:
    """Return the groups without an energy law, with the reason."""
    laws = findings.energy_laws
    columns = [
        words("workload", "workload"),
        words("hardware", "hardware"),
        words("energy is", "energy_is"),
        words("why", "reason"),
    ]
    refused = laws[laws["reason"].notna()].to_dict("records")
    return make("without_energy_law", "Energies without a law", columns, refused)


def drifts(findings: Findings) -> Table | None:
    """Return how the factor drifts with the number of GPUs in each series."""
    columns = [
        words("series", "series"),
        Column("N", lambda row: f"{number(row['gpus_min'])} to {number(row['gpus_max'])}"),
        Column("factor at the least N (W)", lambda row: number(row["factor_first_w"])),
        Column("at the greatest (W)", lambda row: number(row["factor_last_w"])),
        Column("slope of ln factor on ln N", lambda row: number(row["slope"], 2)),
        Column("95 % interval", lambda row: interval(row["slope_low"], row["slope_high"], 2)),
        Column("p", lambda row: p_value(row["p_value"])),
        words("verdict", "verdict"),
        words("why", "why"),
    ]
    rows = findings.factor_drift
    return make(
        "drifts",
        "Drift of the energy factor with N",
        columns,
        rows.to_dict("records"),
        note="No drift: the interval holds 0 and lies within 2 % per doubling of N.",
        command=_COMMAND,
        rank=lambda row: _limited(row["series"]),
    )


def factor_terms(findings: Findings) -> Table | None:
    """Return what the factor depends on: the terms of its regression."""
    model = findings.factor_model
    if model is None:
        return None
    columns = [
        Column("term", lambda row: _term(row["term"]), numeric=False),
        Column("estimate", lambda row: number(row["estimate"])),
        Column("SE", lambda row: number(row["se"], 2)),
        Column("95 % interval", lambda row: interval(row["low"], row["high"])),
        Column("p", lambda row: p_value(row["p_value"])),
    ]
    return make(
        "factor_terms",
        "What the energy factor depends on (ln factor as a sum of terms)",
        columns,
        model.terms.to_dict("records"),
        note=f"{model.energy_is}; {model.n} runs of {model.settings} settings, R² "
        f"{number(model.r2, 3)}. An elasticity of 0.1 means that twice the rate takes 2^0.1 = 1.07 "
        "times the energy per GPU-hour. Standard errors are robust to what repeats share.",
    )


_LEVEL = re.compile(r"C\((\w+)\)\[T\.(.*)\]", re.DOTALL)


def _term(name: str) -> str:
    if level := _LEVEL.fullmatch(name):
        return f"{level[1]} {level[2]}"
    return _TERMS.get(name, name)


_TERMS = {
    "Intercept": "constant",
    "log_samples": "elasticity of samples per GPU-hour",
    "log_updates": "elasticity of updates per GPU-hour",
}


def _limited(series: Any) -> bool:
    return re.search(r" (W|MHz)(,|$)", str(series)) is not None
