"""Warnings that belong to an advice."""

import math
from collections.abc import Iterator, Sequence

from wattlaw.analysis.advise.choice import Decision
from wattlaw.analysis.advise.option import Option
from wattlaw.analysis.advise.predicted_options import WIDEST
from wattlaw.analysis.decide.question import Constraints
from wattlaw.analysis.metrics.comparable_runs import NOT_DATA_PARALLEL, ComparableRuns
from wattlaw.analysis.metrics.result import Caution
from wattlaw.common.formatting import LIMIT_NAMES

#: The code of the warning that runs may have done different work.
WORK_UNKNOWN = "work-unknown"
_MUCH = 0.05  # share of an epoch's time from which an evaluation gets a warning


def collect_warnings(
    decision: Decision,
    options: Sequence[Option],
    offered: Sequence[Option],
    job: ComparableRuns,
    constraints: Constraints,
    energy_reason: str | None,
) -> list[Caution]:
    """Return the warnings, the most serious first.

    ``options`` ran; those ``offered`` may be recommended, with predicted ones. ``energy_reason``
    states why energies are not ok.
    """
    cautions = list(decision.warnings)
    option = decision.option or decision.nearest
    if option is not None:
        cautions += _of_option(option, options, job)
    if energy_reason is not None and "suspect" in (job.energy_is or ""):
        cautions.append(Caution("energy-reason", f"Energies are suspect: {energy_reason}."))
    cautions += _of_data(options, job)
    cautions += _of_predictions(decision, offered, job, constraints)
    return list(dict.fromkeys(cautions))


def _of_option(option: Option, options: Sequence[Option], job: ComparableRuns) -> Iterator[Caution]:
    if option.is_predicted:
        counts = sorted({item.gpus for item in options})
        text = (
            "This setting did not run: time and energy are predicted from runs on "
            f"{counts[0]} to {counts[-1]} {job.worker}s."
        )
        if option.extrapolates:
            text += f" Outside of their range: {_listed(option)}."
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


def _listed(option: Option) -> str:
    """Return the names of the settings outside of the measured range, in words."""
    names = [_NAMES.get(name, name.replace("_", " ")) for name in option.extrapolates]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


_NAMES = {"gpus": "GPU counts"} | LIMIT_NAMES


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


def _of_predictions(
    decision: Decision, offered: Sequence[Option], job: ComparableRuns, constraints: Constraints
) -> Iterator[Caution]:
    if set(job.rows["parallelism"].dropna()) & {*NOT_DATA_PARALLEL}:
        return  # another warning says so
    known = max(item.gpus for item in offered)
    if 2 * known <= (constraints.max_gpus or (0 if decision.option else math.inf)):
        yield Caution(
            "prediction-ends",
            f"Options end at {known} {job.worker}s: more were not tried, or the 95 % interval of "
            f"their time is wider than a factor of {WIDEST:g}. wattlaw predict shows it and the "
            "measurement that would narrow it most.",
        )
