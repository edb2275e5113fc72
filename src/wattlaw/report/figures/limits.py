"""What power caps and clocks do: speed and energy, and whether they move the exponent."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import Limit, format_limit, other_limit
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import plural
from wattlaw.report.figures.energy import counted
from wattlaw.report.figures.facets import JOB, MOST_PANELS, arranged, size_of
from wattlaw.report.figures.labels import short
from wattlaw.report.figures.parts import POINT, across, axis, compact, level, on, panel, picture
from wattlaw.report.theme import CHARACTER, COLOURS, FAINT, look

_NAMES: dict[Limit, str] = {
    "power_limit_w": "power cap (W)", "clock_limit_mhz": "SM clock (MHz)",
}  # fmt: skip


def effects_by_cap(findings: Findings) -> alt.ConcatChart | None:
    """Speed and energy by power cap, at the smallest and the largest worker count."""
    return _effects(findings, "power_limit_w", "Speed and energy by power cap")


def effects_by_clock(findings: Findings) -> alt.ConcatChart | None:
    """Speed and energy by SM clock, at the smallest and the largest worker count."""
    return _effects(findings, "clock_limit_mhz", "Speed and energy by SM clock")


def _effects(findings: Findings, kind: Limit, title: str) -> alt.ConcatChart | None:
    rows = findings.limit_effects
    rows = rows[rows["limit_kind"] == kind]
    if rows.empty:
        return None
    shown = arranged(rows, JOB, (), one_panel=False)
    ratios = _long(_ends_only(shown.rows, kind))
    looks = look(_order(ratios), shown.width)
    width, height, columns = size_of(max(len(shown.panels), 2))
    panels = []
    for name in shown.panels:
        mine = shown.of(name, ratios)
        steps = [format_limit(kind, value) for value in _falling(mine["limit"])]
        mine = mine.assign(words=[format_limit(kind, value) for value in mine["limit"]])
        x = alt.X("words:N", title=_NAMES[kind], sort=steps, scale=alt.Scale(domain=steps),
                  axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))  # fmt: skip
        heights = mine[["ratio", "low", "high"]].to_numpy(float).ravel()
        y = axis("ratio", "speed and energy (%)", [*heights, 100.0])
        panels.append(panel([level(100.0), *_dots(mine, x, y, looks)], name, width, height))
    words = [_reference(rows, kind), "bars: 95 % interval", counted(findings), shown.left_out]
    return picture(panels, columns, title, words, shown.width)


def _ends_only(rows: pd.DataFrame, kind: Limit) -> pd.DataFrame:
    """Return the smallest and largest worker count of each panel at one batch each."""
    least = rows.groupby("panel")["gpus"].transform("min")
    most = rows.groupby("panel")["gpus"].transform("max")
    at_ends = rows[(rows["gpus"] == least) | (rows["gpus"] == most)]
    batch = at_ends.groupby(["panel", "gpus"])["global_batch"].transform("max")
    kept = at_ends[(at_ends["global_batch"] == batch) | batch.isna()]
    other = other_limit(kind)
    return kept[kept[other].isna()] if kept[other].isna().any() else kept


def _long(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per ratio, in percent."""
    parts = []
    many = rows["gpus"].map(lambda count: plural(int(count), "worker"))
    for quantity in ("speed", "energy"):
        part = rows[["panel", "gpus", "limit"]].assign(quantity=quantity)
        for name, end in (("ratio", ""), ("low", "_low"), ("high", "_high")):
            part[name] = 100 * rows[f"{quantity}_ratio{end}"]
        parts.append(part.assign(line=f"{quantity}, " + many))
    table = pd.concat(parts, ignore_index=True)
    return table[table["ratio"].notna()]


def _order(ratios: pd.DataFrame) -> list[str]:
    distinct = ratios[["line", "quantity", "gpus"]].drop_duplicates()
    speed_first = distinct.sort_values(["quantity", "gpus"], ascending=[False, True])
    return list(speed_first["line"])[:14]


def _falling(limits: pd.Series) -> list[float]:
    """Return the limits from none over high to low."""
    return [np.nan] * bool(limits.isna().any()) + sorted(limits.dropna().unique(), reverse=True)


def _dots(mine: pd.DataFrame, x: alt.X, y: alt.Y, looks: dict[str, Any]) -> list[alt.Chart]:
    beside = alt.XOffset("line:N", scale=alt.Scale(paddingOuter=0.4))
    base = alt.Chart(compact(mine, "words", "ratio", "low", "high", "line"))
    base = base.encode(x=x, xOffset=beside, color=looks["color"])
    told = [alt.Tooltip("line:N"), alt.Tooltip("words:N", title="limit"),
            alt.Tooltip("ratio:Q", title="percent of the reference")]  # fmt: skip
    points = base.mark_point(filled=True, size=POINT, opacity=1)
    return [
        base.mark_rule(strokeWidth=1.3).encode(y=on(y, "low"), y2="high:Q"),
        points.encode(y=y, shape=looks["shape"], tooltip=told),
    ]


def _reference(rows: pd.DataFrame, kind: Limit) -> str:
    words = {format_limit(kind, value) for value in rows["reference"]}
    return f"100 %: {', '.join(sorted(words))}, at the same workers and batch"


def exponents_by_cap(findings: Findings) -> alt.ConcatChart | None:
    """Exponent by power cap, with the margin in which exponents count as equal."""
    return _exponents(findings, "power_limit_w", "Exponent by power cap")


def exponents_by_clock(findings: Findings) -> alt.ConcatChart | None:
    """Exponent by SM clock, with the margin in which exponents count as equal."""
    return _exponents(findings, "clock_limit_mhz", "Exponent by SM clock")


def _exponents(findings: Findings, kind: Limit, title: str) -> alt.ConcatChart | None:
    compared = [(label, one) for label, one in findings.comparisons if one.limit == kind]
    if not compared:
        return None
    shown = compared[:MOST_PANELS]
    width, _, columns = size_of(max(len(shown), 2))
    panels = []
    for label, one in shown:
        table = one.limits[one.limits["beta"].notna()]
        table = table.assign(words=[format_limit(kind, value) for value in table["limit"]])
        middle = float(table["beta"].iloc[0])
        low, high = middle - one.margin, middle + one.margin
        ends = table[["beta", "beta_ci_low", "beta_ci_high"]].to_numpy(float).ravel()
        x = across("beta", "exponent \u03b2 (no unit)", [*ends, low, high])
        y = alt.Y("words:N", title=_NAMES[kind], sort=None)
        margin = alt.Chart(pd.DataFrame({"low": [low], "high": [high]}))
        margin = margin.mark_rect(color=FAINT, opacity=0.25).encode(x=on(x, "low"), x2="high:Q")
        base = alt.Chart(compact(table, "words", "beta", "beta_ci_low", "beta_ci_high"))
        bars = base.mark_rule(strokeWidth=1.6, color=COLOURS[0])
        dots = base.mark_point(filled=True, size=POINT, color=COLOURS[0], opacity=1)
        layers = [
            margin, level(middle, "x"),
            bars.encode(x=on(x, "beta_ci_low"), x2="beta_ci_high:Q", y=y),
            dots.encode(x=x, y=y),
        ]  # fmt: skip
        name = short(label, int(width / CHARACTER))
        panels.append(panel(layers, name, width, 36 * len(table), one.verdict))
    margins = sorted({one.margin for _, one in shown})
    hidden = len(compared) - len(shown)
    words = [
        "bars: 95 % interval of each limit's own law",
        f"grey: \u00b1{margins[0]:g} around the first, within which exponents count as equal",
        f"not shown: {hidden} more (see the tables)" if hidden else "",
    ]
    return picture(panels, columns, title, words, columns * (width + 80))
