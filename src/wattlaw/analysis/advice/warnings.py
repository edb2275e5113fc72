"""What an operator has to know before following an advice."""

from collections.abc import Iterator, Sequence

from wattlaw.analysis.advice.choice import Constraints, Decision
from wattlaw.analysis.advice.comparable_runs import ENERGY, TIME, ComparableRuns
from wattlaw.analysis.advice.doubling import Doubling
from wattlaw.analysis.advice.option import SETTING, Option
from wattlaw.analysis.advice.predicted import REACH
from wattlaw.analysis.caps.choice import UNKNOWN, best_limit
from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.caps.rules import LeastEnergyDelay, LeastEnergyWithin, Rule
from wattlaw.errors import Refused

_MUCH = 0.05  # of the training's time, from which evaluation is worth a word


def collect_warnings(
    decision: Decision,
    measured: Sequence[Option],
    predicted: Sequence[Option],
    doubling: Doubling | None,
    job: ComparableRuns,
    constraints: Constraints,
) -> list[str]:
    """Return the warnings, the gravest first."""
    said = list(decision.warnings)
    option = decision.option or decision.nearest
    if option is not None:
        said += _of_option(option, job)
    said += _of_data(measured, job, decision)
    said += _of_laws(decision, measured, predicted, job, constraints)
    if doubling is not None and doubling.option.extrapolates:
        said.append(
            f"The next doubling ({doubling.option.gpus} {job.worker}s) lies outside the measured "
            f"range of {_range(doubling.option, job)}."
        )
    if doubling is not None and doubling.option.falls:
        said.append("At the global batch of the next doubling quality is shown to fall.")
    if decision.option is not None and decision.option.measured:
        said += _rival_limits(decision.option, job, constraints)
    return list(dict.fromkeys(said))


def _of_option(option: Option, job: ComparableRuns) -> Iterator[str]:
    if option.extrapolates:
        yield (
            f"{option.gpus} {job.worker}s lie outside the measured range of "
            f"{_range(option, job)}: the law ({option.law}) was never checked there, and its "
            "interval holds only if it goes on."
        )
    elif not option.measured:
        yield (
            f"{option.gpus} {job.worker}s were not measured: time and energy are the law's "
            f"({option.law}), fitted to {_range(option, job)}."
        )
    elif option.repeats == 1:
        yield "This setting was measured once: it has no interval, and nothing says how sure it is."
    if option.falls:
        yield "The data show that quality falls at this global batch."
    yield from option.quality_warnings
    share = (option.eval_time_s or 0) / option.epoch_time_s.mean
    if share >= _MUCH:
        yield (
            f"An evaluation takes {100 * share:.0f} % of an epoch's training time and is not "
            "counted: allow for it."
        )


def _range(option: Option, job: ComparableRuns) -> str:
    least, most = option.law_range or (option.gpus, option.gpus)
    return f"{least} to {most} {job.worker}s"


def _of_data(measured: Sequence[Option], job: ComparableRuns, decision: Decision) -> Iterator[str]:
    if job.energy_is is None:
        yield (
            f"No energy was measured: this is advice by time and {job.worker}-hours, and says "
            "nothing about energy."
        )
    elif without := sum(one.energy_j is None for one in measured):
        yield (
            f"{without} of {len(measured)} measured settings have no energy that compares, and "
            "are no candidates."
        )
    once = sum(one.repeats == 1 for one in measured)
    if once and once < len(measured):
        yield f"{once} of {len(measured)} settings were measured once and have no interval."
    if job.rows["metric"].isna().all() and job.rows["global_batch"].nunique() > 1:
        yield "Quality was not measured: nothing says that each global batch learns as well."
    falling = sorted({int(one.setting["global_batch"]) for one in measured if one.falls})
    let_back = decision.option is not None and decision.option.falls
    if falling and not let_back and any(not one.falls for one in measured):
        yield (
            f"Left out, because quality is shown to fall there: global batch "
            f"{', '.join(map(str, falling))}."
        )
    precisions = sorted({str(one.setting["precision"]) for one in measured})
    if len(precisions) > 1:
        yield (
            f"The settings are of different precision ({', '.join(precisions)}): compare their "
            "quality too."
        )


def _of_laws(
    decision: Decision,
    measured: Sequence[Option],
    predicted: Sequence[Option],
    job: ComparableRuns,
    constraints: Constraints,
) -> Iterator[str]:
    most = max(one.gpus for one in measured)
    asked = constraints.max_gpus or 0
    if not predicted and (asked > most or decision.option is None):
        yield (
            f"No series has three {job.worker} counts, which a law needs: nothing is said about "
            "counts that were not measured."
        )
    elif asked >= 2 * REACH * most:
        yield (
            f"Laws are followed up to {REACH} times the largest measured count, {most} "
            f"{job.worker}s: nothing is said beyond."
        )


def _rival_limits(option: Option, job: ComparableRuns, constraints: Constraints) -> Iterator[str]:
    """Say where repeats do not tell that another cap or clock at the same setting is no better."""
    if constraints.deadline_s is not None or constraints.energy_budget_j is not None:
        return
    rule: Rule = LeastEnergyDelay()
    if constraints.max_slowdown is not None:
        rule = LeastEnergyWithin(constraints.max_slowdown)
    for limit in LIMITS:
        rows = job.rows
        for name in SETTING:
            value = option.setting[name]
            if name != limit:
                rows = rows[rows[name].isna() if value is None else rows[name] == value]
        names = {limit: "limit", TIME: "time_s", ENERGY: "energy_j"}
        try:
            found = best_limit(rows[list(names)].rename(columns=names), rule, limit)
        except Refused:
            continue
        if found.verdict == UNKNOWN and found.limit == option.setting[limit]:
            yield found.why
