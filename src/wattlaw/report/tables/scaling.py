"""Exponents, the laws beside the power law, breakpoints, speedups, and series without a law."""

from typing import Any

import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import group_label
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.analysis.laws.power_law import PowerLaw
from wattlaw.formatting import NONE, interval, known, number, p_value, percent, with_interval
from wattlaw.report.tables.measured import worker
from wattlaw.report.tables.table import Column, Table, make, words

_FITS = "wattlaw export STORE fits -o fits.csv"


def exponents(findings: Findings) -> Table | None:
    """Return the power law of each series."""
    columns = [
        Column("series", series, numeric=False),
        Column("α (s)", lambda fit: number(fit.law.alpha)),
        Column("β", lambda fit: number(fit.law.beta)),
        Column("SE", lambda fit: number(fit.law.beta_se, 2)),
        Column("95 % interval", lambda fit: interval(*fit.law.trusted.beta_ci)),
        Column("from", lambda fit: _FROM[fit.law.trusted.interval], numeric=False),
        Column("R²", lambda fit: number(fit.law.r2, 4)),
        Column("p", lambda fit: p_value(fit.law.p_value)),
        Column("runs", lambda fit: number(fit.law.n)),
        Column("N", lambda fit: range_of(fit.law)),
        Column("residuals", _doubts, numeric=False),
    ]
    return make(
        "exponents",
        "Power laws t = α N^−β, by series",
        columns,
        [fit for fit in findings.fits.rows if fit.law],
        note="β = 1 is ideal, 0 is no gain. SE and p are of ordinary least squares over runs. The "
        "interval is from the means of each count where repeats share deviations from the law "
        "(lack of fit), else from runs. A law speaks for its range of N only; a high R² is no "
        "proof that it holds beyond.",
        command=_FITS,
        rank=limits_set,
    )


def alternatives(findings: Findings) -> Table | None:
    """Return the law that each series suits best, and how well it foretells its largest count."""
    columns = [
        Column("series", series, numeric=False),
        Column("law taken", lambda fit: fit.selection.best.law, numeric=False),
        Column("parameters", lambda fit: _parameters(fit.selection.best), numeric=False),
        Column("weight", lambda fit: number(_of_law(fit, fit.selection.best.law, "weight"), 2)),
        Column("its error at the largest N", lambda fit: _error(fit, fit.selection.best.law)),
        Column("power law's error there", lambda fit: _error(fit, "power")),
        Column("why", lambda fit: fit.selection.reason, numeric=False),
    ]
    return make(
        "alternatives",
        "Laws beside the power law: which one the data take",
        columns,
        [fit for fit in findings.fits.rows if fit.selection],
        note="Error at the largest N: the law is fitted without the largest count and asked for "
        "it; below zero it promised less time than was measured. Weight: the law's share of the "
        "evidence by AICc.",
        command=_FITS,
        rank=limits_set,
    )


def breakpoints(findings: Findings) -> Table | None:
    """Return where series leave their power law."""
    columns = [
        Column("series", series, numeric=False),
        Column("breakpoints at N", lambda fit: number(fit.breakpoint.at)),
        Column("may be at", lambda fit: interval(*fit.breakpoint.at_range)),
        Column("β before", lambda fit: with_interval(
            fit.breakpoint.beta_before, *fit.breakpoint.beta_before_ci)),
        Column("β after", lambda fit: with_interval(
            fit.breakpoint.beta_after, *fit.breakpoint.beta_after_ci)),
        Column("p", lambda fit: p_value(fit.breakpoint.p_value)),
    ]  # fmt: skip
    return make(
        "breakpoints",
        "Series that leave their power law",
        columns,
        [fit for fit in findings.fits.rows if fit.breakpoint],
        note="Two power laws that meet at one of the counts; p is corrected for the search of it.",
        command=_FITS,
        rank=limits_set,
    )


def speedups(findings: Findings) -> Table | None:
    """Return speedup, efficiency and normalised energy against each series' reference count."""
    rows = findings.speedups
    columns = [
        words("series", "series"),
        Column("N", lambda row: number(row["gpus"])),
        Column("against", lambda row: number(row["reference"])),
        Column("speedup", lambda row: number(row["speedup"])),
        Column("95 % interval", lambda row: interval(row["speedup_low"], row["speedup_high"])),
        Column("parallel efficiency", lambda row: number(row["efficiency"])),
        Column("energy ratio", lambda row: with_interval(
            row["energy_ratio"], row["energy_ratio_low"], row["energy_ratio_high"])),
        Column("E·T ratio", lambda row: number(row["energy_delay_ratio"])),
    ]  # fmt: skip
    largest = rows.groupby("series")["gpus"].transform("max") == rows["gpus"]
    capped = rows["series"].str.contains(r" (?:W|MHz)(?:,|$)", regex=True)
    rows = rows.assign(_rank=2 * capped.astype(int) - largest.astype(int))
    return make(
        "speedups",
        f"Speedup and energy against the smallest or the reference number of {worker(findings)}s",
        columns,
        rows[rows["gpus"] != rows["reference"]].to_dict("records"),
        note="Ratios of geometric means over repeats.",
        rank=lambda row: row["_rank"],
    )


def without_law(findings: Findings) -> Table | None:
    """Return the series without a law, with the reason."""
    columns = [
        Column("series", series, numeric=False),
        Column("why", lambda fit: fit.refusal, numeric=False),
    ]
    refused = [fit for fit in findings.fits.rows if not fit.law]
    return make("without_law", "Series without a law", columns, refused, command=_FITS)


def series(fit: SeriesFit) -> str:
    """Return a fit's series in words."""
    return group_label(fit.group) or "all runs"


def limits_set(fit: SeriesFit) -> int:
    """Return how many limits a fit's series has: those without any come first."""
    return sum(known(fit.group.get(name)) for name in LIMITS)


def main_fits(findings: Findings) -> list[SeriesFit]:
    """Return the fit to quote of each workload, and of each hardware.

    Without caps and clocks, on a data set that does not grow; of several series the one with the
    widest range of N, then with the most runs.
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


def relative_rows(findings: Findings, fit: SeriesFit) -> pd.DataFrame:
    """Return the speedups of a fit's series."""
    rows = findings.series
    rows = rows[rows["fraction_per_gpu"].isna()]
    for name, value in fit.group.items():
        column = "batch" if name in ("global_batch", "local_batch") else name
        if column in rows:
            rows = rows[rows[column].isna() if value is None else rows[column] == value]
        if column == "batch":
            rows = rows[rows["rule"] == name]
    return findings.speedups[findings.speedups["series"].isin(rows["series"].unique())]


def range_of(law: PowerLaw) -> str:
    """Return the counts that a law speaks for."""
    return f"{number(law.x_min)} to {number(law.x_max)}"


_FROM = {"ols": "runs", "repeats": "counts"}


def _doubts(fit: SeriesFit) -> str:
    found = fit.law.diagnostics.sentence if fit.law else ""
    told = found.removeprefix("residuals: ")
    return NONE if "nothing speaks against" in told or "too few runs" in told else told


def _parameters(curve: Any) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in curve.params.items())


def _of_law(fit: SeriesFit, law: str, column: str) -> Any:
    if fit.selection is None:
        return None
    rows = fit.selection.table
    return next(iter(rows.loc[rows["law"] == law, column]), None)


def _error(fit: SeriesFit, law: str) -> str:
    error = _of_law(fit, law, "holdout_error")
    if not known(error):
        return NONE
    return ("+" if error > 0 else "−") + percent(abs(error), 2)
