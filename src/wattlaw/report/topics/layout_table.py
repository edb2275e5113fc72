"""Parallel layouts: throughput as a table of cells, of runs, predicted or not possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from wattlaw.analysis.predict.layout_cells import without_nodes
from wattlaw.common import formatting as fmt
from wattlaw.report import charts
from wattlaw.report.charts import COLOURS, INK
from wattlaw.report.facets import unique_labels
from wattlaw.report.sections import Content, Parts
from wattlaw.report.topics.verdict import KINDS, roles
from wattlaw.study.labels import layout_label, setting_label
from wattlaw.study.sources import MEASURED

if TYPE_CHECKING:
    from wattlaw.analysis.advise.option import Option
    from wattlaw.analysis.findings import Findings
    from wattlaw.analysis.predict.layout_cells import LayoutCells
    from wattlaw.report.charts import Spec
    from wattlaw.study.setting import Setting

_MAX_PANELS = 4
#: Width and height of a cell in pixels.
_STEPS = 84, 52
#: A cross and a dash.
_TIMES = "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z"
_DASH = "M-1,-.2L1,-.2L1,.2L-1,.2Z"
#: The mark of a cell by its status, in the order of the legend; runs are named by their source.
_MARKS: dict[str, tuple[str, str]] = {
    "measured": (COLOURS[0], "circle"),
    "predicted": (COLOURS[6], "cross"),
    "out of memory": (COLOURS[1], _TIMES),
    "unlikely": ("#767676", _TIMES),
    "not possible": ("#767676", _DASH),
    "not run": ("#767676", "triangle-down"),
}
#: What the legend calls them, where that is not the status.
_NAMES = {"unlikely": "chance to fit below 5 %"}
#: Fills of the slowest and the fastest cell: ink has a contrast above 9 on both.
_FILLS = ["#ffffff", "#a6cdea"]
#: Roles whose cell has a thick border.
_RECOMMENDED = tuple(KINDS)[:3]
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def sentences(findings: Findings) -> Iterator[str]:
    for table in findings.layouts:
        counts = Counter(_status(table, cell.status) for cell in table.cells)
        parts = [f"{count} {status}" for status, count in counts.items()]
        own = next((cell for cell in table.cells if cell.setting == table.chosen), None)
        text = ""
        if own is not None and own.per_s:
            layout = layout_label(table.chosen, among_others=True)
            text = f"{layout} processes {_speed(own.per_s, own.per_s_ci)} {_unit(table)}; "
        yield (
            f"{table.job.workload} on {fmt.plural(table.chosen.gpus, table.job.worker)}: {text}"
            f"of {len(table.cells)} cells, {', '.join(parts)}."
        )


def figure(findings: Findings) -> Spec | None:
    tables = findings.layouts[:_MAX_PANELS]
    if not tables:
        return None
    frames = [_frame(findings, table) for table in tables]
    present = set(pd.concat(frames)["line"])
    marks = {kind: look[:2] for kind, look in KINDS.items() if kind in present}
    marks |= {name: look for status, look in _MARKS.items() for table in tables
              if (name := _status(table, status)) in present}  # fmt: skip
    names = unique_labels([f"{item.job.workload}, {item.job.hardware}" for item in tables], 60)
    panels = []
    for name, table, frame in zip(names.values(), tables, frames, strict=True):
        chosen = table.chosen
        workers = fmt.plural(chosen.gpus, table.job.worker)
        width, height = ({"step": step} for step in _STEPS)
        panels.append(charts.panel(_layers(table, frame, marks), name, width, height,
                                   f"{workers}, batch {chosen.global_batch:g}"))  # fmt: skip
    is_predicted = any((frame["status"] == "predicted").any() for frame in frames)
    folded = any("micro_batch" not in (*item.rows, *item.columns) for item in tables)
    notes = [
        f"Numbers are {' or '.join(dict.fromkeys(map(_unit, tables)))}.",
        "The more colour, the faster.",
        "Dashed borders are predictions, with their 90 % intervals." if is_predicted else "",
        "The recommended cell has a thick border, and the 95 % interval of its mean.",
        "mb is the micro-batch of the fastest." if folded else "",
        charts.not_shown(len(findings.layouts) - len(tables), "job"),
    ]
    return charts.figure(panels, 1, notes, 640)


def _status(table: LayoutCells, status: str) -> str:
    return table.source if status == MEASURED else _NAMES.get(status, status)


def _unit(table: LayoutCells) -> str:
    return f"{table.unit}/s of a {table.job.worker}"


def _short(value: float, digits: int = 3, like: float | None = None) -> str:
    """Return ``15.4k``: a number that fits into a cell, in the unit that suits ``like``."""
    size, prefix = next((each for each in _PREFIXES if (like or value) >= each[0]), (1.0, ""))
    return fmt.number(float(f"{value / size:.{digits}g}"), digits) + prefix


def _interval(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return ""
    return f"{_short(ends[0], 2, ends[1]).rstrip('kMG')}–{_short(ends[1], 2)}"


def _speed(per_s: float, ends: tuple[float, float] | None) -> str:
    return _short(per_s) + (f" ({_interval(ends)})" if ends else "")


def _frame(findings: Findings, table: LayoutCells) -> pd.DataFrame:
    """Return a row for each cell, with its texts and its role in the advice."""
    named: dict[Setting | None, tuple[Option | None, str]] = {}
    for advice in findings.advice:
        if advice.workload == table.job.workload:
            for option, kind in roles(advice):
                key = replace(option.setting, power_profile=None, dataset_fraction=1.0)
                key = key if table.chosen.nodes else without_nodes(key)
                named.setdefault(key, (option, kind))
    fastest = max((cell.per_s or 0.0 for cell in table.cells), default=0.0) or 1.0
    rows: list[dict[str, Any]] = []
    for cell in table.cells:
        name = _status(table, cell.status)
        best, kind = named.get(cell.setting, (None, name))
        per_s = None if cell.status == "unlikely" else cell.per_s
        ends = cell.per_s_ci
        if per_s and ends is None and best is not None and best.time_s.interval:
            low_s, high_s = best.time_s.interval
            ends = per_s * best.time_s.mean / high_s, per_s * best.time_s.mean / low_s
        fits = "" if cell.fits is None else f"chance to fit {fmt.percent(cell.fits, 2)}"
        below, about = "", [kind if kind == name else f"{kind}, {name}"]
        if cell.setting is not None:
            about.append(layout_label(cell.setting, among_others=True))
            if per_s and "micro_batch" not in (*table.rows, *table.columns):
                below = f"mb {cell.setting.micro_batch:g}"
        if per_s:
            below = _interval(ends) or below
            about.append(f"{_speed(per_s, ends)} {_unit(table)}")
        elif fits:
            below = fmt.percent(cell.fits, 1)
        others = f"{fmt.plural(cell.folded, 'other setting')} not shown" if cell.folded else ""
        about += filter(None, [fits, cell.reason, others])
        rows.append({
            "row": _name(table.rows, cell.row), "column": _name(table.columns, cell.column),
            "line": kind, "status": cell.status, "tip": "; ".join(about), "below": below,
            "text": _short(per_s) if per_s else "", "share": (per_s or 0.0) / fastest,
        })  # fmt: skip
    return pd.DataFrame(rows)


def _name(names: Sequence[str], values: Sequence[Any]) -> str:
    if names == ("micro_batch",):  # the title of the axis names it
        return fmt.number(values[0])
    return ", ".join(setting_label(*pair) for pair in zip(names, values, strict=True))


def _layers(
    table: LayoutCells, frame: pd.DataFrame, marks: dict[str, tuple[str, str]]
) -> list[Spec]:
    axis = {"domain": False, "ticks": False, "labelAngle": 0, "grid": False, "labelPadding": 6}
    places = {
        channel: charts.field(
            name, "nominal", sort=None, axis=axis | ({"orient": "top"} if channel == "x" else {}),
            title="micro-batch" if names == ("micro_batch",) else None,
            scale={"domain": list(dict.fromkeys(frame[name])), "padding": 0.06},
        )
        for channel, name, names in (("x", "column", table.columns), ("y", "row", table.rows))
    }  # fmt: skip
    scale = {"domain": [0, 1], "range": _FILLS, "interpolate": "rgb"}
    cell = {
        **places,
        "fill": charts.field("share", legend=None, scale=scale),
        "description": charts.field("tip", "nominal"),
        "tooltip": charts.field("tip", "nominal"),
    }
    is_best, is_timed = frame["line"].isin(_RECOMMENDED), frame["text"] != ""
    mark = {**places, **charts.look_styles(marks, 3)}
    predicted = frame["status"] == "predicted"
    layers: list[tuple[pd.Series, str, Spec, Spec]] = [
        (is_timed & ~predicted, "rect", cell, {"stroke": "#777777"}),
        (predicted, "rect", cell, {"stroke": "#777777", "strokeDash": [4, 3]}),
        (~is_timed, "rect", cell, {"stroke": "#e6e6e6"}),
        (is_best, "rect", {**places, "description": cell["description"]},
         {"stroke": COLOURS[1], "strokeWidth": 2.5, "fillOpacity": 0}),
        (is_timed, "point", mark, {"yOffset": -15, "size": 60}),
        (~is_timed, "point", mark, {"size": 110}),
    ]  # fmt: skip
    for name, offset, size in (("text", 4, 12), ("below", 18, 9.5)):
        style = {"dy": offset, "fontSize": size, "color": INK}
        style["fontWeight"] = "bold" if name == "text" else "normal"
        text = {**places, "text": charts.field(name, "nominal")}
        layers.append((frame[name] != "", "text", text, style))
    filled = {"filled": True, "opacity": 1}
    return [
        charts.layer(frame[chosen], kind, encoding, **style, **(filled if kind == "point" else {}))
        for chosen, kind, encoding, style in layers
        if chosen.any()
    ]


def build(content: Content) -> Parts:
    yield from sentences(content.findings)
    yield from content.pictures
