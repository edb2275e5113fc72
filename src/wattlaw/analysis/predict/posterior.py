"""The posterior of a job's parameters, given all its observations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.predict import model_error, parameters
from wattlaw.analysis.predict.layout import Layout, Reference
from wattlaw.analysis.predict.observation import PARTS, Floats, Observation
from wattlaw.analysis.predict.smc import sample
from wattlaw.analysis.predict.step_model import Parameters, Step, step
from wattlaw.common.errors import BadInput
from wattlaw.study.setting import Setting

#: Degrees of freedom of the noise of runs and sessions: some deviate by many times the usual.
FREEDOM = 4.0
#: Standard deviation of a measured part of a step, as a share of the part and of the step.
_PART_ERROR = (0.1, 0.01)


@dataclass(frozen=True)
class Posterior:
    """Equally weighted draws of the parameters, and what they rest on.

    Parameters without observations that bear on them (``prior_only`` names their groups) are draws
    from the prior, of which ``priors`` is the source.
    """

    observations: tuple[Observation, ...]
    reference: Reference
    values: Parameters
    normals: dict[str, Floats]
    prior_only: tuple[str, ...]
    priors: str
    seed: int

    @property
    def draws(self) -> int:
        return len(next(iter(self.values.values())))

    @property
    def has_power(self) -> bool:
        return any(item.power_per_gpu_w for item in self.observations)

    @property
    def epoch_s(self) -> Floats | None:
        """Return draws of what an epoch takes beside its steps; None if no run shows it."""
        if "epoch" in self.prior_only:
            return None
        overhead: Floats = self.values["compute"] * self.values["epoch_overhead"]
        return self.reference.compute_s * overhead[:, 0]

    def steps(self, settings: Sequence[Setting]) -> Step:
        return step(self.values, Layout.of(settings, self.reference), power=self.has_power)

    def runs(self, settings: Sequence[Setting]) -> tuple[Step, Floats, Floats | None]:
        """Return the steps, and step times and powers of future runs in sessions of their own."""
        near = self._near(settings)
        time = near.time.correction(near.layout, model_error.TIME_ERROR)
        dice = np.random.default_rng([self.seed, 1])
        shape = (self.draws, len(settings))
        tail = np.sqrt(dice.chisquare(FREEDOM, shape) / FREEDOM)
        deviation = np.hypot(near.noise, time.spread) * dice.standard_normal(shape)
        common = near.shared * dice.standard_normal(shape) / tail
        missed = near.time.values @ time.weights
        times = near.steps.step_s * np.exp(missed + deviation / tail + common)
        if near.power is None or near.steps.power_w is None:
            return near.steps, times, None
        power = near.power.correction(near.layout, model_error.POWER_ERROR)
        noise = np.hypot(model_error.POWER_NOISE, power.spread)
        missed = near.power.values @ power.weights + noise * dice.standard_t(FREEDOM, shape)
        # The time by which a session is slower is spent with waiting.
        waiting = np.minimum(np.asarray(near.steps.waiting_power), 1.0)
        share = waiting + (1 - waiting) * np.exp(-np.clip(common, -1.0, 3.0))
        return near.steps, times, near.steps.power_w * np.exp(missed) * share

    def means(
        self, settings: Sequence[Setting], draws: int | None = None, *, noise: float = 0.0
    ) -> tuple[Floats, Floats, Floats | None, Floats | None]:
        """Return times and the standard deviation of their logarithm in a run; powers and theirs.

        Shapes are (draws, settings) and (settings,); powers may be None. The model's errors of the
        settings are drawn together. ``draws`` is how many of the posterior's draws are used, evenly
        chosen; None for all. ``noise`` is that of ``draw_errors``.
        """
        every = slice(None, None, max(1, self.draws // (draws or self.draws)))
        if every.step > 1:
            thin = {name: value[every] for name, value in self.values.items()}
            return replace(self, values=thin).means(settings, noise=noise)
        near = self._near(settings)
        dice = np.random.default_rng([self.seed, 4])
        keys = tuple(item.setting for item in self.observations)
        errors, time_noise = model_error.draw_errors(
            (near.time.seen, near.layout), (keys, settings), near.missed, model_error.TIME_ERROR,
            dice, luck=near.luck, placements=(_placements(keys), _placements(settings)),
            noise=noise,
        )  # fmt: skip
        times = near.steps.step_s * np.exp(errors)
        if near.power is None or near.steps.power_w is None:
            return times, time_noise, None, None
        keys = tuple(item.setting for item in self.observations if item.power_per_gpu_w)
        errors, power_noise = model_error.draw_errors(
            (near.power.seen, near.layout), (keys, settings), near.power.values,
            model_error.POWER_ERROR, dice, is_mean_of_gpus=True,
        )  # fmt: skip
        powers = near.steps.power_w * np.exp(errors)
        return times, time_noise, powers, power_noise

    def _near(self, settings: Sequence[Setting]) -> "_Near":
        layout = Layout.of(settings, self.reference)
        steps = step(self.values, layout, power=self.has_power)
        noise, shared = scales(self.values, layout, steps)
        seen = Layout.of_observations(self.observations, self.reference)
        fitted = step(self.values, seen, power=self.has_power)
        own, common = scales(self.values, seen, fitted)
        missed = np.log([item.step_time_s for item in self.observations]) - np.log(fitted.step_s)
        # What a session shares is not a property of its settings.
        lasting = missed * own**2 / (own**2 + common**2)
        time = _Residuals(seen, lasting, float(np.median(own)))
        # What an allocation of nodes adds counts as one: a training is in one allocation too.
        luck, luck_seen = (
            np.sqrt(np.maximum(each**2 - self.values["session"] ** 2, 0.0))
            for each in (shared, common)
        )
        missed = missed * (own**2 + luck_seen**2) / (own**2 + common**2)
        spread_seen, spread = (
            np.median(each * np.ones((1, item.gpus.size)), axis=0)
            for each, item in ((luck_seen, seen), (luck, layout))
        )
        near = _Near(layout, steps, noise, shared, time, missed, (spread_seen, spread))
        if fitted.power_w is None:
            return near
        measured = np.array([item.power_per_gpu_w or np.nan for item in self.observations])
        has_power = ~np.isnan(measured)
        missed = np.log(measured[has_power]) - np.log(fitted.power_w[:, has_power])
        power = _Residuals(seen.only(has_power), missed, model_error.POWER_NOISE)
        return replace(near, power=power)


@dataclass(frozen=True)
class _Residuals:
    """What the model misses of observations, in logs, shape (draws, observations)."""

    seen: Layout
    values: Floats
    noise: float  # the median standard deviation of a run

    def correction(self, wanted: Layout, error: float) -> model_error.Discrepancy:
        return model_error.discrepancy(self.seen, wanted, error, self.noise)


@dataclass(frozen=True)
class _Near:
    layout: Layout
    steps: Step
    noise: Floats
    shared: Floats
    time: _Residuals
    missed: Floats  # times, with what sessions share
    luck: tuple[Floats, Floats]  # the median of that, of the observations and of the settings
    power: _Residuals | None = None


def fit(
    observations: Sequence[Observation],
    *,
    seed: int = 0,
    priors: parameters.Priors = parameters.LEARNED,
) -> Posterior:
    """Return the posterior of the runs of one workload on one kind of hardware.

    It is cached, because callers query one job several times.

    ``BadInput``: There is no observation.
    """
    if not observations:
        raise BadInput("observations: given none; allowed: at least one measured setting")
    return _fit(tuple(observations), seed, priors)


@lru_cache(maxsize=16)
def _fit(observations: tuple[Observation, ...], seed: int, priors: parameters.Priors) -> Posterior:
    reference = Reference.of(observations)
    layout = Layout.of_observations(observations, reference)
    every = {name: prior for group in parameters.GROUPS.values() for name, prior in group.items()}
    for index in range(1, len(reference.precisions)):
        every[f"precision_{index}"] = parameters.PRECISION
    known = {name: priors.apply(name, prior) for name, prior in every.items()}
    active = _active(layout, observations)
    names = [name for group in active for name in parameters.GROUPS[group]]
    names += [name for name in known if name.startswith("precision_")]
    transformation = parameters.Transformation([known[name] for name in names])
    data = _Data.of(observations, reference)
    target = partial(_log_likelihood, data, names, transformation)
    draws = sample(target, len(names), seed)
    dice = np.random.default_rng([seed, 2])
    known[f"precision_{len(reference.precisions)}"] = parameters.PRECISION  # of any other precision
    count = draws.shape[0]
    normals: dict[str, Floats] = {
        name: draws[:, names.index(name)] if name in names else dice.standard_normal((count,))
        for name in known
    }
    table = np.column_stack([normals[name] for name in known])
    columns = parameters.Transformation(list(known.values())).values(table)
    values = {name: columns[:, index : index + 1] for index, name in enumerate(known)}
    return Posterior(
        observations, reference, values, normals,
        tuple(name for name in parameters.GROUPS if name not in active), priors.source, seed,
    )  # fmt: skip


def _placements(settings: Sequence[Setting]) -> list[int | tuple[int, ...]]:
    return [item.gpus_per_node or item.gpus for item in settings]


def scales(values: Parameters, layout: Layout, steps: Step) -> tuple[Floats, Floats]:
    """Return the standard deviations, in logs, of a run's noise and of what its session shares."""
    noise: Floats = values["noise"]
    if not layout.has_every_batch:
        noise = np.where(layout.has_batch, noise, np.hypot(noise, values["batch_noise"]))
    shared: Floats = values["session"]
    if layout.has_between:
        spread = values["allocation"] * ((layout.nodes > 1) | ~layout.is_placed)
        shared = np.hypot(shared, spread * steps.communication_weight)
    return noise, shared


def _active(layout: Layout, observations: Sequence[Observation]) -> list[str]:
    has_limit = bool(
        np.isfinite(layout.power_limit_w).any() or np.isfinite(layout.clock_limit_mhz).any()
    )
    has_power = any(item.power_per_gpu_w for item in observations)
    has_several = bool((layout.gpus > 1).any())
    conditions = {
        "compute": True,
        "communication": has_several,
        "network inside a node": layout.has_inside,
        "network between nodes": layout.has_between,
        "unknown placement": not layout.is_placed_everywhere,
        "unknown batch": not layout.has_every_batch,
        "epoch": layout.has_epochs,
        "clock": has_limit,
        "power": has_limit or has_power,
        "power of communication at lower clocks": has_limit and has_power and has_several,
    }
    return [name for name in parameters.GROUPS if conditions[name]]


@dataclass(frozen=True)
class _Data:
    layout: Layout
    log_time: Floats
    log_power: Floats | None  # nan where not measured
    power_errors: model_error.Errors  # of the measured powers
    sessions: npt.NDArray[np.int64]  # the first observation of each
    parts: Floats  # seconds of each of ``PARTS`` (row), nan where not measured
    part_errors: Floats  # their standard deviations
    part_weights: Floats

    @classmethod
    def of(cls, observations: Sequence[Observation], reference: Reference) -> "_Data":
        by_session: dict[object, list[Observation]] = {}
        for item in observations:
            key = item.session or (item.setting.gpus_per_node or item.setting.gpus)
            by_session.setdefault(key, []).append(item)
        sizes = [len(items) for items in by_session.values()]
        observations = [item for items in by_session.values() for item in items]
        layout = Layout.of_observations(observations, reference)
        powers = np.array([item.power_per_gpu_w or np.nan for item in observations])
        times = np.array([item.step_time_s for item in observations])
        parts = np.array([[getattr(item, name) for item in observations] for name in PARTS], float)
        return cls(
            layout,
            np.log(times),
            None if np.isnan(powers).all() else np.log(powers),
            model_error.Errors.of(layout.only(~np.isnan(powers)), model_error.POWER_ERROR),
            np.cumsum([0, *sizes[:-1]]),
            parts,
            np.hypot(_PART_ERROR[0] * parts, _PART_ERROR[1] * times),
            model_error.independence(layout),
        )


def _log_likelihood(
    data: _Data, names: list[str], transformation: parameters.Transformation, normals: Floats
) -> Floats:
    columns = transformation.values(normals)
    values = {name: columns[:, index : index + 1] for index, name in enumerate(names)}
    steps = step(values, data.layout, power=data.log_power is not None)
    noise, shared = scales(values, data.layout, steps)
    residual = data.log_time - np.log(steps.step_s)
    total = grouped_t(residual, np.hypot(noise, model_error.TIME_ERROR), shared, data.sessions)
    if data.log_power is not None and steps.power_w is not None:
        measured = ~np.isnan(data.log_power)
        residual = (data.log_power - np.log(steps.power_w))[:, measured]
        total = total + data.power_errors.log_density(residual)
    for index, name in enumerate(PARTS):
        known = ~np.isnan(data.parts[index])
        if known.any():
            residual = (data.parts[index] - _part(steps, name, data))[:, known]
            tail = np.log1p((residual / data.part_errors[index, known]) ** 2 / FREEDOM)
            total = total - (FREEDOM + 1) / 2 * tail @ data.part_weights[known]
    return np.where(np.isfinite(total), total, -1e300)


def _part(steps: Step, name: str, data: _Data) -> Floats:
    part: Floats = getattr(steps, name)
    if name == "communication_s":  # includes the wait for the slowest rank, if that is not known
        part = part + steps.waiting_s * np.isnan(data.parts[PARTS.index("waiting_s")])
    return part


def grouped_t(
    residual: Floats, noise: Floats, shared: Floats, sessions: npt.NDArray[np.int64]
) -> Floats:
    """Return the log density, up to a constant, of multivariate t residuals.

    Within a session the scale matrix is diag(noise^2) + shared shared^T, inverted by the
    Sherman-Morrison formula. ``sessions`` has the first column of each.
    """

    def total(values: Floats) -> Floats:
        return np.add.reduceat(values, sessions, axis=1)

    shape = residual.shape
    scaled, load = residual / noise, np.broadcast_to(shared / noise, shape)
    squares, cross, loads = total(scaled**2), total(scaled * load), total(load**2)
    distance = squares - cross**2 / (1 + loads)
    sizes = np.diff([*sessions, shape[1]])
    tails = (FREEDOM + sizes) / 2 * np.log1p(distance / FREEDOM) + 0.5 * np.log1p(loads)
    result: Floats = -tails.sum(1) - np.broadcast_to(np.log(noise), shape).sum(1)
    return result
