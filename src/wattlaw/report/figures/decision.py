"""The course of decisions: expected regret and probability against the GPU-hours spent."""

from typing import Any

import altair as alt
import pandas as pd

from wattlaw.analysis.decide.decision import Decision
from wattlaw.analysis.findings import Findings
from wattlaw.report.figures import parts
from wattlaw.report.figures.labels import shorten_middle, unique_labels
from wattlaw.report.theme import FAINT, Spec, line_styles
from wattlaw.report.topics.decision import goal_text
from wattlaw.report.topics.prediction import label

_WIDTH, _HEIGHT = 400, 240
#: Leading settings with a colour of their own, and decisions with panels.
_MAX_SETTINGS, _MAX_DECISIONS = 6, 3
_OTHERS = "other settings"
#: The GPU-hours are on a logarithmic axis where the last are more than this multiple of the first.
_WIDE = 20.0


def course(findings: Findings) -> Spec | None:
    """Draw the expected regret and the probability after each run, by leading setting."""
    tables = [(item, table) for item in findings.decisions if len(table := _table(item))]
    if not tables:
        return None
    shown = tables[:_MAX_DECISIONS]
    leading = pd.concat([table["setting"] for _, table in shown])
    final = [table["setting"].iloc[-1] for _, table in shown]
    named = list(dict.fromkeys([*final, *leading.value_counts().index]))[:_MAX_SETTINGS]
    labels = unique_labels(named)
    lines = [*labels.values(), *([_OTHERS] if set(leading) - set(named) else [])]
    styles = line_styles(lines, 2 * _WIDTH)
    panels = []
    for item, table in shown:
        rows = table.assign(line=table["setting"].map(labels).fillna(_OTHERS))
        title = shorten_middle(f"{item.study}: {goal_text(item)}", 60)
        subtitle = "" if item.origin == "measured" else item.origin
        panels += [
            parts.panel(layers, title, _WIDTH, _HEIGHT, subtitle)
            for layers in (
                _layers(rows, item, "regret", "expected regret (%)", item.tolerance, styles),
                _layers(rows, item, "probability", "probability (%)", item.confidence, styles),
            )
        ]
    notes = [
        "Colours are leading settings.",
        "Dashed lines are the tolerance and the confidence at which measuring stops.",
        parts.not_shown(len(tables) - len(shown), "decision"),
    ]
    return parts.concat(panels, 2, notes, 2 * (_WIDTH + 60))


def _table(decision: Decision) -> pd.DataFrame:
    """Return hours, regret and probability in percent, and leading setting of each row."""
    rows = [
        (row.gpu_hours_spent, 100 * regret, 100 * probability, label(setting, decision.worker))
        for row in decision.course
        if (setting := row.setting) is not None
        and (regret := row.expected_regret) is not None
        and (probability := row.probability) is not None
    ]
    return pd.DataFrame(rows, columns=["hours", "regret", "probability", "setting"])


def _layers(
    rows: pd.DataFrame, item: Decision, column: str, title: str, share: float, styles: Any
) -> list[Any]:
    hours, unit, level = rows["hours"], f"{item.worker}-hours", 100 * share
    is_wide = hours.min() > 0 and hours.max() > _WIDE * hours.min()
    x = parts.x_axis("hours", f"spent ({unit})", hours, log=bool(is_wide), zero=True)
    is_log = column == "regret" and rows["regret"].min() > 0
    values = [*rows[column], level] if column == "regret" else [0.0, 100.0]
    y = parts.y_axis(column, title, values, log=bool(is_log), zero=True)
    joined = alt.Chart(parts.compact(rows, "hours", column)).mark_line(
        color=FAINT, strokeWidth=1.2, interpolate="step-after"
    )
    tooltip = {"line": "leading setting", "hours": unit, column: title}
    return [
        parts.reference_line(level),
        joined.encode(x=x, y=y),
        parts.points(rows, x, y, styles, tooltip),
    ]
