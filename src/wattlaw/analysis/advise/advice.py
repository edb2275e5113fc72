"""Advice: the setting to run, what it saves, how sure that is, and what it rests on."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.amounts import needed_epochs
from wattlaw.analysis.advise.certainty import NextRun, Savings, Tie, certainty, draw, savings
from wattlaw.analysis.advise.choice import Choice, choose, fastest, pareto
from wattlaw.analysis.advise.option import Option
from wattlaw.analysis.advise.possible_options import (
    LOWER_BATCH,
    UNKNOWN_BATCH,
    WIDEST,
    Options,
    read_options,
)
from wattlaw.analysis.advise.whole_job import whole_job_cautions
from wattlaw.analysis.metrics.comparable_runs import (
    NOT_DATA_PARALLEL,
    WHY_NO_EPOCH,
    ComparableRuns,
    comparable_runs,
)
from wattlaw.analysis.metrics.result import Caution, Result
from wattlaw.analysis.predict import reach
from wattlaw.analysis.predict.posterior import fit
from wattlaw.analysis.predict.predictions import misfit_cautions
from wattlaw.common.errors import Refused
from wattlaw.common.formatting import names_text
from wattlaw.study.footprint import Footprint
from wattlaw.study.labels import LIMIT_NAMES
from wattlaw.study.question import Question
from wattlaw.study.sources import source_of

#: A setting that is best with a lower probability is a candidate, and not clearly best.
CLEAR = 0.5
#: Statuses of runs that have no results although they were started, or were to be.
_WITHOUT_RESULT = ("failed", "interrupted", "skipped")
_NO_ENERGY = "no comparable energy"
#: The codes of warnings that runs may have done different work.
WORK_UNKNOWN, BATCH_UNKNOWN = "work-unknown", "batch-unknown"
#: Epochs of unknown length that take at least this share of the time on the fewest workers may have
#: more samples on more workers; numbers of samples that differ by this share are of other epochs.
_HARDLY_FASTER, _MORE_SAMPLES = 0.8, 0.05
_NAMES = {"gpus": "GPU counts"} | LIMIT_NAMES
_MAX_LISTED = 4  # batches


@dataclass(frozen=True)
class RestsOn(Result):
    runs: Mapping[str, int]  # of the job by source; all of them show how much runs scatter
    settings: Mapping[str, int]  # that are compared, by source; predicted ones, too
    repeats: tuple[int, int]  # the fewest and the most runs of a setting
    energy_is: str | None  # what the energies count, such as ``gpu+cpu, counter``
    energy_verdicts: Mapping[str, int]  # the number of runs by the verdict of their energy
    energy_reason: str | None  # the most frequent reason of a verdict that is not ok

    @classmethod
    def of(
        cls, job: ComparableRuns, epochs: pd.DataFrame, options: Options, choice: Choice
    ) -> "RestsOn":
        rows, repeats = job.rows, [item.repeats for item in options.ran]
        reasons = epochs.loc[epochs["run_id"].isin(rows["run_id"]), "energy_reason"].dropna()
        verdicts = rows["energy_verdict"].value_counts()
        return cls(
            runs=dict(Counter(rows["launcher"].map(source_of))),
            settings=dict(Counter(item.source for item in choice.compared)),
            repeats=(min(repeats), max(repeats)),
            energy_is=job.energy_is,
            energy_verdicts={str(verdict): int(count) for verdict, count in verdicts.items()},
            energy_reason=None if reasons.empty else str(reasons.mode()[0]),
        )


@dataclass(frozen=True)
class FasterSetting(Result):
    option: Option
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return self.option.to_dict() | {"reason": self.reason}


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
    batches_left_out: tuple[int, ...]  # global batches of lower or unknown quality
    left_out: Mapping[str, int]  # runs of the workload that are not compared, by the reason
    faster_left_out: tuple[FasterSetting, ...]  # than the baseline, unless that is named
    warnings: tuple[Caution, ...]
    worker: str = field(repr=False)  # what a "gpu" is called
    baseline_is_named: bool = field(repr=False)
    any_batch_meets: str = field(repr=False)  # ``meets the deadline of 2 d``; empty without bounds
    footprint: Footprint | None = field(repr=False)
    deadline_s: float | None = field(repr=False)
    decision: Mapping[str, Any] | None = None  # of the store's study with ``decide``

    @property
    def simulated(self) -> bool:
        return set(self.rests_on.runs) == {"simulated"}

    @property
    def clearly_best(self) -> bool:
        codes = {warning.code for warning in self.warnings}
        if WORK_UNKNOWN in codes or (self.unit == "step" and BATCH_UNKNOWN in codes):
            return False
        if self.recommended is None or self.probability is not None:
            return (self.probability or 0.0) >= CLEAR
        return True

    def to_frame(self) -> pd.DataFrame:
        """Return the Pareto front of time and energy: a row per option.

        ``recommended`` marks the recommended option. The 95 % interval of a quantity is in
        ``<quantity>_low`` and ``<quantity>_high``.
        """
        best, options = self.recommended, list(self.pareto)
        if best is not None and best not in options:
            options.append(best)
        rows: list[dict[str, Any]] = []
        for option in options:
            row: dict[str, Any] = {}
            for name, value in option.to_dict().items():
                if name.endswith("_ci"):
                    row[f"{name[:-3]}_low"], row[f"{name[:-3]}_high"] = value or (None, None)
                else:
                    row[name] = value
            rows.append(row | {"recommended": option == best})
        return pd.DataFrame(rows)


def advise(
    table: pd.DataFrame,
    epochs: pd.DataFrame,
    workload: str,
    question: Question | None = None,
    *,
    baseline: Mapping[str, Any] | None = None,
    any_batch: bool = False,
    far: bool = False,
    without_result: Mapping[str, int] | None = None,
    decision: Mapping[str, Any] | None = None,
) -> Advice:
    """Return the recommended setting for a workload, as ``Results.advise`` explains.

    ``table`` is of ``metrics.run_metrics``, and ``epochs`` has the windows of the same runs, for a
    target. ``without_result`` counts the runs that have none (``runs_without_result``).
    ``comparable_runs`` selects runs of one of the workload's jobs. Settings that did not
    run are predicted, and recommended only where no other meets the constraints. Bounds of options
    are 95 % intervals of the mean on other days and nodes (``metrics.variation``); those of
    predicted ones 95 % intervals of a run.
    """
    job = comparable_runs(table, workload)
    question, warnings = question or Question(), list(job.warnings)
    bounds = question.deadline_s, question.energy_budget_j, question.max_gpu_hours
    is_limited = any(bound is not None for bound in bounds)
    if job.unit in ("sample", "step") and is_limited:
        raise Refused(
            f"{workload!r} has times of one {job.unit}, so how long a training takes is not known: "
            f"{WHY_NO_EPOCH[job.unit]}"
        )
    prices = question.footprint
    is_priced_twice = prices and None not in (prices.price_per_kwh, prices.price_per_gpu_hour)
    if prices and is_priced_twice and question.minimize == "cost" and job.energy_is is None:
        question = replace(question, footprint=replace(prices, price_per_kwh=None))
        warnings.insert(0, Caution(
            "electricity-not-counted",
            "No energy is known: the cost is that of GPU-hours, electricity is not counted.",
        ))  # fmt: skip

    amounts, cautions = needed_epochs(job, epochs, question.epochs, question.target)
    warnings += cautions
    epochs_differ = "epochs-differ" in {item.code for item in cautions}
    options = read_options(table, job, amounts, question, baseline, any_batch=any_batch, far=far)
    choice, larger = choose(options, question, job.worker, epochs_differ=epochs_differ)
    is_late = choice.recommended is None and question.deadline_s is not None
    if is_late and options.sound and question.max_gpus is None:
        options = options.predict(outside=True)
        choice, larger = choose(options, question, job.worker, epochs_differ=epochs_differ)
    front = pareto(options.offered)
    base = options.named or fastest(choice.compared)  # what savings refer to
    sure = certainty(choice, base, options.ran, job.rows)
    any_batch_savings = None
    if larger is not None and larger.recommended is not None:
        others = larger.recommended, choice.recommended or choice.nearest or base
        any_batch_savings = savings(*others, draw(others, options.ran))

    rests_on = RestsOn.of(job, epochs, options, choice)
    warnings = [*_of_batches(options, choice.recommended), *warnings, *choice.warnings]
    if (option := choice.recommended or choice.nearest) is not None:
        warnings += _of_option(option, options.ran, job)
        warnings += whole_job_cautions(option, question.deadline_s)
    if rests_on.energy_reason is not None and "suspect" in (job.energy_is or ""):
        warnings.append(
            Caution("energy-reason", f"Energies are suspect: {rests_on.energy_reason}.")
        )
    warnings += _of_data(options, job)
    known = max(item.gpus for item in options.offered)
    most = question.max_gpus or (0 if choice.recommended else math.inf)
    is_parallel = set(job.rows["parallelism"].dropna()).isdisjoint(NOT_DATA_PARALLEL)
    if is_parallel and 2 * known <= most:  # else another warning says so
        text = (
            f"Options end at {known} {job.worker}s: more were not tried, or the 95 % interval of "
            f"their time is wider than a factor of {WIDEST:g}. wattlaw predict shows it and the "
            "measurement that would narrow it most."
        )
        warnings.append(Caution("prediction-ends", text))

    left = [item for item in options.allowed if item.left_out]
    faster: dict[str, FasterSetting] = {}  # the fastest setting of each reason
    for item in sorted(options.ran, key=lambda item: item.train_time_s.mean):
        is_faster = item.train_time_s.mean < base.train_time_s.mean
        if options.named is None and is_faster and item not in choice.compared:
            reason = item.left_out or _NO_ENERGY
            faster.setdefault(reason, FasterSetting(item, reason))
    return Advice(
        workload=workload,
        unit=job.unit,
        goal=choice.goal,
        recommended=choice.recommended,
        reason=choice.reason,
        nearest=choice.nearest,
        baseline=base,
        tolerance=question.tolerance,
        **vars(sure),
        rests_on=rests_on,
        pareto=front,
        any_batch=larger.recommended if larger else None,
        any_batch_savings=any_batch_savings,
        batches_left_out=tuple(sorted({item.global_batch or 0 for item in left})),
        left_out={**(without_result or {}), **job.left_out, **_left_out(job, options, choice)},
        faster_left_out=tuple(faster.values()),
        warnings=tuple(dict.fromkeys(warnings)),
        worker=job.worker,
        baseline_is_named=options.named is not None,
        any_batch_meets=larger.meets if larger else "",
        footprint=question.footprint,
        deadline_s=question.deadline_s,
        decision=decision if (decision or {}).get("workload") == workload else None,
    )


def runs_without_result(
    runs: pd.DataFrame, timed: Sequence[str] | pd.Series, workload: str
) -> dict[str, int]:
    """Return how many runs of a workload have no result, by the reason.

    ``runs`` are of ``store.schema``; ``timed`` are the ids of those that have a time.
    """
    own = runs[runs["workload"] == workload]
    counts = {name: int((own["status"] == name).sum()) for name in _WITHOUT_RESULT}
    untimed = (own["status"] == "done") & ~own["run_id"].isin(timed)
    counts["done without a measured window"] = int(untimed.sum())
    return {reason: count for reason, count in counts.items() if count}


def _left_out(job: ComparableRuns, options: Options, choice: Choice) -> dict[str, int]:
    ran = sum(item.repeats for item in options.ran)
    reasons = (f"with a {UNKNOWN_BATCH}", f"with a {LOWER_BATCH}", f"with {_NO_ENERGY}")
    counts = {"without a time or the epochs to train": len(job.rows) - ran}
    counts |= dict.fromkeys(reasons, 0)
    for item in options.ran if options.sound else ():
        if item.left_out in (UNKNOWN_BATCH, LOWER_BATCH):
            counts[f"with a {item.left_out}"] += item.repeats
        elif not item.left_out and item not in choice.compared:
            counts[f"with {_NO_ENERGY}"] += item.repeats
    return {reason: count for reason, count in counts.items() if count > 0}


def _of_batches(options: Options, best: Option | None) -> Iterator[Caution]:
    shown = {}
    for reason in (UNKNOWN_BATCH, LOWER_BATCH):
        left = [item for item in options.ran if item.left_out == reason]
        batches = sorted({item.global_batch or 0 for item in left})
        more = ", ..." if len(batches) > _MAX_LISTED else ""
        shown[reason] = ", ".join(map(str, batches[:_MAX_LISTED])) + more
    if unknown := shown[UNKNOWN_BATCH]:
        text = f"Global batches of unknown quality are left out ({unknown})."
        yield Caution("batch-quality-unknown", f"{text} --any-batch includes them.")
    if lower := shown[LOWER_BATCH]:
        text = f"Excluded because quality is lower: global batch {lower}."
        yield Caution("batch-excluded", text)
    if best is not None:
        if best.falls:
            yield Caution("quality-falls", "Quality is lower at this global batch.")
        yield from (Caution("quality", text) for text in best.quality_warnings)


def _of_option(option: Option, ran: Sequence[Option], job: ComparableRuns) -> Iterator[Caution]:
    if option.is_predicted:
        counts = sorted({item.gpus for item in ran})
        text = (
            "This setting did not run: time and energy are predicted from runs on "
            f"{counts[0]} to {counts[-1]} {job.worker}s."
        )
        if option.extrapolates:
            names = [_NAMES.get(name, name.replace("_", " ")) for name in option.extrapolates]
            text += f" Outside of their range: {names_text(names)}."
        yield Caution("extrapolated" if option.extrapolates else "predicted", text)
        if option.model is not None:
            yield from misfit_cautions(fit(option.model.observations))
            yield from reach.cautions(option.setting, option.model.settings, option.model.board)
    elif option.repeats == 1:
        text = "This setting ran once, so it has no interval: its uncertainty is unknown."
        if option.interval_from:
            text = f"This setting ran once: its interval is from {option.interval_from}."
        yield Caution("measured-once", text)


def _of_data(options: Options, job: ComparableRuns) -> Iterator[Caution]:
    ran = options.ran
    if job.energy_is is None:
        text = f"No energy is known: the advice considers time and {job.worker}-hours, not energy."
        yield Caution("no-energy", text)
    elif without := sum(item.energy_j is None for item in ran):
        text = f"{without} of {len(ran)} settings have no comparable energy"
        yield Caution("energy-incomplete", f"{text} and are not considered.")
    once = sum(item.repeats == 1 for item in ran)
    are_imported = {item.source for item in ran} == {"imported"}
    if job.unit == "run" and are_imported and once == len(ran) > 1:
        text = (
            f"These {len(ran)} runs may have done different work: each is a whole process of "
            "another setting, and only the name of the workload is the same. Repeat a setting to "
            "check this."
        )
        yield Caution(WORK_UNKNOWN, text)
    if once and once < len(ran):
        text = f"{once} of {len(ran)} settings ran once: their repeats would show how runs vary."
        yield Caution("settings-measured-once", text)
    if job.rows["metric"].isna().all() and job.rows["global_batch"].nunique() > 1:
        text = "Quality is not known: global batches may differ in quality."
        yield Caution("quality-not-measured", text)
    precisions = sorted({str(item.setting.precision) for item in ran})
    if len(precisions) > 1:
        text = f"The settings differ in precision ({', '.join(precisions)}): compare quality, too."
        yield Caution("precisions-differ", text)
    # A unit may have more samples on more workers, where the batch grows with them.
    ran = tuple(options.allowed)
    counts: dict[int | None, set[int]] = {}
    for item in ran:
        counts.setdefault(item.global_batch, set()).add(item.gpus)
    if len(counts) < 2 or None in counts or any(len(gpus) > 1 for gpus in counts.values()):
        return
    fewest, most = (of(ran, key=lambda item: item.gpus) for of in (min, max))
    per_sample_s = [item.per.get("time_per_sample_s") for item in ran]
    samples = [
        item.time_s.mean / time_s for item, time_s in zip(ran, per_sample_s, strict=True) if time_s
    ]
    if job.unit == "sample" or fewest.gpus == most.gpus:
        return
    if len(samples) == len(ran):
        differs = max(samples) > (1 + _MORE_SAMPLES) * min(samples)
    else:
        differs = most.time_s.mean >= _HARDLY_FASTER * fewest.time_s.mean
    if differs:
        has = "has" if len(samples) == len(ran) else "may have"
        unit = f"An {job.unit}" if job.unit == "epoch" else f"A {job.unit}"
        text = f"{unit} {has} more samples on more {job.worker}s: compare times of a sample."
        yield Caution(WORK_UNKNOWN, text)
