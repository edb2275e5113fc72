"""Power caps and clocks: speed and energy, and whether they change the exponent."""

from typing import Any

import altair as alt
import pandas as pd

from wattlaw.analysis.caps.limits import Limit, other_limit
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import LIMIT_NAMES, LIMIT_UNITS, limit_label, plural
from wattlaw.report.figures import parts
from wattlaw.report.figures.energy import counted_note
from wattlaw.report.figures.facets import MAX_PANELS, PANEL_COLUMNS, facet, panel_size
from wattlaw.report.figures.labels import shorten_middle
from wattlaw.report.theme import CHARACTER_WIDTH, FAINT, line_styles

#: With more worker counts, lines are named "smallest count" and "largest count".
_MAX_COUNTS = 7


def effects(findings: Findings, limit: Limit) -> alt.ConcatChart | None:
    """Draw speed and energy by cap or clock, at the smallest and the largest worker count."""
    rows = findings.limit_effects
    rows = rows[rows["limit_kind"] == limit]
    if rows.empty:
        return None
    facets = facet(rows, PANEL_COLUMNS, (), one_panel=False)
    ratios = _ratios(_smallest_and_largest(facets.rows, limit))
    styles = line_styles(_lines(ratios), facets.width)
    styles["xOffset"] = alt.XOffset("line:N", scale=alt.Scale(paddingOuter=0.4))

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        rows = rows.assign(label=[limit_label(limit, value) for value in rows["limit"]])
        falling = rows.sort_values("limit", ascending=False, na_position="first")
        labels = list(dict.fromkeys(falling["label"]))
        x = alt.X("label:N", title=_axis_title(limit), sort=labels, scale=alt.Scale(domain=labels),
                  axis=_axis(limit, labelAngle=0, labelOverlap="greedy"))  # fmt: skip
        values = rows[["ratio", "low", "high"]].to_numpy(float).ravel()
        y = parts.y_axis("ratio", "speed and energy (%)", [*values, 100.0])
        tooltip = {"line": "line", "label": "limit", "ratio": "percent of the reference"}
        bars = parts.error_bars(rows, x, y, styles)
        return [parts.reference_line(100.0), *bars, parts.points(rows, x, y, styles, tooltip)]

    references = sorted({limit_label(limit, value) for value in rows["reference"]})
    notes = [
        f"100 %: {', '.join(references)}, at the same workers and batch",
        parts.CI_BARS,
        counted_note(findings),
    ]
    return parts.draw_panels(facets, ratios, layers, notes, panel_size(max(len(facets.panels), 2)))


def _axis(limit: Limit, **options: Any) -> alt.Axis:
    """Return an axis of limits, whose title has the unit."""
    return alt.Axis(labelExpr=f"replace(datum.label, ' {LIMIT_UNITS[limit]}', '')", **options)


def _axis_title(limit: Limit) -> str:
    return f"{LIMIT_NAMES[limit]} ({LIMIT_UNITS[limit]})"


def _smallest_and_largest(rows: pd.DataFrame, limit: Limit) -> pd.DataFrame:
    """Return the smallest and largest worker count of each panel at one batch each."""
    gpus = rows.groupby("panel")["gpus"]
    rows = rows[(rows["gpus"] == gpus.transform("min")) | (rows["gpus"] == gpus.transform("max"))]
    batch = rows.groupby(["panel", "gpus"])["global_batch"].transform("max")
    rows = rows[(rows["global_batch"] == batch) | batch.isna()]
    unlimited = rows[rows[other_limit(limit)].isna()]
    return rows if unlimited.empty else unlimited


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per ratio, in percent."""
    if rows["gpus"].nunique() > _MAX_COUNTS:
        smallest = rows["gpus"] == rows.groupby("panel")["gpus"].transform("min")
        workers = smallest.map({True: "smallest count", False: "largest count"})
    else:
        workers = rows["gpus"].map(lambda count: plural(int(count), "worker"))
    columns = {"ratio": "", "low": "_low", "high": "_high"}
    tables = []
    for quantity in ("speed", "energy"):
        values = {name: 100 * rows[f"{quantity}_ratio{end}"] for name, end in columns.items()}
        table = rows[["panel", "gpus", "limit"]].assign(quantity=quantity, **values)
        tables.append(table.assign(line=f"{quantity}, " + workers))
    table = pd.concat(tables, ignore_index=True)
    return table[table["ratio"].notna()]


def _lines(ratios: pd.DataFrame) -> list[str]:
    distinct = ratios[["line", "quantity", "gpus"]].drop_duplicates()
    speed_first = distinct.sort_values(["quantity", "gpus"], ascending=[False, True])
    return list(dict.fromkeys(speed_first["line"]))


def exponents(findings: Findings, limit: Limit) -> alt.ConcatChart | None:
    """Draw exponents by cap or clock, with the margin in which they count as equal."""
    compared = [row for row in findings.comparisons if row[1].limit == limit]
    if not compared:
        return None
    shown = compared[:MAX_PANELS]
    width, _, columns = panel_size(max(len(shown), 2))
    styles = line_styles([""])
    panels = []
    for series, comparison in shown:
        table = comparison.limits[comparison.limits["beta"].notna()]
        table = table.assign(label=[limit_label(limit, value) for value in table["limit"]], line="")
        reference = float(table["beta"].iloc[0])
        ends = [reference - comparison.margin, reference + comparison.margin]
        values = table[["beta", "beta_ci_low", "beta_ci_high"]].to_numpy(float).ravel()
        x = parts.x_axis("beta", "exponent \u03b2 (no unit)", [*values, *ends])
        y = alt.Y("label:N", title=_axis_title(limit), sort=None, axis=_axis(limit))
        margin = alt.Chart(pd.DataFrame({"beta": ends[:1], "high": ends[1:]}))
        layers = [
            margin.mark_rect(color=FAINT, opacity=0.25).encode(x=x, x2="high:Q"),
            parts.reference_line(reference, "x"),
            *parts.error_bars(table, x, y, styles, "beta_ci_low", "beta_ci_high", horizontal=True),
            parts.points(table, x, y, styles, {"label": "limit", "beta": "exponent"}),
        ]
        title = shorten_middle(series, int(width / CHARACTER_WIDTH))
        panels.append(parts.panel(layers, title, width, 36 * len(table), comparison.verdict))
    smallest_margin = min(comparison.margin for _, comparison in shown)
    hidden = len(compared) - len(shown)
    notes = [
        "bars: 95 % interval of each limit's own law",
        f"grey: \u00b1{smallest_margin:g} around the first, within which exponents count as equal",
        f"not shown: {hidden} more (see the tables)" if hidden else "",
    ]
    return parts.concat(panels, columns, notes, columns * (width + 80))
