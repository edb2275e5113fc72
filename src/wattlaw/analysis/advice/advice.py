"""Advice: how many GPUs, which cap, clock and batch for a job, from what was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from wattlaw.analysis.advice.choice import Constraints, Decision, decide, pareto
from wattlaw.analysis.advice.option import Doubling, Option, Quantity, next_doubling
from wattlaw.analysis.advice.options import measured_options
from wattlaw.analysis.advice.predicted_options import predicted_options
from wattlaw.analysis.advice.warnings import collect_warnings
from wattlaw.analysis.batch_effects import FALLS, BatchQuality, quality_by_batch
from wattlaw.analysis.comparable_runs import (
    WHY_NO_EPOCH,
    ComparableRuns,
    comparable_runs,
)
from wattlaw.analysis.footprint import Footprint
from wattlaw.analysis.result import Caution, Result
from wattlaw.analysis.series import varying_columns
from wattlaw.analysis.to_target import time_to_target
from wattlaw.errors import BadInput, Refused
from wattlaw.formatting import MEASURED, origins_label, plural


@dataclass(frozen=True)
class Advice(Result):
    """The recommended setting, its alternatives, and the limits of the data.

    ``recommended`` is None where no option meets the constraints. ``nearest`` is then the option
    that exceeds them least.
    """

    rows_field = "pareto"
    properties = ("simulated",)

    workload: str
    recommended: Option | None
    reason: str
    nearest: Option | None
    pareto: tuple[Option, ...]
    next_doubling: Doubling | None
    counted: str
    warnings: tuple[Caution, ...]
    unit: str  # what times and energies are of: epoch | sample | step | run
    worker: str = field(repr=False)  # what a "gpu" is called
    several_nodes: bool = field(repr=False)  # a GPU count was run on several numbers of nodes
    origin: str  # of the runs' values: measured | replayed | simulated
    footprint: Footprint | None = field(repr=False)
    decision: Mapping[str, Any] | None = None  # of the store's study with ``decide``

    @property
    def simulated(self) -> bool:
        """Whether all runs are simulated."""
        return self.origin == "simulated"


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
) -> Advice:
    """Return the recommended setting for a workload.

    Parameters
    ----------
    table, epochs
        Of ``metrics.run_metrics``, and the windows of the same runs, for ``target``.
    workload
        The name of the workload. ``comparable_runs`` selects runs of one of its jobs.
    minimize
        A goal of ``planning.question.GOALS``, in place of that of the constraints.
    deadline_s, max_slowdown, energy_budget_j, max_gpus
        The constraints (``advice.choice.decide``). Time and energy are of training.
    epochs_to_train
        The number of epochs to train; by default as many as the runs trained. If the unit of the
        times is not an epoch, totals are for one run, sample or step.
    footprint
        Factors of cost and carbon.
    target
        Train until the metric reaches this value; the epochs then depend on the global batch.

    Returns
    -------
    Advice
        Settings that were not measured are predicted (``predicted_options``), and recommended only
        where no measured one meets the constraints (``measured: false``). Bounds of measured
        options are 95 % t intervals of the mean over repeats; those of predicted ones 95 %
        intervals of a run.

    Raises
    ------
    Refused
        No run of the workload is done, or none reached the target. What was measured does not say
        how long an epoch is, and epochs or a target are given; or how long a training is, and a
        deadline or an energy budget is given.
    BadInput
        A constraint is out of range.
    """
    constraints = Constraints(deadline_s, max_slowdown, energy_budget_j, max_gpus, minimize)
    constraints.check_factors(footprint)
    job = comparable_runs(table, workload)
    needed = needed_epochs(job, epochs, epochs_to_train, target)
    if job.unit in ("sample", "step") and (deadline_s is not None or energy_budget_j is not None):
        raise Refused(
            f"{workload!r} has times of one {job.unit}, so how long a training takes is not known: "
            f"{WHY_NO_EPOCH[job.unit]}"
        )
    quality = quality_by_batch(job.rows).rows
    measured, predicted = (
        [_judged(option, quality, footprint) for option in options]
        for options in (
            measured_options(job, needed.for_setting),
            predicted_options(table, job, needed.for_setting, max_gpus),
        )
    )
    if not measured:
        raise Refused(f"no setting of {workload!r} has a time and the epochs to train")
    near = [option for option in predicted if not option.extrapolates or max_gpus is not None]
    offered = [*measured, *near]
    decision = decide(offered, constraints, job.worker)
    if deadline_s is not None and not decision.is_sure:
        offered = [*measured, *predicted]
        decision = decide(offered, constraints, job.worker)
    shown = [option for option in offered if option.gpus <= (max_gpus or option.gpus)]
    sound = [option for option in shown if not option.falls]
    doubling = (
        None if decision.option is None
        else next_doubling(decision.option, [*measured, *predicted])
    )  # fmt: skip
    return Advice(
        workload=workload,
        unit=job.unit,
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
        several_nodes="nodes" in varying_columns(job.rows),
        origin=origins_label(job.rows["launcher"]) or MEASURED,
        footprint=footprint,
    )  # fmt: skip


def _judged(option: Option, quality: Sequence[BatchQuality], footprint: Footprint | None) -> Option:
    """Add the cost factors, and the warnings about the option's global batch."""
    option = replace(option, footprint=footprint)
    batch = option.setting["global_batch"]
    if batch is None:
        return option
    texts = {
        (row.verdict, text): text
        for row in quality
        if all(row.group.get(name) == option.setting[name] for name in ("hardware", "precision"))
        and (text := row.warning(batch))
    }
    falls = any(verdict == FALLS for verdict, _ in texts)
    return replace(option, quality_warnings=tuple(dict.fromkeys(texts.values())), falls=falls)


def _counted(
    job: ComparableRuns, decision: Decision, epochs: str, footprint: Footprint | None
) -> str:
    """Return a text that says what times, energies and costs include."""
    is_run = bool((job.rows["basis"] == "run").any())
    start_up = "processes from start to end" if is_run else "training alone, without start-up"
    parts = [f"{epochs}: {start_up}"]
    option = decision.option or decision.nearest
    if option is not None and option.eval_time_s is not None:
        parts[0] += f" and evaluation ({option.eval_time_s:.3g} s each time, not counted)"
    elif job.rows["eval_time_s"].notna().any():
        parts[0] += " and evaluation (not counted)"
    factors = footprint or Footprint()
    energy = factors.counted(job.energy_is) if job.energy_is else "energy was not measured"
    return "; ".join([*parts, energy])


@dataclass(frozen=True)
class EpochsNeeded:
    """The epochs to train: a function of the setting (None: unknown), a description, warnings.

    If the unit is not an epoch, the number is 1.
    """

    for_setting: Callable[[dict[str, Any]], Quantity | None]
    description: str
    warnings: tuple[Caution, ...]


def needed_epochs(
    job: ComparableRuns, epochs: pd.DataFrame, wanted: int | None, target: float | None
) -> EpochsNeeded:
    """Return the epochs to train.

    Without ``wanted`` and ``target``, it is the most frequent number of epochs of the runs; of
    equally frequent ones, the largest.

    Raises
    ------
    BadInput
        Epochs below 1, or both epochs and a target are given.
    Refused
        No run reached the target, the direction of the metric is unknown, or the unit of the runs
        is not an epoch.
    """
    if wanted is not None and target is not None:
        raise BadInput("given epochs and a target; allowed: one of them")
    if wanted is not None and wanted < 1:
        raise BadInput(f"epochs: given {wanted}; allowed: 1 or more")
    if job.unit != "epoch" and (wanted is not None or target is not None):
        raise Refused(
            f"{'epochs' if target is None else 'target'}: what was measured is a {job.unit}, not "
            f"an epoch: {WHY_NO_EPOCH[job.unit]}"
        )
    if job.unit != "epoch":
        return _fixed(1, (), job.unit)
    if target is not None:
        return _to_target(job, epochs, target)
    if wanted is not None:
        return _fixed(wanted, ())
    trained = job.rows["epochs_trained"].dropna()
    if trained.empty:
        text = "The number of epochs that the runs trained is unknown: totals are for 1 epoch."
        return _fixed(1, (Caution("epochs-unknown", text),))
    most = int(trained.mode().max())
    trained_text = f"The runs trained {int(trained.min())} to {int(trained.max())} epochs"
    text = f"{trained_text}; totals are for {most} epochs. Set --epochs to change it."
    return _fixed(most, () if trained.nunique() == 1 else (Caution("epochs-differ", text),))


def _fixed(count: int, warnings: tuple[Caution, ...], unit: str = "epoch") -> EpochsNeeded:
    exactly = Quantity(float(count), float(count), float(count))
    return EpochsNeeded(lambda _: exactly, plural(count, unit), warnings)


def _to_target(job: ComparableRuns, epochs: pd.DataFrame, target: float) -> EpochsNeeded:
    """Return the epochs that the runs of a global batch took to the target."""
    settings = time_to_target(job.rows, epochs, target)
    settings = settings[settings["global_batch"].notna()]
    by_batch, failed = {}, {}
    for row in settings.drop_duplicates(_LEARNS).to_dict("records"):
        count = Quantity.of(row["epochs"], row["epochs_low"], row["epochs_high"])
        if count is not None:
            by_batch[tuple(row[name] for name in _LEARNS)] = count
        else:
            failed[row["global_batch"]] = str(row["why"])
    if not by_batch:
        raise Refused(
            f"at no global batch did all runs reach a metric of {target:g}; train longer or choose "
            "an easier target"
        )
    warnings = [
        Caution("target-not-reached", f"Global batch {batch:g} is excluded: {why}.")
        for batch, why in sorted(failed.items())
    ]
    without = job.rows.loc[job.rows["global_batch"].isna(), "run_id"].nunique()
    if without:
        text = f"{without} runs without a known global batch are excluded."
        warnings.append(Caution("batch-unknown", text))
    return EpochsNeeded(
        lambda setting: by_batch.get(tuple(setting[name] for name in _LEARNS)),
        f"the epochs to a metric of {target:g}, by global batch",
        tuple(warnings),
    )


_LEARNS = ["precision", "global_batch"]
