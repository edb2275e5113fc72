"""Decisions of studies with ``decide`` as text: the state in a line, a table, sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from wattlaw import formatting as fmt
from wattlaw.analysis.decision import LIKELY
from wattlaw.report import tables
from wattlaw.report.topics.measured import worker_noun
from wattlaw.report.topics.prediction import label

if TYPE_CHECKING:
    from wattlaw.analysis.decision import Decision
    from wattlaw.analysis.findings import Findings

_GOALS = {
    "energy": "least energy", "time": "least time", "gpu_hours": "fewest GPU-hours",
    "edp": "least energy x delay", "cost": "least cost", "carbon": "least carbon",
}  # fmt: skip
#: Constraints of a question, as what follows the goal.
_CONSTRAINTS: dict[str, Callable[[Any], str]] = {
    "deadline": lambda value: f"within {fmt.duration_text(value)}",
    "max_slowdown": lambda value: f"at most {fmt.percent(value)} slower than the fastest",
    "energy_budget": lambda value: f"at most {fmt.energy_text(value)}",
    "max_gpus": lambda value: f"at most {fmt.plural(value, 'GPU')}",
    "max_global_batch": lambda value: f"global batch at most {fmt.number(value, 9)}",
    "target": lambda value: f"to {fmt.number(value)} of the metric",
}


def decision_text(decision: Decision) -> str:
    """Return the state of a decision in one line."""
    if decision.setting is None or decision.probability is None or decision.expected_regret is None:
        text = "decision: no setting is known yet"
    else:
        text = (
            f"decision: {label(decision.setting, decision.worker)}: within "
            f"{100 * decision.tolerance:g} % of the best with probability "
            f"{decision.probability:.2f}, expected regret "
            f"{fmt.percent(decision.expected_regret, 2)}"
        )
        if decision.meets is not None and decision.meets < LIKELY:
            text += f", meets the constraints with probability {decision.meets:.2f}"
    if decision.gpu_hours_saved is not None:
        spent = fmt.number(decision.gpu_hours_spent)
        saved, grid = fmt.number(decision.gpu_hours_saved), fmt.number(decision.gpu_hours_grid)
        text += f"; {spent} {decision.worker}-hours spent, {saved} of {grid} saved"
    return (
        text if decision.stopped_because is None else f"{text}; stops: {decision.stopped_because}"
    )


def goal_text(decision: Decision) -> str:
    """Return what is minimized, and under which constraints."""
    question = decision.question
    goal = str(question.get("minimize"))
    numbers = {name: value for name, value in question.items() if isinstance(value, int | float)}
    constraints = [text(numbers[name]) for name, text in _CONSTRAINTS.items() if name in numbers]
    is_replaced = decision.is_without_energy and goal not in ("time", "gpu_hours")
    instead = f" ({decision.worker}-hours replace energy)" if is_replaced else ""
    text = _GOALS.get(goal, goal).replace("GPU", decision.worker)
    return ", ".join([text + instead, *constraints])


def result(findings: Findings) -> tables.Table | None:
    """Return what each decision is, how sure it is, and what it used and saved."""
    unit = f"{worker_noun(findings)}-hours"
    columns = [
        tables.text("study", attrgetter("study")),
        tables.text("workload", attrgetter("workload")),
        tables.text("question", goal_text),
        tables.text("setting", lambda row: row.setting and label(row.setting, row.worker)),
        tables.Column("probability", lambda row: fmt.percent(row.probability, 2)),
        tables.Column("meets the constraints", lambda row: fmt.percent(row.meets, 2)),
        tables.Column("expected regret", lambda row: fmt.percent(row.expected_regret, 2)),
        tables.number("runs", attrgetter("runs")),
        tables.number(unit, attrgetter("gpu_hours_spent")),
        tables.Column("saved", _saved),
        tables.text("measuring", _progress),
    ]
    title = "Decisions of studies with decide"
    origins = {item.origin for item in findings.decisions} - {fmt.MEASURED}
    if origins and not findings.sources_label:  # which the page adds to every title
        title += f" ({' and '.join(sorted(origins))})"
    note = (
        "Probability: that the setting is within the tolerance of the best. Saved: predicted "
        f"{unit} of the runs that were not needed, and their share of all runs of the study."
    )
    return tables.build("decision", title, columns, findings.decisions, note=note)


def sentences(findings: Findings) -> Iterator[str]:
    """Yield each decision, with what it used of the GPU-hours of all runs."""
    for item in findings.decisions:
        if item.setting is None or item.gpu_hours_grid is None:
            continue
        origin = "" if item.origin == fmt.MEASURED else f" ({item.origin})"
        is_likely = item.meets is None or item.meets >= LIKELY
        missed = (
            "" if is_likely else f" (it meets the constraints with probability {item.meets:.2f})"
        )
        yield (
            f"{item.study}{origin}: {goal_text(item)}: {label(item.setting, item.worker)}, within "
            f"{fmt.percent(item.tolerance)} of the best with probability "
            f"{fmt.number(item.probability, 2)}{missed}, after {fmt.plural(item.runs, 'run')} and "
            f"{fmt.number(item.gpu_hours_spent)} of {fmt.number(item.gpu_hours_grid)} "
            f"{item.worker}-hours."
        )


def in_brief(findings: Findings) -> Iterator[str]:
    """Yield the setting of each decision, for readers of an advice that may name another one."""
    for item in findings.decisions:
        if item.setting is not None:
            yield (
                f"The study {item.study} asks for {goal_text(item)}. Its setting is "
                f"{label(item.setting, item.worker)} (see Decision)."
            )


def _saved(decision: Decision) -> str | None:
    saved, grid = decision.gpu_hours_saved, decision.gpu_hours_grid
    if saved is None or not grid:
        return None
    return f"{fmt.number(saved)} ({fmt.percent(saved / grid, 2)})"


def _progress(decision: Decision) -> str:
    reason = decision.stopped_because
    return f"stopped: {reason}" if reason is not None else "runs are needed"
