"""Series of a running run as charts: a line for each device, its limit, and the windows."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from wattlaw.common.formatting import duration_text, number
from wattlaw.report.charts import COLOURS
from wattlaw_dashboard.tails import LEAST_STEPS, STEPS, Device, Mark, ends

#: More devices than this are shown as their mean, least and greatest value.
MOST_LINES = 8
#: Seconds between two labels of time.
_TICKS_S = (10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
_TITLES = {
    "power_w": ("Power", "W"), "sm_util": ("Utilisation", "%"),
    "sm_clock_mhz": ("SM clock", "MHz"), "temperature_c": ("Temperature", "°C"),
    "cpu_cores": ("Busy cores", ""),
}  # fmt: skip


@dataclass
class Timeline:
    """A chart for the template ``live.html.j2``, as wide as the page: positions as text in units of
    ``width`` and ``height``, and labels with theirs in percent."""

    title: str
    text: str  # for a screen reader
    lines: list[dict[str, str]] = field(default_factory=list)  # name, colour, path
    marks: list[dict[str, Any]] = field(default_factory=list)
    grid: list[tuple[str, str]] = field(default_factory=list)
    times: list[tuple[str, str]] = field(default_factory=list)
    limits: list[tuple[str, str]] = field(default_factory=list)
    width, height = 1000, 160


def timelines(devices: Sequence[Device], marks: Sequence[Mark]) -> list[Timeline]:
    step_s, (first, newest) = max((item.step_s for item in devices), default=1), ends(devices)
    span_s = step_s * min(STEPS, max(LEAST_STEPS, newest - first))
    charts = []
    for column in _TITLES:
        lines = _lines(devices, column)
        if lines:
            limits = {item.last("power_limit_w") for item in devices if column == "power_w"}
            known = sorted(limit for limit in limits if limit is not None)[:4]
            charts.append(_chart(column, lines, known, marks, step_s * newest, span_s))
    return charts


def _lines(devices: Sequence[Device], column: str) -> dict[str, Mapping[int, float]]:
    if len(devices) <= MOST_LINES:
        series = {item.title(column): item.series(column) for item in devices}
        return {name: values for name, values in series.items() if values}
    lines: dict[str, Mapping[int, float]] = {}
    for name, count in sorted(Counter(item.column(column) for item in devices).items()):
        values = defaultdict[int, list[float]](list)
        for item in devices:
            for at_s, value in item.series(column).items() if item.column(column) == name else ():
                values[at_s].append(value)
        for title, of_values in (
            (f"mean of {count}", fmean),
            ("least of", min),
            ("greatest of", max),
        ):
            line = {at_s: of_values(values[at_s]) for at_s in sorted(values)}
            lines |= {f"{title} devices{name.removeprefix(column)}": line} if line else {}
    return lines


def _chart(
    column: str, lines: Mapping[str, Mapping[int, float]], limits: Sequence[float],
    marks: Sequence[Mark], newest_s: int, span_s: int,
) -> Timeline:  # fmt: skip
    name, unit = _TITLES[column]
    title = f"{name} in {unit}" if unit else name
    last = "; ".join(f"{line} last {number([*each.values()][-1])}" for line, each in lines.items())
    chart = Timeline(title, f"{title}, the last {duration_text(span_s)}: {last}")
    highest = max((*limits, *(max(line.values()) for line in lines.values())), default=1.0)
    steps = (step * 10.0**power for power in range(-3, 12) for step in (1, 2, 5))
    top = 100.0 if unit == "%" else next((step for step in steps if highest <= step), highest)

    def x(t_s: float) -> float:
        return chart.width * min(1.0, max(0.0, 1 - (newest_s - t_s) / span_s))

    def y(value: float) -> str:
        return f"{chart.height * (1 - min(1.0, value / top)):.1f}"

    for mark in marks:
        wide = f"{max(0.5, x(mark.end_s) - x(mark.start_s)):.1f}"
        chart.marks.append({"x": f"{x(mark.start_s):.1f}", "width": wide, "phase": mark.phase,
                            "is_warmup": mark.is_warmup})  # fmt: skip
    chart.grid = [(y(top * share), number(top * share)) for share in (0.0, 0.5, 1.0)]
    chart.limits = [(y(limit), number(limit)) for limit in limits]
    tick_s = next((step_s for step_s in _TICKS_S if 5 * step_s >= span_s), span_s // 5)
    for age_s in range(0, int(0.95 * span_s), tick_s):
        label = f"-{duration_text(age_s)}" if age_s else "last"
        chart.times.append((f"{100 * (1 - age_s / span_s):.1f}%", label))
    gap = 10 * chart.width * max(1, span_s / STEPS) / span_s
    for i, (line, values) in enumerate(lines.items()):
        path, before = "", None
        for at, value in values.items():
            # A gap of more than ten steps is not bridged.
            is_begin = before is None or x(at) - before > gap
            before = x(at)
            path += f"{'M' if is_begin else 'L'}{before:.1f} {y(value)}"
        chart.lines.append({"name": line, "colour": COLOURS[i % len(COLOURS)], "path": path})
    return chart
