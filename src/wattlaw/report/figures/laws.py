"""Beside the power law: how far runs are from it, and the law that was selected instead."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import group_label
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.report.figures.axes import workers_axis
from wattlaw.report.figures.facets import arranged, beside, fixed_data, free, size_of
from wattlaw.report.figures.labels import short_all
from wattlaw.report.figures.parts import (
    axis,
    compact,
    curve,
    ends,
    level,
    on,
    panel,
    picture,
)
from wattlaw.report.figures.scaling import MOST_POINTS, TIME, of_group
from wattlaw.report.theme import CHARACTER, INK, look

_MOST = 6
_POWER = "power law"
_NAMES = {"power": _POWER, "amdahl": "Amdahl", "usl": "USL"}


def residuals(findings: Findings) -> alt.ConcatChart | None:
    """How far each run is from its series' power law, against workers."""
    shown = arranged(free(fixed_data(findings.series)))
    parts = []
    for group, law in findings.fits.laws:
        mine = of_group(shown.rows, group)
        if len(mine):
            at = law.predict(mine["gpus"].to_numpy(float))["mean"].to_numpy(float)
            away = 100 * (mine["epoch_time_s"].to_numpy(float) / at - 1)
            parts.append(mine[["panel", "line", "gpus"]].assign(mean=np.round(away, 6)))
    if not parts:
        return None
    table = pd.concat(parts, ignore_index=True)
    if len(table) > MOST_POINTS:
        table = table.groupby(["panel", "line", "gpus"], sort=False)["mean"].mean().reset_index()
    width, height, columns = shown.size
    looks = look(shown.lines, shown.width)
    table = beside(table.assign(low=np.nan, high=np.nan), shown.lines, width)
    panels = []
    for name in shown.panels:
        mine = shown.of(name, table)
        if len(mine):
            y = axis("mean", "distance from the law (%)", ends(mine, 0.0))
            x = workers_axis(mine["gpus"], width)
            layers = [level(0.0), *curve(mine, x, y, looks, "percent", joined=False)]
            panels.append(panel(layers, name, width, height))
    words = ["points: runs", "above 0: slower than t = \u03b1 N^\u2212\u03b2", shown.left_out]
    return picture(panels, columns, "Residuals of the power laws", words, shown.width)


def alternatives(findings: Findings) -> alt.ConcatChart | None:
    """Draw the selected law beside the power law, where they differ or the curve bends."""
    found = sorted((fit for fit in findings.fits.rows if _differs(fit)), key=_limited)
    if not found:
        return None
    shown = found[:_MOST]
    width, height, columns = size_of(max(2, len(shown)))
    long = [group_label(fit.group) or "all runs" for fit in shown]
    names = short_all(long, int(width / CHARACTER / 1.1))
    laws = dict.fromkeys([_POWER, *(_name(fit) for fit in shown)])
    looks = look(list(laws), columns * width, points=False)
    panels = []
    for name, fit in zip(names.values(), shown, strict=True):
        layers = _layers(fit, of_group(findings.series, fit.group), width, looks)
        panels.append(panel(layers, name, width, height, _verdict(fit)))
    hidden = len(found) - len(shown)
    words = [
        "points: means over repeats", "bands: 95 % confidence",
        "dashed upright: where the power law bends",
        f"not shown: {hidden} more series (see the tables)" if hidden else "",
    ]  # fmt: skip
    title = "Where the power law is not the best law"
    return picture(panels, columns, title, words, columns * (width + 70))


def _differs(fit: SeriesFit) -> bool:
    other = fit.selection is not None and fit.selection.best.law != "power"
    return fit.law is not None and (other or fit.breakpoint is not None)


def _limited(fit: SeriesFit) -> bool:
    """Say whether a cap, a clock or growing data makes the series a special one."""
    return any(fit.group.get(name) is not None for name in (*LIMITS, "fraction_per_gpu"))


def _name(fit: SeriesFit) -> str:
    name = "power" if fit.selection is None else fit.selection.best.law
    return _NAMES.get(name, name)


def _verdict(fit: SeriesFit) -> str:
    bend = f"; breakpoints at {fit.breakpoint.at:g}" if fit.breakpoint else ""
    return f"selected: {_name(fit)}{bend}"


def _layers(fit: SeriesFit, rows: pd.DataFrame, width: int, looks: dict[str, Any]) -> Sequence[Any]:
    means = rows.groupby("gpus")["epoch_time_s"].mean().reset_index()
    means = means.rename(columns={"gpus": "at", "epoch_time_s": "mean"})
    parts = []
    curves = {_POWER: fit.law} | ({_name(fit): fit.selection.best} if fit.selection else {})
    for name, law in curves.items():
        if law is not None:
            at = np.geomspace(law.x_min, law.x_max, 33)
            parts.append(law.predict(at).rename(columns={"x": "at"}).assign(line=name))
    lines = pd.concat(parts, ignore_index=True)
    lines = lines[lines["mean"] > 0]
    x = workers_axis(means["at"], width)
    y = axis("mean", TIME, [*means["mean"], *lines["mean"]], log=True)
    base = alt.Chart(compact(lines, "at", "mean", "low", "high", "line")).encode(
        x=x, color=looks["color"]
    )
    points = alt.Chart(compact(means, "at", "mean")).mark_point(color=INK, size=40, opacity=1)
    bend = [level(fit.breakpoint.at, "x")] if fit.breakpoint else []
    return [
        *bend,
        base.mark_area(opacity=0.2, clip=True).encode(y=on(y, "low"), y2="high:Q"),
        base.mark_line(strokeWidth=1.8).encode(y=y, strokeDash=looks["strokeDash"]),
        points.encode(x=x, y=y),
    ]
