"""The next measurements of a decision, and whether it is certain enough."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from wattlaw.analysis.decide.candidates import Candidate
from wattlaw.analysis.decide.first_runs import first_runs
from wattlaw.analysis.decide.regret import missed, regrets
from wattlaw.analysis.decide.repeats import fit_with_repeats, noise_of_repeats
from wattlaw.analysis.decide.surprises import Surprise, surprises, widening
from wattlaw.analysis.decide.value import Outcomes, expected_regrets, explained
from wattlaw.analysis.metrics.result import Result
from wattlaw.analysis.predict.host_power import HostPower
from wattlaw.analysis.predict.observation import Floats, Observation
from wattlaw.analysis.predict.posterior import Posterior
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

#: Draws of the posterior that values are computed with: many for few settings.
_DRAWS, _VALUES = 600, 60_000
#: A leading setting is measured before a decision if that takes at most this share of the GPU-hours
#: of all runs: the model's error is the most favourable for the setting that looks the best. In a
#: small grid, at most this many mean runs, up to a share of it.
_CHEAP, _CHEAP_RUNS, _CHEAP_OF_FEW = 0.03, 2.0, 0.25
#: The same where no run has shown its batch and limit, and of neighbours of which none has: kernels
#: may suit one batch and not another. A network may suit one placement: the last share is that of
#: neighbours on other GPUs of which no run has shown the placement.
_CHEAP_LOAD, _CHEAP_NEIGHBOUR, _CHEAP_PLACEMENT = 0.1, 0.06, 0.02
#: A neighbour's batch differs by this factor at least: batches between are much like the leading.
_BATCH_FACTOR = 1.5
#: A run takes effort beside its GPU-hours, which counts as this share of those of all runs.
_EFFORT = 0.001
#: The number of other settings that are listed after the leading one.
_OTHERS = 3
#: Why measuring ends.
CERTAIN, NOTHING_LEFT, BUDGET = "certain", "nothing left to measure", "budget spent"


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
    setting: Setting | None = None  # of the least expected regret; None before a run
    expected_regret: float | None = None
    probability: float | None = None  # that its regret is within the tolerance
    meets: float | None = None  # the probability that it meets all constraints
    proposals: tuple[Proposal, ...] = ()
    stopped_because: str | None = None  # why no run is proposed; None if runs are
    others: tuple[OtherSetting, ...] = ()  # the likeliest ones
    surprises: tuple[Surprise, ...] = ()  # how each setting was predicted before its first run


def plan(
    question: Question,
    candidates: Sequence[Candidate],
    observations: Sequence[Observation],
    *,
    host: HostPower | None = None,
    settings: Collection[Setting] | None = None,
    is_modelled: Callable[[Setting], bool] = lambda _: True,
    hours_left: float | None = None,
    at_once: int = 1,
    seed: int = 0,
) -> Plan:
    """Return the leading setting and the next runs.

    The first runs are cheap ones at both ends of each axis; a decision follows them.

    ``candidates`` has a setting several times where it may be repeated; the caller leaves out runs
    that have been made, or lack memory (``may_fit_memory``). ``host`` is the power of what counts
    as energy beside GPUs, None if nothing does. ``settings`` are those that can be decided for, by
    default those of candidates and observations. A leading setting that is not ``is_modelled`` is
    measured before a decision, whatever that takes. Equal inputs and seeds give equal plans.

    Examples
    --------
    >>> packed = [Setting.packed(n, 4, local_batch=32) for n in (1, 2, 4, 8)]
    >>> first = plan(Question("gpu_hours"), [Candidate(item, 100) for item in packed], [])
    >>> first.proposals[0].candidate.setting.gpus
    1
    """
    seen = [item.setting for item in observations]
    if settings is None:
        settings = [*(item.decided for item in candidates), *seen]
    choices = [setting for setting in dict.fromkeys(settings) if question.allows(setting)]
    allowed = [item for item in candidates if question.allows(item.decided)]
    first = first_runs(allowed or candidates, seen)
    if not observations:
        reason = None if first else NOTHING_LEFT
        return Plan(proposals=tuple(map(Proposal, first[:at_once])), stopped_because=reason)
    if not choices:
        return Plan(stopped_because=NOTHING_LEFT)
    shown = surprises(observations, seed)
    belief = Belief.of(
        fit_with_repeats(observations, seed),
        [*choices, *(item.setting for item in candidates)],
        host,
        widening(shown),
    )
    regret, missing = belief.regrets(question, choices), belief.missed(question, choices)
    means = regret.mean(0)
    best = int(means.argmin())
    probabilities = (regret <= question.tolerance).mean(0)
    likeliest = [at for at in np.argsort(-probabilities, kind="stable") if at != best][:_OTHERS]
    state = Plan(
        setting=choices[best],
        expected_regret=float(means[best]),
        probability=float(probabilities[best]),
        meets=float((missing[:, best] <= 0).mean()),
        others=tuple(OtherSetting(choices[at], float(probabilities[at])) for at in likeliest),
        surprises=shown,
    )
    is_sure = not first and probabilities[best] >= question.confidence
    is_sure = is_sure and means[best] <= question.tolerance
    hours = belief.gpu_hours(candidates)
    steps = max((item.steps for item in candidates), default=0.0)
    spent = sum(item.setting.gpus * item.step_time_s * steps / 3600 for item in observations)
    check = None
    if is_sure:
        leading = choices[best]
        check = _check(leading, choices, seen, hours, spent, is_modelled=is_modelled(leading))
    if is_sure and check is None:
        return replace(state, stopped_because=CERTAIN)
    if not candidates:
        return replace(state, stopped_because=NOTHING_LEFT)
    urgent = first if check is None else [check]
    ranked = sorted(
        _ranked(belief, hours, regret, question, seed, spent), key=lambda item: item not in urgent
    )
    affordable = [item for item in ranked if hours_left is None or hours[item] <= hours_left]
    if not affordable:
        return replace(state, stopped_because=BUDGET)
    chosen = _different(affordable, at_once)
    after = expected_regrets(regret, belief.outcomes([item.setting for item in chosen]), seed)
    now = float(means[best])
    proposals = (
        Proposal(item, hours[item], now, min(float(later), now))
        for item, later in zip(chosen, after, strict=True)
    )
    return replace(state, proposals=tuple(proposals))


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

    @classmethod
    def of(
        cls,
        posterior: Posterior,
        settings: Sequence[Setting],
        host: HostPower | None = None,
        widths: float = 1.0,
    ) -> "Belief":
        """Return the draws, whose deviations from the median are ``widths`` times the model's."""
        distinct = list(dict.fromkeys(settings))
        columns = {setting: index for index, setting in enumerate(distinct)}
        host_w = np.zeros(len(distinct)) if host is None else host.mean_w(distinct)
        draws = max(_DRAWS, _VALUES // len(distinct))
        noise = noise_of_repeats(posterior)
        times, time_noise, powers, power_noise = posterior.means(distinct, draws, noise=noise)
        middle = np.median(times, axis=0)
        times = middle * (times / middle) ** widths
        return cls(columns, times, time_noise, powers, power_noise, host_w)

    def regrets(self, question: Question, choices: Sequence[Setting]) -> Floats:
        return regrets(question, choices, *self._of_a_sample(choices))

    def missed(self, question: Question, choices: Sequence[Setting]) -> Floats:
        return missed(question, choices, *self._of_a_sample(choices))

    def _of_a_sample(self, choices: Sequence[Setting]) -> tuple[Floats, Floats | None]:
        at = [self.columns[setting] for setting in choices]
        times = self.times[:, at] / np.array([item.samples for item in choices])
        if self.powers is None:
            return times, None
        gpus = np.array([item.gpus for item in choices])
        return times, times * (self.powers[:, at] * gpus + self.host_w[at])

    def gpu_hours(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        steps_s = np.median(self.times, axis=0)
        return {
            item: item.gpu_hours(float(steps_s[self.columns[item.setting]])) for item in candidates
        }

    def outcomes(self, settings: Sequence[Setting]) -> Outcomes:
        at = [self.columns[setting] for setting in settings]
        if self.powers is None or self.power_noise is None:
            return Outcomes(np.log(self.times[:, at]), self.time_noise[at], None, None)
        return Outcomes(
            np.log(self.times[:, at]),
            self.time_noise[at],
            np.log(self.powers[:, at]),
            self.power_noise[at],
        )


def _check(
    leading: Setting,
    choices: Sequence[Setting],
    seen: Sequence[Setting],
    hours: Mapping[Candidate, float],
    spent: float,
    *,
    is_modelled: bool,
) -> Candidate | None:
    """Return a cheap run of a leading setting or a neighbour that was not measured, if any.

    A run of a leading setting that is not modelled may be expensive.
    """
    loads, places = {_load(item) for item in seen}, {_place(item) for item in seen}
    limits = {}
    if leading not in seen:
        share = _CHEAP if _load(leading) in loads else _CHEAP_LOAD
        few = _CHEAP_RUNS / (len(seen) + len(hours))
        limits[leading] = max(share, min(few, _CHEAP_OF_FEW)) if is_modelled else 1.0
    for item in _neighbours(leading, choices):
        if _load(item) not in loads:
            limits[item] = _CHEAP_NEIGHBOUR
    for item in _other_places(leading, choices):
        if _place(item) not in places:
            limits[item] = _CHEAP_PLACEMENT
    total = spent + sum(hours.values())
    runs = (
        item
        for item, cost in hours.items()
        if item.setting in limits and cost <= limits[item.setting] * total
    )
    return min(runs, key=lambda item: (item.setting != leading, hours[item]), default=None)


#: What a GPU does in a setting, on however many GPUs.
_LOAD = ("local_batch", "power_limit_w", "clock_limit_mhz")


def _load(setting: Setting) -> tuple[float | None, ...]:
    return tuple(getattr(setting, name) for name in _LOAD)


def _place(setting: Setting) -> object:
    return setting.gpus_per_node or setting.gpus


def _other_places(leading: Setting, choices: Sequence[Setting]) -> Iterator[Setting]:
    def distance(other: Setting) -> tuple[int, int]:
        nodes = abs((leading.nodes or 0) - (other.nodes or 0))
        return abs(leading.gpus - other.gpus), nodes

    same = [item for item in choices if _load(item) == _load(leading)]
    for sign in (-1, 1):
        others = [item for item in same if sign * item.gpus > sign * leading.gpus]
        yield from sorted(others, key=distance)[:1]


def _neighbours(leading: Setting, choices: Sequence[Setting]) -> Iterator[Setting]:
    """Yield the settings that have the next smaller or larger batch or limit, else the same."""
    for name in _LOAD:
        same = {name: getattr(leading, name)}
        values = {
            getattr(item, name) or np.inf: item
            for item in choices
            if replace(item, **same) == leading
        }
        here = getattr(leading, name) or np.inf
        apart = _BATCH_FACTOR if name == "local_batch" else 1.0
        smaller = [value for value in values if value * apart <= here and value != here]
        larger = [value for value in values if value >= here * apart and value != here]
        yield from (values[value] for value in (*sorted(smaller)[-1:], *sorted(larger)[:1]))


def _ranked(
    belief: Belief,
    hours: Mapping[Candidate, float],
    regrets: Floats,
    question: Question,
    seed: int,
    spent: float,
) -> list[Candidate]:
    """Return the candidates by how much a GPU-hour shows about the regret of the leading setting.

    Regrets of more than twice the tolerance count as such: they are too large anyway.
    """
    regret = np.minimum(regrets[:, regrets.mean(0).argmin()], 2 * question.tolerance)
    outcomes = belief.outcomes([item.setting for item in hours])
    costs = np.array(list(hours.values()))
    rates = explained(regret, outcomes, seed) / (costs + _EFFORT * costs.sum())
    # Cheap runs first: what they show may make expensive ones unnecessary.
    levels = np.maximum(0.0, np.ceil(np.log2(np.maximum(costs, 1e-12) / max(spent, 1e-12))))
    levels[rates <= 0] = np.inf
    # Where no single run explains anything, the uncertainty of what it shows decides.
    others = outcomes.time.std(0) / np.maximum(costs, 1e-12)
    candidates = list(hours)
    return [candidates[index] for index in np.lexsort((-others, -rates, levels))]


def _different(ranked: Sequence[Candidate], count: int) -> list[Candidate]:
    chosen: list[Candidate] = []
    kinds: set[object] = set()
    for item in ranked:
        setting = item.setting
        kind = (setting.gpus_per_node, setting.local_batch)
        if kind not in kinds and len(chosen) < count:
            kinds.add(kind)
            chosen.append(item)
    rest = [item for item in ranked if item not in chosen]
    return [*chosen, *rest[: count - len(chosen)]]
