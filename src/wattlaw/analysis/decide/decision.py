"""The state of a decision of a study with ``decide``, its course, and what to do next."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import numpy as np
from pydantic import TypeAdapter, ValidationError

from wattlaw.analysis.decide.evidence import Evidence
from wattlaw.analysis.decide.next_runs import (
    BUDGET,
    CERTAIN,
    LIKELY,
    NOT_MET,
    NOTHING_LEFT,
    OtherSetting,
    Plan,
)
from wattlaw.analysis.decide.surprises import Surprise, fit_with_repeats
from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics.comparable_runs import unanswered
from wattlaw.analysis.metrics.result import Caution, Result
from wattlaw.analysis.metrics.time_errors import MORE_STEPS
from wattlaw.analysis.predict import reach
from wattlaw.analysis.predict.predictions import misfit_cautions
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.formatting import number
from wattlaw.study.model import Study
from wattlaw.study.not_as_declared import TRAINING_ENDED
from wattlaw.study.question import Decide
from wattlaw.study.setting import Setting
from wattlaw.study.sources import MEASURED, origin_of

#: A study file whose name is not known.
STUDY_FILE = "STUDY.yaml"
#: Bounds of a question that may be loosened.
_BOUNDS = ("deadline", "max_slowdown", "energy_budget", "max_gpu_hours", "max_gpus")
#: Keys of ``decide`` that say how surely and how something is decided, not what.
_NOT_ASKED = {"tolerance", "confidence", "budget", "at_once", "seed"}
NO_ENERGY = Caution(
    "no-energy",
    "The runs have no energy: GPU-hours replace it in what is minimized, and an energy budget is "
    "not checked.",
)


@dataclass(frozen=True)
class CourseRow(Result):
    runs: int
    gpu_hours_spent: float
    setting: Setting | None
    probability: float | None
    expected_regret: float | None


@dataclass(frozen=True)
class Decision(Result):
    properties = ("clearly_best",)

    study: str
    workload: str
    origin: str  # of the runs: measured | simulated | replayed
    question: Mapping[str, Any]  # the keys of ``decide``: what is minimized, and the constraints
    setting: Setting | None  # the leading one; None before the first run
    expected_regret: float | None  # the expected share by which it is worse than the best setting
    probability: float | None  # that this share is within ``tolerance``
    meets: float | None  # the probability that the setting meets all constraints
    tolerance: float
    confidence: float  # the probability at which measuring stops
    gpu_hours_spent: float  # of the runs that ended
    #: Of all runs of the study: measured where they are done, predicted for the others; None before
    #: the first run.
    gpu_hours_grid: float | None
    runs: int  # that ended
    stopped_because: str | None  # why no run is needed any more; None while runs are
    worker: str = "worker"  # what a "gpu" of the runs is called: GPU, or worker on CPUs
    #: Of the whole job on the setting, relative to what the study says is run today.
    time_change: float | None = None
    time_change_from: str | None = None  # the runs, where they show both settings, or the model
    warnings: tuple[Caution, ...] = ()
    #: A row for each number of runs that had ended when runs were chosen, in the order of time.
    course: tuple[CourseRow, ...] = ()
    missing: str | None = None  # what it lacks although ``probability`` reaches ``confidence``
    others: tuple[OtherSetting, ...] = ()  # the likeliest ones beside the leading setting
    surprises: tuple[Surprise, ...] = ()  # how each setting was predicted before its first run
    would_help: str | None = None  # lines of the study file to change, where no run is left
    next_step: str = field(default="", repr=False)  # of ``with_next_step``

    @property
    def clearly_best(self) -> bool:
        """Whether the leading setting is more likely than not within the tolerance."""
        return self.probability is not None and self.probability >= LIKELY

    @property
    def decide(self) -> Decide:
        """The question and its certainty, as the study file states them."""
        sure = {"tolerance": self.tolerance, "confidence": self.confidence}
        return Decide.model_validate({**self.question, **sure})

    @property
    def gpu_hours_saved(self) -> float | None:
        """The predicted GPU-hours of runs that were not made; None before the first run."""
        if self.gpu_hours_grid is None:
            return None
        return max(0.0, self.gpu_hours_grid - self.gpu_hours_spent)

    @property
    def is_without_energy(self) -> bool:
        return NO_ENERGY.code in {warning.code for warning in self.warnings}

    def with_plan(
        self, plan: Plan, evidence: Evidence, grid_hours: float | None, decide: Decide
    ) -> Self:
        """Return the decision after a plan; ``grid_hours`` are the GPU-hours of all runs."""
        job, question, spent = evidence.job, evidence.question, sum(evidence.hours.values())
        budget = decide.budget.gpu_hours
        lacks_energy = (
            question.needs_energy
            and job is not None
            and not any(item.power_per_gpu_w for item in job.observations)
        )
        cautions = [NO_ENERGY] if lacks_energy else []
        if not plan.is_met:
            text = (
                "The leading setting meets the constraints with a probability of "
                f"{number(plan.meets, 2)}: none is likelier to be right. Loosen them, or add "
                "settings to the sweeps."
            )
            cautions.append(Caution("constraints-missed", text))
        if job is not None and plan.setting is not None:
            cautions += misfit_cautions(fit_with_repeats(job.observations, decide.seed))
            cautions += reach.cautions(plan.setting, job.settings, job.board)
        own = [] if job is None else [o for o in job.observations if o.setting == plan.setting]
        if own and all(item.is_short for item in own):
            text = "The leading setting has too few or too unsteady steps."
            cautions.append(Caution("short-run", f"{text} {MORE_STEPS}"))
        if budget is not None and spent > budget:
            text = (
                f"The runs used {number(spent)} {evidence.worker}-hours, more than "
                f"decide.budget.gpu_hours of {number(budget)}: the cost of the first runs is not "
                "known in advance, and that of the others is predicted."
            )
            cautions.append(Caution("budget-exceeded", text))
        if lacks_energy and question.energy_budget_j:
            plan = replace(plan, meets=None)
        change, known_by = _time_change(plan.setting, evidence, decide) or (None, None)
        return replace(
            self,
            **{name: value for name, value in vars(plan).items() if name != "proposals"},
            gpu_hours_spent=spent,
            gpu_hours_grid=grid_hours,
            runs=len(evidence.hours),
            worker=evidence.worker,
            time_change=change,
            time_change_from=known_by,
            warnings=(
                *cautions,
                *evidence.warnings,
                *unanswered(job.warnings if job else (), question.samples),
            ),
        )

    def after(self, previous: "Decision | None") -> Self:
        """Return the decision with the course of ``previous``, if that is of the same question."""
        keys = ("study", "workload", "origin", "question")
        is_same = previous is not None and all(
            getattr(previous, name) == getattr(self, name) for name in keys
        )
        rows = list(previous.course) if previous is not None and is_same else []
        if rows and rows[-1].runs == self.runs:
            rows.pop()  # an interrupted study chooses again after the same runs
        if self.runs:
            own = self.runs, self.gpu_hours_spent, self.setting, self.probability
            rows.append(CourseRow(*own, self.expected_regret))
        return replace(self, course=tuple(rows))

    @classmethod
    def from_dict(cls, values: object) -> "Decision":
        """Return a decision from the values of ``to_dict``; ``BadInput`` names a wrong one."""
        try:
            decision = _adapter().validate_python(values)
            _ = decision.decide
            return decision
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise BadInput(f"{place}: {first['msg']}") from None


def _time_change(
    setting: Setting | None, evidence: Evidence, decide: Decide
) -> tuple[float, str] | None:
    """Return the change of the whole job, and what it is known by; None unless the study says what
    is run today, and has that setting. Where both ran, it is that of their means, as in advice."""
    present = [
        item.decided
        for item in evidence.candidates.values()
        if all(getattr(item.decided, name) == value for name, value in decide.in_use.items())
    ]
    if not decide.in_use or not present or setting is None or evidence.job is None:
        return None
    base = min(present, key=lambda item: sum(getattr(item, name) is not None for name in LIMITS))
    observations, question = evidence.job.observations, evidence.question
    usual, by_batch = question.samples or 1.0, question.samples_by_batch
    samples = [by_batch.get(item.global_batch or 0.0, usual) for item in (setting, base)]
    beside_s = evidence.beside_training([setting, base])[0]
    means = [
        fmean(times)
        for wanted in (setting, base)
        if (times := [it.step_time_s / it.setting.samples
                      for it in observations if it.setting == wanted])
    ]  # fmt: skip
    drawn, known_by = np.array([means]), "runs"
    if len(means) < 2:
        posterior, known_by = fit_with_repeats(observations, decide.seed), "model"
        drawn = posterior.means([setting, base])[0] / [setting.samples, base.samples]
    jobs_s = drawn * samples + beside_s
    return float(np.median(jobs_s[:, 0] / jobs_s[:, 1])) - 1, known_by


def decide_of(study: Study) -> Decide:
    if study.decide is None:
        raise Refused(f"study {study.name}: no decide; allowed: a study file with decide")
    return study.decide


def undecided(study: Study) -> Decision:
    decide = decide_of(study)
    plain = decide.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_ASKED)
    return Decision(
        study=study.name, workload=study.workloads[0].name, origin=origin_of(study.launch.kind),
        question={"minimize": decide.minimize, **plain},
        setting=None, expected_regret=None, probability=None, meets=None,
        tolerance=decide.tolerance, confidence=decide.confidence,
        gpu_hours_spent=0.0, gpu_hours_grid=None, runs=0, stopped_because=None,
    )  # fmt: skip


@cache
def _adapter() -> TypeAdapter[Decision]:
    return TypeAdapter(Decision)


def study_command(store: str, study: str) -> str:
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
        text = f"{study_command(name, copy)}{launch} (makes the runs that the study still needs)"
    else:
        is_spent = decision.stopped_because == BUDGET
        why = (
            "the budget is spent" if is_spent else "no run of the present study is left that helps"
        )
        text = f"{helps}; then {study_command(name, own)}{launch} ({why})"
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
