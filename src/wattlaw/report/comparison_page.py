"""The page of a comparison; like the report, it loads nothing and runs no script."""

from pathlib import Path

import pandas as pd

from wattlaw.analysis.advise.comparison import Comparison
from wattlaw.report import charts
from wattlaw.report.page import write_page
from wattlaw.report.pictures import Picture
from wattlaw.report.sections import BulletList, PageSection
from wattlaw.report.topics.comparison_table import SHOWN, label, origin, sentences, table

_MAX_ROWS, _ROW_HEIGHT, _WIDTH = 40, 26, 400


def picture(comparison: Comparison) -> Picture:
    panels, styles = [], charts.line_styles([""])
    y = charts.field("label", "nominal", title=None, sort=None)
    for quantity in SHOWN:
        items = [item for item in comparison.changes if item.quantity == quantity][:_MAX_ROWS]
        if not items:
            continue
        unknown = (float("nan"), float("nan"))
        changes = [
            (label(comparison, item), item.percent, *(item.percent_ci or unknown), "")
            for item in items
        ]
        rows = pd.DataFrame(changes, columns=["label", "percent", "low", "high", "line"])
        values = rows[["percent", "low", "high"]].to_numpy(float).ravel()
        x = charts.x_axis("percent", "B relative to A (%)", [0.0, *values])
        layers = [
            charts.reference_line(0.0, "x"),
            *charts.error_bars(rows, x, y, styles, horizontal=True),
            charts.points(rows, x, y, styles, {"label": "setting", "percent": "percent"}),
        ]
        panels.append(charts.panel(layers, quantity, _WIDTH, _ROW_HEIGHT * len(rows)))
    notes = [charts.CI_BARS + origin(comparison)]
    spec = charts.figure(panels, 1, notes, _WIDTH)
    return Picture.of("changes", "Changes of B from A", spec)


def write_comparison(comparison: Comparison, path: Path) -> None:
    warnings = tuple(map(str, comparison.warnings))
    parts = [
        *sentences(comparison),
        picture(comparison),
        table(comparison),
        BulletList("Warnings", warnings) if warnings else None,
    ]
    title = f"{comparison.b.name} relative to {comparison.a.name}{origin(comparison)}"
    write_page(path, title, [PageSection.of("comparison", "Comparison", "screen", parts)])
