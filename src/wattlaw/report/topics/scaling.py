"""Scaling: exponents, other laws, breakpoints, speedups, and series without a law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS
from wattlaw.analysis.laws.series_fits import SeriesFit, SeriesFits
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.report.topics.measured import worker_noun
from wattlaw_papers.published import Published, published

if TYPE_CHECKING:
    from wattlaw.analysis.findings import Findings

_COMMAND = "wattlaw export STORE fits -o fits.csv"
_FROM_MEANS = (
    "* from the means of the counts: repeats of a count share deviations from the law (lack of "
    "fit); else from runs."
)
_ONE_NODE = (
    "A law of runs on one node does not hold on several, where communication takes another "
    "network; predict knows nodes."
)


def laws(fits: SeriesFits) -> tables.Table | None:
    """Return the power law, the selected law and the breakpoint of each series, for a terminal."""
    rows = [fit for fit in fits.rows if fit.law]
    notes = [_FROM_MEANS] if any(_beta_interval(fit).endswith("*") for fit in rows) else []
    notes += [_ONE_NODE] if any(fit.nodes == (1, 1) for fit in rows) else []
    return tables.build(
        "laws", "t = α N^−β", _COLUMNS, rows, note=" ".join(notes), max_rows=len(rows)
    )


def exponents(findings: Findings) -> tables.Table | None:
    """Return law, selected law, breakpoint and the published exponent of each series."""
    columns = [
        *_COLUMNS,
        tables.Column("its holdout error", _holdout_error),
        tables.text("residuals", _residual_warnings),
        tables.number("β in the published range", _beta_in_published_range),
        tables.text("published β", _published_beta),
    ]
    return tables.build(
        "exponents",
        "Power laws t = α N^−β, by series",
        columns,
        [fit for fit in findings.fits.rows if fit.law],
        note="β = 1 is ideal scaling; β = 0 is no speedup. A law is valid for its range of N and "
        "its nodes only. Holdout error: of the selected law at the largest N, when fitted to the "
        f"others. A published β holds for its range of N. SE and interval: {_FROM_MEANS}",
        command=_COMMAND,
        rank=_limit_count,
    )


def _published(fit: SeriesFit) -> Published | None:
    """Return the published exponent of a fit's workload, cap and clock."""
    for value in published(quantity="beta", workload=str(fit.group.get("workload"))):
        if all(getattr(value, name, None) == fit.group.get(name) for name in POWER_SETTINGS):
            return value
    return None


def _published_beta(fit: SeriesFit) -> str | None:
    value = _published(fit)
    if value is None:
        return None
    counts = f"N {value.gpus_min} to {value.gpus_max}" if value.gpus_max else "N unknown"
    return f"{fmt.number(value.value)} ({counts}; {value.source.name}, {value.hardware})"


def _beta_in_published_range(fit: SeriesFit) -> float | None:
    value = _published(fit)
    if value is None or fit.law is None or not (value.gpus_min and value.gpus_max):
        return None
    return fit.law.beta_within(value.gpus_min, value.gpus_max)


def _nodes(fit: SeriesFit) -> str | None:
    if fit.nodes is None:
        return None
    return "–".join(map(str, dict.fromkeys(fit.nodes)))


def _beta_interval(fit: SeriesFit) -> str:
    if fit.law is None:
        return fmt.MISSING
    trusted = fit.law.trusted
    return fmt.interval(*trusted.beta_ci) + "*" * (trusted.interval == "repeats")


def _breakpoint(fit: SeriesFit) -> str:
    point = fit.breakpoint
    if point is None:
        return "not testable" if fit.breakpoint_p is None else "none"
    return f"at {point.at:g}: {point.beta_before:.2f}, then {point.beta_after:.2f}"


_COLUMNS = (
    tables.text("series", lambda fit: fmt.group_label(fit.group) or "all runs"),
    tables.text("time per", lambda fit: fit.unit),
    tables.number("α", lambda fit: fit.law.alpha),
    tables.number("β", lambda fit: fit.law.beta),
    tables.number("SE", lambda fit: fit.law.trusted.beta_se, 2),
    tables.Column("95 % interval", _beta_interval),
    tables.number("R²", lambda fit: fit.law.r2, 4),
    tables.p_value("p", lambda fit: fit.law.p_value),
    tables.number("runs", lambda fit: fit.law.n),
    tables.Column("N", lambda fit: fmt.interval(fit.law.x_min, fit.law.x_max)),
    tables.text("nodes", _nodes),
    tables.text("selected law", lambda fit: fit.selection.best.law if fit.selection else None),
    tables.text("breakpoint", _breakpoint),
)


def speedups(findings: Findings) -> tables.Table | None:
    """Return speedup, efficiency and normalised energy relative to each reference count."""
    rows = findings.speedups
    columns = [
        tables.text("series", "series"),
        tables.number("N", "gpus"),
        tables.number("relative to", "reference"),
        tables.number("speedup", "speedup"),
        tables.interval("95 % interval", "speedup"),
        tables.number("parallel efficiency", "efficiency"),
        tables.estimate("energy ratio", "energy_ratio"),
        tables.number("E·T ratio", "energy_delay_ratio"),
    ]
    largest = rows.groupby("series")["gpus"].transform("max") == rows["gpus"]
    limited = rows["series"].str.contains(r" (?:W|MHz)(?:,|$)", regex=True)
    rows = rows.assign(_rank=2 * limited.astype(int) - largest.astype(int))
    return tables.build(
        "speedups",
        f"Speedup and energy relative to the reference number of {worker_noun(findings)}s",
        columns,
        rows[rows["gpus"] != rows["reference"]].to_dict("records"),
        note="Ratios of geometric means over repeats. The reference is the smallest number unless "
        "another is set.",
        rank=lambda row: row["_rank"],
    )


def scaling_sentences(findings: Findings) -> Iterator[str]:
    """Yield law and speedup of each workload, refusals, and the holdout error of power laws."""
    noun = worker_noun(findings)
    for fit in main_fits(findings):
        yield _law(fit, noun) + _fastest(findings, fit, noun)
    if not findings.fits.laws:
        yield _speedup_without_law(findings, noun)
    refusals = Counter(fit.refusal for fit in findings.fits.rows if not fit.law)
    if findings.fits.laws:
        for reason, count in refusals.most_common():
            yield f"{fmt.plural(count, 'fit')} without a law: {fmt.full_stop(str(reason))}"
    selections = [fit.selection.table for fit in findings.fits.rows if fit.selection]
    by_law = [table.set_index("law")["holdout_error"] for table in selections]
    errors = pd.Series([row["power"] for row in by_law], dtype=float).abs().dropna()
    if len(errors):
        yield (
            f"Fitted without the largest {noun} count, the power law predicts it with a median "
            f"error of {fmt.percent(errors.median(), 2)} and at most "
            f"{fmt.percent(errors.max(), 2)} ({len(errors)} series)."
        )


def breakpoint_sentences(findings: Findings) -> Iterator[str]:
    """Yield which series leave their power law, and where; those to quote come first."""
    quoted = main_fits(findings)
    yield from breakpoints([*quoted, *(fit for fit in findings.fits.rows if fit not in quoted)])


def breakpoints(fits: Iterable[SeriesFit]) -> Iterator[str]:
    """Yield the breakpoint of each series that has one, as a sentence."""
    for fit in fits:
        if fit.breakpoint is not None:
            yield f"{fmt.group_label(fit.group) or 'all runs'}: {fit.breakpoint.sentence}."


def _speedup_without_law(findings: Findings, noun: str) -> str:
    """Return the range of speedups on the most workers of each series."""
    rows = findings.speedups
    most = rows[rows["gpus"] == rows.groupby("series")["gpus"].transform("max")]
    if (most["gpus"] == most["reference"]).all():
        return f"No series has more than one number of {noun}s."
    low, high = fmt.number(most["speedup"].min()), fmt.number(most["speedup"].max())
    shown = low if low == high else f"{low} to {high}"
    return f"The speedup on the most {noun}s is {shown}; a law needs three {noun} counts."


def _law(fit: SeriesFit, noun: str) -> str:
    law = fit.law
    if law is None:
        return ""
    measured = f"{law.x_min:g} to {law.x_max:g} {noun}s, {fmt.plural(law.n, 'run')}"
    low, high = law.trusted.beta_ci
    bounds = fmt.interval(low, high)
    name = fmt.group_label(fit.group)
    if bounds == fmt.MISSING:
        return (
            f"{name}: t = {fmt.number(law.alpha)} s per {fit.unit} · "
            f"N^−{fmt.number(law.beta)} ({measured})."
        )
    if (point := fit.breakpoint) is not None:
        # The single exponent fits neither side.
        before, after = (f"{2**-beta:.2f}" for beta in (point.beta_before, point.beta_after))
        return (
            f"{name}: doubling the {noun}s multiplies the time per {fit.unit} by {before} up to "
            f"{point.at:g} {noun}s, and by {after} beyond ({measured}). The power law over all "
            f"counts (β = {fmt.number(law.beta)}) fits neither side."
        )
    sentence = (
        f"{name}: doubling the {noun}s multiplies the time per {fit.unit} by {2**-law.beta:.2f} "
        f"(β = {fmt.number(law.beta)}, 95 % interval {bounds}; {measured})"
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
        return f" No count is faster than {fmt.plural(int(fastest['reference']), noun)}."
    size = fmt.plural(int(fastest["gpus"]), noun)
    return (
        f" The fastest, on {size}, is {tables.with_interval(fastest, 'speedup')} times as fast as "
        f"on {fastest['reference']}: a parallel efficiency of "
        f"{fmt.number(fastest['efficiency'], 2)}."
    )


def _limit_count(fit: SeriesFit) -> int:
    return sum(fmt.known(fit.group.get(name)) for name in POWER_SETTINGS)


def main_fits(findings: Findings) -> list[SeriesFit]:
    """Return the fit to quote of each workload and hardware.

    It has no cap, no clock, and a data set of constant size. Of several series it is the one with
    the widest range of N, then with the most runs.
    """
    chosen: dict[tuple[object, object], SeriesFit] = {}
    for fit in findings.fits.rows:
        law = fit.law
        if law is None or any(
            fmt.known(fit.group.get(name)) for name in (*POWER_SETTINGS, "fraction_per_gpu")
        ):
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


def _residual_warnings(fit: SeriesFit) -> str:
    text = fit.law.diagnostics.sentence.removeprefix("residuals: ") if fit.law else ""
    return fmt.MISSING if "consistent with the law" in text or "too few runs" in text else text


def _holdout_error(fit: SeriesFit) -> str:
    """Return the signed holdout error of the selected law."""
    error = fit.selection.to_dict()["holdout_error"] if fit.selection else None
    if error is None:
        return fmt.MISSING
    return ("+" if error > 0 else "−") + fmt.percent(abs(error), 2)
