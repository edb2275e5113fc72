"""The posterior of the steps of a transformer's layouts, and step times and powers of others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from wattlaw.analysis.predict.layout import Reference
from wattlaw.analysis.predict.model_error import POWER_ERROR, POWER_NOISE
from wattlaw.analysis.predict.observation import Floats, Observation
from wattlaw.analysis.predict.parallel_step import (
    LIMITS,
    POWER,
    PRIORS,
    Parallel,
    Scale,
    Values,
    reference_rate,
    step,
)
from wattlaw.analysis.predict.parameters import WEAK, Prior, Priors, Transformation
from wattlaw.analysis.predict.smc import sample
from wattlaw.analysis.predict.step_model import Step
from wattlaw.study.setting import Setting

#: Degrees of freedom of the errors.
_FREEDOM = 4.0
_T_CONSTANT = math.lgamma((_FREEDOM + 1) / 2) - math.lgamma(_FREEDOM / 2)
_T_CONSTANT -= 0.5 * math.log(_FREEDOM * math.pi)
#: Mean of the absolute log error of a run that something else makes slow.
_ODD = 1.0
#: Growth of the error with each doubling of nodes beyond those that ran: in both directions, of all
#: settings and of each, and towards slower steps, where a network may collapse.
_GROWTH, _COLLAPSE = 0.1, 0.03
#: Errors beyond this multiple of the noise are those of an odd run.
_USUAL = 3.0
#: The logarithm of the longest step, in seconds: beyond it, times overflow.
_LONGEST = 30.0
#: Distances, in logs, within which errors are similar: of networks, sizes of groups, batches, nodes
#: and limits.
_NETWORK, _GROUP, _BATCH, _NODES, _LIMIT = 0.7, 0.5, 0.7, 1.0, 0.3
#: Standard deviations, relative to the noise of the fit, of errors that similar settings share, and
#: of those of each.
_SHARED, _OWN = 1.0, 0.3
#: The median of the absolute value of a standard normal number.
_MEDIAN_OF_NORMAL = 0.674


@dataclass(frozen=True)
class ParallelPosterior:
    """Equally weighted draws of the parameters of layouts; it answers as ``Posterior`` does."""

    observations: tuple[Observation, ...]
    scale: Scale
    values: Values
    seed: int
    has_power: bool
    limits: dict[str, Prior]  # the priors of what no run shows without a limit
    prior_only: tuple[str, ...] = ()
    priors: str = WEAK.source

    @property
    def draws(self) -> int:
        return len(next(iter(self.values.values())))

    @property
    def epoch_s(self) -> None:
        return None

    @cached_property
    def misfit(self) -> float:
        """Return what the model typically misses of the measured step times, in logs, beside what
        runs of few steps miss by chance."""
        missed = np.median(self._missed(_arrays(self.observations)), axis=0)
        beyond = np.sqrt(np.maximum(missed**2 - _time_errors(self.observations) ** 2, 0.0))
        return float(np.median(beyond) / _MEDIAN_OF_NORMAL)

    @property
    def repeat_scatter(self) -> float:
        """Return the standard deviation of log times of runs of one setting; 0 without repeats."""
        logs: dict[object, list[float]] = {}
        for run in self.observations:
            logs.setdefault((run.setting, run.network), []).append(math.log(run.step_time_s))
        degrees = len(self.observations) - len(logs)
        squares = sum(float(np.var(values)) * len(values) for values in logs.values())
        return math.sqrt(squares / degrees) if degrees else 0.0

    @property
    def run_noise(self) -> float:
        """Return the standard deviation of the log time of a run of as many steps as most had."""
        steps = float(np.median(_time_errors(self.observations)))
        return max(float(np.median(self.values["session"])), self.repeat_scatter, steps)

    def steps(self, settings: Sequence[Setting]) -> Step:
        wanted = self._wanted(settings)
        return step(self._values_for(wanted), wanted, self.scale)

    def runs(self, settings: Sequence[Setting]) -> tuple[Step, Floats, Floats | None]:
        """Return the steps, and step times and powers of future runs."""
        times, noise, powers, _ = self.means(settings)
        dice = np.random.default_rng([self.seed, 1])
        times = times * np.exp(noise * dice.standard_t(_FREEDOM, times.shape))
        if powers is not None:
            powers = powers * np.exp(POWER_NOISE * dice.standard_t(_FREEDOM, times.shape))
        return self.steps(settings), times, powers

    def means(
        self, settings: Sequence[Setting], draws: int | None = None, *, noise: float = 0.0
    ) -> tuple[Floats, Floats, Floats | None, Floats | None]:
        """Return the mean step time and power of settings, and the noise of a run.

        As ``Posterior.means``: times and powers have the shape (draws, settings).
        """
        every = slice(None, None, max(1, self.draws // (draws or self.draws)))
        if every.step > 1:
            thin = {name: value[every] for name, value in self.values.items()}
            return replace(self, values=thin).means(settings, noise=noise)
        wanted = self._wanted(settings)
        times, powers = self.times_s(wanted), None
        noises = np.full(len(settings), max(noise, self.run_noise))
        power_noise = None
        if self.has_power:
            dice = np.random.default_rng([self.seed, 6])
            steps = step(self._values_for(wanted), wanted, self.scale)
            powers = np.asarray(steps.power_w) * np.exp(
                POWER_ERROR * dice.standard_t(_FREEDOM, times.shape)
            )
            power_noise = np.full(len(settings), POWER_NOISE)
        return times, noises, powers, power_noise

    def times_s(self, wanted: Parallel) -> Floats:
        """Return draws of the mean step time of layouts, shape (draws, layouts).

        What the model misses of measured layouts is taken for similar ones too.
        """
        seen = _arrays(self.observations)
        dice = np.random.default_rng([self.seed, 4])
        # What misses its own runs is no better elsewhere.
        noise, odd = np.maximum(self.values["noise"], self.misfit), self.values["odd"]
        missed = self._missed(seen)
        # What makes a layout odd, its own runs show, and those of similar ones do not.
        usual = np.clip(missed, -_USUAL * noise, _USUAL * noise)
        rows, others = _features(seen, self.scale), _features(wanted, self.scale)
        # What runs have shown: the session's prior would blur similar layouts.
        chance = np.maximum(_time_errors(self.observations), self.repeat_scatter)
        errors = _similar_errors(rows, others, usual, noise, chance, dice)
        shape, same = errors.shape, _same(wanted, seen, self.scale)
        errors = errors + (dice.random(shape) < odd) * dice.exponential(_ODD, shape) * ~same.any(1)
        for index in np.flatnonzero(same.any(1)):
            errors[:, index] += (missed - usual)[:, same[index]].mean(1)
        doublings = np.maximum(np.log2(wanted.nodes / seen.nodes.max()), 0.0)
        common = dice.standard_t(_FREEDOM, (shape[0], 1))
        own = dice.standard_t(_FREEDOM, shape)
        slower = np.abs(dice.standard_cauchy((shape[0], 1)))
        errors = errors + doublings * (_GROWTH * (common + own) + _COLLAPSE * slower)
        model = np.log(step(self._values_for(wanted), wanted, self.scale).step_s)
        return np.asarray(np.exp(np.minimum(model + errors, _LONGEST)))

    def _wanted(self, settings: Sequence[Setting]) -> Parallel:
        networks = [item.network for item in self.observations if item.network is not None]
        return Parallel.of(settings, networks[:1] * len(settings))

    def _missed(self, seen: Parallel) -> Floats:
        times = np.log([item.healthy_step_s for item in self.observations])
        return np.asarray(times - np.log(step(self.values, seen, self.scale).step_s))

    def _values_for(self, wanted: Parallel) -> Values:
        """Return the draws, with those of the priors where no run had a limit."""
        if not wanted.has_limits or "static" in self.values:
            return self.values
        normals = np.random.default_rng([self.seed, 8]).standard_normal
        priors = POWER | self.limits
        return _columns(priors, normals((self.draws, len(priors)))) | self.values


@lru_cache(maxsize=64)
def fit_layouts(
    observations: tuple[Observation, ...], seed: int, given: Priors = WEAK
) -> ParallelPosterior:
    """Return the posterior of runs with networks and layouts, on one kind of hardware.

    Of the priors that are given, those of clocks are used.
    """
    parallel = _arrays(observations)
    times = np.array([item.healthy_step_s for item in observations])
    watts = np.array([item.power_per_gpu_w or np.nan for item in observations])
    has_power = not np.isnan(watts).all()
    reference = Reference.of(observations)
    scale = Scale(reference_rate(times, parallel), reference.power_w, reference.clock_mhz)
    priors = PRIORS | (POWER if has_power or parallel.has_limits else {})
    limits = {name: given.apply(name, prior) for name, prior in LIMITS.items()}
    priors |= limits if parallel.has_limits else {}
    target = partial(
        _log_likelihood, parallel, priors, times, _time_errors(observations), watts, scale
    )
    # Reductions that hold up a pipeline take as long as its stages, or nothing: two modes.
    early, stage_s = priors["early"], float(np.median(times / parallel.micro_batches))
    guess = {list(priors).index("early"): (math.log(stage_s) - early.mean) / early.sd}
    values = _columns(priors, sample(target, len(priors), seed, guess))
    source = given.source if limits.keys() & given.values.keys() else WEAK.source
    return ParallelPosterior(observations, scale, values, seed, has_power, limits, priors=source)


def _columns(priors: Mapping[str, Prior], normals: Floats) -> Values:
    columns = Transformation(list(priors.values())).values(normals)
    return {name: columns[:, index : index + 1] for index, name in enumerate(priors)}


def _arrays(observations: Sequence[Observation]) -> Parallel:
    networks = [item.network for item in observations if item.network is not None]
    return Parallel.of([item.setting for item in observations], networks)


def _time_errors(observations: Sequence[Observation]) -> Floats:
    return np.array([item.time_error for item in observations])


def _log_likelihood(
    parallel: Parallel, priors: Mapping[str, Prior], times: Floats, time_errors: Floats,
    watts: Floats, scale: Scale, normals: Floats,
) -> Floats:  # fmt: skip
    values = _columns(priors, normals)
    steps = step(values, parallel, scale)
    residual = np.log(times) - np.log(steps.step_s)
    noise = np.hypot(values["noise"], time_errors)
    total = _log_density(residual, noise, values["odd"]).sum(1)
    if steps.power_w is not None:
        known = ~np.isnan(watts)
        scaled = (np.log(watts) - np.log(steps.power_w))[:, known] / POWER_ERROR
        total = total - (_FREEDOM + 1) / 2 * np.log1p(scaled**2 / _FREEDOM).sum(1)
    return np.where(np.isfinite(total), total, -1e300)


def _log_density(residual: Floats, noise: Floats, odd: Floats) -> Floats:
    """Return the log density of an error: Student's t, or for a share of runs a wide one."""
    usual = -(_FREEDOM + 1) / 2 * np.log1p((residual / noise) ** 2 / _FREEDOM) - np.log(noise)
    usual = usual + _T_CONSTANT + np.log1p(-odd)
    wide = np.log(odd) - np.abs(residual) / _ODD - np.log(2 * _ODD)
    return np.asarray(np.logaddexp(usual, wide))


def _features(p: Parallel, scale: Scale) -> Floats:
    limit = np.log(np.minimum(p.power_limit_w / (scale.power_w or 1.0), 1.0))
    clock = np.log(np.minimum(p.clock_limit_mhz / scale.clock_mhz, 1.0))
    return np.column_stack([
        limit / _LIMIT, clock / _LIMIT,
        np.log(p.tp) / _GROUP, np.log(p.pp) / _GROUP, np.log(p.cp) / _GROUP,
        np.log(p.ep) / _GROUP, np.log(p.tokens) / _BATCH, np.log(p.micro_batches) / (2 * _BATCH),
        np.log(p.nodes) / _NODES, np.log(p.hidden) / _NETWORK, np.log(p.layers) / _NETWORK,
        p.zero, p.checkpointing, p.sequence_parallel * 1.0,
    ])  # fmt: skip


def _same(wanted: Parallel, seen: Parallel, scale: Scale) -> np.ndarray:
    """Return which layouts (rows) are those of which runs (columns), at any limits."""
    rows = np.column_stack([_features(seen, scale)[:, 2:], seen.gpus])
    others = np.column_stack([_features(wanted, scale)[:, 2:], wanted.gpus])
    result: np.ndarray = (np.abs(others[:, None] - rows[None]) < 1e-9).all(2)
    return result


def _similar_errors(
    rows: Floats, others: Floats, missed: Floats, noise: Floats, chance: Floats,
    dice: np.random.Generator,
) -> Floats:  # fmt: skip
    """Return errors of other settings that agree with what the model misses of the runs.

    ``chance`` is the part of what each run misses that another run of it would not miss.
    """

    def correlation(one: Floats, other: Floats) -> Floats:
        near: Floats = ((one[:, None] - other[None]) ** 2).sum(2)
        return _SHARED**2 * np.exp(-near / 2) + _OWN**2 * (near < 1e-12)

    by_chance = (chance / np.median(noise)) ** 2
    seen = correlation(rows, rows) + np.diag(np.maximum(by_chance, 1e-3))
    cross = correlation(rows, others)
    weights = np.linalg.solve(seen, cross)
    left = np.maximum(_SHARED**2 + _OWN**2 - (cross * weights).sum(0), 1e-3)
    tail = dice.standard_t(_FREEDOM, (len(missed), len(others)))
    result: Floats = missed @ weights + np.sqrt(left) * noise * tail
    return result
