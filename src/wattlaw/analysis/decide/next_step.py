"""What to do next, as every command, the report and the dashboard say it.

While runs of a study are left, that is the command that makes them. Where none is left and the
decision is not certain, it is what to change in the study file.
"""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattlaw.analysis.decide.decision import Decision, decide_of
from wattlaw.analysis.decide.next_runs import BUDGET, CERTAIN, NOT_MET, NOTHING_LEFT
from wattlaw.study.model import Study
from wattlaw.study.not_as_declared import TRAINING_ENDED
from wattlaw.study.setting import Setting
from wattlaw.study.sources import MEASURED

#: A study file whose name is not known.
STUDY_FILE = "STUDY.yaml"
#: Bounds of a question that may be loosened.
_BOUNDS = ("deadline", "max_slowdown", "energy_budget", "max_gpu_hours", "max_gpus")


def run_command(store: str, study: str) -> str:
    return f"wattlaw run {study} --store {store}"


def with_next_step(
    decision: Decision, store: Path, study: Study | None = None, study_file: Path | None = None
) -> Decision:
    """Return the decision with what to do next, with the ``study_file`` where it is known.

    A ``study`` replaces the stored ``would_help``.
    """
    helps = decision.would_help if study is None else _would_help(study, decision)
    name = shlex.quote(str(store))
    own = STUDY_FILE if study_file is None else shlex.quote(str(study_file))
    # The copy of a replayed study lacks the table beside the study file.
    copy = shlex.quote(str(store / "studies" / f"{decision.study}.yaml"))
    copy = copy if study_file is None and decision.origin == MEASURED else own
    # The launcher may be of the command line only.
    launch = " --launch simulated" if decision.origin == "simulated" else ""
    if decision.stopped_because == CERTAIN:
        text = "nothing, the decision is certain enough"
    elif helps is None:
        text = f"{run_command(name, copy)}{launch} (makes the runs that the study still needs)"
    else:
        is_spent = decision.stopped_because == BUDGET
        why = (
            "the budget is spent" if is_spent else "no run of the present study is left that helps"
        )
        text = f"{helps}; then {run_command(name, own)}{launch} ({why})"
    return replace(decision, would_help=helps, next_step=text)


def _would_help(study: Study, decision: Decision) -> str | None:
    """Return which lines of the study file to change, and how; None while it goes on."""
    reason, measure, decide = decision.stopped_because, study.measure, decide_of(study)
    if reason in (None, CERTAIN):
        return None
    length = next(key for key in ("epochs", "steps", "seconds") if getattr(measure, key))
    codes = {item.code for item in decision.warnings}
    longer, anew = f"set {length}: {2 * getattr(measure, length)} under measure", "all start anew"
    if TRAINING_ENDED in codes or _exceeds_training(study, decision):
        longer = "let the script train longer, by an argument such as its epochs"
    text = "correct what wattlaw status shows of the failed runs, or remove them from the sweeps"
    if reason == BUDGET:
        budget = decide.budget.model_dump(exclude_none=True)
        larger = ", ".join(f"{key}: {2 * value}" for key, value in budget.items())
        text = f"set budget: {{{larger}}} under decide in the study file, for more runs"
    elif reason == NOTHING_LEFT and "short-run" in codes:
        text = f"{longer} in the study file (its runs are too short to be sure by; {anew})"
    elif reason == NOTHING_LEFT:
        text = f"set repeats: {2 * study.repeats} in the study file (done runs count), or {longer}"
        text += f" (longer runs, which {anew})"
    elif reason == NOT_MET:
        counts = sorted({count for sweep in study.sweeps for count in sweep.gpus})
        listed = ", ".join(map(str, [*counts, 2 * counts[-1]]))
        text = f"add settings to the sweeps of the study file, such as gpus: [{listed}]"
        bounds = [key for key in _BOUNDS if decision.question.get(key) is not None]
        text += f", or loosen {' or '.join(bounds)} under decide" if bounds else ""
    elif decision.question.get("target") is not None:
        text = f"set a target that runs reach under decide, or {longer} ({anew}), in the study file"
    return text


def _exceeds_training(study: Study, decision: Decision) -> bool:
    """Return whether the command's training has less than twice the steps that are measured."""
    measure, decide, workload = study.measure, decide_of(study), study.workloads[0]
    samples = decide.total_samples or (decide.epochs or 0) * (workload.dataset_samples or 0)
    batch = decision.setting.global_batch if decision.setting is not None else None
    if workload.command is None or not samples or not batch or measure.steps is None:
        return False
    return (measure.warmup_steps + 2 * measure.steps) * batch > samples


def sweep_text(setting: Setting) -> str | None:
    """Return the line of a study that has this setting alone; None if its batch is not known."""
    if setting.local_batch is None or setting.local_batch % 1:
        return None
    values: dict[str, Any] = {"gpus": setting.gpus, "nodes": setting.nodes}
    layout = setting.layout
    layout.pop("gradient_accumulation", None)
    if layout and setting.global_batch:
        values |= {"global_batch": int(setting.global_batch), **layout}
        values["micro_batch"] = setting.micro_batch and int(setting.micro_batch)
    else:
        values["local_batch"] = int(setting.local_batch)
    for key in ("power_limit_w", "clock_limit_mhz", "power_profile"):
        values[key] = getattr(setting, key)
    values["precision"] = None if setting.precision == "fp32" else setting.precision
    values["nodes"] = None if setting.nodes == 1 else setting.nodes
    known = {
        key: str(value).lower() if isinstance(value, bool) else f"{value:g}"
        if isinstance(value, float) else value
        for key, value in values.items() if value is not None
    }  # fmt: skip
    return f"sweeps: [{{{', '.join(f'{key}: [{value}]' for key, value in known.items())}}}]"
