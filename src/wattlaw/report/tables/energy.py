"""Energy against GPU-hours: the factor of each workload and hardware, what it depends on."""

import re
from typing import Any

from wattlaw.analysis.caps.limits import LIMITS, Limit, format_limit
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import NONE, interval, joules, known, number, p_value, with_interval
from wattlaw.report.tables.limits import KIND
from wattlaw.report.tables.measured import suspicion, worker
from wattlaw.report.tables.table import Column, Table, make, words

#: An exponent this near to 1 is as good as proportional.
_NEAR = 0.05


def factors(findings: Findings) -> Table | None:
    """Return the factor between energy and GPU-hours, per workload and hardware."""
    laws = findings.energy_laws
    noun = worker(findings)
    columns = [
        words("workload", "workload"),
        words("hardware", "hardware"),
        *_limits(findings),
        words("energy is", "energy_is"),
        Column(f"factor (W per {noun})", lambda row: number(row["factor_w"], 4)),
        Column("95 % interval", lambda row: interval(row["factor_w_low"], row["factor_w_high"], 4)),
        Column("R²", lambda row: number(row["r2_origin"], 4)),
        Column("settings", lambda row: number(row["n"])),
        Column(f"{noun}-hours per epoch", lambda row: interval(row["hours_min"], row["hours_max"])),
        words("note", "note"),
    ]
    return make(
        "factors",
        f"Energy factor by workload and hardware: E = factor · {noun}-hours",
        columns,
        laws[laws["reason"].isna()].to_dict("records"),
        note=f"The slope through the origin: mean power of a {noun} (and its share of the host, "
        f"where that is counted) while training.{suspicion(findings)}",
    )


def forms(findings: Findings) -> Table | None:
    """Return whether energy is proportional to GPU-hours: three forms of the law."""
    laws = findings.energy_laws
    size, unit = joules(laws["intercept_j"])
    columns = [
        words("workload", "workload"),
        words("hardware", "hardware"),
        *_limits(findings),
        Column("proportional", _proportional, numeric=False),
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
        f"Is energy proportional to {worker(findings)}-hours?",
        columns,
        laws[laws["reason"].isna()].to_dict("records"),
        note=f"Proportional: yes where the 95 % interval of the exponent lies within {_NEAR:g} of "
        "1; no where it does not hold 1; else it cannot be told. Fits best: least AICc.",
    )


def without_law(findings: Findings) -> Table | None:
    """Return the groups without an energy law, with the reason."""
    laws = findings.energy_laws
    columns = [
        words("workload", "workload"),
        words("hardware", "hardware"),
        *_limits(findings),
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
    "log_steps": "elasticity of steps per GPU-hour",
}


def _limited(series: Any) -> bool:
    return re.search(r" (W|MHz)(,|$)", str(series)) is not None


def _limits(findings: Findings) -> list[Column]:
    """Return a column for each limit that any energy law was measured under."""
    laws = findings.energy_laws
    return [_limit(kind) for kind in LIMITS if laws[kind].notna().any()]


def _limit(kind: Limit) -> Column:
    return Column(
        KIND[kind],
        lambda row: format_limit(kind, row[kind] if known(row[kind]) else None),
        numeric=False,
    )


def _proportional(row: dict[str, Any]) -> str:
    low, high = row["exponent_low"], row["exponent_high"]
    if not (known(low) and known(high)):
        return NONE
    if low >= 1 - _NEAR and high <= 1 + _NEAR:
        return "yes"
    return "cannot tell" if low <= 1 <= high else "no"
