"""Warnings that belong to an advice."""

import math
from collections.abc import Iterator, Sequence

from wattlaw.analysis.advice.choice import Constraints, Decision
from wattlaw.analysis.advice.option import SETTING, Doubling, Option
from wattlaw.analysis.advice.predicted_options import WIDEST
from wattlaw.analysis.caps.choice import (
    UNKNOWN,
    LeastEnergyDelay,
    LeastEnergyWithin,
    Rule,
    best_limit,
)
from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.comparable_runs import ENERGY, TIME, ComparableRuns
from wattlaw.analysis.result import Caution
from wattlaw.analysis.series import NOT_DATA_PARALLEL
from wattlaw.errors import Refused
from wattlaw.formatting import LIMIT_NAMES

_MUCH = 0.05  # share of an epoch's time from which an evaluation gets a warning


def collect_warnings(
    decision: Decision,
    measured: Sequence[Option],
    predicted: Sequence[Option],
    doubling: Doubling | None,
    job: ComparableRuns,
    constraints: Constraints,
) -> list[Caution]:
    """Return the warnings, the most serious first."""
    cautions = list(decision.warnings)
    option = decision.option or decision.nearest
    if option is not None:
        cautions += _of_option(option, job)
    cautions += _of_data(measured, job, decision)
    cautions += _of_predictions(decision, measured, predicted, job, constraints)
    if doubling is not None and doubling.option.extrapolates:
        text = (
            f"The next doubling ({doubling.option.gpus} {job.worker}s) is outside of the range of "
            f"the runs ({_listed(doubling.option)}): it is predicted from "
            f"{_range(doubling.option, job)}."
        )
        cautions.append(Caution("doubling-extrapolated", text))
    if doubling is not None and doubling.option.falls:
        text = "Quality is lower at the global batch of the next doubling."
        cautions.append(Caution("doubling-quality-falls", text))
    if decision.option is not None and decision.option.measured:
        cautions += _rival_limits(decision.option, job, constraints)
    return list(dict.fromkeys(cautions))


def _of_option(option: Option, job: ComparableRuns) -> Iterator[Caution]:
    if option.extrapolates:
        yield Caution(
            "extrapolated",
            f"{option.gpus} {job.worker}s were not run: time and energy are predicted from runs on "
            f"{_range(option, job)}. Outside of their range: {_listed(option)}.",
        )
    elif not option.measured:
        yield Caution(
            "predicted",
            "This setting was not run: time and energy are predicted from runs on "
            f"{_range(option, job)}.",
        )
    elif option.repeats == 1:
        yield Caution(
            "measured-once",
            "This setting was run once, so it has no interval: its uncertainty is unknown.",
        )
    if option.falls:
        yield Caution("quality-falls", "Quality is lower at this global batch.")
    yield from (Caution("quality", text) for text in option.quality_warnings)
    share = (option.eval_time_s or 0) / option.time_s.mean
    if option.unit == "epoch" and share >= _MUCH:
        yield Caution(
            "evaluation-not-included",
            f"An evaluation takes {100 * share:.0f} % of an epoch's training time and is not "
            "included.",
        )


def _range(option: Option, job: ComparableRuns) -> str:
    least, most = option.measured_gpus or (option.gpus, option.gpus)
    return f"{least} to {most} {job.worker}s"


def _listed(option: Option) -> str:
    """Return the names of the settings outside of the measured range, in words."""
    names = [_NAMES.get(name, name.replace("_", " ")) for name in option.extrapolates]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


_NAMES = {"gpus": "GPU counts"} | LIMIT_NAMES


def _of_data(
    measured: Sequence[Option], job: ComparableRuns, decision: Decision
) -> Iterator[Caution]:
    if job.energy_is is None:
        yield Caution(
            "no-energy",
            f"No energy was measured: the advice considers time and {job.worker}-hours, not "
            "energy.",
        )
    elif without := sum(candidate.energy_j is None for candidate in measured):
        yield Caution(
            "energy-incomplete",
            f"{without} of {len(measured)} settings have no comparable energy and "
            "are not considered.",
        )
    once = sum(candidate.repeats == 1 for candidate in measured)
    if once and once < len(measured):
        yield Caution(
            "settings-measured-once",
            f"{once} of {len(measured)} settings were run once and have no interval.",
        )
    if job.rows["metric"].isna().all() and job.rows["global_batch"].nunique() > 1:
        yield Caution(
            "quality-not-measured",
            "Quality was not measured: global batches may differ in quality.",
        )
    falling = sorted(
        {int(candidate.setting["global_batch"]) for candidate in measured if candidate.falls}
    )
    let_back = decision.option is not None and decision.option.falls
    if falling and not let_back and any(not candidate.falls for candidate in measured):
        yield Caution(
            "batch-excluded",
            f"Excluded because quality is lower: global batch {', '.join(map(str, falling))}.",
        )
    precisions = sorted({str(candidate.setting["precision"]) for candidate in measured})
    if len(precisions) > 1:
        yield Caution(
            "precisions-differ",
            f"The settings differ in precision ({', '.join(precisions)}): compare quality, too.",
        )


def _of_predictions(
    decision: Decision,
    measured: Sequence[Option],
    predicted: Sequence[Option],
    job: ComparableRuns,
    constraints: Constraints,
) -> Iterator[Caution]:
    if set(job.rows["parallelism"].dropna()) & {*NOT_DATA_PARALLEL}:
        return  # another warning says so
    known = max(candidate.gpus for candidate in (*measured, *predicted))
    if 2 * known <= (constraints.max_gpus or (0 if decision.option else math.inf)):
        yield Caution(
            "prediction-ends",
            f"Options end at {known} {job.worker}s: more were not tried, or the 95 % interval of "
            f"their time is wider than a factor of {WIDEST:g}. wattlaw predict shows it and the "
            "measurement that would narrow it most.",
        )


def _rival_limits(
    option: Option, job: ComparableRuns, constraints: Constraints
) -> Iterator[Caution]:
    """Say where another cap or clock may be better at the same setting."""
    if constraints.deadline_s is not None or constraints.energy_budget_j is not None:
        return
    rule: Rule = LeastEnergyDelay()
    if constraints.max_slowdown is not None:
        rule = LeastEnergyWithin(constraints.max_slowdown)
    for limit in LIMITS:
        rows = job.rows
        if rows[limit].nunique(dropna=False) < 2:
            continue
        for name in SETTING:
            value = option.setting[name]
            if name != limit:
                rows = rows[rows[name].isna() if value is None else rows[name] == value]
        names = {limit: "limit", TIME: "time_s", ENERGY: "energy_j"}
        try:
            best = best_limit(rows[list(names)].rename(columns=names), rule, limit)
        except Refused:
            continue
        if best.verdict == UNKNOWN and best.limit == option.setting[limit]:
            yield Caution("limit-uncertain", best.why)
