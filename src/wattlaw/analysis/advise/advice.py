"""Advice: the setting to run, what it saves, how sure that is, and what it rests on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.caveats import (
    WORK_UNKNOWN,
    FasterSetting,
    RestsOn,
    batch_warnings,
    collect_warnings,
    count_left_out,
    faster_settings,
)
from wattlaw.analysis.advise.certainty import NextRun, Savings, Tie, assess
from wattlaw.analysis.advise.choice import choose, pareto
from wattlaw.analysis.advise.offer import Offer, fastest
from wattlaw.analysis.advise.option import Option
from wattlaw.analysis.advise.predicted import models_of
from wattlaw.analysis.advise.run_options import needed_epochs, options_of_runs
from wattlaw.analysis.advise.weak_scaling import WeakScaling, weak_scaling
from wattlaw.analysis.laws.series import varying_columns
from wattlaw.analysis.metrics.comparable_runs import WHY_NO_EPOCH, comparable_runs
from wattlaw.analysis.metrics.result import Caution, Result
from wattlaw.common.errors import NothingToRecommend, Refused
from wattlaw.study.footprint import Footprint
from wattlaw.study.question import Question

#: A setting that is best with a lower probability is a candidate, and not clearly best.
CLEAR = 0.5


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

    properties = ("simulated", "clearly_best")

    workload: str
    unit: str  # what times and energies are of: epoch | sample | step | run
    goal: str  # what is minimized, in words
    recommended: Option | None
    reason: str
    nearest: Option | None
    baseline: Option | None
    savings: Savings | None
    probability: float | None
    spread_from: str | None  # the source of the spread of runs: repeats | model
    tolerance: float
    ties: tuple[Tie, ...]
    rests_on: RestsOn
    next_measurement: NextRun | None
    pareto: tuple[Option, ...]
    any_batch: Option | None
    any_batch_savings: Savings | None
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
        return set(self.rests_on.runs) == {"simulated"}

    @property
    def clearly_best(self) -> bool:
        """Whether the recommended setting is clearly best, and not one of several candidates."""
        if self.weak_scaling is not None and not self.weak_scaling.is_decided:
            return False
        if self.recommended is None or self.probability is not None:
            return (self.probability or 0.0) >= CLEAR
        return WORK_UNKNOWN not in {warning.code for warning in self.warnings}

    def to_frame(self) -> pd.DataFrame:
        """Return the Pareto front of time and energy: a row per option.

        ``recommended`` marks the recommended option. The 95 % interval of a quantity is in
        ``<quantity>_low`` and ``<quantity>_high``.
        """
        best = self.recommended
        options = [*self.pareto, *([best] if best not in (None, *self.pareto) else [])]
        rows: list[dict[str, Any]] = []
        for option in filter(None, options):
            row: dict[str, Any] = {}
            for name, value in option.to_dict().items():
                if name.endswith("_ci"):
                    row[f"{name[:-3]}_low"], row[f"{name[:-3]}_high"] = value or (None, None)
                else:
                    row[name] = value
            rows.append(row | {"recommended": option == best})
        return pd.DataFrame(rows)

    def label(self, option: Option) -> str:
        """Return an option's GPUs and batch, and the settings in which options differ."""
        return option.label(self.worker, self.shown)


def advise(
    table: pd.DataFrame,
    epochs: pd.DataFrame,
    workload: str,
    question: Question | None = None,
    *,
    baseline: Mapping[str, Any] | None = None,
    any_batch: bool = False,
    without_result: Mapping[str, int] | None = None,
    decision: Mapping[str, Any] | None = None,
) -> Advice:
    """Return the recommended setting for a workload, as ``Results.advise`` explains.

    ``table`` is of ``metrics.run_metrics``, and ``epochs`` has the windows of the same runs, for a
    target. ``without_result`` counts the runs that have none (``caveats.runs_without_result``).
    ``comparable_runs`` selects runs of one of the workload's jobs. Settings that did not
    run are predicted, and recommended only where no other meets the constraints. Bounds of options
    are 95 % t intervals of the mean over repeats, on logarithms; those of predicted ones 95 %
    intervals of a run.
    """
    question, job = question or Question(), comparable_runs(table, workload)
    models = models_of(table, job)
    needed = needed_epochs(job, epochs, question.epochs, question.target)
    is_limited = question.deadline_s is not None or question.energy_budget_j is not None
    if job.unit in ("sample", "step") and is_limited:
        raise Refused(
            f"{workload!r} has times of one {job.unit}, so how long a training takes is not known: "
            f"{WHY_NO_EPOCH[job.unit]}"
        )
    question, unpriced = _without_electricity(question, job.energy_is)
    options = options_of_runs(job, needed.for_setting, models, question.footprint)
    if not options:
        raise NothingToRecommend(f"no setting of {workload!r} has a time and the epochs to train")
    offer = Offer.of(job.rows, options, question, baseline, any_batch=any_batch)
    epochs_differ = "epochs-differ" in {item.code for item in needed.warnings}
    offer, choice, larger, chooser = choose(
        offer, question, job.worker, epochs_differ=epochs_differ
    )
    front = pareto(offer.offered)
    quickest = fastest(offer.offered)  # which a slow-down is relative to
    both_scalings = weak_scaling(
        offer.allowed,
        [item for item in offer.offered if item.is_predicted],
        chooser.cost,
        lambda option: chooser.meets(option, quickest),
    )
    found = assess(offer, choice, larger, chooser, job.rows)
    rests_on = RestsOn.of(job, epochs, offer)
    return Advice(
        workload=workload,
        unit=job.unit,
        goal=chooser.goal_text,
        recommended=choice.option,
        reason=choice.reason,
        nearest=choice.nearest,
        baseline=offer.base,
        savings=found.savings,
        probability=found.sure.probability,
        spread_from=found.spread_from,
        tolerance=question.tolerance,
        ties=found.sure.ties,
        rests_on=rests_on,
        next_measurement=found.sure.next_run,
        pareto=front,
        any_batch=larger.option,
        any_batch_savings=found.larger_savings,
        weak_scaling=both_scalings,
        batches_left_out=tuple(sorted({item.global_batch or 0 for item in offer.batches_left_out})),
        left_out={**(without_result or {}), **count_left_out(job, offer)},
        faster_left_out=() if offer.named else faster_settings(offer.base, offer),
        warnings=(
            *batch_warnings(offer, choice.option),
            *unpriced,
            *job.warnings,
            *needed.warnings,
            *collect_warnings(choice, offer, job, rests_on.energy_reason),
        ),
        worker=job.worker,
        shown=tuple(varying_columns(job.rows)),
        baseline_is_named=offer.named is not None,
        any_batch_meets=larger.meets,
        footprint=question.footprint,
        decision=decision if (decision or {}).get("workload") == workload else None,
    )


def _without_electricity(
    question: Question, energy_is: str | None
) -> tuple[Question, tuple[Caution, ...]]:
    """Return the question; a cost without known energy is of GPU-hours alone."""
    prices = question.footprint
    if question.minimize != "cost" or energy_is is not None or prices is None:
        return question, ()
    if None in (prices.price_per_kwh, prices.price_per_gpu_hour):
        return question, ()
    text = "No energy is known: the cost is that of GPU-hours, electricity is not counted."
    prices = replace(prices, price_per_kwh=None)
    return replace(question, footprint=prices), (Caution("electricity-not-counted", text),)
