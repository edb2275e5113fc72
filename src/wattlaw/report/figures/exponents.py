"""Our exponents beside the published ones, where workload, cap and clock match."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from wattlaw.analysis.caps.limits import FREE, LIMITS, Limit
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import format_setting
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.reference.published import published
from wattlaw.report.figures.labels import short
from wattlaw.report.figures.parts import POINT, across, compact, on, panel, picture
from wattlaw.report.theme import look

_OURS, _THEIRS = "this store", "published"
_Z = 1.96  # of a published standard error, whose degrees of freedom are not known
_ROW, _WIDTH = 30, 480
_MOST_ROWS = 24


def exponents(findings: Findings) -> alt.ConcatChart | None:
    """Exponents of this store and published ones, both with intervals."""
    ours = [row for fit in findings.fits.rows for row in _ours(fit)]
    if not ours:
        return None
    table = pd.DataFrame(ours)
    theirs = pd.DataFrame(_theirs())
    both = pd.concat([table, theirs[theirs["name"].isin(table["name"])]], ignore_index=True)
    names = [name for name in dict.fromkeys(theirs["name"]) if name in set(table["name"])]
    if not names:
        return None
    shown = names[:_MOST_ROWS]
    both = both[both["name"].isin(shown)]
    x = across(
        "beta", "exponent \u03b2 (no unit)", both[["beta", "low", "high"]].to_numpy().ravel()
    )
    y = alt.Y("name:N", title=None, sort=shown, scale=alt.Scale(domain=shown))
    looks = look([_OURS, _THEIRS], _WIDTH)
    beside = alt.YOffset("line:N", scale=alt.Scale(domain=[_OURS, _THEIRS], paddingOuter=0.6))
    base = alt.Chart(compact(both, "name", "beta", "low", "high", "line", "told"))
    base = base.encode(y=y, yOffset=beside, color=looks["color"])
    told = [alt.Tooltip("line:N"), alt.Tooltip("beta:Q"), alt.Tooltip("told:N", title="what")]
    layers = [
        base.mark_rule(strokeWidth=1.5).encode(x=on(x, "low"), x2="high:Q"),
        base.mark_point(filled=True, size=POINT, opacity=0.95).encode(
            x=x, shape=looks["shape"], tooltip=told
        ),
    ]
    hidden = len(names) - len(shown)
    words = [
        "bars: 95 % interval", "published on V100, over a range of N of its own: an exponent "
        "depends on it", f"not shown: {hidden} more" if hidden else "",
    ]  # fmt: skip
    parts = [panel(layers, "", _WIDTH, _ROW * len(shown))]
    return picture(parts, 1, "Exponents beside the published ones", words, _WIDTH + 100)


def _ours(fit: SeriesFit) -> list[dict[str, Any]]:
    """Return the row of a law whose data set does not grow."""
    if fit.law is None or fit.group.get("fraction_per_gpu") is not None:
        return []
    low, high = fit.law.trusted.beta_ci
    told = f"{fit.law.x_min:g} to {fit.law.x_max:g} workers, {fit.law.n} runs"
    limits = {name: fit.group.get(name) for name in LIMITS}
    name = _name(str(fit.group["workload"]), limits)
    return [{"name": name, "beta": fit.law.beta, "low": low, "high": high, "line": _OURS,
             "told": told}]  # fmt: skip


def _theirs() -> list[dict[str, Any]]:
    rows = []
    for row in published(quantity="beta"):
        half = None if row.se is None else _Z * row.se
        limits: dict[Limit, float | None] = {
            "power_limit_w": row.power_limit_w,
            "clock_limit_mhz": row.clock_limit_mhz,
        }
        rows.append(
            {"name": _name(row.workload or row.model, limits), "beta": row.value,
             "low": None if half is None else row.value - half,
             "high": None if half is None else row.value + half, "line": _THEIRS,
             "told": f"{row.where} ({row.study})"}
        )  # fmt: skip
    return rows


def _name(workload: str, limits: Mapping[Limit, float | None]) -> str:
    words = [format_setting(name, value) for name, value in limits.items() if value is not None]
    return short(", ".join([workload, *(words or [FREE["power_limit_w"]])]), 36)
