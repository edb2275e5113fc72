"""Advice: the setting to run, what it saves, how sure that is, and what it rests on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd

from wattlaw.analysis.advise import choice, comparison
from wattlaw.analysis.advise.batches import Batches
from wattlaw.analysis.advise.footprint import Footprint
from wattlaw.analysis.advise.left_out import FasterSetting, count_left_out, faster_settings
from wattlaw.analysis.advise.option import Option
from wattlaw.analysis.advise.options import baseline_of, needed_epochs, options_of_runs
from wattlaw.analysis.advise.predicted_options import SEPARATE, models_of, predicted_options
from wattlaw.analysis.advise.run_hours import run_hours
from wattlaw.analysis.advise.warnings import WORK_UNKNOWN, collect_warnings
from wattlaw.analysis.advise.weak_scaling import WeakScaling, weak_scaling
from wattlaw.analysis.decide.question import Constraints, Question
from wattlaw.analysis.laws.series import varying_columns
from wattlaw.analysis.metrics.comparable_runs import WHY_NO_EPOCH, ComparableRuns, comparable_runs
from wattlaw.analysis.metrics.result import Caution, Result
from wattlaw.common.errors import NothingToRecommend, Refused
from wattlaw.study.sources import source_of

#: A setting that is best with a lower probability is a candidate, and not clearly best.
CLEAR = 0.5


@dataclass(frozen=True)
class RestsOn(Result):
    """What an advice rests on."""

    runs: Mapping[str, int]  # of the job by source; all of them show how much runs scatter
    settings: Mapping[str, int]  # that are compared, by source; predicted ones, too
    repeats: tuple[int, int]  # the fewest and the most runs of a setting
    energy_is: str | None  # what the energies count, such as ``gpu+cpu, counter``
    energy_verdicts: Mapping[str, int]  # the number of runs by the verdict of their energy
    energy_reason: str | None  # the most frequent reason of a verdict that is not ok


@dataclass(frozen=True)
class Advice(Result):
    """The recommended setting, its savings, how sure it is, and what it rests on.

    ``recommended`` is None where no option meets the constraints. ``nearest`` is then the option
    that exceeds them least. ``probability`` is that of being within the tolerance of the best
    option that is compared; None if the uncertainty is unknown. If it is below 50 %, no setting is
    ``clearly_best``: the candidates are the recommended option and ``ties``, each with its
    probability. ``any_batch`` is the option to run if the quality at its larger global batch is
    acceptable, which is not known; its savings are relative to the recommended option, or else to
    the nearest one.
    """

    rows_field = "pareto"
    properties = ("simulated", "clearly_best")

    workload: str
    unit: str  # what times and energies are of: epoch | sample | step | run
    goal: str  # what is minimized, in words
    recommended: Option | None
    reason: str
    nearest: Option | None
    baseline: Option | None
    savings: comparison.Savings | None
    probability: float | None
    spread_from: str | None  # the source of the spread of runs: repeats | model
    tolerance: float
    ties: tuple[comparison.Tie, ...]
    rests_on: RestsOn
    next_measurement: comparison.NextRun | None
    pareto: tuple[Option, ...]
    any_batch: Option | None
    any_batch_savings: comparison.Savings | None
    weak_scaling: WeakScaling | None  # both answers where the batch grows with the workers
    batches_left_out: tuple[int, ...]  # global batches of lower or unknown quality
    left_out: Mapping[str, int]  # runs of the workload that are not compared, by the reason
    faster_left_out: tuple[FasterSetting, ...]  # than the baseline, unless that is named
    warnings: tuple[Caution, ...]
    worker: str = field(repr=False)  # what a "gpu" is called
    shown: tuple[str, ...] = field(repr=False)  # settings that a label names
    baseline_is_named: bool = field(repr=False)
    any_batch_meets: str = field(repr=False)  # ``meets the deadline of 2 d``; empty without bounds
    footprint: Footprint | None = field(repr=False)
    decision: Mapping[str, Any] | None = None  # of the store's study with ``decide``

    @property
    def simulated(self) -> bool:
        """Whether all runs are simulated."""
        return set(self.rests_on.runs) == {"simulated"}

    @property
    def clearly_best(self) -> bool:
        """Whether the recommended setting is clearly best, and not one of several candidates."""
        if self.weak_scaling is not None and not self.weak_scaling.is_decided:
            return False
        if self.recommended is None or self.probability is not None:
            return (self.probability or 0.0) >= CLEAR
        return WORK_UNKNOWN not in {warning.code for warning in self.warnings}

    def label(self, option: Option) -> str:
        """Return an option's GPUs and batch, and the settings in which options differ."""
        return option.label(self.worker, self.shown)


def advise(
    table: pd.DataFrame,
    epochs: pd.DataFrame,
    workload: str,
    *,
    minimize: str | None = None,
    deadline_s: float | None = None,
    max_slowdown: float | None = None,
    energy_budget_j: float | None = None,
    max_gpus: int | None = None,
    epochs_to_train: int | None = None,
    footprint: Footprint | None = None,
    target: float | None = None,
    baseline: Mapping[str, Any] | None = None,
    any_batch: bool = False,
    without_result: Mapping[str, int] | None = None,
) -> Advice:
    """Return the recommended setting for a workload, as ``Results.advise`` explains.

    ``table`` is of ``metrics.run_metrics``, and ``epochs`` has the windows of the same runs, for a
    target. ``without_result`` counts the runs that have none (``left_out.runs_without_result``).
    ``comparable_runs`` selects runs of one of the workload's jobs. Settings that did not
    run are predicted, and recommended only where no other meets the constraints. Bounds of options
    are 95 % t intervals of the mean over repeats, on logarithms; those of predicted ones 95 %
    intervals of a run.
    """
    constraints = Constraints(minimize, deadline_s, max_slowdown, energy_budget_j, max_gpus)
    choice.check_factors(constraints, footprint)
    job = comparable_runs(table, workload)
    needed = needed_epochs(job, epochs, epochs_to_train, target)
    if job.unit in ("sample", "step") and (deadline_s is not None or energy_budget_j is not None):
        raise Refused(
            f"{workload!r} has times of one {job.unit}, so how long a training takes is not known: "
            f"{WHY_NO_EPOCH[job.unit]}"
        )
    footprint, unpriced = choice.without_electricity(constraints, footprint, job.energy_is)
    models = models_of(table, job)
    options = [
        replace(
            option, footprint=footprint, model=models.get(tuple(map(option.setting.get, SEPARATE)))
        )
        for option in options_of_runs(job, needed.for_setting)
    ]
    if not options:
        raise NothingToRecommend(f"no setting of {workload!r} has a time and the epochs to train")
    named = None if baseline is None else baseline_of(options, baseline)
    # Epochs to a target are known where quality is.
    batches = Batches.of(job.rows, options, named, any_batch=any_batch or target is not None)
    at = None if named is None else options.index(named)
    options = [batches.judged(option) for option in options]
    named = None if at is None else options[at]
    allowed = [item for item in options if item.gpus <= (max_gpus or item.gpus)]
    sound = [item for item in allowed if batches.allows(item)]

    def allows(option: Option) -> bool:
        return option.gpus <= (max_gpus or option.gpus) and batches.allows(batches.judged(option))

    predicted = predicted_options(options, allows, max_gpus, far=max_gpus is not None)
    offered = [*sound, *map(batches.judged, predicted)] or options
    decision = choice.decide(offered, constraints, job.worker)
    if not sound:
        decision = _none_is_sound(allowed, options, f"{max_gpus} {job.worker}s")
    elif deadline_s is not None and max_gpus is None and decision.option is None:
        far = predicted_options(options, allows, None, far=True)
        offered = [*sound, *map(batches.judged, far)]
        decision = choice.decide(offered, constraints, job.worker)
    by_energy = any(item.energy_j for item in offered if not item.is_predicted)
    compared = [item for item in offered if item.energy_j or not by_energy]
    if decision.option is None and "epochs-differ" in {item.code for item in needed.warnings}:
        decision = choice.as_trained(decision, sound, constraints, job.worker)
    base, best = named or choice.fastest(compared), decision.option
    fastest = choice.fastest(offered)  # which a slow-down is relative to
    meets = partial(choice.meets, constraints=constraints, base=fastest)
    goal = choice.goal_of(constraints, footprint, by_energy=by_energy)
    is_sure, draws = comparison.Certainty(None, (), None), None
    if best is not None:
        question = _question(goal, constraints, footprint, fastest)
        others = [] if base in compared else [base]
        if len(compared) + len(others) > 1:
            draws = comparison.draw([*compared, *others], options)
        is_sure = comparison.certainty(best, compared, draws, question, run_hours(job.rows), meets)
    larger = _with_any_batch(allowed, batches, constraints, job.worker)
    shown = best or decision.nearest or base
    rests_on = _rests_on(job, epochs, options, compared)
    return Advice(
        workload=workload,
        unit=job.unit,
        goal=choice.goal_text(goal, job.worker, by_energy=by_energy),
        recommended=best,
        reason=decision.reason,
        nearest=decision.nearest,
        baseline=base,
        savings=None if best is None else comparison.savings(best, base, draws),
        probability=is_sure.probability,
        spread_from=None if draws is None or is_sure.probability is None else draws.spread_from,
        tolerance=Question().tolerance,
        ties=is_sure.ties,
        rests_on=rests_on,
        next_measurement=is_sure.next_run,
        pareto=tuple(choice.pareto(offered)),
        any_batch=larger.option,
        any_batch_savings=None if larger.option is None else comparison.savings(
            larger.option, shown, comparison.draw([larger.option, shown], options)
        ),
        weak_scaling=weak_scaling(
            allowed, [item for item in offered if item.is_predicted],
            partial(choice.goal_value, goal, by_energy=by_energy), meets,
        ),
        batches_left_out=batches.left_out(allowed),
        left_out={
            **(without_result or {}),
            **count_left_out(job, options, allowed, batches, by_energy=by_energy),
        },
        faster_left_out=() if named else faster_settings(
            base, options, compared, allowed, batches
        ),
        warnings=(
            *batches.warnings(allowed, best), *unpriced, *job.warnings, *needed.warnings,
            *collect_warnings(decision, options, offered, job, constraints, rests_on.energy_reason),
        ),
        worker=job.worker,
        shown=tuple(varying_columns(job.rows)),
        baseline_is_named=named is not None,
        any_batch_meets=larger.meets,
        footprint=footprint,
    )  # fmt: skip


def _none_is_sound(
    allowed: Sequence[Option], options: Sequence[Option], most: str
) -> choice.Decision:
    """Return the decision where no setting on at most so many GPUs may be recommended."""
    least = min(allowed or options, key=lambda item: (item.gpus, item.train_time_s.mean))
    if allowed:
        reason = f"No setting on at most {most} has a batch of known quality."
    else:
        reason = f"Every setting needs more than {most}."
    return choice.Decision(None, reason, least)


def _with_any_batch(
    allowed: Sequence[Option], batches: Batches, constraints: Constraints, worker: str
) -> choice.Decision:
    """Return what to recommend of the runs if every batch without a known fall is acceptable.

    It has no option where this is a batch that may be recommended anyway.
    """
    possible = [item for item in allowed if not item.falls or batches.allows(item)]
    if possible:
        decision = choice.decide(possible, constraints, worker)
        if decision.option is not None and not batches.allows(decision.option):
            return decision
    return choice.Decision(None, "")


def _question(
    goal: str, constraints: Constraints, footprint: Footprint | None, base: Option
) -> Question:
    """Return the question of the constraints; a slow-down is relative to ``base``."""
    factors = footprint or Footprint()
    bounds = [constraints.deadline_s] if constraints.deadline_s is not None else []
    if constraints.max_slowdown is not None:
        bounds.append((1 + constraints.max_slowdown) * base.train_time_s.mean)
    return Question(
        goal,
        deadline_s=min(bounds, default=None),
        energy_budget_j=constraints.energy_budget_j,
        price_per_kwh=(factors.price_per_kwh or 0.0) * (factors.pue or 1.0),
        price_per_gpu_hour=factors.price_per_gpu_hour or 0.0,
    )


def _rests_on(
    job: ComparableRuns, epochs: pd.DataFrame, options: Sequence[Option], compared: Sequence[Option]
) -> RestsOn:
    rows = job.rows
    repeats = [item.repeats for item in options]
    reasons = epochs.loc[epochs["run_id"].isin(rows["run_id"]), "energy_reason"].dropna()
    verdicts = rows["energy_verdict"].value_counts()
    return RestsOn(
        runs=dict(Counter(rows["launcher"].map(source_of))),
        settings=dict(Counter(item.source for item in compared)),
        repeats=(min(repeats), max(repeats)),
        energy_is=job.energy_is,
        energy_verdicts={str(verdict): int(count) for verdict, count in verdicts.items()},
        energy_reason=None if reasons.empty else str(reasons.mode()[0]),
    )
