"""Power caps and clocks: speed and energy, and whether they change the exponent."""

import altair as alt
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import Limit, other_limit
from wattlaw.common.formatting import LIMIT_NAMES, LIMIT_UNITS, limit_label, plural
from wattlaw.report.figures import parts
from wattlaw.report.figures.energy import counted_note
from wattlaw.report.figures.facets import PANEL_COLUMNS, compared_counts, facet, panel_size
from wattlaw.report.theme import Spec, line_styles

#: With more worker counts, lines are named "smallest count" and "largest count".
_MAX_COUNTS = 7


def effects(findings: Findings, limit: Limit) -> Spec | None:
    """Draw speed and energy by cap or clock, at the two counts of ``compared_counts``."""
    rows = findings.limit_effects
    rows = rows[rows["limit_kind"] == limit]
    if rows.empty:
        return None
    facets = facet(rows, PANEL_COLUMNS, (), one_panel=False)
    ratios = _ratios(_of_two_counts(facets.rows, limit))
    distinct = ratios[["line", "quantity", "gpus"]].drop_duplicates()
    speed_first = distinct.sort_values(["quantity", "gpus"], ascending=[False, True])
    styles = line_styles(list(dict.fromkeys(speed_first["line"])), facets.width)
    styles["xOffset"] = alt.XOffset("line:N", scale=alt.Scale(paddingOuter=0.4))

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        rows = rows.assign(label=[limit_label(limit, value) for value in rows["limit"]])
        falling = rows.sort_values("limit", ascending=False, na_position="first")
        labels = list(dict.fromkeys(falling["label"]))
        unit = LIMIT_UNITS[limit]  # in the title, not in each label
        expression = f"replace(datum.label, ' {unit}', '')"
        axis = alt.Axis(labelExpr=expression, labelAngle=0, labelOverlap="greedy")
        x = alt.X("label:N", title=f"{LIMIT_NAMES[limit]} ({unit})", sort=labels,
                  scale=alt.Scale(domain=labels), axis=axis)  # fmt: skip
        values = rows[["ratio", "low", "high"]].to_numpy(float).ravel()
        y = parts.y_axis("ratio", "speed and energy (%)", [*values, 100.0])
        tooltip = {"line": "line", "label": "limit", "ratio": "percent of the reference"}
        bars = parts.error_bars(rows, x, y, styles)
        return [parts.reference_line(100.0), *bars, parts.points(rows, x, y, styles, tooltip)]

    references = sorted({limit_label(limit, value) for value in rows["reference"]})
    notes = [
        f"100 % is {', '.join(references)}, at the same workers and batch.",
        parts.CI_BARS,
        counted_note(findings),
    ]
    return parts.draw_panels(facets, ratios, layers, notes, panel_size(max(len(facets.panels), 2)))


def _of_two_counts(rows: pd.DataFrame, limit: Limit) -> pd.DataFrame:
    """Return the rows of two worker counts of each panel, at one batch each."""
    panels = [of_panel for _, of_panel in rows.groupby("panel", sort=False)]
    rows = pd.concat([rows[rows["gpus"].isin(compared_counts(rows["gpus"]))] for rows in panels])
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
