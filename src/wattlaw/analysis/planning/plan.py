"""The next measurements of a decision, and whether it is certain enough."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.planning.candidates import Candidate
from wattlaw.analysis.planning.question import Question
from wattlaw.analysis.planning.value import Outcomes, expected_regrets
from wattlaw.analysis.prediction.posterior import Posterior, fit
from wattlaw.analysis.prediction.settings import Observation, TrainingSetting
from wattlaw.analysis.result import Result

Floats = npt.NDArray[np.float64]

#: Draws of the posterior that values are computed with.
_DRAWS = 600
#: A leading setting is measured before a decision if that takes at most this share of the GPU-hours
#: of all runs: the model's error is the most favourable for the setting that looks the best. Its
#: neighbours whose batch and limit no run has shown are measured for at most the second share:
#: kernels may suit one batch and not the next.
_CHEAP, _CHEAP_NEIGHBOUR = 0.05, 0.04
#: Why measuring ends.
CERTAIN, NOTHING_LEFT, BUDGET = "certain", "nothing left to measure", "budget spent"


@dataclass(frozen=True)
class Proposal(Result):
    """A run that is proposed, its expected cost, and the expected regret of the decision after it.

    ``gpu_hours`` and ``regret_after`` are None before the first run, when nothing is known.
    """

    candidate: Candidate
    gpu_hours: float | None
    regret_after: float | None


@dataclass(frozen=True)
class Plan(Result):
    """The leading setting, how sure it is, and the runs to make next, the best first.

    Parameters
    ----------
    setting
        The setting with the least expected regret; None before the first run.
    expected_regret, probability
        Its expected regret, and the probability that its regret is within the tolerance.
    stopped_because
        Why no run is proposed; None if runs are.
    """

    setting: TrainingSetting | None
    expected_regret: float | None
    probability: float | None
    proposals: tuple[Proposal, ...]
    stopped_because: str | None


def plan(
    question: Question,
    candidates: Sequence[Candidate],
    observations: Sequence[Observation],
    *,
    failed: Sequence[TrainingSetting] = (),
    hours_left: float | None = None,
    at_once: int = 1,
    seed: int = 0,
) -> Plan:
    """Return the leading setting and the next runs.

    The first runs are cheap ones at both ends of each axis; a decision follows them.

    Parameters
    ----------
    question
        What is decided.
    candidates
        The runs that could be made; a setting may be there several times, for repeats. Those that
        have been made are left out by the caller.
    observations
        The runs that have been made.
    failed
        Settings that cannot run, such as for lack of memory. Settings with the same precision and
        at least as many samples per GPU in a micro-batch are taken not to run either.
    hours_left
        GPU-hours that may still be spent.
    at_once
        The number of runs to propose.
    seed
        Of all random numbers: equal inputs and seeds give equal plans.

    Examples
    --------
    >>> packed = [TrainingSetting.packed(n, 4, local_batch=32) for n in (1, 2, 4, 8)]
    >>> first = plan(Question("gpu_hours"), [Candidate(item, 100) for item in packed], [])
    >>> first.proposals[0].candidate.setting.gpus
    1
    """
    possible = [item for item in candidates if _can_run(item.setting, failed)]
    seen = [item.setting for item in observations]
    choices = [
        setting
        for setting in dict.fromkeys([*(item.informs or item.setting for item in possible), *seen])
        if question.allows(setting) and _can_run(setting, failed)
    ]
    first = _first_runs(possible, seen)
    if not observations:
        reason = None if first else NOTHING_LEFT
        start = tuple(Proposal(item, None, None) for item in first[:at_once])
        return Plan(None, None, None, start, reason)
    if not choices:
        return Plan(None, None, None, (), NOTHING_LEFT)
    belief = _Belief.of(fit(observations, seed=seed), [*choices, *(c.setting for c in possible)])
    regrets = belief.regrets(question, choices)
    means = regrets.mean(0)
    best = int(means.argmin())
    probability = float((regrets[:, best] <= question.tolerance).mean())
    state = (choices[best], float(means[best]), probability)
    is_sure = not first and probability >= question.confidence
    is_sure = is_sure and means[best] <= question.tolerance
    hours = belief.gpu_hours(possible)
    check = _check(choices[best], choices, seen, hours) if is_sure else None
    if is_sure and check is None:
        return Plan(*state, (), CERTAIN)
    if not possible:
        return Plan(*state, (), NOTHING_LEFT)
    proposals = _ranked(belief, hours, regrets, seed)
    urgent = first if check is None else [check]
    proposals.sort(key=lambda item: item.candidate not in urgent)
    affordable = [
        item for item in proposals if hours_left is None or (item.gpu_hours or 0) <= hours_left
    ]
    if not affordable:
        return Plan(*state, (), BUDGET)
    return Plan(*state, tuple(_different(affordable, at_once)), None)


@dataclass(frozen=True)
class _Belief:
    """Draws of the mean time and power of settings, all from the same posterior draws.

    Settings are drawn together: what a run shows of one tells of its neighbours.
    """

    columns: dict[TrainingSetting, int]
    times: Floats
    time_noise: Floats
    powers: Floats | None
    power_noise: Floats | None

    @classmethod
    def of(cls, posterior: Posterior, settings: Sequence[TrainingSetting]) -> "_Belief":
        distinct = list(dict.fromkeys(settings))
        columns = {setting: index for index, setting in enumerate(distinct)}
        return cls(columns, *posterior.means(distinct, _DRAWS))

    def at(self, settings: Sequence[TrainingSetting]) -> list[int]:
        return [self.columns[setting] for setting in settings]

    def regrets(self, question: Question, choices: Sequence[TrainingSetting]) -> Floats:
        at = self.at(choices)
        samples = np.array([item.samples for item in choices])
        gpus = np.array([item.gpus for item in choices])
        times = self.times[:, at]
        energy = None if self.powers is None else times * self.powers[:, at] * gpus / samples
        return question.regrets(choices, times / samples, energy)

    def gpu_hours(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        """Return the expected GPU-hours of each run."""
        steps_s = np.median(self.times, axis=0)
        return {
            item: item.gpu_hours(float(steps_s[self.columns[item.setting]])) for item in candidates
        }

    def outcomes(self, settings: Sequence[TrainingSetting]) -> Outcomes:
        at = self.at(settings)
        if self.powers is None or self.power_noise is None:
            return Outcomes(np.log(self.times[:, at]), self.time_noise[at], None, None)
        return Outcomes(
            np.log(self.times[:, at]), self.time_noise[at],
            np.log(self.powers[:, at]), self.power_noise[at],
        )  # fmt: skip


def _check(
    leading: TrainingSetting,
    choices: Sequence[TrainingSetting],
    seen: Sequence[TrainingSetting],
    hours: Mapping[Candidate, float],
) -> Candidate | None:
    """Return a cheap run of a leading setting or a neighbour that was not measured, if any."""
    limits = {} if leading in seen else {leading: _CHEAP}
    loads = {_load(item) for item in seen}
    new = (item for item in _neighbours(leading, choices) if _load(item) not in loads)
    limits.update(dict.fromkeys(new, _CHEAP_NEIGHBOUR))
    total = sum(hours.values())
    runs = (
        item for item, cost in hours.items()
        if item.setting in limits and cost <= limits[item.setting] * total
    )  # fmt: skip
    return min(runs, key=lambda item: (item.setting != leading, hours[item]), default=None)


#: What a GPU does in a setting, on however many GPUs.
_LOAD = ("local_batch", "power_limit_w", "clock_limit_mhz")


def _load(setting: TrainingSetting) -> tuple[float | None, ...]:
    return tuple(getattr(setting, name) for name in _LOAD)


def _neighbours(
    leading: TrainingSetting, choices: Sequence[TrainingSetting]
) -> Iterator[TrainingSetting]:
    """Yield the settings that have the next smaller or larger batch or limit, else the same."""
    for name in _LOAD:
        same = {name: getattr(leading, name)}
        line = sorted(
            (item for item in choices if replace(item, **same) == leading),
            key=lambda item: getattr(item, name) or np.inf,
        )
        at = line.index(leading)
        yield from line[max(0, at - 1) : at] + line[at + 1 : at + 2]


def _ranked(
    belief: _Belief, hours: Mapping[Candidate, float], regrets: Floats, seed: int
) -> list[Proposal]:
    """Return the candidates by how much the expected regret falls for a GPU-hour."""
    outcomes = belief.outcomes([item.setting for item in hours])
    after = expected_regrets(regrets, outcomes, seed)
    now = float(regrets.mean(0).min())
    # Where no single run is expected to help, the uncertainty of what it shows decides.
    gain = np.maximum(now - after, 0.0) + 1e-3 * now * outcomes.time.std(0)
    rates = gain / np.maximum(list(hours.values()), 1e-12)
    proposals = [
        Proposal(item, cost, float(regret))
        for (item, cost), regret in zip(hours.items(), after, strict=True)
    ]
    return [proposals[index] for index in np.argsort(-rates, kind="stable")]


def _different(proposals: Sequence[Proposal], count: int) -> list[Proposal]:
    """Return the best proposals, first those of different placements and batches."""
    chosen: list[Proposal] = []
    kinds: set[object] = set()
    for item in proposals:
        setting = item.candidate.setting
        kind = (setting.gpus_per_node, setting.local_batch)
        if kind not in kinds and len(chosen) < count:
            kinds.add(kind)
            chosen.append(item)
    rest = [item for item in proposals if item not in chosen]
    return [*chosen, *rest[: count - len(chosen)]]


def _can_run(setting: TrainingSetting, failed: Sequence[TrainingSetting]) -> bool:
    def micro(item: TrainingSetting) -> float:
        return (item.local_batch or 0.0) / item.gradient_accumulation

    return not any(
        item == setting
        or (item.local_batch is not None and item.precision == setting.precision
            and micro(setting) >= micro(item))
        for item in failed
    )  # fmt: skip


def _first_runs(possible: Sequence[Candidate], seen: Sequence[TrainingSetting]) -> list[Candidate]:
    """Return the cheapest runs that show what no other kind of run tells: the ends of each axis.

    Clocks are relative to the highest that was locked, so that both ends are needed.
    """
    known = [*(item.setting for item in possible), *seen]
    kinds: list[Callable[[TrainingSetting], bool]] = [lambda item: not _limits(item)]
    batches = sorted({item.local_batch for item in known if item.local_batch})
    caps = sorted({item.power_limit_w for item in known if item.power_limit_w})
    clocks = sorted({item.clock_limit_mhz for item in known if item.clock_limit_mhz})
    kinds += [partial(_has, "local_batch", value) for value in batches[:1] + batches[-1:]]
    kinds += [partial(_has, "clock_limit_mhz", value) for value in clocks[-1:] + clocks[:1]]
    kinds += [partial(_has, "power_limit_w", value) for value in caps[:1]]
    kinds += [lambda item: item.gpus > 1, lambda item: (item.nodes or 1) > 1]
    order = sorted(possible, key=_size)
    first: list[Candidate] = []
    for shows in kinds:
        if not any(shows(item) for item in (*seen, *(each.setting for each in first))):
            first += [item for item in order if shows(item.setting)][:1]
    return first


def _has(name: str, value: float, setting: TrainingSetting) -> bool:
    return bool(getattr(setting, name) == value)


def _limits(setting: TrainingSetting) -> int:
    return (setting.power_limit_w is not None) + (setting.clock_limit_mhz is not None)


def _size(candidate: Candidate) -> tuple[float, ...]:
    """Return the order of first runs: the fewest GPUs, few limits, small batches."""
    setting = candidate.setting
    limits = (setting.power_limit_w or np.inf, setting.clock_limit_mhz or np.inf)
    return (
        setting.gpus, setting.nodes or 1, _limits(setting), -min(limits),
        setting.local_batch or 0.0,
    )  # fmt: skip
