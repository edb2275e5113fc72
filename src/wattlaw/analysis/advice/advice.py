"""Advice: how many GPUs, which cap, clock and batch for a job, from what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from wattlaw.analysis.advice.choice import Constraints, Decision, decide, pareto
from wattlaw.analysis.advice.comparable_runs import SIMULATED, ComparableRuns, comparable_runs
from wattlaw.analysis.advice.doubling import Doubling, next_doubling
from wattlaw.analysis.advice.epochs import needed_epochs
from wattlaw.analysis.advice.measured import measured_options
from wattlaw.analysis.advice.option import Option
from wattlaw.analysis.advice.predicted import predicted_options
from wattlaw.analysis.advice.warnings import collect_warnings
from wattlaw.analysis.batch_effects import FALLS, BatchQuality, quality_by_batch
from wattlaw.analysis.footprint import Footprint
from wattlaw.analysis.result import Result
from wattlaw.errors import Refused


@dataclass(frozen=True)
class Advice(Result):
    """What to run, what else could be, and how far the data carry it.

    ``recommended`` is None where nothing meets the constraints; ``nearest`` then is the option
    that misses them least.
    """

    rows_field = "pareto"

    workload: str
    recommended: Option | None
    reason: str
    nearest: Option | None
    pareto: tuple[Option, ...]
    next_doubling: Doubling | None
    counted: str
    warnings: tuple[str, ...]
    worker: str = field(repr=False)  # what a "gpu" is called
    simulated: bool  # nothing of it was measured
    footprint: Footprint | None = field(repr=False)


def advise(
    table: pd.DataFrame,
    epochs: pd.DataFrame,
    workload: str,
    *,
    deadline_s: float | None = None,
    max_slowdown: float | None = None,
    energy_budget_j: float | None = None,
    max_gpus: int | None = None,
    epochs_to_train: int | None = None,
    footprint: Footprint | None = None,
    target: float | None = None,
) -> Advice:
    """Return what to run of a workload.

    Parameters
    ----------
    table
        Of ``metrics.run_metrics``.
    epochs
        The store's table of windows, for ``target``.
    workload
        Which one; runs of other jobs under its name are left out, with a warning
        (``advice.job.comparable_runs``).
    deadline_s, max_slowdown, energy_budget_j, max_gpus
        What to keep (``advice.choice.decide``). Time and energy are of training.
    epochs_to_train
        For how many epochs; by default as many as the runs trained.
    footprint
        For cost and carbon.
    target
        Train until the metric reaches this value instead: the epochs that takes, by global batch.

    Returns
    -------
    Advice
        Measured settings come first: a law fills in GPU counts that nobody measured only where no
        measured setting keeps the constraints, and is marked ``measured: false``.

    Notes
    -----
    Bounds of measured options are 95 % t intervals of the mean over repeats; those of predicted
    ones are 95 % prediction intervals of the law.

    Raises
    ------
    Refused
        No run of the workload is done, or none reached the target.
    BadInput
        A constraint that no number can keep.
    """
    constraints = Constraints(deadline_s, max_slowdown, energy_budget_j, max_gpus)
    job = comparable_runs(table, workload)
    needed = needed_epochs(job, epochs, epochs_to_train, target)
    judged = quality_by_batch(job.rows).rows
    measured = [
        _judged(one, judged, footprint) for one in measured_options(job, needed.for_setting)
    ]
    if not measured:
        raise Refused(f"no setting of {workload!r} has a time and the epochs to train")
    predicted = [
        _judged(one, judged, footprint)
        for one in predicted_options(job, needed.for_setting, max_gpus)
    ]
    near = [one for one in predicted if not one.extrapolates or max_gpus is not None]
    offered = [*measured, *near]
    decision = decide(offered, constraints, job.worker)
    if deadline_s is not None and not decision.is_sure:
        offered = [*measured, *predicted]
        decision = decide(offered, constraints, job.worker)
    shown = [one for one in offered if one.gpus <= (max_gpus or one.gpus)]
    sound = [one for one in shown if not one.falls]
    doubling = (
        None if decision.option is None
        else next_doubling(decision.option, [*measured, *predicted])
    )  # fmt: skip
    return Advice(
        workload=workload,
        recommended=decision.option,
        reason=decision.reason,
        nearest=decision.nearest,
        pareto=tuple(pareto(sound or shown)),
        next_doubling=doubling,
        counted=_counted(job, decision, needed.description, footprint),
        warnings=(
            *job.warnings, *needed.warnings,
            *collect_warnings(decision, measured, predicted, doubling, job, constraints),
        ),
        worker=job.worker,
        simulated=bool((job.rows["launcher"] == SIMULATED).all()),
        footprint=footprint,
    )  # fmt: skip


def _judged(option: Option, judged: Sequence[BatchQuality], footprint: Footprint | None) -> Option:
    """Add the cost factors, and what speaks against the option's global batch."""
    option = replace(option, footprint=footprint)
    batch = option.setting["global_batch"]
    if batch is None:
        return option
    own = [
        one
        for one in judged
        if all(one.group.get(name) == option.setting[name] for name in ("hardware", "precision"))
    ]
    found = [words for one in own if (words := one.warning(batch))]
    falls = any(one.verdict == FALLS and one.warning(batch) for one in own)
    return replace(option, quality_warnings=tuple(dict.fromkeys(found)), falls=falls)


def _counted(
    job: ComparableRuns, decision: Decision, epochs: str, footprint: Footprint | None
) -> str:
    """Return in words what times, energies and costs count."""
    words = [f"{epochs}: training alone, without start-up"]
    option = decision.option or decision.nearest
    if option is not None and option.eval_time_s is not None:
        words[0] += f" and evaluation ({option.eval_time_s:.3g} s each time, not counted)"
    elif job.rows["eval_time_s"].notna().any():
        words[0] += " and evaluation (not counted)"
    words.append(
        (footprint or Footprint()).counted(job.energy_is) if job.energy_is else "no energy"
    )
    return "; ".join(words)
