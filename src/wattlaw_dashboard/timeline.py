"""Series of a running run as one SVG: a line for each device, its limit, and the windows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from wattlaw.common.formatting import number, replace_invisible
from wattlaw.report.charts import COLOURS
from wattlaw_dashboard.tails import STEPS, Device, Mark, Totals

#: More devices than this are shown as their mean, least and greatest value.
MOST_LINES = 8
#: The shortest time axis, in steps.
_LEAST_STEPS = 60
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 190, 56, 22, 8
_TITLES = {
    "power_w": ("Power", "W"), "sm_util": ("Utilisation", "%"),
    "sm_clock_mhz": ("SM clock", "MHz"), "temperature_c": ("Temperature", "°C"),
    "cpu_cores": ("Busy cores", ""),
}  # fmt: skip
COLUMNS = tuple(_TITLES)


@dataclass(frozen=True)
class Timeline:
    """One chart: its title, its lines with their colours, and the SVG."""

    title: str
    legend: tuple[tuple[str, str], ...]
    svg: str


def timelines(devices: Sequence[Device], totals: Totals, marks: Sequence[Mark]) -> list[Timeline]:
    """Return a chart of each value that the devices have; one time axis for all."""
    step_s = max((item.step_s for item in devices), default=1)
    seen = [step for item in devices if item.steps for step in (min(item.steps), max(item.steps))]
    newest_s = step_s * max(seen, default=0)
    span_s = step_s * min(STEPS, max(_LEAST_STEPS, max(seen, default=0) - min(seen, default=0)))
    charts = []
    for column in COLUMNS:
        lines = _lines(devices, totals, column)
        if lines:
            limits = {value for item in devices if column == "power_w"
                      if (value := item.last("power_limit_w")) is not None}  # fmt: skip
            charts.append(_chart(column, lines, sorted(limits)[:4], marks, newest_s, span_s))
    return charts


def _lines(
    devices: Sequence[Device], totals: Totals, column: str
) -> dict[str, Mapping[int, float]]:
    """Return the series to draw by name."""
    if len(devices) <= MOST_LINES:
        return {item.title(column): values
                for item in devices if (values := item.series(column))}  # fmt: skip
    lines: dict[str, Mapping[int, float]] = {}
    for name, count in sorted(Counter(item.column(column) for item in devices).items()):
        marked = name.removeprefix(column)
        steps = sorted(totals.steps.get(name, {}).items())
        columns = {
            f"mean of {count} devices{marked}": [each[0] / each[1] for _, each in steps],
            f"least sample{marked}": [each[2] for _, each in steps],
            f"greatest sample{marked}": [each[3] for _, each in steps],
        }
        seconds = [step * totals.step_s for step, _ in steps]
        if steps:
            lines |= {
                line: dict(zip(seconds, values, strict=True)) for line, values in columns.items()
            }
    return lines


def _chart(
    column: str, lines: Mapping[str, Mapping[int, float]], limits: Sequence[float],
    marks: Sequence[Mark], newest_s: int, span_s: int,
) -> Timeline:  # fmt: skip
    name, unit = _TITLES[column]
    highest = max((*limits, *(max(line.values()) for line in lines.values())), default=1.0)
    top = 100.0 if unit == "%" else _ceiling(highest)
    plot_w, plot_h = _WIDTH - _LEFT - 8, _HEIGHT - _BOTTOM - _TOP

    def x(t_s: float) -> float:
        return _LEFT + plot_w * min(1.0, max(0.0, 1 - (newest_s - t_s) / span_s))

    def y(value: float) -> float:
        return _TOP + plot_h * (1 - min(1.0, value / top))

    parts = [
        f'<rect class="mark{" warmup" if mark.is_warmup else ""}" x="{x(mark.start_s):.1f}" '
        f'y="{_TOP}" width="{max(0.5, x(mark.end_s) - x(mark.start_s)):.1f}" height="{plot_h}">'
        f"<title>{escape(replace_invisible(mark.phase))}</title></rect>"
        for mark in marks
    ]
    for share in (0.0, 0.5, 1.0):
        at = f"{y(top * share):.1f}"
        parts += [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{at}" y2="{at}"/>',
            f'<text x="{_LEFT - 6}" y="{at}" dy="4" text-anchor="end">{number(top * share)}</text>',
        ]
    for part in range(5):
        at, anchor = f"{x(newest_s - span_s * part / 5):.1f}", "middle" if part else "end"
        label = f"-{_duration(span_s * part / 5)}" if part else "last sample"
        parts += [f'<text x="{at}" y="{_HEIGHT - 5}" text-anchor="{anchor}">{label}</text>']
    parts += [
        f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y(limit):.1f}" '
        f'y2="{y(limit):.1f}"><title>limit {number(limit)} W</title></line>'
        for limit in limits
    ]
    colours = [COLOURS[index % len(COLOURS)] for index in range(len(lines))]
    for line, colour in zip(lines.values(), colours, strict=True):
        path = _path(
            [(x(at), y(value)) for at, value in line.items()],
            plot_w * max(1, span_s / STEPS) / span_s,
        )
        parts.append(f'<path class="line" stroke="{colour}" d="{path}"/>')
    title = f"{name} in {unit}" if unit else name
    text = f"{title}, the last {_duration(span_s)}: " + "; ".join(
        f"{line} last {number([*values.values()][-1])}" for line, values in lines.items()
    )
    svg = (
        f'<svg class="timeline" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(replace_invisible(text))}">{"".join(parts)}</svg>'
    )
    return Timeline(title, tuple(zip(lines, colours, strict=True)), svg)


def _path(points: Sequence[tuple[float, float]], step: float) -> str:
    """Return the points as a path; a gap of more than ten steps is not bridged."""
    pieces = []
    before = None
    for x, y in points:
        is_gap = before is None or x - before > 10 * step
        pieces.append(f"{'M' if is_gap else 'L'}{x:.1f} {y:.1f}")
        before = x
    return "".join(pieces)


def _duration(seconds: float) -> str:
    return f"{number(seconds)} s" if seconds < 300 else f"{number(seconds / 60)} min"


def _ceiling(value: float) -> float:
    """Return the least of 1, 2 or 5 times a power of ten that is not below a value."""
    steps = (step * 10.0**power for power in range(-3, 12) for step in (1, 2, 5))
    return next((step for step in steps if value <= step), value)
