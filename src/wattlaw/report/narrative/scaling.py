"""How training scales, and where its power law ends, in words."""

from collections.abc import Iterator

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import group_label
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.formatting import interval, number, percent, plural, with_interval
from wattlaw.report.tables.measured import worker
from wattlaw.report.tables.scaling import main_fits, relative_rows


def scaling(findings: Findings) -> Iterator[str]:
    """Say the law and the speedup of each workload, and how far laws can be trusted."""
    noun = worker(findings)
    for fit in main_fits(findings):
        yield _law(fit, noun) + _speedup(findings, fit, noun)
    if not findings.fits.laws:
        yield f"No scaling law is fitted: it needs at least three {noun} counts."
    errors = [
        abs(float(error))
        for fit in findings.fits.rows
        if fit.selection is not None
        for error in fit.selection.table.query("law == 'power'")["holdout_error"].dropna()
    ]
    if errors:
        middle = pd.Series(errors).median()
        yield (
            f"Asked for the largest {noun} count without having seen it, the power law errs by a "
            f"median of {percent(middle, 2)} and at most {percent(max(errors), 2)} "
            f"({len(errors)} series): beyond the measured range a law is a guess."
        )


def _law(fit: SeriesFit, noun: str) -> str:
    law = fit.law
    if law is None:
        return ""
    measured = f"{law.x_min:g} to {law.x_max:g} {noun}s, {plural(law.n, 'run')}"
    bounds = law.trusted.beta_ci
    name = group_label(fit.group)
    beta = f"β = {number(law.beta)}"
    if interval(*bounds) == "–":
        return f"{name}: t = {number(law.alpha)} s · N^−{number(law.beta)} ({measured})."
    sentence = (
        f"{name}: doubling the {noun}s multiplies the epoch time by {2**-law.beta:.2f} "
        f"({beta}, 95 % interval {interval(*bounds)}; {measured})"
    )
    if bounds[0] <= 0 <= bounds[1]:
        sentence += "; over this range as a whole a gain cannot be told from none"
    return sentence + "."


def _speedup(findings: Findings, fit: SeriesFit, noun: str) -> str:
    """Return the greatest speedup of a fit's series."""
    table = relative_rows(findings, fit)
    if table.empty:
        return ""
    best = table.iloc[int(table["speedup"].argmax())]
    if best["gpus"] == best["reference"]:
        return f" No count is faster than {plural(int(best['reference']), noun)}."
    speedup = with_interval(best["speedup"], best["speedup_low"], best["speedup_high"])
    return (
        f" The fastest, on {plural(int(best['gpus']), noun)}, is {speedup} times as fast as on "
        f"{best['reference']}: a parallel efficiency of {number(best['efficiency'], 2)}."
    )


def breakpoints(findings: Findings) -> Iterator[str]:
    """Say which series leave their power law, and where."""
    quoted = main_fits(findings)
    for fit in quoted:
        if fit.breakpoint is not None:
            yield f"{group_label(fit.group)}: {fit.breakpoint.sentence}."
    also = sum(fit.breakpoint is not None for fit in findings.fits.rows if fit not in quoted)
    if also:
        yield f"Breakpoints are also seen in {also} other series: see the table of breakpoints."
