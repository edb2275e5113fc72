"""What energy follows, in words."""

from collections.abc import Iterator
from typing import Any

from wattlaw.analysis.caps.limits import LIMITS, format_limit
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import known, number, with_interval
from wattlaw.report.tables.measured import worker

#: So many laws are told one by one.
_MOST_LAWS = 3


def energy(findings: Findings) -> Iterator[str]:
    """Say what is counted, the factor of each workload and hardware, and its drift."""
    if findings.energy is None:
        yield (
            "Energy was not measured: no meter is available where this ran. "
            "measure.assume_cpu_w gives an estimate, marked as one."
        )
        return
    words = f"Energies count: {findings.energy}."
    if "estimated" in findings.energy:
        words += " Estimated means busy cores times assumed watts: not a measurement."
    if "simulated" in findings.energy:
        words += " Simulated means from a model of a device: not a measurement."
    yield words
    noun = worker(findings)
    laws = findings.energy_laws
    found = laws[laws["reason"].isna()]
    for row in found.iloc[:_MOST_LAWS].to_dict("records"):
        factor = with_interval(row["factor_w"], row["factor_w_low"], row["factor_w_high"])
        power = with_interval(row["exponent"], row["exponent_low"], row["exponent_high"])
        yield (
            f"{_whose(row)}: {factor} W per {noun}; energy goes with "
            f"{noun}-hours to the power {power} ({number(row['hours_min'])} to "
            f"{number(row['hours_max'])} {noun}-hours an epoch, R² {number(row['r2_log_log'], 4)})."
        )
    rest = found.iloc[_MOST_LAWS:]
    if len(rest) == 1:
        row = rest.iloc[0].to_dict()
        yield f"{_whose(row)}: {number(row['factor_w'])} W per {noun}."
    elif len(rest):
        yield (
            f"{len(rest)} more (of other workloads, hardware, caps or clocks): between "
            f"{number(rest['factor_w'].min())} W and {number(rest['factor_w'].max())} W per {noun}."
        )
    drifts = findings.factor_drift["verdict"].value_counts()
    if len(drifts):
        told_of = ", ".join(f"{verdict} in {count}" for verdict, count in drifts.items())
        yield f"Watts per {noun} with more {noun}s: {told_of} of {drifts.sum()} series."


def _whose(row: dict[Any, Any]) -> str:
    """Return the workload, hardware and limits of a law."""
    limits = [format_limit(kind, row[kind]) for kind in LIMITS if known(row[kind])]
    return ", ".join([f"{row['workload']} on {row['hardware']}", *limits])
