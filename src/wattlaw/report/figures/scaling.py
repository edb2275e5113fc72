"""Time against workers: seconds per epoch with their laws, speedup, efficiency."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import Limit, other_limit
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import Group
from wattlaw.formatting import plural
from wattlaw.report.figures.axes import workers_axis
from wattlaw.report.figures.facets import (
    JOB,
    KIND,
    Arranged,
    arranged,
    beside,
    fixed_data,
    free,
    summarised,
)
from wattlaw.report.figures.parts import (
    against_workers,
    axis,
    compact,
    curve,
    ends,
    on,
    panel,
    picture,
)
from wattlaw.report.theme import FAINT, look

#: More single runs than this are drawn as their means.
MOST_POINTS = 500
TIME = "time per epoch (s)"


def epoch_time(findings: Findings) -> alt.ConcatChart | None:
    """Seconds per epoch against workers, log-log, without caps and clocks, with laws."""
    shown = arranged(free(fixed_data(findings.series)))
    return _times(findings, shown, "Seconds per epoch")


def epoch_time_by_cap(findings: Findings) -> alt.ConcatChart | None:
    """Seconds per epoch against workers by power cap, a panel per family."""
    shown = limited(findings.series, "power_limit_w")
    return None if shown is None else _times(findings, shown, "Seconds per epoch by power cap")


def epoch_time_by_clock(findings: Findings) -> alt.ConcatChart | None:
    """Seconds per epoch against workers by SM clock, a panel per family."""
    shown = limited(findings.series, "clock_limit_mhz")
    return None if shown is None else _times(findings, shown, "Seconds per epoch by SM clock")


def limited(series: pd.DataFrame, limit: Limit) -> Arranged | None:
    """Return series that differ in one limit alone, a panel per family and a line per limit."""
    rows = fixed_data(series)
    rows = rows[rows[other_limit(limit)].isna()]
    several = rows.groupby("family")[limit].transform(lambda values: values.nunique(dropna=False))
    rows = rows[several > 1]
    if rows.empty:
        return None
    kind = [name for name in KIND if name != limit]
    return arranged(rows, [*JOB, *kind], [limit], one_panel=False)


def speedup(findings: Findings) -> alt.ConcatChart | None:
    """Speedup against the reference count, with intervals and the ideal line."""
    shown, table = relative_to_reference(findings)
    if table.empty:
        return None
    table = table.rename(columns={"speedup": "mean", "speedup_low": "low", "speedup_high": "high"})
    width, height, columns = shown.size
    looks = look(shown.lines, shown.width)
    panels = []
    for name in shown.panels:
        mine = shown.of(name, beside(table, shown.lines, width))
        title = f"speedup (ratio to {references(mine)})"
        ideal = _ideal(mine)
        y = axis("mean", title, ends(mine) + list(ideal["mean"]), log=True)
        x = workers_axis(mine["gpus"], width)
        line = alt.Chart(ideal).mark_line(strokeDash=[5, 4], color=FAINT)
        line = line.encode(x=x, y=y, detail="reference:N")
        panels.append(panel([line, *curve(mine, x, y, looks, "speedup")], name, width, height))
    words = ["dashed grey: ideal", "bars: 95 % interval", shown.left_out]
    return picture(panels, columns, "Speedup", words, shown.width)


def efficiency(findings: Findings) -> alt.ConcatChart | None:
    """Parallel efficiency against workers, with intervals."""
    shown, table = relative_to_reference(findings)
    if table.empty:
        return None
    names = {"efficiency": "mean", "efficiency_low": "low", "efficiency_high": "high"}
    words = ["speedup divided by the growth of workers", "bars: 95 % interval"]
    return against_workers(
        shown, table.rename(columns=names), "Parallel efficiency", "parallel efficiency (ratio)",
        words, zero=True, at_level=1.0,
    )  # fmt: skip


def relative_to_reference(findings: Findings) -> tuple[Arranged, pd.DataFrame]:
    """Return the uncapped series, and their rows of ``findings.speedups`` with panel and line."""
    shown = arranged(free(fixed_data(findings.series)))
    place = shown.rows[["series", "panel", "line"]].drop_duplicates("series")
    return shown, findings.speedups.merge(place, on="series")


def _ideal(table: pd.DataFrame) -> pd.DataFrame:
    """Return both ends of the ideal line from each reference count."""
    ends = table.groupby("reference")["gpus"].max().reset_index()
    starts = ends.assign(gpus=ends["reference"])
    both = pd.concat([starts, ends])
    return pd.DataFrame(
        {
            "at": both["gpus"],
            "mean": both["gpus"] / both["reference"],
            "reference": both["reference"],
        }
    )


def references(table: pd.DataFrame) -> str:
    """Return in words what the rows of a panel are relative to."""
    counts = sorted(table["reference"].unique())
    if len(counts) > 1:
        return "first point"
    return plural(int(counts[0]), "worker")


def _times(findings: Findings, shown: Arranged, title: str) -> alt.ConcatChart | None:
    if shown.rows.empty:
        return None
    width, height, columns = shown.size
    looks = look(shown.lines, shown.width)
    laws = law_lines(findings, shown)
    single = len(shown.rows) <= MOST_POINTS
    points = _runs(shown.rows) if single else summarised(shown.rows, "epoch_time_s")
    points = beside(points, shown.lines, width)
    panels = []
    for name in shown.panels:
        mine, lines = shown.of(name, points), shown.of(name, laws)
        y = axis("mean", TIME, ends(mine) + ends(lines), log=True)
        x = workers_axis(mine["gpus"], width)
        unfitted = mine[~mine["line"].isin(lines["line"])]
        means = unfitted.groupby(["line", "at"], sort=False)["mean"].mean().reset_index()
        layers = _bands(lines, x, y, looks) + _joined(means, x, y, looks)
        layers += curve(mine, x, y, looks, TIME, joined=False)
        panels.append(panel(layers, name, width, height))
    words = ["points: runs" if single else "points: means, bars: standard deviation over repeats"]
    if len(laws):
        words.append(
            "lines: t = \u03b1 N^\u2212\u03b2 with its 95 % confidence band, lighter: of one run"
        )
    else:
        words.append("lines join means; a law needs three worker counts")
    return picture(panels, columns, title, [*words, shown.left_out], shown.width)


def _runs(rows: pd.DataFrame) -> pd.DataFrame:
    table = rows[["panel", "line", "gpus"]].assign(mean=rows["epoch_time_s"])
    return table.assign(low=np.nan, high=np.nan)


def _joined(means: pd.DataFrame, x: alt.X, y: alt.Y, looks: dict[str, Any]) -> list[alt.Chart]:
    if means.empty:
        return []
    line = alt.Chart(compact(means, "at", "mean", "line")).mark_line(strokeWidth=1.5)
    return [line.encode(x=x, y=y, color=looks["color"], strokeDash=looks["strokeDash"])]


def _bands(lines: pd.DataFrame, x: alt.X, y: alt.Y, looks: dict[str, Any]) -> list[alt.Chart]:
    """Return a law's line in its confidence band in its prediction band."""
    if lines.empty:
        return []
    names = ("at", "mean", "low", "high", "prediction_low", "prediction_high", "line")
    base = alt.Chart(compact(lines, *names)).encode(x=x, color=looks["color"])
    bands = [
        base.mark_area(opacity=opacity, clip=True).encode(y=on(y, low), y2=f"{high}:Q")
        for low, high, opacity in (
            ("prediction_low", "prediction_high", 0.1),
            ("low", "high", 0.25),
        )
    ]
    line = base.mark_line(strokeWidth=1.8)
    return [*bands, line.encode(y=y, strokeDash=looks["strokeDash"])]


def law_lines(findings: Findings, shown: Arranged) -> pd.DataFrame:
    """Return the laws of the rows that are shown, over their own range, with panel and line."""
    parts = []
    for group, law in findings.fits.laws:
        mine = of_group(shown.rows, group)
        if len(mine):
            at = np.geomspace(law.x_min, law.x_max, 17)
            table = law.predict(at).rename(columns={"x": "at"})
            parts.append(table.assign(panel=mine["panel"].iloc[0], line=mine["line"].iloc[0]))
    return pd.concat(parts, ignore_index=True) if parts else _NO_LINES


_NO_LINES = pd.DataFrame(columns=["at", "mean", "low", "high", "panel", "line"])


def of_group(rows: pd.DataFrame, group: Group) -> pd.DataFrame:
    """Return the rows of a group of ``analysis.series.fit_series``."""
    mine = rows
    if "fraction_per_gpu" not in group:
        mine = mine[mine["fraction_per_gpu"].isna()]
    for name, value in group.items():
        column = "batch" if name in ("global_batch", "local_batch") else name
        mine = mine[mine[column].isna() if value is None else mine[column] == value]
        if column == "batch":
            mine = mine[mine["rule"] == name]
    return mine
