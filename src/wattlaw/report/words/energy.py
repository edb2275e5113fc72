"""What energy follows, in words."""

from collections.abc import Iterator

from wattlaw.analysis.findings import Findings
from wattlaw.report.format import number, with_interval
from wattlaw.report.words.scaling import worker


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
    for row in laws[laws["reason"].isna()].to_dict("records"):
        factor = with_interval(row["factor_w"], row["factor_w_low"], row["factor_w_high"])
        power = with_interval(row["exponent"], row["exponent_low"], row["exponent_high"])
        yield (
            f"{row['workload']} on {row['hardware']}: {factor} W per {noun}; energy goes with "
            f"{noun}-hours to the power {power} ({number(row['hours_min'])} to "
            f"{number(row['hours_max'])} {noun}-hours an epoch, R² {number(row['r2_log_log'], 4)})."
        )
    drifts = findings.factor_drift["verdict"].value_counts()
    if len(drifts):
        told_of = ", ".join(f"{verdict} in {count}" for verdict, count in drifts.items())
        yield f"Watts per {noun} with more {noun}s: {told_of} of {drifts.sum()} series."
