"""The next measurements of a decision, and whether it is certain enough."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    if not observations:
        first = sorted(possible, key=_size)[:at_once]
        reason = None if first else NOTHING_LEFT
        return Plan(None, None, None, tuple(Proposal(item, None, None) for item in first), reason)
    if not choices:
        return Plan(None, None, None, (), NOTHING_LEFT)
    posterior = fit(observations, seed=seed)
    thin = slice(None, None, max(1, posterior.draws // _DRAWS))
    times, _, powers, _ = posterior.means(choices)
    regrets = _regrets(question, choices, times[thin], None if powers is None else powers[thin])
    means = regrets.mean(0)
    best = int(means.argmin())
    probability = float((regrets[:, best] <= question.tolerance).mean())
    state = (choices[best], float(means[best]), probability)
    if probability >= question.confidence and means[best] <= question.tolerance:
        return Plan(*state, (), CERTAIN)
    if not possible:
        return Plan(*state, (), NOTHING_LEFT)
    proposals = _ranked(posterior, possible, regrets, thin, seed)
    affordable = [
        item for item in proposals if hours_left is None or (item.gpu_hours or 0) <= hours_left
    ]
    if not affordable:
        return Plan(*state, (), BUDGET)
    return Plan(*state, tuple(_different(affordable, at_once)), None)


def _regrets(
    question: Question, choices: Sequence[TrainingSetting], times: Floats, powers: Floats | None
) -> Floats:
    samples = np.array([item.samples for item in choices])
    gpus = np.array([item.gpus for item in choices])
    energy = None if powers is None else times * powers * gpus / samples
    return question.regrets(choices, times / samples, energy)


def _ranked(
    posterior: Posterior,
    possible: Sequence[Candidate],
    regrets: Floats,
    thin: slice,
    seed: int,
) -> list[Proposal]:
    """Return the candidates by how much the expected regret falls for a GPU-hour."""
    distinct = list(dict.fromkeys(possible))
    settings = [item.setting for item in distinct]
    times, time_noise, powers, power_noise = posterior.means(settings)
    outcomes = Outcomes(
        np.log(times[thin]), time_noise, None if powers is None else np.log(powers[thin]),
        power_noise,
    )  # fmt: skip
    after = expected_regrets(regrets, outcomes, seed)
    expected_s = np.median(times, axis=0)
    hours = np.array(
        [item.gpu_hours(float(time)) for item, time in zip(distinct, expected_s, strict=True)]
    )
    now = float(regrets.mean(0).min())
    # Where no single run is expected to help, the uncertainty of what it shows decides.
    gain = np.maximum(now - after, 0.0) + 1e-3 * now * outcomes.time.std(0)
    order = np.argsort(-gain / np.maximum(hours, 1e-12), kind="stable")
    return [Proposal(distinct[i], float(hours[i]), float(after[i])) for i in order]


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


def _size(candidate: Candidate) -> tuple[float, ...]:
    """Return the order of first runs: the fewest GPUs, a batch in the middle, no limits."""
    setting = candidate.setting
    limits = (setting.power_limit_w or np.inf, setting.clock_limit_mhz or np.inf)
    return (setting.gpus, setting.nodes or 1, -min(limits), setting.local_batch or 0.0)
