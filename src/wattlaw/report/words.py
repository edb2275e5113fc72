"""The summary in words: sentences made from findings, only such as the data support."""

import math

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.power_law import PowerLaw
from wattlaw.analysis.series import group_label

_MOST = 8


def summary(findings: Findings) -> list[str]:
    """Return the sentences at the top of a report."""
    counts = [f"{count} {status}" for status, count in sorted(findings.statuses.items())]
    sentences = [f"{sum(findings.statuses.values())} runs: {', '.join(counts)}."]
    if findings.runs.empty:
        return [*sentences, "No run is done, so there is nothing to conclude yet."]
    laws = findings.fits.laws
    sentences += [_law(group_label(group), law) for group, law in laws[:_MOST]]
    if len(laws) > _MOST:
        sentences.append(f"{len(laws) - _MOST} more laws are in the table of exponents.")
    if not laws and findings.fits.refusals:
        sentences.append("No scaling law is fitted: it needs at least three worker counts.")
    sentences += _speedups(findings)
    if findings.has_quality:
        judged = findings.runs.dropna(subset=["metric"])
        sentences += [
            f"{workload}: {runs['metric_name'].iloc[0] or 'metric'} after the last epoch from "
            f"{runs['metric'].min():.4g} to {runs['metric'].max():.4g}."
            for workload, runs in judged.groupby("workload")
        ]
    sentences.append(_energy(findings))
    return sentences


def _law(label: str, law: PowerLaw) -> str:
    low, high = law.beta_ci
    measured = f"{law.x_min:g} to {law.x_max:g} workers, {law.n} runs"
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{label}: t = {law.alpha:.3g} s x N^-{law.beta:.2f} ({measured})."
    sentence = (
        f"{label}: doubling the workers multiplies the epoch time by {2**-law.beta:.2f} "
        f"(\u03b2 = {law.beta:.2f}, 95 % interval {low:.2f} to {high:.2f}; {measured})"
    )
    if low <= 0 <= high:
        sentence += "; over this range as a whole a gain cannot be told from none"
    return sentence + "."


def _speedups(findings: Findings) -> list[str]:
    table = findings.speedups[findings.speedups["gpus"] > findings.speedups["reference"]]
    table = table.dropna(subset=["speedup_low"])
    if table.empty:
        return []
    best = table.sort_values("speedup").iloc[-1]
    return [
        f"The largest speedup is {best['speedup']:.2f} (95 % interval {best['speedup_low']:.2f} "
        f"to {best['speedup_high']:.2f}), on {best['gpus']} workers instead of "
        f"{best['reference']}: {best['series']}."
    ]


def _energy(findings: Findings) -> str:
    if findings.energy is None:
        return (
            "Energy was not measured: no meter is available where this ran. "
            "measure.assume_cpu_w gives an estimate, marked as one."
        )
    words = f"Energies count: {findings.energy}."
    if "estimated" in findings.energy:
        words += " Estimated means busy cores times assumed watts: not a measurement."
    if "simulated" in findings.energy:
        words += " Simulated means from a model of a device: not a measurement."
    return words
