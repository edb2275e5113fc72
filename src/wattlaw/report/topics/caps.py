"""Power caps and clocks: their effect on time and energy."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import LIMITS, Limit, other_limit
from wattlaw.analysis.metrics.groups import groups
from wattlaw.common import formatting as fmt
from wattlaw.report import charts, tables
from wattlaw.report.charts import Spec
from wattlaw.report.facets import PANEL_COLUMNS, compared_counts, facet, panel_size
from wattlaw.report.sections import Content, Parts
from wattlaw.report.topics.energy import counted_note
from wattlaw.study.labels import LIMIT_NAMES, LIMIT_UNITS, limit_label


def effects(findings: Findings) -> tables.Table | None:
    def changes(row: dict[str, Any], name: str) -> str:
        if not fmt.known(row[name]) or row["settings"] < 2:
            return fmt.MISSING
        return f"{fmt.change(row[f'{name}_least'])} to {fmt.change(row[f'{name}_most'])}"

    columns = [
        tables.text("workload", "workload"),
        tables.text("limit", "label"),
        tables.text("relative to", "reference"),
        tables.number("settings", "settings"),
        tables.Column("time: median", lambda row: fmt.change(row["time"])),
        tables.Column("range", lambda row: changes(row, "time")),
        tables.Column("energy: median", lambda row: fmt.change(row["energy"])),
        tables.Column("range", lambda row: changes(row, "energy")),
        tables.text("energy is", "energy_is"),
    ]
    return tables.build(
        "effects",
        "Change of time and energy under a limit, over all measured N",
        columns,
        effects_by_workload(findings),
        note="Changes of time and energy of the same work relative to the same setting without the "
        "limit (or with the highest one).",
        max_open_rows=40,
    )


def effects_by_workload(findings: Findings) -> list[dict[str, Any]]:
    rows = findings.limit_effects
    same = (rows["limit"] == rows["reference"]) | (rows["limit"].isna() & rows["reference"].isna())
    rows = rows[~same]  # without those of the references themselves
    table = []
    for group, changed in groups(rows, ["workload", "hardware", "limit_kind", "limit"]):
        kind, limit = group["limit_kind"], group["limit"]
        name = str(group["workload"])
        if rows["hardware"].nunique() > 1:
            name += f", {group['hardware']}"
        references = changed["reference"].drop_duplicates()
        energy_is = changed.loc[changed["energy_ratio"].notna(), "energy_is"].dropna().unique()
        row = {
            "workload": name, "kind": kind, "label": limit_label(kind, limit),
            "reference": ", ".join(limit_label(kind, reference) for reference in references),
            "settings": len(changed), "energy_is": "; ".join(sorted(energy_is)) or None,
        }  # fmt: skip
        for quantity in ("time", "energy"):
            ratios = changed[f"{quantity}_ratio"].dropna()
            row |= {
                quantity: ratios.median(),
                f"{quantity}_least": ratios.min(),
                f"{quantity}_most": ratios.max(),
            }
        table.append(row)
    return table


def build(content: Content) -> Parts:
    findings = content.findings
    if findings.runs[list(LIMITS)].isna().all(axis=None):
        yield "No run has a power cap or a locked clock."
    rows = effects_by_workload(findings)
    per = "workload and hardware" if "hardware" in findings.varying_settings else "workload"
    for kind, label in dict.fromkeys((row["kind"], row["label"]) for row in rows):
        same = [row for row in rows if (row["kind"], row["label"]) == (kind, label)]
        reference = " or ".join(dict.fromkeys(row["reference"] for row in same))
        text = f"{label} relative to {reference}: time {_change_range(row['time'] for row in same)}"
        energies = [row["energy"] for row in same if fmt.known(row["energy"])]
        if energies:
            text += f", energy {_change_range(energies)}"
        settings = fmt.plural(sum(row["settings"] for row in same), "setting")
        medians = "median" if len(same) == 1 else f"{len(same)} medians, one per {per},"
        yield f"{text} ({medians} of {settings})."
    yield from content.pictures
    yield effects(findings)


def _change_range(ratios: Iterable[float]) -> str:
    values = list(ratios)
    low, high = fmt.change(min(values)), fmt.change(max(values))
    return low if low == high else f"{low} to {high}"


def effects_figure(findings: Findings, limit: Limit) -> Spec | None:
    rows = findings.limit_effects
    rows = rows[rows["limit_kind"] == limit]
    if rows.empty:
        return None
    facets = facet(rows, PANEL_COLUMNS, (), one_panel=False)
    ratios = _ratios(_of_two_counts(facets.rows, limit))
    distinct = ratios[["line", "quantity", "gpus"]].drop_duplicates()
    speed_first = distinct.sort_values(["quantity", "gpus"], ascending=[False, True])
    width, _, columns = facets.size
    styles = charts.line_styles(
        list(dict.fromkeys(speed_first["line"])), min(charts.PAGE_WIDTH, columns * (width + 70))
    )
    styles["xOffset"] = charts.field("line", "nominal", scale={"paddingOuter": 0.4})
    unit = LIMIT_UNITS[limit]

    def layers(rows: pd.DataFrame) -> list[Spec]:
        rows = rows.assign(label=[limit_label(limit, value) for value in rows["limit"]])
        falling = rows.sort_values("limit", ascending=False, na_position="first")
        labels = list(dict.fromkeys(falling["label"]))
        axis = {  # the unit is in the title, not in each label
            "labelExpr": f"replace(datum.label, ' {unit}', '')",
            "labelAngle": 0,
            "labelOverlap": "greedy",
        }
        x = charts.field(
            "label", "nominal", title=f"{LIMIT_NAMES[limit]} ({unit})", sort=labels,
            scale={"domain": labels}, axis=axis,
        )  # fmt: skip
        values = rows[["ratio", "low", "high"]].to_numpy(float).ravel()
        y = charts.y_axis("ratio", "speed and energy (%)", [*values, 100.0])
        tooltip = {"line": "line", "label": "limit", "ratio": "percent of the reference"}
        return [
            charts.reference_line(100.0),
            *charts.error_bars(rows, x, y, styles),
            charts.points(rows, x, y, styles, tooltip),
        ]

    references = sorted({limit_label(limit, value) for value in rows["reference"]})
    notes = [
        f"100 % is {', '.join(references)}, at the same workers and batch.",
        charts.CI_BARS,
        counted_note(findings),
    ]
    return facets.draw(ratios, layers, notes, panel_size(max(len(facets.panels), 2)))


def _of_two_counts(rows: pd.DataFrame, limit: Limit) -> pd.DataFrame:
    panels = [of_panel for _, of_panel in rows.groupby("panel", sort=False)]
    rows = pd.concat([rows[rows["gpus"].isin(compared_counts(rows["gpus"]))] for rows in panels])
    batch = rows.groupby(["panel", "gpus"])["global_batch"].transform("max")
    rows = rows[(rows["global_batch"] == batch) | batch.isna()]
    unlimited = rows[rows[other_limit(limit)].isna()]
    return rows if unlimited.empty else unlimited


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    workers = rows["gpus"].map(lambda count: fmt.plural(int(count), "worker"))
    columns = {"ratio": "", "low": "_low", "high": "_high"}
    by_quantity = []
    for quantity in ("speed", "energy"):
        values = {name: 100 * rows[f"{quantity}_ratio{end}"] for name, end in columns.items()}
        table = rows[["panel", "gpus", "limit"]].assign(quantity=quantity, **values)
        by_quantity.append(table.assign(line=f"{quantity}, " + workers))
    table = pd.concat(by_quantity, ignore_index=True)
    return table[table["ratio"].notna()]
