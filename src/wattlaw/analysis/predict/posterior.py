"""The posterior of a job's parameters, given all its observations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from wattlaw.analysis.predict import beyond, model_error, parameters
from wattlaw.analysis.predict.layout import Layout, Reference
from wattlaw.analysis.predict.observation import PARTS, Floats, Observation
from wattlaw.analysis.predict.parallel_posterior import ParallelPosterior, fit_layouts
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
    growth: tuple[float, float]  # of a step where GPUs were added last, see ``beyond.growth``

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

    @cached_property
    def misfit(self) -> float:
        """Return what the model typically misses of the measured step times, in logs.

        Repeats of a setting count as their mean, so that the noise of runs is not taken for it. Of
        a run of few steps, what it misses counts relative to what it may miss by chance.
        """
        seen, (fitted, _, _) = [item.setting for item in self.observations], self._fitted
        missed = np.log([item.healthy_step_s for item in self.observations]) - np.log(fitted.step_s)
        missed *= model_error.TIME_ERROR / np.hypot(model_error.TIME_ERROR, self._time_errors)
        by_setting: dict[Setting, list[float]] = {}
        for setting, value in zip(seen, np.median(missed, axis=0).tolist(), strict=True):
            by_setting.setdefault(setting, []).append(value)
        means = [sum(values) / len(values) for values in by_setting.values()]
        return float(np.sqrt(np.mean(np.square(means))))

    @property
    def _time_errors(self) -> Floats:
        return np.array([item.time_error for item in self.observations])

    def steps(self, settings: Sequence[Setting]) -> Step:
        return step(self.values, Layout.of(settings, self.reference), power=self.has_power)

    def runs(self, settings: Sequence[Setting]) -> tuple[Step, Floats, Floats | None]:
        """Return the steps, and step times and powers of future runs in sessions of their own."""
        steps, noise, _ = self._steps(settings)
        times, _, powers, _ = self.means(settings)
        dice = np.random.default_rng([self.seed, 1])
        shape = (self.draws, len(settings))
        tail = np.sqrt(dice.chisquare(FREEDOM, shape) / FREEDOM)
        own = noise * dice.standard_normal(shape) / tail
        session = self.values["session"] * dice.standard_normal(shape) / tail
        times = times * np.exp(own + session)
        if powers is None or steps.waiting_power is None:
            return steps, times, None
        powers = powers * np.exp(model_error.POWER_NOISE * dice.standard_t(FREEDOM, shape))
        # The time by which a session is slower is spent with waiting.
        waiting = np.minimum(steps.waiting_power, 1.0)
        share = waiting + (1 - waiting) * np.exp(-np.clip(session, -1.0, 3.0))
        return steps, times, powers * share

    def means(
        self, settings: Sequence[Setting], draws: int | None = None, *, noise: float = 0.0
    ) -> tuple[Floats, Floats, Floats | None, Floats | None]:
        """Return the mean step time and power of settings, and the noise of a run.

        The model's errors of the settings are drawn together. ``draws`` is how many of the
        posterior's draws are used, evenly chosen; None for all. ``noise`` is the standard deviation
        of a run's log time, if repeats have shown it.

        Times, of shape (draws, settings), and the standard deviation of their logarithm in a run;
        then powers and theirs, None without power.
        """
        every = slice(None, None, max(1, self.draws // (draws or self.draws)))
        if every.step > 1:
            thin = {name: value[every] for name, value in self.values.items()}
            return replace(self, values=thin).means(settings, noise=noise)
        steps, _, luck = self._steps(settings)
        seen = [item.setting for item in self.observations]
        fitted, own, luck_seen = self._fitted
        layouts = (
            Layout.of_observations(self.observations, self.reference),
            Layout.of(settings, self.reference),
        )
        missed = np.log([item.healthy_step_s for item in self.observations]) - np.log(fitted.step_s)
        # What an allocation of nodes adds counts as an error of the model: a training is in one
        # allocation too. What a session shares does not, nor what a run's few steps miss.
        misfit = max(self.misfit, model_error.TIME_ERROR)
        lasting = own**2 + luck_seen**2 + misfit**2
        by_chance = self.values["session"] ** 2 + self._time_errors**2
        missed = missed * lasting / (lasting + by_chance)
        dice = np.random.default_rng([self.seed, 4])
        errors, time_noise = model_error.draw_errors(
            layouts, (seen, settings), missed, model_error.TIME_ERROR, dice,
            luck=(np.median(luck_seen, axis=0), np.median(luck, axis=0)),
            placements=(_placements(seen), _placements(settings)), noise=noise,
        )  # fmt: skip
        errors = errors + beyond.draw_errors(
            *layouts, misfit / model_error.TIME_ERROR, self.draws, self.seed
        )
        seen_s = np.array([item.healthy_step_s for item in self.observations])
        least_s = beyond.saturated_s(
            layouts[0], seen_s, layouts[1], self.growth, self.draws, self.seed
        )
        times = np.maximum(steps.step_s * np.exp(errors), least_s)
        if fitted.power_w is None or steps.power_w is None:
            return times, time_noise, None, None
        has_power = np.array([item.power_per_gpu_w is not None for item in self.observations])
        measured = [item for item in self.observations if item.power_per_gpu_w is not None]
        watts = np.array([item.power_per_gpu_w for item in measured], dtype=float)
        missed = np.log(watts) - np.log(fitted.power_w[:, has_power])
        errors, power_noise = model_error.draw_errors(
            (layouts[0].only(has_power), layouts[1]),
            ([item.setting for item in measured], settings),
            missed, model_error.POWER_ERROR, dice, is_mean_of_gpus=True,
        )  # fmt: skip
        return times, time_noise, steps.power_w * np.exp(errors), power_noise

    @cached_property
    def _fitted(self) -> tuple[Step, Floats, Floats]:
        layout = Layout.of_observations(self.observations, self.reference)
        return self._with_scales(layout, self.values)

    def _steps(self, settings: Sequence[Setting]) -> tuple[Step, Floats, Floats]:
        layout, values = Layout.of(settings, self.reference), self.values
        seen = Layout.of_observations(self.observations, self.reference)
        factor = beyond.narrowing(seen, layout, self.draws, self.seed)
        volumes = {name: values[name] * factor for name in beyond.NARROWED if name in values}
        return self._with_scales(layout, values | volumes)

    def _with_scales(self, layout: Layout, values: Parameters) -> tuple[Step, Floats, Floats]:
        """Return noise-free steps, the noise of a run, and what an allocation of nodes adds.

        Both are standard deviations in logs, shape (draws, settings).
        """
        steps = step(values, layout, power=self.has_power)
        noise, shared = scales(values, layout, steps)
        luck = np.sqrt(np.maximum(shared**2 - self.values["session"] ** 2, 0.0))
        return steps, noise, luck + np.zeros((1, layout.gpus.size))


#: The posterior of data-parallel jobs, or that of layouts.
Fitted = Posterior | ParallelPosterior


def fit(
    observations: Sequence[Observation],
    *,
    seed: int = 0,
    priors: parameters.Priors = parameters.LEARNED,
) -> Fitted:
    """Return the posterior of the runs of one workload on one kind of hardware.

    It is cached, because callers query one job several times. Runs that name their network are of
    a transformer with a parallel layout, which has a model of its own.

    ``BadInput``: There is no observation.
    """
    if not observations:
        raise BadInput("observations: given none; allowed: at least one measured setting")
    if observations[0].network is not None:
        return fit_layouts(tuple(observations), seed, priors)
    return _fit(tuple(observations), seed, priors)


#: By how much more GPUs slow a step, in logs, before its storage may be saturated.
_GROWTH = 0.1


@lru_cache(maxsize=64)
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
    guess = {}
    times = np.array([item.healthy_step_s for item in observations])
    growth = beyond.growth(layout, times)
    if growth[0] > _GROWTH:
        # Storage that all share may be what takes the step of the most GPUs.
        last = int(np.lexsort((times, layout.gpus))[-1])
        samples = layout.gpus[last] * layout.micro[last] * layout.parts[last]
        share = times[last] / (reference.compute_s * samples)
        prior = known["storage"]
        guess[names.index("storage")] = float((np.log(share) - prior.mean) / prior.sd)
    draws = sample(target, len(names), seed, guess)
    dice = np.random.default_rng([seed, 2])
    known[f"precision_{len(reference.precisions)}"] = parameters.PRECISION  # of any other precision
    count = draws.shape[0]
    normals: dict[str, Floats] = {
        name: draws[:, names.index(name)] if name in names else dice.standard_normal((count,))
        for name in known
    }
    table = np.column_stack([normals[name] for name in known])
    columns = parameters.Transformation(list(known.values())).values(table).T[:, :, None]
    values = dict(zip(known, columns, strict=True))
    if growth[0] <= _GROWTH:  # else it may have begun
        values["storage"] = beyond.shown_storage(values, layout)
    return Posterior(
        observations, reference, values, normals,
        tuple(name for name in parameters.GROUPS if name not in active), priors.source, seed,
        growth,
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
        allocation = values["allocation"] * (layout.is_between * steps.communication_weight)
        shared = np.sqrt(shared**2 + allocation**2)
    return noise, shared


def _active(layout: Layout, observations: Sequence[Observation]) -> list[str]:
    has_limit = layout.has_limits
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
    time_errors: Floats  # of each run's own mean and of the model, in logs; one if all are equal
    log_power: Floats | None  # nan where not measured
    power_errors: model_error.Errors  # of the measured powers
    sessions: Floats  # 1 for the observations (rows) of each, else 0
    parts: dict[str, Floats]  # seconds of those of ``PARTS`` that were measured, nan where not
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
        times = np.array([item.healthy_step_s for item in observations])
        parts = {
            name: np.array([getattr(item, name) for item in observations], float) for name in PARTS
        }
        own = np.array([item.time_error for item in observations])
        errors = np.hypot(own[:1] if np.ptp(own) == 0 else own, model_error.TIME_ERROR)
        return cls(
            layout,
            np.log(times),
            errors,
            None if np.isnan(powers).all() else np.log(powers),
            model_error.Errors.of(layout.only(~np.isnan(powers)), model_error.POWER_ERROR),
            np.repeat(np.eye(len(sizes)), sizes, axis=0),
            {name: seconds for name, seconds in parts.items() if not np.isnan(seconds).all()},
            model_error.independence(layout),
        )


def _log_likelihood(
    data: _Data, names: list[str], transformation: parameters.Transformation, normals: Floats
) -> Floats:
    columns = transformation.values(normals).T[:, :, None]
    values = dict(zip(names, columns, strict=True))
    steps = step(values, data.layout, power=data.log_power is not None)
    noise, shared = scales(values, data.layout, steps)
    residual = data.log_time - np.log(steps.step_s)
    noise = np.sqrt(noise**2 + data.time_errors**2)
    total = grouped_t(residual, noise, shared, data.sessions)
    if data.log_power is not None and steps.power_w is not None:
        measured = ~np.isnan(data.log_power)
        residual = (data.log_power - np.log(steps.power_w))[:, measured]
        total = total + data.power_errors.log_density(residual)
    for name, seconds in data.parts.items():
        known, part = ~np.isnan(seconds), getattr(steps, name)
        if name == "communication_s":  # with the wait for the slowest rank, if not known
            part = part + steps.waiting_s * np.isnan(data.parts.get("waiting_s", np.nan))
        errors = np.hypot(_PART_ERROR[0] * seconds, _PART_ERROR[1] * np.exp(data.log_time))
        tail = np.log1p(((seconds - part) / errors)[:, known] ** 2 / FREEDOM)
        total = total - (FREEDOM + 1) / 2 * tail @ data.part_weights[known]
    return np.where(np.isfinite(total), total, -1e300)


def grouped_t(residual: Floats, noise: Floats, shared: Floats, sessions: Floats) -> Floats:
    """Return the log density, up to a constant, of multivariate t residuals.

    Within a session the scale matrix is diag(noise^2) + shared shared^T, inverted by the
    Sherman-Morrison formula. ``sessions`` has a column for each, with 1 for its observations.
    """
    shape = residual.shape
    scaled, load = residual / noise, np.broadcast_to(shared / noise, shape)
    squares, cross, loads = (part @ sessions for part in (scaled**2, scaled * load, load**2))
    inner = 1 + loads
    distance = squares - cross**2 / inner
    tails = (FREEDOM + sessions.sum(0)) / 2 * np.log(1 + distance / FREEDOM) + 0.5 * np.log(inner)
    result: Floats = -tails.sum(1) - np.log(noise).sum(1) * (shape[1] / noise.shape[1])
    return result
