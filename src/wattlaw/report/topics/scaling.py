"""Scaling: exponents, other laws, breakpoints, speedups, and series without a law."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.analysis.laws.power_law import PowerLaw
from wattlaw.formatting import (
    MISSING,
    group_label,
    interval,
    known,
    number,
    p_value,
    percent,
    plural,
    with_interval,
)
from wattlaw.report.topics.measured import worker_noun
from wattlaw.report.topics.table import (
    Column,
    Table,
    build_table,
    estimate_column,
    interval_column,
    number_column,
    text_column,
)

_FITS = "wattlaw export STORE fits -o fits.csv"
_INTERVAL_FROM = {"ols": "runs", "repeats": "counts"}


def exponents(findings: Findings) -> Table | None:
    """Return the power law of each series."""
    columns = [
        text_column("series", series_label),
        Column("α (s)", lambda fit: number(fit.law.alpha)),
        Column("β", lambda fit: number(fit.law.beta)),
        Column("SE", lambda fit: number(fit.law.beta_se, 2)),
        Column("95 % interval", lambda fit: interval(*fit.law.trusted.beta_ci)),
        text_column("interval from", lambda fit: _INTERVAL_FROM[fit.law.trusted.interval]),
        Column("R²", lambda fit: number(fit.law.r2, 4)),
        Column("p", lambda fit: p_value(fit.law.p_value)),
        Column("runs", lambda fit: number(fit.law.n)),
        Column("N", lambda fit: gpu_range(fit.law)),
        text_column("residuals", _residual_warnings),
    ]
    return build_table(
        "exponents",
        "Power laws t = α N^−β, by series",
        columns,
        [fit for fit in findings.fits.rows if fit.law],
        note="β = 1 is ideal scaling; β = 0 is no speedup. SE and p are from ordinary least "
        "squares over runs. The interval is from the mean of each count if repeats share "
        "deviations from the law (lack of fit), else from runs. A law is valid for its range of N "
        "only; a high R² is no proof that it holds beyond.",
        command=_FITS,
        rank=_limit_count,
    )


def alternatives(findings: Findings) -> Table | None:
    """Return the selected law of each series and its prediction error at the largest count."""
    columns = [
        text_column("series", series_label),
        text_column("selected law", lambda fit: fit.selection.best.law),
        text_column("parameters", lambda fit: _parameters(fit.selection.best)),
        Column("weight", lambda fit: number(_of_law(fit, fit.selection.best.law, "weight"), 2)),
        Column("holdout error", lambda fit: _holdout_error(fit, fit.selection.best.law)),
        Column("power law's holdout error", lambda fit: _holdout_error(fit, "power")),
        text_column("reason", lambda fit: fit.selection.reason),
    ]
    return build_table(
        "alternatives",
        "Selected law of each series",
        columns,
        [fit for fit in findings.fits.rows if fit.selection],
        note="Holdout error: the law is fitted without the largest count and predicts it; below "
        "zero, the predicted time is shorter than the measured one. Weight: the law's share of "
        "the evidence by AICc.",
        command=_FITS,
        rank=_limit_count,
    )


def breakpoints(findings: Findings) -> Table | None:
    """Return the counts at which series leave their power law."""
    columns = [
        text_column("series", series_label),
        Column("breakpoint at N", lambda fit: number(fit.breakpoint.at)),
        Column("may be at", lambda fit: interval(*fit.breakpoint.at_range)),
        Column("β before", lambda fit: with_interval(
            fit.breakpoint.beta_before, *fit.breakpoint.beta_before_ci)),
        Column("β after", lambda fit: with_interval(
            fit.breakpoint.beta_after, *fit.breakpoint.beta_after_ci)),
        Column("p", lambda fit: p_value(fit.breakpoint.p_value)),
    ]  # fmt: skip
    return build_table(
        "breakpoints",
        "Series with a breakpoint",
        columns,
        [fit for fit in findings.fits.rows if fit.breakpoint],
        note="Two power laws that meet at one of the counts; p is corrected for the search of the "
        "count.",
        command=_FITS,
        rank=_limit_count,
    )


def speedups(findings: Findings) -> Table | None:
    """Return speedup, efficiency and normalised energy relative to each reference count."""
    rows = findings.speedups
    columns = [
        text_column("series", "series"),
        number_column("N", "gpus"),
        number_column("relative to", "reference"),
        number_column("speedup", "speedup"),
        interval_column("95 % interval", "speedup"),
        number_column("parallel efficiency", "efficiency"),
        estimate_column("energy ratio", "energy_ratio"),
        number_column("E·T ratio", "energy_delay_ratio"),
    ]
    largest = rows.groupby("series")["gpus"].transform("max") == rows["gpus"]
    limited = rows["series"].str.contains(r" (?:W|MHz)(?:,|$)", regex=True)
    rows = rows.assign(_rank=2 * limited.astype(int) - largest.astype(int))
    return build_table(
        "speedups",
        f"Speedup and energy relative to the reference number of {worker_noun(findings)}s",
        columns,
        rows[rows["gpus"] != rows["reference"]].to_dict("records"),
        note="Ratios of geometric means over repeats. The reference is the smallest number unless "
        "another is set.",
        rank=lambda row: row["_rank"],
    )


def without_law(findings: Findings) -> Table | None:
    """Return the series without a law, with the reason."""
    columns = [text_column("series", series_label), text_column("reason", lambda fit: fit.refusal)]
    rows = [fit for fit in findings.fits.rows if not fit.law]
    return build_table("without_law", "Series without a law", columns, rows, command=_FITS)


def scaling_sentences(findings: Findings) -> Iterator[str]:
    """Yield the law and the speedup of each workload, and the prediction error of power laws."""
    noun = worker_noun(findings)
    for fit in main_fits(findings):
        yield _law(fit, noun) + _fastest(findings, fit, noun)
    if not findings.fits.laws:
        yield f"No scaling law is fitted: it needs at least three {noun} counts."
    errors = [
        abs(float(error))
        for fit in findings.fits.rows
        if fit.selection is not None
        for error in fit.selection.table.query("law == 'power'")["holdout_error"].dropna()
    ]
    if errors:
        median = pd.Series(errors).median()
        yield (
            f"Fitted without the largest {noun} count, the power law predicts it with a median "
            f"error of {percent(median, 2)} and at most {percent(max(errors), 2)} "
            f"({len(errors)} series). Beyond the measured range a law is a guess."
        )


def breakpoint_sentences(findings: Findings) -> Iterator[str]:
    """Yield which series leave their power law, and where."""
    quoted = main_fits(findings)
    for fit in quoted:
        if fit.breakpoint is not None:
            yield f"{group_label(fit.group)}: {fit.breakpoint.sentence}."
    others = sum(fit.breakpoint is not None for fit in findings.fits.rows if fit not in quoted)
    if others:
        yield f"{others} other series have breakpoints: see the table of breakpoints."


def _law(fit: SeriesFit, noun: str) -> str:
    law = fit.law
    if law is None:
        return ""
    measured = f"{law.x_min:g} to {law.x_max:g} {noun}s, {plural(law.n, 'run')}"
    low, high = law.trusted.beta_ci
    bounds = interval(low, high)
    name = group_label(fit.group)
    if bounds == MISSING:
        return f"{name}: t = {number(law.alpha)} s · N^−{number(law.beta)} ({measured})."
    sentence = (
        f"{name}: doubling the {noun}s multiplies the epoch time by {2**-law.beta:.2f} "
        f"(β = {number(law.beta)}, 95 % interval {bounds}; {measured})"
    )
    if low <= 0 <= high:
        sentence += "; over this range, no speedup is shown"
    return sentence + "."


def _fastest(findings: Findings, fit: SeriesFit, noun: str) -> str:
    """Return the largest speedup of a fit's series."""
    table = relative_rows(findings, fit)
    if table.empty:
        return ""
    fastest = table.iloc[int(table["speedup"].argmax())]
    if fastest["gpus"] == fastest["reference"]:
        return f" No count is faster than {plural(int(fastest['reference']), noun)}."
    speedup = with_interval(fastest["speedup"], fastest["speedup_low"], fastest["speedup_high"])
    return (
        f" The fastest, on {plural(int(fastest['gpus']), noun)}, is {speedup} times as fast as on "
        f"{fastest['reference']}: a parallel efficiency of {number(fastest['efficiency'], 2)}."
    )


def series_label(fit: SeriesFit) -> str:
    """Return the name of a fit's series."""
    return group_label(fit.group) or "all runs"


def _limit_count(fit: SeriesFit) -> int:
    return sum(known(fit.group.get(name)) for name in LIMITS)


def main_fits(findings: Findings) -> list[SeriesFit]:
    """Return the fit to quote of each workload and hardware.

    It has no cap, no clock, and a data set of constant size. Of several series it is the one with
    the widest range of N, then with the most runs.
    """
    chosen: dict[tuple[object, object], SeriesFit] = {}
    for fit in findings.fits.rows:
        law = fit.law
        if law is None or any(known(fit.group.get(name)) for name in (*LIMITS, "fraction_per_gpu")):
            continue
        key = (fit.group.get("workload"), fit.group.get("hardware"))
        other = chosen[key].law if key in chosen else None
        if other is None or (law.x_max / law.x_min, law.n) > (other.x_max / other.x_min, other.n):
            chosen[key] = fit
    return list(chosen.values())


def rows_of_group(rows: pd.DataFrame, group: dict[str, Any]) -> pd.DataFrame:
    """Return the rows of ``findings.series`` that a fit was made of."""
    if "fraction_per_gpu" not in group:
        rows = rows[rows["fraction_per_gpu"].isna()]
    for name, value in group.items():
        column = "batch" if name in ("global_batch", "local_batch") else name
        rows = rows[rows[column].isna() if value is None else rows[column] == value]
        if column == "batch":
            rows = rows[rows["rule"] == name]
    return rows


def relative_rows(findings: Findings, fit: SeriesFit) -> pd.DataFrame:
    """Return the speedups of a fit's series."""
    names = rows_of_group(findings.series, fit.group)["series"].unique()
    return findings.speedups[findings.speedups["series"].isin(names)]


def gpu_range(law: PowerLaw) -> str:
    """Return the range of counts for which a law is valid."""
    return f"{number(law.x_min)} to {number(law.x_max)}"


def _residual_warnings(fit: SeriesFit) -> str:
    text = fit.law.diagnostics.sentence.removeprefix("residuals: ") if fit.law else ""
    return MISSING if "nothing speaks against" in text or "too few runs" in text else text


def _parameters(curve: Any) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in curve.params.items())


def _of_law(fit: SeriesFit, law: str, column: str) -> Any:
    if fit.selection is None:
        return None
    rows = fit.selection.table
    return next(iter(rows.loc[rows["law"] == law, column]), None)


def _holdout_error(fit: SeriesFit, law: str) -> str:
    error = _of_law(fit, law, "holdout_error")
    if not known(error):
        return MISSING
    return ("+" if error > 0 else "−") + percent(abs(error), 2)
