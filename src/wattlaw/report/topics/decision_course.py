"""Decisions of studies with ``decide``: their state in a line, and their course as a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from wattlaw.analysis.decide.next_runs import CERTAIN, LIKELY, MOST_SHORT
from wattlaw.common import formatting as fmt
from wattlaw.report import charts, tables
from wattlaw.report.facets import shorten_middle, unique_labels
from wattlaw.report.sections import Content, Parts
from wattlaw.report.topics.advice_text import percent
from wattlaw.report.topics.prediction import checked, label
from wattlaw.study.sources import MEASURED

if TYPE_CHECKING:
    from wattlaw.analysis.decide.decision import Decision
    from wattlaw.analysis.findings import Findings
    from wattlaw.report.charts import Spec
    from wattlaw.study.setting import Setting

_GOALS = {
    "energy": "least energy", "time": "least time", "gpu_hours": "fewest GPU-hours",
    "edp": "least energy x delay", "cost": "least cost", "carbon": "least carbon",
}  # fmt: skip
#: Constraints of a question, as what follows the goal.
_CONSTRAINTS: dict[str, Callable[[Any], str]] = {
    "deadline": lambda value: f"within {fmt.duration_text(value)}",
    "max_slowdown": lambda value: f"at most {fmt.percent(value)} slower than the fastest",
    "energy_budget": lambda value: f"at most {fmt.energy_text(value)}",
    "max_gpu_hours": lambda value: f"at most {fmt.work_text(value)}",
    "max_gpus": lambda value: f"at most {fmt.plural(value, 'GPU')}",
    "max_global_batch": lambda value: f"global batch at most {fmt.number(value, 9)}",
    "target": lambda value: f"to {fmt.number(value)} of the metric",
}
_WIDTH, _HEIGHT = 400, 240
#: Leading settings with a colour of their own, and decisions with panels.
_MAX_SETTINGS, _MAX_DECISIONS = 6, 3
_OTHERS = "other settings"
#: The GPU-hours are on a logarithmic axis where the last are more than this multiple of the first.
_WIDE = 20.0


def leading_text(decision: Decision) -> str:
    if decision.setting is None or decision.probability is None:
        return "decision: no setting is known yet"
    is_most = decision.missing is not None and decision.probability <= MOST_SHORT
    most = "at most " if is_most else ""
    sure = f"{most}{_at_least(decision.probability)} sure to be within "
    sure += f"{fmt.percent(decision.tolerance)} of the best"
    if not decision.others and decision.probability == 1:
        sure = "the only setting to choose from"
    unclear = "" if decision.clearly_best else "no setting is clearly best; leading: "
    text = f"decision: {unclear}{label(decision.setting, decision.worker)}: {sure}"
    if decision.meets is not None and decision.meets < LIKELY:
        text += f", {_at_least(decision.meets)} sure to meet the constraints"
    return text


def decision_text(decision: Decision) -> str:
    """Return which setting leads, what it saves, and what was spent and is missing, as a line.

    ``decision.json`` has the rest.
    """
    text = leading_text(decision)
    if decision.setting is not None and decision.expected_regret is not None:
        text += f", on average {fmt.percent(decision.expected_regret, 2)} worse than the best"
    if decision.time_change:
        text += f", {fmt.less(decision.time_change, 'time')} than what you run"
        text += " (predicted)" if decision.time_change_from == "model" else ""
    return text + _spent(decision)


def choice_text(decision: Decision, settings: Sequence[Setting]) -> str:
    """Return which setting leads, and what is measured next and why, as two short lines."""
    lines = [leading_text(decision)]
    if decision.stopped_because is not None:
        lines.append(f"measuring stops after {_hours_spent(decision)}: {decision.stopped_because}")
        if decision.stopped_because != CERTAIN:
            lines.append(f"not certain; measure next: {decision.next_step}")
    elif settings:
        following = label(settings[0], decision.worker)
        following += f" and {len(settings) - 1} more" if len(settings) > 1 else ""
        why = decision.missing or f"{percent(decision.confidence)} are needed"
        if decision.meets is not None and decision.meets < LIKELY:
            why = "it may not meet the constraints"
        lines.append(f"not certain: {why}; next: {following}" if decision.setting is not None
                     else f"next: {following}")  # fmt: skip
    return "\n".join(lines)


def _at_least(probability: float) -> str:
    return percent(math.floor(100 * probability + 1e-9) / 100)  # 0.896 is not the needed 90 %


def _spent(decision: Decision) -> str:
    text = ""
    if decision.gpu_hours_saved is not None:
        # Hours of other runs are predicted, so they are not added to those that were spent.
        text += (
            f"; {_hours_spent(decision)} spent, "
            f"{fmt.work_text(decision.gpu_hours_saved, decision.worker)} predicted for all others"
        )
    if decision.stopped_because is not None:
        text += f"; stops: {decision.stopped_because}"
    if decision.missing is not None and decision.stopped_because != CERTAIN:
        text += f"; not certain: {decision.missing}"
    if decision.next_step and decision.stopped_because != CERTAIN:
        text += f"; measure next: {decision.next_step}"
    return text


def _hours_spent(decision: Decision) -> str:
    origin = "" if decision.origin == MEASURED else f"{decision.origin} "
    return fmt.work_text(decision.gpu_hours_spent, f"{origin}{decision.worker}")


def goal_text(decision: Decision) -> str:
    question = decision.question
    goal = str(question.get("minimize"))
    numbers = {name: value for name, value in question.items() if isinstance(value, int | float)}
    constraints = [text(numbers[name]) for name, text in _CONSTRAINTS.items() if name in numbers]
    is_replaced = decision.is_without_energy and goal not in ("time", "gpu_hours")
    instead = f" ({decision.worker}-hours replace energy)" if is_replaced else ""
    text = ", ".join([_GOALS.get(goal, goal) + instead, *constraints])
    return text.replace("GPU", decision.worker)


def build(content: Content) -> Parts:
    yield from sentences(content.findings)
    yield from content.pictures
    yield expected(content.findings)


def sentences(findings: Findings) -> Iterator[str]:
    for item in findings.decisions:
        origin = ""
        if item.origin != MEASURED and not findings.sources_label:  # which the page's title has
            origin = f" ({item.origin})"
        is_answer = any(
            advice.decision == item and advice.spread_from == "decision"
            for advice in findings.advice
        )
        state = f"the answer above{_spent(item)}"
        if not is_answer:
            state = decision_text(item).removeprefix("decision: ")
        runs = fmt.plural(item.runs, "run")
        yield f"{item.study}{origin}: {goal_text(item)} (after {runs}): {fmt.full_stop(state)}"


def course(findings: Findings) -> Spec | None:
    tables = [(item, table) for item in findings.decisions if len(table := _table(item))]
    if not tables:
        return None
    shown = tables[:_MAX_DECISIONS]
    leading = pd.concat([table["setting"] for _, table in shown])
    final = [table["setting"].iloc[-1] for _, table in shown]
    named = list(dict.fromkeys([*final, *leading.value_counts().index]))[:_MAX_SETTINGS]
    labels = unique_labels(named)
    lines = [*labels.values(), *([_OTHERS] if set(leading) - set(named) else [])]
    styles = charts.line_styles(lines, 2 * _WIDTH)
    panels = []
    for item, table in shown:
        rows = table.assign(line=table["setting"].map(labels).fillna(_OTHERS))
        title = shorten_middle(f"{item.study}: {goal_text(item)}", 60)
        subtitle = "" if item.origin == MEASURED else item.origin
        hours, unit = rows["hours"], f"{item.worker}-hours"
        is_wide = bool(hours.min() > 0 and hours.max() > _WIDE * hours.min())
        x = charts.x_axis("hours", f"spent ({unit})", hours, log=is_wide, zero=True)
        regrets = [*rows["regret"], 100 * item.tolerance]
        is_log = bool(rows["regret"].min() > 0)
        axes = {
            "regret": (
                charts.y_axis("regret", "expected regret (%)", regrets, log=is_log, zero=True),
                item.tolerance,
            ),
            "probability": (
                charts.y_axis("probability", "probability (%)", [0.0, 100.0], zero=True),
                item.confidence,
            ),
        }
        for column, (y, level) in axes.items():
            tooltip = {"line": "leading setting", "hours": unit, column: y["title"]}
            layers = [
                charts.reference_line(100 * level),
                charts.layer(
                    rows, "line", {"x": x, "y": y},
                    color=charts.FAINT, strokeWidth=1.2, interpolate="step-after",
                ),
                charts.points(rows, x, y, styles, tooltip),
            ]  # fmt: skip
            panels.append(charts.panel(layers, title, _WIDTH, _HEIGHT, subtitle))
    notes = [
        "Colours are leading settings.",
        "Dashed lines are the tolerance and the confidence at which measuring stops.",
        charts.not_shown(len(tables) - len(shown), "decision"),
    ]
    return charts.figure(panels, 2, notes, 2 * (_WIDTH + 60))


def expected(findings: Findings) -> tables.Table | None:
    rows = [(item, shown) for item in findings.decisions for shown in item.surprises]
    several = len({item.study for item, _ in rows}) > 1
    study = [tables.text("study", lambda row: row[0].study)] if several else []
    columns = [*study, *checked(lambda _: "step")]
    note = "Each setting is predicted from the runs before its first one. Nine in ten should be "
    note += "in the 90 % interval; surprises widen the intervals of what is predicted next."
    title = "Predicted against measured, run by run"
    return tables.build("surprises", title, columns, rows, note=note)


def _table(decision: Decision) -> pd.DataFrame:
    rows = [
        (row.gpu_hours_spent, 100 * regret, 100 * probability, label(setting, decision.worker))
        for row in decision.course
        if (setting := row.setting) is not None
        and (regret := row.expected_regret) is not None
        and (probability := row.probability) is not None
    ]
    return pd.DataFrame(rows, columns=["hours", "regret", "probability", "setting"])
