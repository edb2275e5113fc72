"""Residuals of the power laws, and the laws that were selected instead."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.report.figures.axes import workers_axis, y_axis
from wattlaw.report.figures.facets import (
    dodge,
    facet,
    fixed_dataset,
    panel_size,
    without_limits,
)
from wattlaw.report.figures.labels import unique_labels
from wattlaw.report.figures.parts import (
    band,
    compact,
    concat,
    curve,
    draw_panels,
    line,
    panel,
    reference_line,
    y_values,
)
from wattlaw.report.figures.scaling import MAX_POINTS, TIME
from wattlaw.report.theme import CHARACTER_WIDTH, INK, line_styles
from wattlaw.report.topics.scaling import rows_of_group, series_label

_MAX_PANELS = 6
_POWER = "power law"
_NAMES = {"power": _POWER, "amdahl": "Amdahl", "usl": "USL"}


def residuals(findings: Findings) -> alt.ConcatChart | None:
    """Draw the difference of each run from its series' power law, against workers."""
    facets = facet(without_limits(fixed_dataset(findings.series)))
    tables = []
    for group, law in findings.fits.laws:
        rows = rows_of_group(facets.rows, group)
        if len(rows):
            expected = law.predict(rows["gpus"].to_numpy(float))["mean"].to_numpy(float)
            percents = 100 * (rows["epoch_time_s"].to_numpy(float) / expected - 1)
            tables.append(rows[["panel", "line", "gpus"]].assign(mean=np.round(percents, 6)))
    if not tables:
        return None
    table = pd.concat(tables, ignore_index=True)
    if len(table) > MAX_POINTS:
        table = table.groupby(["panel", "line", "gpus"], sort=False)["mean"].mean().reset_index()
    table = dodge(table.assign(low=np.nan, high=np.nan), facets.lines, facets.size[0])

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        y = y_axis("mean", "difference from the law (%)", y_values(rows, 0.0))
        x = workers_axis(rows["gpus"])
        points = curve(rows, x, y, facets.styles, "percent", joined=False)
        return [reference_line(0.0), *points]

    notes = ["points: runs", "above 0: slower than t = \u03b1 N^\u2212\u03b2"]
    return draw_panels(facets, table, layers, notes)


def alternatives(findings: Findings) -> alt.ConcatChart | None:
    """Draw the selected law and the power law, where they differ or there is a breakpoint."""
    fits = [fit for fit in findings.fits.rows if _differs(fit)]
    # Series with a cap, a clock or growing data come last.
    special = (*LIMITS, "fraction_per_gpu")
    fits.sort(key=lambda fit: any(fit.group.get(name) is not None for name in special))
    if not fits:
        return None
    shown = fits[:_MAX_PANELS]
    width, height, columns = panel_size(max(2, len(shown)))
    names = unique_labels(map(series_label, shown), int(width / CHARACTER_WIDTH / 1.1))
    laws = dict.fromkeys([_POWER, *(_law_name(fit) for fit in shown)])
    styles = line_styles(list(laws), columns * width, points=False)
    panels = []
    for name, fit in zip(names.values(), shown, strict=True):
        layers = _layers(fit, rows_of_group(findings.series, fit.group), styles)
        at = f"; breakpoint at {fit.breakpoint.at:g}" if fit.breakpoint else ""
        panels.append(panel(layers, name, width, height, f"selected: {_law_name(fit)}{at}"))
    hidden = len(fits) - len(shown)
    notes = [
        "points: means over repeats",
        "bands: 95 % confidence",
        "dashed vertical: breakpoint of the power law",
        f"not shown: {hidden} more series (see the tables)" if hidden else "",
    ]
    return concat(panels, columns, notes, columns * (width + 70))


def _differs(fit: SeriesFit) -> bool:
    other = fit.selection is not None and fit.selection.best.law != "power"
    return fit.law is not None and (other or fit.breakpoint is not None)


def _law_name(fit: SeriesFit) -> str:
    name = "power" if fit.selection is None else fit.selection.best.law
    return _NAMES.get(name, name)


def _layers(fit: SeriesFit, rows: pd.DataFrame, styles: dict[str, Any]) -> list[alt.Chart]:
    means = rows.groupby("gpus")["epoch_time_s"].mean().reset_index()
    means = means.rename(columns={"gpus": "at", "epoch_time_s": "mean"})
    laws = {_POWER: fit.law} | ({_law_name(fit): fit.selection.best} if fit.selection else {})
    lines = pd.concat(
        [
            law.predict(np.geomspace(law.x_min, law.x_max, 33)).assign(line=name)
            for name, law in laws.items()
            if law is not None
        ],
        ignore_index=True,
    ).rename(columns={"x": "at"})
    lines = lines[lines["mean"] > 0]
    x = workers_axis(means["at"])
    y = y_axis("mean", TIME, [*means["mean"], *lines["mean"]], log=True)
    points = alt.Chart(compact(means, "at", "mean")).mark_point(color=INK, size=40, opacity=1)
    return [
        *([reference_line(fit.breakpoint.at, "x")] if fit.breakpoint else []),
        band(lines, x, y, styles),
        line(lines, x, y, styles, 1.8),
        points.encode(x=x, y=y),
    ]
