"""Decisions of studies with ``decide`` as text: the state in a line, a table, sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from wattlaw.analysis.decide.decision import LIKELY
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.report.topics.measured import worker_noun
from wattlaw.report.topics.prediction import label
from wattlaw.study.sources import MEASURED

if TYPE_CHECKING:
    from wattlaw.analysis.decide.decision import Decision
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
        unclear = "" if decision.clearly_best else "no setting is clearly best; leading: "
        text = (
            f"decision: {unclear}{label(decision.setting, decision.worker)}: within "
            f"{100 * decision.tolerance:g} % of the best with probability "
            f"{decision.probability:.2f}{_others(decision)}, expected regret "
            f"{fmt.percent(decision.expected_regret, 2)}"
        )
        if decision.meets is not None and decision.meets < LIKELY:
            text += f", meets the constraints with probability {decision.meets:.2f}"
    if decision.gpu_hours_saved is not None:
        text += f"; {_spent(decision)} spent, {_not_spent(decision)} for all other runs"
    return (
        text if decision.stopped_because is None else f"{text}; stops: {decision.stopped_because}"
    )


def _others(decision: Decision) -> str:
    """Return the other candidates with their probabilities where no setting is clearly best."""
    if decision.clearly_best or not decision.others:
        return ""
    shown = (f"{label(item.setting, decision.worker)}: {item.probability:.2f}"
             for item in decision.others)  # fmt: skip
    return f" ({'; '.join(shown)})"


def _spent(decision: Decision) -> str:
    """Return the GPU-hours of the runs that ended, with their origin if that is no measurement."""
    origin = "" if decision.origin == MEASURED else f"{decision.origin} "
    return f"{fmt.number(decision.gpu_hours_spent)} {origin}{decision.worker}-hours"


def _not_spent(decision: Decision) -> str:
    """Return the GPU-hours of the other runs, which are predicted and not added to those spent."""
    return f"{fmt.number(decision.gpu_hours_saved)} (predicted)"


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
        tables.text("setting", _setting),
        tables.Column("probability", lambda row: fmt.percent(row.probability, 2)),
        tables.Column("meets the constraints", lambda row: fmt.percent(row.meets, 2)),
        tables.Column("expected regret", lambda row: fmt.percent(row.expected_regret, 2)),
        tables.number("runs", attrgetter("runs")),
        tables.number(unit, attrgetter("gpu_hours_spent")),
        tables.Column("of all other runs, predicted", _saved),
        tables.text("measuring", _progress),
    ]
    title = "Decisions of studies with decide"
    origins = {item.origin for item in findings.decisions} - {MEASURED}
    if origins and not findings.sources_label:  # which the page adds to every title
        title += f" ({' and '.join(sorted(origins))})"
    note = (
        "Probability: that the setting is within the tolerance of the best. Predicted: "
        f"{unit} of the runs of the study that were not made."
    )
    return tables.build("decision", title, columns, findings.decisions, note=note)


def sentences(findings: Findings) -> Iterator[str]:
    """Yield each decision, with what it used of the GPU-hours of all runs."""
    for item in findings.decisions:
        if item.setting is None or item.gpu_hours_grid is None:
            continue
        origin = "" if item.origin == MEASURED else f" ({item.origin})"
        is_likely = item.meets is None or item.meets >= LIKELY
        missed = (
            "" if is_likely else f" (it meets the constraints with probability {item.meets:.2f})"
        )
        yield (
            f"{item.study}{origin}: {goal_text(item)}: {_setting(item)}, within "
            f"{fmt.percent(item.tolerance)} of the best with probability "
            f"{fmt.number(item.probability, 2)}{_others(item)}{missed}, after "
            f"{fmt.plural(item.runs, 'run')} and {_spent(item)}; all other runs would take "
            f"{_not_spent(item)}."
        )


def in_brief(findings: Findings) -> Iterator[str]:
    """Yield the setting of each decision, for readers of an advice that may name another one."""
    for item in findings.decisions:
        if item.setting is not None:
            yield (
                f"The study {item.study} asks for {goal_text(item)}. Its setting is "
                f"{_setting(item)} (see Decision)."
            )


def _setting(decision: Decision) -> str | None:
    """Return the leading setting, marked where it is not clearly the best."""
    if decision.setting is None:
        return None
    unclear = "" if decision.clearly_best else " (leading, not clearly best)"
    return label(decision.setting, decision.worker) + unclear


def _saved(decision: Decision) -> str | None:
    saved = decision.gpu_hours_saved
    return None if saved is None else fmt.number(saved)


def _progress(decision: Decision) -> str:
    reason = decision.stopped_because
    return f"stopped: {reason}" if reason is not None else "runs are needed"
