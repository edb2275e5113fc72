"""One function per figure; None where the findings have nothing to show."""

from collections.abc import Callable
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.report.theme import by_series, styled, workers_axis

#: More series than this in one figure cannot be told apart; the first are drawn, the table has all.
MAX_SERIES = 14


def epoch_time(findings: Findings) -> alt.LayerChart | None:
    """Seconds per epoch against workers, log-log: every repeat, and each law with its band."""
    series, more = _shown(findings)
    if series.empty:
        return None
    counts, look = _counts(series), by_series(list(series["series"].unique()))
    time = alt.Y(
        "epoch_time_s:Q",
        title="training time per epoch (s)",
        scale=alt.Scale(type="log", nice=False, padding=18, zero=False),
        axis=alt.Axis(format="~g", tickCount=6),
    )
    layers: list[Any] = []
    lines = _lines(findings, series)
    if not lines.empty:
        base = alt.Chart(lines).encode(x=workers_axis(counts), color=look["color"])
        layers.append(base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q"))
        layers.append(base.mark_line(strokeWidth=2).encode(y=alt.Y("mean:Q")))
    layers += [_means(series, "epoch_time_s", counts, look)] if lines.empty else []
    points = alt.Chart(series[["at", "gpus", "epoch_time_s", "series", "repeat"]])
    points = points.mark_point(filled=True, size=60, opacity=0.75)
    layers.append(points.encode(x=workers_axis(counts), y=time, **look))
    subtitle = "points: repeats; lines: t = \u03b1 N^\u2212\u03b2 with 95 % confidence band"
    if lines.empty:
        subtitle = "points: repeats, lines: their means; a law needs three worker counts"
    return styled(alt.layer(*layers), "Seconds per epoch", subtitle + more)


def speedup(findings: Findings) -> alt.LayerChart | None:
    """Speedup against the smallest worker count, with intervals and the ideal line."""
    series, more = _shown(findings)
    if series.empty:
        return None
    names = list(series["series"].unique())
    table = _beside(findings.speedups[findings.speedups["series"].isin(names)])
    counts, look = _counts(series), by_series(names)
    ends = table.loc[[table["gpus"].idxmin(), table["gpus"].idxmax()], ["gpus", "reference"]]
    ideal = pd.DataFrame({"at": ends["gpus"], "speedup": ends["gpus"] / ends["gpus"].min()})
    gain = alt.Y(
        "speedup:Q",
        title="speedup (ratio to the smallest number of workers)",
        scale=alt.Scale(type="log", base=2, nice=False, padding=18),
        axis=alt.Axis(format="~g", tickCount=6),
    )
    across = workers_axis(counts)
    layers = alt.layer(
        alt.Chart(ideal).mark_line(strokeDash=[5, 4], color="#888").encode(x=across, y=gain),
        alt.Chart(table.dropna())
        .mark_rule(strokeWidth=1.5)
        .encode(x=across, y="speedup_low:Q", y2="speedup_high:Q", color=look["color"]),
        alt.Chart(table).mark_line().encode(x=across, y=gain, color=look["color"]),
        alt.Chart(table).mark_point(filled=True, size=80).encode(x=across, y=gain, **look),
    )
    return styled(layers, "Speedup", "dashed: ideal; bars: 95 % interval" + more)


def energy(findings: Findings) -> alt.LayerChart | None:
    """Energy per epoch against workers; says what is counted and whether it is an estimate."""
    series, more = _shown(findings)
    series = series[series["energy_per_epoch_j"].notna()]
    if series.empty:
        return None
    if series["energy_is"].nunique() > 1:  # no line joins energies that count different things
        series = series.assign(series=series["series"] + " (" + series["energy_is"] + ")")
    counts, look = _counts(series), by_series(list(series["series"].unique()))
    joules = alt.Y(
        "energy_per_epoch_j:Q",
        title=f"training energy per epoch (J; {findings.energy})",
        scale=alt.Scale(zero=True),
        axis=alt.Axis(format="~g"),
    )
    base = alt.Chart(series[["at", "gpus", "energy_per_epoch_j", "series", "repeat"]])
    across = workers_axis(counts)
    layers = alt.layer(
        _means(series, "energy_per_epoch_j", counts, look),
        base.mark_point(filled=True, size=60, opacity=0.75).encode(x=across, y=joules, **look),
    )
    subtitle = f"{findings.energy}; points: repeats, lines: their means"
    return styled(layers, "Energy per epoch", subtitle + more)


def quality(findings: Findings) -> alt.LayerChart | None:
    """Quality after the last epoch against the global batch, by number of workers."""
    table = findings.runs[findings.runs["metric"].notna()]
    if table.empty:
        return None
    sizes = sorted(int(size) for size in table["global_batch"].unique())
    also = [name for name in findings.differing if name != "workload"]
    told = [", ".join(["", *map(str, row)]) for row in table[also].to_numpy()]
    table = table.assign(
        series=[
            f"{w}, {g} worker{'s' if g > 1 else ''}{also}"
            for w, g, also in zip(table["workload"], table["gpus"], told, strict=True)
        ]
    )
    table = _beside(table.sort_values("gpus", kind="stable"), "global_batch")
    look = by_series(list(table["series"].unique()))
    across = alt.X(
        "at:Q",
        title="global batch (samples per update)",
        scale=alt.Scale(type="log", base=2, domain=[sizes[0] / 1.3, sizes[-1] * 1.3], nice=False),
        axis=alt.Axis(values=sizes, format="d", labelOverlap=True),
    )
    name = " / ".join(sorted(table["metric_name"].dropna().unique())) or "metric"
    unit = " (fraction)" if table["metric"].between(0, 1).all() else ""
    metric = alt.Y(
        "metric:Q",
        title=f"{name} after the last epoch{unit}",
        scale=alt.Scale(zero=False, nice=False, padding=18),
        axis=alt.Axis(format="~g"),
    )
    base = alt.Chart(table[["at", "metric", "series", "repeat"]])
    layers = alt.layer(
        base.mark_line().encode(x=across, y=alt.Y("mean(metric):Q"), color=look["color"]),
        base.mark_point(filled=True, size=60, opacity=0.75).encode(x=across, y=metric, **look),
    )
    return styled(layers, "Quality against global batch", "points: repeats, lines: their means")


FIGURES: dict[str, Callable[[Findings], alt.LayerChart | None]] = {
    "epoch_time": epoch_time,
    "speedup": speedup,
    "energy": energy,
    "quality": quality,
}


def _shown(findings: Findings) -> tuple[pd.DataFrame, str]:
    """Return the rows of the series that a figure can hold, and a word on those it cannot."""
    names = list(findings.series["series"].unique())
    hidden = len(names) - MAX_SERIES
    more = f"; {hidden} more series in the table" if hidden > 0 else ""
    shown = findings.series[findings.series["series"].isin(names[:MAX_SERIES])]
    return _beside(shown), more


def _beside(table: pd.DataFrame, column: str = "gpus") -> pd.DataFrame:
    """Add ``at``: a count moved by a few percent, so that no series hides another."""
    names = list(table["series"].unique())
    step = min(0.02, 0.08 / max(1, len(names)))
    moved = table["series"].map({n: (i - (len(names) - 1) / 2) * step for i, n in enumerate(names)})
    return table.assign(at=table[column] * np.exp(moved.astype(float)))


def _means(series: pd.DataFrame, column: str, counts: list[int], look: dict[str, Any]) -> alt.Chart:
    means = series.groupby(["series", "at"], as_index=False, sort=False)[column].mean()
    lines: alt.Chart = alt.Chart(means).mark_line(strokeWidth=1.5)
    return lines.encode(x=workers_axis(counts), y=alt.Y(f"{column}:Q"), color=look["color"])


def _counts(series: pd.DataFrame) -> list[int]:
    return sorted(int(count) for count in series["gpus"].unique())


def _lines(findings: Findings, series: pd.DataFrame) -> pd.DataFrame:
    """Return each law's line and band over its own range."""
    parts = []
    for group, law in findings.fits.laws:
        mine = series
        for name, value in group.items():
            column = "batch" if name in ("global_batch", "local_batch") else name
            mine = mine[mine[column].isna() if value is None else mine[column] == value]
            if column == "batch":
                mine = mine[mine["rule"] == name]
        if len(mine):
            at = np.geomspace(law.x_min, law.x_max, 33)
            line = law.predict(at).rename(columns={"x": "at"})
            parts.append(line.assign(series=mine["series"].iloc[0]))
    return pd.concat(parts) if parts else pd.DataFrame()
