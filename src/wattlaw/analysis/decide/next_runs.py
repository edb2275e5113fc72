"""The next measurements of a decision, and whether it is certain enough."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.decide.evidence import Candidate
from wattlaw.analysis.decide.needed_runs import Checks, first_layouts, first_runs
from wattlaw.analysis.decide.regret import (
    UNFIT,
    Outcomes,
    expected_regrets,
    explained,
    improvements,
    missed,
    regrets,
)
from wattlaw.analysis.decide.surprises import (
    Surprise,
    fit_with_repeats,
    noise_of_repeats,
    surprises,
    widening,
)
from wattlaw.analysis.metrics.result import Result
from wattlaw.analysis.predict.host_power import HostPower
from wattlaw.analysis.predict.observation import Floats, Observation
from wattlaw.analysis.predict.peak_memory import LEAST_FIT, Memory
from wattlaw.analysis.predict.posterior import Fitted
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting, layout_of

#: Returns the draws of time and energy beside training, of settings and a number of draws.
BesideTraining = Callable[[Sequence[Setting], int], tuple[Floats, Floats]]
#: Draws of the posterior that values are computed with: many for few settings.
_DRAWS, _VALUES = 600, 60_000
#: Of settings that are right, at most so many may lead: one that needs no check is preferred.
_LEADERS = 10
#: A run takes effort beside its GPU-hours, which counts as this share of those of all runs.
_EFFORT = 0.001
#: Draws say too rarely that a setting is right: in decisions on truths that choose sizes, the odds
#: were 2.9 times theirs (2.1 to 4.1, 90 %; benchmarks/decision_odds.py). The lower end counts, from
#: as many measured settings on as those decisions had.
_ODDS, _MEASURED = 2.0, 6
#: As many layouts run on the number of GPUs that is decided for, if there are as many: how they
#: compare on other numbers says less. Decisions without other runs need five or six.
_LAYOUTS = 4
#: The number of other settings that are listed after the leading one.
_OTHERS = 3
#: Why measuring ends.
CERTAIN, NOTHING_LEFT, BUDGET = "certain", "nothing left to measure", "no run fits the budget"
NOT_MET = "no setting meets the bounds"
#: What a decision lacks beside a high probability, about its leading setting.
FIRST_RUNS = "the ends of the sweeps are not measured yet"
LONGER_RUN = "its runs have too few or too unsteady steps, or vary too much"
TOO_FAR = "its expected regret is above the tolerance"
FEW_LAYOUTS = f"fewer than {_LAYOUTS} layouts on its number of GPUs are measured"
OWN_RUN = "this setting is not measured yet"
LIKE_RUN = "a setting that it is judged by is not measured yet"
NEIGHBOUR = "a setting next to it is not measured yet"
#: With a lower probability that the leading setting is the best, or that it meets the bounds, a
#: decision says so.
LIKELY = 0.5
#: No answer is surer with runs that are too short: that is the probability at which studies end.
MOST_SHORT = Question.confidence


@dataclass(frozen=True)
class Proposal(Result):
    """A run that is proposed, its expected cost, and the expected regret of the decision after it.

    The numbers are None before the first run.
    """

    candidate: Candidate = field(repr=False)
    gpu_hours: float | None = None
    regret_now: float | None = None
    regret_after: float | None = None

    @property
    def setting(self) -> Setting:
        return self.candidate.setting

    @property
    def emulated_gpus(self) -> int | None:
        return None if self.candidate.informs is None else self.candidate.informs.gpus

    def to_dict(self) -> dict[str, Any]:
        return {**self.setting.to_dict(), "emulated_gpus": self.emulated_gpus, **super().to_dict()}


@dataclass(frozen=True)
class OtherSetting(Result):
    setting: Setting
    probability: float


@dataclass(frozen=True)
class Plan(Result):
    setting: Setting | None = None  # None before a run
    expected_regret: float | None = None
    probability: float | None = None  # that its regret is within the tolerance
    meets: float | None = None  # the probability that it meets all constraints
    proposals: tuple[Proposal, ...] = ()
    stopped_because: str | None = None  # why no run is proposed; None if runs are
    #: What a decision lacks although the probability is high enough; None if nothing, or it is not.
    missing: str | None = None
    others: tuple[OtherSetting, ...] = ()  # the likeliest ones
    surprises: tuple[Surprise, ...] = ()  # how each setting was predicted before its first run

    @property
    def is_met(self) -> bool:
        """Whether the leading setting is more likely than not to meet the bounds."""
        return self.meets is None or self.meets >= LIKELY


def plan(
    question: Question,
    candidates: Sequence[Candidate],
    observations: Sequence[Observation],
    *,
    host: HostPower | None = None,
    beside: BesideTraining | None = None,
    settings: Collection[Setting] | None = None,
    memory: Memory | None = None,
    is_modelled: bool = True,
    hours_left: float | None = None,
    at_once: int = 1,
    seed: int = 0,
) -> Plan:
    """Return the leading setting and the next runs.

    The first runs are cheap ones at both ends of each axis; a decision follows them.

    ``candidates`` has a setting several times where it may be repeated; the caller leaves out runs
    that have been made, or lack memory (``may_fit_memory``). ``host`` is the power of what counts
    as energy beside GPUs, None if nothing does; ``beside`` is what jobs take beside their training,
    for the bounds. ``settings`` are those that can be decided for, by default those of candidates
    and observations; what hardly fits into ``memory`` is neither run nor decided for. The
    leading setting of a job that is not ``is_modelled`` is measured before a decision, whatever
    that takes. Equal inputs and seeds give equal plans.
    """
    seen = [item.setting for item in observations]
    possible = [*(item.decided for item in candidates), *seen] if settings is None else settings
    asked = [setting for setting in dict.fromkeys(possible) if question.allows(setting)]
    every = list(dict.fromkeys([*asked, *(item.setting for item in candidates)]))
    fits = _fits(memory, every, seed)
    chances = dict(zip(every, fits.mean(0).tolist(), strict=True))
    choices = [setting for setting in asked if chances[setting] >= LEAST_FIT]
    candidates = [item for item in candidates if chances[item.setting] >= LEAST_FIT]
    allowed = [item for item in candidates if question.allows(item.decided)] or candidates
    has_layouts = _have_layouts(every)
    first = first_layouts(allowed, seen, chances) if has_layouts else first_runs(allowed, seen)
    if not (observations and choices):
        proposals = () if observations else tuple(map(Proposal, first[:at_once]))
        return Plan(proposals=proposals, stopped_because=None if proposals else NOTHING_LEFT)
    posterior = fit_with_repeats(observations, seed)
    belief = Belief.of(posterior, every, host, beside, fits)
    regret, missing = belief.regrets(question, choices), belief.missed(question, choices)
    means, meets = regret.mean(0), (missing <= 0).mean(0)
    odds = 1.0 if has_layouts or len(set(seen)) < _MEASURED else _ODDS
    probabilities = _likelier((regret <= question.tolerance).mean(0), odds)
    hours, spent = belief.gpu_hours(candidates, chances), _spent(candidates, observations)
    able = {item for item in candidates if hours_left is None or hours[item] <= hours_left}
    checks = Checks(seen, hours, spent + sum(hours.values()), is_modelled)
    # A setting that rather misses a bound is never certain, so that the doubt is about the others.
    best = int(np.lexsort((means, meets < LIKELY))[0])
    short = _short(observations, choices, noise_of_repeats(posterior), question.tolerance)
    lacks = [FIRST_RUNS] * len(choices) if first else _lacking(choices, seen, short)
    is_likely = (probabilities >= question.confidence) & (meets >= LIKELY)
    is_right = is_likely & (means <= question.tolerance) & [item is None for item in lacks]
    if is_right.any():
        right = [at for at in np.argsort(means, kind="stable") if is_right[at]][:_LEADERS]
        best = int(min(right, key=lambda at: checks.cost(choices[at])))
    state = Plan(
        missing=(lacks[best] or TOO_FAR) if is_likely[best] and not is_right[best] else None,
        setting=choices[best],
        expected_regret=float(means[best]),
        probability=min(
            float(probabilities[best]),
            1.0 if choices[best] not in short and checks.of(choices[best]) is None else MOST_SHORT,
        ),
        meets=float(meets[best]),
        others=_likeliest(choices, probabilities, best),
        surprises=surprises(tuple(observations), seed),
    )
    is_none = not first and not state.is_met and (missing > 0).all(1).mean() >= question.confidence
    urgent = first or [item for item in candidates if item.setting in short & {choices[best]}]
    if is_right[best] or is_none:
        leading = [choices[at] for at in (best, *belief.fastest(question, choices))]
        needed, useful = checks.before(leading, choices, able)
        is_blocked = needed is not None and able.isdisjoint(needed)
        if not useful and not is_blocked:
            return replace(state, stopped_because=CERTAIN if is_right[best] else NOT_MET)
        cheapest = (item for item in candidates if item in useful)
        urgent = [*(needed or ())] if is_blocked else [min(cheapest, key=hours.__getitem__)]
        state = replace(
            state, missing=(is_right[best] and _unchecked(leading[0], urgent, needed)) or None
        )
        if is_blocked:
            return replace(state, stopped_because=BUDGET if needed else NOTHING_LEFT)
    if not able:
        return replace(
            state,
            stopped_because=BUDGET if candidates else NOTHING_LEFT if state.is_met else NOT_MET,
        )
    # The check of the leading setting is made anyway if that stays, so that it costs the rest.
    costs = hours | {
        item: (1 - float(probabilities[best])) * hours[item]
        for item in checks.of(choices[best]) or ()
    }
    # Where the bounds are missed, the question is whether any setting meets them. Shares of more
    # than twice the tolerance count as such: they are too large anyway.
    unknown = np.minimum(
        regret[:, best] if state.is_met else missing.min(1), 2 * question.tolerance
    )
    others = _regrets_of(costs, choices, regret) if has_layouts else None
    ranked = [item for item in _ranked(belief, costs, unknown, others, spent, seed) if item in able]
    chosen = _different(sorted(ranked, key=lambda item: item not in urgent), at_once)
    after = expected_regrets(regret, belief.outcomes([item.setting for item in chosen]), seed)
    return replace(
        state,
        proposals=tuple(
            Proposal(item, hours[item], float(means[best]), min(float(own), float(means[best])))
            for item, own in zip(chosen, after, strict=True)
        ),
    )


def _unchecked(
    leading: Setting, runs: Sequence[Candidate], needed: Sequence[Candidate] | None
) -> str:
    if not set(runs) <= {*(needed or ())}:
        return NEIGHBOUR
    return OWN_RUN if any(item.setting == leading for item in runs) else LIKE_RUN


def _lacking(
    choices: Sequence[Setting], seen: Iterable[Setting], short: Collection[Setting]
) -> list[str | None]:
    """Return what each setting lacks to be decided for, beside a probability; None if nothing."""
    possible, ran = (Counter(item.gpus for item in set(of)) for of in (choices, seen))
    least = {gpus: min(_LAYOUTS, count) for gpus, count in possible.items()}
    if not _have_layouts(choices):
        least = dict.fromkeys(possible, 0)
    return [
        LONGER_RUN if item in short else FEW_LAYOUTS if ran[item.gpus] < least[item.gpus] else None
        for item in choices
    ]


def _have_layouts(settings: Iterable[Setting]) -> bool:
    return len(set(map(layout_of, settings))) > 1


def _likeliest(
    choices: Sequence[Setting], probabilities: Floats, best: int
) -> tuple[OtherSetting, ...]:
    order = [at for at in np.argsort(-probabilities, kind="stable") if at != best]
    return tuple(OtherSetting(choices[at], float(probabilities[at])) for at in order[:_OTHERS])


def _likelier(shares: Floats, odds: float) -> Floats:
    return odds * shares / (1 - shares + odds * shares)


def _fits(memory: Memory | None, settings: Sequence[Setting], seed: int) -> npt.NDArray[np.bool_]:
    """Return whether each setting fits into memory, in draws; all do where nothing is known."""
    fits = None if memory is None else memory.fits(settings, seed)
    return np.ones((1, len(settings)), dtype=bool) if fits is None else fits


def _spent(candidates: Sequence[Candidate], observations: Sequence[Observation]) -> float:
    """Return about how many GPU-hours the runs took that were made."""
    steps = max((item.steps for item in candidates), default=0.0)
    return sum(item.setting.gpus * item.step_time_s * steps / 3600 for item in observations)


def _regrets_of(
    candidates: Iterable[Candidate], choices: Sequence[Setting], regret: Floats
) -> Floats:
    """Return the regrets of what candidates decide about; infinite where that cannot be chosen."""
    columns = {setting: regret[:, at] for at, setting in enumerate(choices)}
    no_choice = np.full(len(regret), np.inf)
    return np.column_stack([columns.get(item.decided, no_choice) for item in candidates])


@dataclass(frozen=True)
class Belief:
    """Draws of the mean time and power of settings, all from the same posterior draws.

    Settings are drawn together: what a run shows of one tells of its neighbours.
    """

    columns: dict[Setting, int]
    times: Floats
    time_noise: Floats
    powers: Floats | None
    power_noise: Floats | None
    host_w: Floats  # of each setting
    beside_s: Floats  # of jobs, beside their training
    beside_j: Floats
    fits: npt.NDArray[np.bool_]  # into memory

    @classmethod
    def of(
        cls, posterior: Fitted, settings: Sequence[Setting], host: HostPower | None = None,
        beside: BesideTraining | None = None, fits: npt.NDArray[np.bool_] | None = None,
    ) -> "Belief":  # fmt: skip
        """Return the draws, whose widths are those of the model times what surprises ask for."""
        distinct = list(dict.fromkeys(settings))
        columns = {setting: index for index, setting in enumerate(distinct)}
        host_w = np.zeros(len(distinct)) if host is None else host.mean_w(distinct)
        draws = max(_DRAWS, _VALUES // len(distinct))
        noise = noise_of_repeats(posterior)
        times, time_noise, powers, power_noise = posterior.means(distinct, draws, noise=noise)
        middle = np.median(times, axis=0)
        widths = widening(surprises(posterior.observations, posterior.seed))
        times = middle * (times / middle) ** widths
        beside_s, beside_j = np.zeros((2, 1, len(distinct)))
        if beside is not None:
            beside_s, beside_j = beside(distinct, len(times))
        fits = np.ones(times.shape, dtype=bool) if fits is None else np.resize(fits, times.shape)
        return cls(
            columns, times, time_noise, powers, power_noise, host_w, beside_s, beside_j, fits
        )

    def regrets(self, question: Question, choices: Sequence[Setting]) -> Floats:
        found = regrets(question, choices, *self._drawn(choices))
        return found.clip(max=UNFIT if _have_layouts(self.columns) else np.inf)

    def missed(self, question: Question, choices: Sequence[Setting]) -> Floats:
        return missed(question, choices, *self._drawn(choices))

    def fastest(self, question: Question, choices: Sequence[Setting]) -> tuple[int, ...]:
        """Return the fastest choice, to which others are compared; none without that question."""
        if question.max_slowdown is None:
            return ()
        of_time = Question("time", samples_by_batch=question.samples_by_batch)
        return (int(self.regrets(of_time, choices).mean(0).argmin()),)

    def _drawn(
        self, choices: Sequence[Setting]
    ) -> tuple[Floats, Floats | None, tuple[Floats, Floats]]:
        """Return the time and energy of a sample, and those of jobs beside their training."""
        at = [self.columns[setting] for setting in choices]
        times = np.where(self.fits[:, at], self.times[:, at], np.inf)
        times, energies = times / np.array([item.samples for item in choices]), None
        if self.powers is not None:
            gpus = np.array([item.gpus for item in choices])
            energies = times * (self.powers[:, at] * gpus + self.host_w[at])
        return times, energies, (self.beside_s[:, at], self.beside_j[:, at])

    def gpu_hours(
        self, candidates: Sequence[Candidate], chances: Mapping[Setting, float]
    ) -> dict[Candidate, float]:
        """Return the expected cost of runs; one that does not fit ends at its start."""
        steps_s = np.median(self.times, axis=0)
        return {
            item: item.gpu_hours(chances[item.setting] * float(steps_s[self.columns[item.setting]]))
            for item in candidates
        }

    def outcomes(self, settings: Sequence[Setting]) -> Outcomes:
        at = [self.columns[setting] for setting in settings]
        parts = [(np.log(self.times[:, at]), self.time_noise[at])]
        if self.powers is not None and self.power_noise is not None:
            parts.append((np.log(self.powers[:, at]), self.power_noise[at]))
        return parts


def _short(
    observations: Sequence[Observation], choices: Sequence[Setting], noise: float, tolerance: float
) -> set[Setting]:
    """Return the settings whose runs have too few steps, or vary too much, to be certain by.

    ``noise`` is that of a run, in logs: the mean of few runs may miss by more than the tolerance.
    """
    if len(choices) == 1:  # no choice
        return set()
    ran = Counter(item.setting for item in observations)
    long = {item.setting for item in observations if not item.is_short}
    return {item for item in ran if item not in long or noise > tolerance * np.sqrt(ran[item])}


def _ranked(
    belief: Belief,
    hours: Mapping[Candidate, float],
    unknown: Floats,
    others: Floats | None,
    spent: float,
    seed: int,
) -> list[Candidate]:
    """Return the candidates by how much a GPU-hour shows about what is unknown, in each draw.

    ``others`` are the regrets of candidates whose improvements count, None if what they explain
    does.
    """
    outcomes = belief.outcomes([item.setting for item in hours])
    worth = explained(unknown, outcomes, seed) if others is None else improvements(unknown, others)
    costs = np.maximum([*hours.values()], 1e-12)
    rates = worth / (costs + _EFFORT * costs.sum())
    # Cheap runs first: what they show may make expensive ones unnecessary. Layouts take about the
    # same, and those are cheap that hardly fit, which shows little.
    levels = np.zeros(len(costs))
    if others is None:
        levels = np.ceil(np.log2(costs / max(spent, 1e-12))).clip(min=0.0)
    levels[rates <= 0] = np.inf
    # Where no single run explains anything, the uncertainty of what it shows decides.
    widths = outcomes[0][0].std(0) / costs
    candidates = list(hours)
    return [candidates[index] for index in np.lexsort((-widths, -rates, levels))]


def _different(ranked: Sequence[Candidate], count: int) -> list[Candidate]:
    chosen: list[Candidate] = []
    kinds: set[object] = set()
    for item in ranked:
        setting = item.setting
        kind = (setting.gpus_per_node, setting.local_batch, layout_of(setting))
        if kind not in kinds and len(chosen) < count:
            kinds.add(kind)
            chosen.append(item)
    rest = [item for item in ranked if item not in chosen]
    return [*chosen, *rest[: count - len(chosen)]]
