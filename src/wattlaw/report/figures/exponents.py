"""Exponents of this store and published ones, where workload, cap and clock match."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.formatting import limit_label, setting_label
from wattlaw.reference.published import published
from wattlaw.report.figures.axes import x_axis
from wattlaw.report.figures.labels import shorten_middle
from wattlaw.report.figures.parts import CI_BARS, concat, error_bars, panel, points
from wattlaw.report.theme import line_styles

_OURS, _PUBLISHED = "this store", "published"
_Z = 1.96  # the degrees of freedom of published standard errors are not known
_ROW_HEIGHT, _WIDTH = 30, 480
_MAX_ROWS = 24


def exponents(findings: Findings) -> alt.ConcatChart | None:
    """Draw exponents of this store and published ones, both with intervals."""
    ours = pd.DataFrame([row for fit in findings.fits.rows for row in _fit_rows(fit)])
    theirs = pd.DataFrame(_published_rows())
    if ours.empty:
        return None
    names = [name for name in dict.fromkeys(theirs["name"]) if name in set(ours["name"])]
    if not names:
        return None
    shown = names[:_MAX_ROWS]
    table = pd.concat([ours, theirs], ignore_index=True)
    table = table[table["name"].isin(shown)]
    values = table[["beta", "low", "high"]].to_numpy().ravel()
    x = x_axis("beta", "exponent \u03b2 (no unit)", values)
    y = alt.Y("name:N", title=None, sort=shown, scale=alt.Scale(domain=shown))
    offset = alt.Scale(domain=[_OURS, _PUBLISHED], paddingOuter=0.6)
    styles = line_styles([_OURS, _PUBLISHED], _WIDTH)
    styles["yOffset"] = alt.YOffset("line:N", scale=offset)
    layers = [
        *error_bars(table, x, y, styles, horizontal=True),
        points(table, x, y, styles, {"line": "line", "beta": "exponent", "details": "details"}),
    ]
    hidden = len(names) - len(shown)
    notes = [
        CI_BARS,
        "published on V100, for another range of N: an exponent depends on it",
        f"not shown: {hidden} more" if hidden else "",
    ]
    chart = panel(layers, "", _WIDTH, _ROW_HEIGHT * len(shown))
    return concat([chart], 1, notes, _WIDTH + 100)


def _fit_rows(fit: SeriesFit) -> list[dict[str, Any]]:
    """Return the row of a law whose data set does not grow."""
    if fit.law is None or fit.group.get("fraction_per_gpu") is not None:
        return []
    low, high = fit.law.trusted.beta_ci
    return [
        {
            "name": _name(str(fit.group["workload"]), fit.group), "line": _OURS,
            "beta": fit.law.beta, "low": low, "high": high,
            "details": f"{fit.law.x_min:g} to {fit.law.x_max:g} workers, {fit.law.n} runs",
        }
    ]  # fmt: skip


def _published_rows() -> list[dict[str, Any]]:
    return [
        {
            "name": _name(row.workload or row.model, vars(row)), "line": _PUBLISHED,
            "beta": row.value, "details": f"{row.where} ({row.study})",
            "low": None if row.se is None else row.value - _Z * row.se,
            "high": None if row.se is None else row.value + _Z * row.se,
        }
        for row in published(quantity="beta")
    ]  # fmt: skip


def _name(workload: str, settings: Mapping[str, Any]) -> str:
    limits = [setting_label(name, settings.get(name)) for name in LIMITS]
    limits = list(filter(None, limits)) or [limit_label("power_limit_w", None)]
    return shorten_middle(", ".join([workload, *limits]), 36)
