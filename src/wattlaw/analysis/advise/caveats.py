"""What an advice rests on, what it does not compare, and what a reader must know of it."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.choice import Choice
from wattlaw.analysis.advise.offer import Offer
from wattlaw.analysis.advise.option import Option
from wattlaw.analysis.advise.predicted import WIDEST
from wattlaw.analysis.metrics.comparable_runs import NOT_DATA_PARALLEL, ComparableRuns
from wattlaw.analysis.metrics.result import Caution, Result
from wattlaw.study.labels import LIMIT_NAMES
from wattlaw.study.sources import source_of

#: Statuses of runs that have no results although they were started, or were to be.
_WITHOUT_RESULT = ("failed", "interrupted", "skipped")
#: Why a setting is not compared.
UNKNOWN_BATCH, _LOWER_BATCH = "batch of unknown quality", "batch of lower quality"
_NO_ENERGY = "no comparable energy"


@dataclass(frozen=True)
class RestsOn(Result):
    """What an advice rests on."""

    runs: Mapping[str, int]  # of the job by source; all of them show how much runs scatter
    settings: Mapping[str, int]  # that are compared, by source; predicted ones, too
    repeats: tuple[int, int]  # the fewest and the most runs of a setting
    energy_is: str | None  # what the energies count, such as ``gpu+cpu, counter``
    energy_verdicts: Mapping[str, int]  # the number of runs by the verdict of their energy
    energy_reason: str | None  # the most frequent reason of a verdict that is not ok

    @classmethod
    def of(cls, job: ComparableRuns, epochs: pd.DataFrame, offer: Offer) -> "RestsOn":
        rows = job.rows
        repeats = [item.repeats for item in offer.ran]
        reasons = epochs.loc[epochs["run_id"].isin(rows["run_id"]), "energy_reason"].dropna()
        verdicts = rows["energy_verdict"].value_counts()
        return cls(
            runs=dict(Counter(rows["launcher"].map(source_of))),
            settings=dict(Counter(item.source for item in offer.compared)),
            repeats=(min(repeats), max(repeats)),
            energy_is=job.energy_is,
            energy_verdicts={str(verdict): int(count) for verdict, count in verdicts.items()},
            energy_reason=None if reasons.empty else str(reasons.mode()[0]),
        )


@dataclass(frozen=True)
class FasterSetting(Result):
    """A setting of the job that ran faster than the baseline, and why it is not compared."""

    option: Option
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return self.option.to_dict() | {"reason": self.reason}


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


def count_left_out(job: ComparableRuns, offer: Offer) -> dict[str, int]:
    def runs(options: Iterable[Option]) -> int:
        return sum(item.repeats for item in options)

    left = offer.batches_left_out if offer.sound else []
    counts = {
        "without a time or the epochs to train": len(job.rows) - runs(offer.ran),
        f"with a {UNKNOWN_BATCH}": runs(item for item in left if not item.falls),
        f"with a {_LOWER_BATCH}": runs(item for item in left if item.falls),
        f"with {_NO_ENERGY}": runs(
            item for item in offer.sound if offer.by_energy and not item.energy_j
        ),
    }
    return dict(job.left_out) | {reason: count for reason, count in counts.items() if count > 0}


def faster_settings(base: Option, offer: Offer) -> tuple[FasterSetting, ...]:
    """Return the fastest setting of each reason for which one faster than ``base`` is left out."""
    by_reason: dict[str, FasterSetting] = {}
    for item in sorted(offer.ran, key=lambda item: item.train_time_s.mean):
        if item.train_time_s.mean < base.train_time_s.mean and item not in offer.compared:
            reason = _NO_ENERGY
            if item not in offer.allowed:
                reason = "more GPUs than allowed"
            elif item not in offer.sound:
                reason = _LOWER_BATCH if item.falls else UNKNOWN_BATCH
            by_reason.setdefault(reason, FasterSetting(item, reason))
    return tuple(by_reason.values())


#: The code of the warning that runs may have done different work.
WORK_UNKNOWN = "work-unknown"
_NAMES = {"gpus": "GPU counts"} | LIMIT_NAMES
_MAX_LISTED = 4  # batches
_MUCH = 0.05  # share of an epoch's time from which an evaluation gets a warning


def collect_warnings(
    choice: Choice, offer: Offer, job: ComparableRuns, energy_reason: str | None
) -> list[Caution]:
    """Return the warnings, the most serious first."""
    cautions = list(choice.warnings)
    option = choice.option or choice.nearest
    if option is not None:
        cautions += _of_option(option, offer.ran, job)
    if energy_reason is not None and "suspect" in (job.energy_is or ""):
        cautions.append(Caution("energy-reason", f"Energies are suspect: {energy_reason}."))
    cautions += _of_data(offer.ran, job)
    known = max(item.gpus for item in offer.offered)
    most = offer.max_gpus or (0 if choice.option else math.inf)
    is_parallel = set(job.rows["parallelism"].dropna()).isdisjoint(NOT_DATA_PARALLEL)
    if is_parallel and 2 * known <= most:  # else another warning says so
        cautions.append(
            Caution(
                "prediction-ends",
                f"Options end at {known} {job.worker}s: more were not tried, or the 95 % interval "
                f"of their time is wider than a factor of {WIDEST:g}. wattlaw predict shows it and "
                "the measurement that would narrow it most.",
            )
        )
    return list(dict.fromkeys(cautions))


def batch_warnings(offer: Offer, best: Option | None) -> Iterator[Caution]:
    """Yield what is left out for its batch, and what is wrong with that of the best option."""
    left = offer.batches_left_out
    unknown = sorted({item.global_batch or 0 for item in left if not item.falls})
    falling = sorted({item.global_batch or 0 for item in left if item.falls})

    def listed(batches: Sequence[int]) -> str:
        more = ", ..." if len(batches) > _MAX_LISTED else ""
        return ", ".join(map(str, batches[:_MAX_LISTED])) + more

    if unknown:
        text = f"Global batches of unknown quality are left out ({listed(unknown)})."
        yield Caution("batch-quality-unknown", f"{text} --any-batch includes them.")
    if falling:
        text = f"Excluded because quality is lower: global batch {listed(falling)}."
        yield Caution("batch-excluded", text)
    if best is not None and best.falls:
        yield Caution("quality-falls", "Quality is lower at this global batch.")
    if best is not None:
        yield from (Caution("quality", text) for text in best.quality_warnings)


def _of_option(option: Option, options: Sequence[Option], job: ComparableRuns) -> Iterator[Caution]:
    if option.is_predicted:
        counts = sorted({item.gpus for item in options})
        text = (
            "This setting did not run: time and energy are predicted from runs on "
            f"{counts[0]} to {counts[-1]} {job.worker}s."
        )
        if option.extrapolates:
            names = [_NAMES.get(name, name.replace("_", " ")) for name in option.extrapolates]
            listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
            text += f" Outside of their range: {listed}."
        yield Caution("extrapolated" if option.extrapolates else "predicted", text)
    elif option.repeats == 1:
        text = "This setting ran once, so it has no interval: its uncertainty is unknown."
        yield Caution("measured-once", text)
    share = (option.eval_time_s or 0) / option.time_s.mean
    if option.unit == "epoch" and share >= _MUCH:
        yield Caution(
            "evaluation-not-included",
            f"An evaluation takes {100 * share:.0f} % of an epoch's training time and is not "
            "included.",
        )


def _of_data(options: Sequence[Option], job: ComparableRuns) -> Iterator[Caution]:
    if job.energy_is is None:
        text = f"No energy is known: the advice considers time and {job.worker}-hours, not energy."
        yield Caution("no-energy", text)
    elif without := sum(item.energy_j is None for item in options):
        text = f"{without} of {len(options)} settings have no comparable energy"
        yield Caution("energy-incomplete", f"{text} and are not considered.")
    once = sum(item.repeats == 1 for item in options)
    are_imported = {item.source for item in options} == {"imported"}
    if job.unit == "run" and are_imported and once == len(options) > 1:
        text = (
            f"These {len(options)} runs may have done different work: each is a whole process of "
            "another setting, and only the name of the workload is the same. Repeat a setting to "
            "check this."
        )
        yield Caution(WORK_UNKNOWN, text)
    if once and once < len(options):
        text = f"{once} of {len(options)} settings ran once and have no interval."
        yield Caution("settings-measured-once", text)
    if job.rows["metric"].isna().all() and job.rows["global_batch"].nunique() > 1:
        text = "Quality is not known: global batches may differ in quality."
        yield Caution("quality-not-measured", text)
    precisions = sorted({str(item.setting["precision"]) for item in options})
    if len(precisions) > 1:
        text = f"The settings differ in precision ({', '.join(precisions)}): compare quality, too."
        yield Caution("precisions-differ", text)
