"""Energy against GPU-hours, what their factor depends on, and the totals with carbon and cost."""

import re
from collections.abc import Iterator
from typing import Any

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import LIMITS, POWER_SETTINGS
from wattlaw.analysis.metrics.metrics import missing_energy
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.report.topics.measured import suspect_note, unit_name, worker_noun

#: Energy is proportional to GPU-hours if the exponent is 1 within this margin.
_MARGIN = 0.05
_LEVEL = re.compile(r"C\((\w+)\)\[T\.(.*)\]", re.DOTALL)
_TERMS = {
    "Intercept": "constant",
    "log_samples": "elasticity of samples per GPU-hour",
    "log_steps": "elasticity of steps per GPU-hour",
}


def factors(findings: Findings) -> tables.Table | None:
    """Return the factor between energy and GPU-hours, and whether they are proportional."""
    noun = worker_noun(findings)
    columns = [
        *_group_columns(findings),
        tables.text("energy is", "energy_is"),
        tables.Column(f"factor (W per {noun})", lambda row: tables.with_interval(row, "factor_w")),
        tables.number("R²", "r2_origin", 4),
        tables.text("proportional", _proportional),
        tables.estimate("exponent", "exponent"),
        tables.text("best form", "best"),
        tables.number("settings", "n"),
        tables.interval(
            f"{noun}-hours per {unit_name(_laws(findings))}", "hours", ends=("_min", "_max")
        ),
        tables.text("note", "note"),
    ]
    return tables.build(
        "factors",
        f"Energy factor by workload and hardware: E = factor · {noun}-hours",
        columns,
        _laws(findings).to_dict("records"),
        note=f"The factor is the mean power of a {noun} (and its share of the host, where that is "
        "counted) while training. Proportional: yes if the 95 % interval of the exponent is within "
        f"{_MARGIN:g} of 1; no if it does not contain 1; else undecided (cannot tell)."
        f"{suspect_note(findings)}",
    )


def factor_terms(findings: Findings) -> tables.Table | None:
    """Return the terms of the regression of the factor."""
    model = findings.factor_model
    if model is None:
        return None
    columns = [
        tables.text("term", lambda row: _term(row["term"])),
        tables.number("estimate", "estimate"),
        tables.number("SE", "se", 2),
        tables.interval("95 % interval", "", ends=("low", "high")),
        tables.p_value("p", "p_value"),
    ]
    return tables.build(
        "factor_terms",
        "What the energy factor depends on (ln factor as a sum of terms)",
        columns,
        model.terms.to_dict("records"),
        note=f"{model.energy_is}; {model.n} runs of {model.settings} settings, R² "
        f"{fmt.number(model.r2)}. An elasticity of 0.1 means that twice the rate uses 2^0.1 = 1.07 "
        "times the energy per GPU-hour. Standard errors account for what repeats share.",
    )


def totals(findings: Findings) -> tables.Table | None:
    """Return the totals of the done runs by workload, hardware, source and kind of energy."""
    totals, currency = findings.totals, findings.footprint and findings.footprint.currency
    size, unit = fmt.choose_unit(totals["energy_j"], fmt.ENERGY_UNITS)
    totals = totals.assign(energy_is=totals["energy_is"].fillna("not measured"))
    columns = [
        tables.text("workload", "workload"),
        tables.text("hardware", "hardware"),
        tables.text("values are", "source"),
        tables.number("runs", "runs", 9),
        tables.number(f"{worker_noun(findings)}-hours", "gpu_hours"),
        tables.scaled(f"energy ({unit})", "energy_j", size),
        tables.text("energy is", "energy_is"),
    ]
    if "co2_kg" in totals:
        columns.append(tables.number("kg CO2e", "co2_kg"))
    if "cost" in totals:
        columns.append(tables.number(f"cost ({currency})" if currency else "cost", "cost"))
    return tables.build(
        "totals",
        "Totals of the training windows, by source",
        columns,
        totals.to_dict("records"),
        note="Training windows after warm-up of the runs that are done. Not included: warm-up, "
        "interrupted windows, evaluation, failed runs and idle time.",
    )


def counted(findings: Findings) -> tuple[str, ...]:
    """Return what carbon and cost include, for each kind of energy."""
    if findings.footprint is None:
        return ()
    kinds = findings.totals["energy_is"].dropna().unique()
    return tuple(findings.footprint.counted(str(kind)) for kind in kinds)


def energy_sentences(findings: Findings) -> Iterator[str]:
    """Yield what is counted, the factor of each workload and hardware, and its drift."""
    if findings.energy is None:
        why = "no meter was available. measure.assume_cpu_w gives an estimate, marked as such."
        if findings.sources_label == "imported":
            why = "the table has none."
        yield f"Energy is not known: {fmt.full_stop(missing_energy(findings.runs) or why)}"
        return
    text = f"Energies include: {findings.energy}."
    if "estimated" in findings.energy:
        text += " Estimated means busy cores times assumed watts: not a measurement."
    if "simulated" in findings.energy:
        text += " Simulated means from a model of a device: not a measurement."
    if "replayed" in findings.energy:
        text += " Replayed means from a table: not a measurement of these runs."
    yield text
    noun = worker_noun(findings)
    drifts = findings.factor_drift["verdict"].value_counts()
    if len(drifts):
        counts = ", ".join(f"{verdict} in {count}" for verdict, count in drifts.items())
        yield f"Watts per {noun} with more {noun}s: {counts} of {drifts.sum()} series."
    for row in _laws(findings).to_dict("records"):
        factor, power = (tables.with_interval(row, key) for key in ("factor_w", "exponent"))
        hours = fmt.interval(row["hours_min"], row["hours_max"])
        yield (
            f"{_group(row)}: {factor} W per {noun}; energy grows with {noun}-hours to the power "
            f"{power} ({hours} {noun}-hours per {row['unit']}, R² "
            f"{fmt.number(row['r2_log_log'], 4)})."
        )
    for reason, count in findings.energy_laws["reason"].value_counts().items():
        groups = fmt.plural(int(count), "group")
        yield f"{groups} without an energy law: {fmt.full_stop(str(reason))}"


def _laws(findings: Findings) -> Any:
    laws = findings.energy_laws
    return laws[laws["reason"].isna()]


def _group(row: dict[Any, Any]) -> str:
    """Return workload, hardware and limits of a law."""
    limits = [fmt.setting_label(kind, row[kind]) for kind in POWER_SETTINGS
              if fmt.known(row[kind])]  # fmt: skip
    return ", ".join([f"{row['workload']} on {row['hardware']}", *limits])


def _group_columns(findings: Findings) -> list[tables.Column]:
    """Return the columns of workload, hardware and each limit of any energy law."""
    laws = findings.energy_laws
    return [
        tables.text("workload", "workload"),
        tables.text("hardware", "hardware"),
        *(tables.limit(kind) for kind in LIMITS if laws[kind].notna().any()),
        *(
            [tables.text("power profile", "power_profile")]
            if laws["power_profile"].notna().any()
            else []
        ),
    ]


def _term(name: str) -> str:
    if level := _LEVEL.fullmatch(name):
        return f"{level[1]} {level[2]}"
    return _TERMS.get(name, name)


def _proportional(row: dict[str, Any]) -> str:
    low, high = row["exponent_low"], row["exponent_high"]
    if not (fmt.known(low) and fmt.known(high)):
        return fmt.MISSING
    if low >= 1 - _MARGIN and high <= 1 + _MARGIN:
        return "yes"
    return "cannot tell" if low <= 1 <= high else "no"
