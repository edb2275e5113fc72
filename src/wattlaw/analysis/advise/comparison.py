"""Options compared by draws of their mean time and energy: savings, certainty, ties, what is next.

Options of runs are drawn about their own means. The standard deviation of a run and the
correlation of time and energy are those of all settings with repeats, pooled; with few repeats,
those of the prediction model. Predicted options are drawn together from the posterior of the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from wattlaw.analysis.advise.option import PREDICTED, Option, Quantity
from wattlaw.analysis.decide.question import Question
from wattlaw.analysis.decide.value import Outcomes, expected_regrets
from wattlaw.analysis.metrics.estimates import Floats, pool
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.analysis.metrics.result import Result, plain
from wattlaw.analysis.predict.job import Job
from wattlaw.analysis.predict.model_error import POWER_NOISE
from wattlaw.analysis.predict.observation import Observation
from wattlaw.analysis.predict.posterior import fit
from wattlaw.study.setting import Setting

#: Fewer repeats beyond the first of each setting do not tell the spread of runs.
_LEAST_FREEDOM = 3
#: Draws of settings that ran; those of the posterior are fewer.
_DRAWS, _POSTERIOR_DRAWS = 4000, 1000
#: An option ties if it is better than the recommended one with more than this probability.
TIE = 0.10
#: A predicted option that is better with more than this probability is what to measure next.
_PROBABLY = 0.5


@dataclass(frozen=True)
class Draws:
    """Draws of the time and energy of a training, shape (draws, options).

    They are of means; ``energy_j`` is None unless every option has an energy. The noises are the
    standard deviations of the logarithm of a run, for each option. ``spread_from`` says what the
    spread of runs is taken from: ``repeats``, or the prediction ``model``, which assumes it.
    """

    options: tuple[Option, ...]
    time_s: Floats
    energy_j: Floats | None
    time_noise: Floats
    energy_noise: Floats
    spread_from: str


def draw(options: Sequence[Option], ran: Sequence[Option]) -> Draws | None:
    """Return draws of options; None where the uncertainty of one of them is unknown.

    The spread of runs is that of ``ran``, all options of the job that ran.
    """
    count, by_energy = _DRAWS, all(item.energy_j for item in options)
    parts, spread_from = [], "model"
    predicted: dict[int, list[int]] = {}
    for index, item in enumerate(options):
        if item.is_predicted:
            predicted.setdefault(id(item.model), []).append(index)
    for at in predicted.values():
        if (model := options[at[0]].model) is None:
            return None
        parts.append((at, _posterior(model, [options[index].training for index in at])))
        count = min(count, len(parts[-1][1][0]))
    if of_runs := [index for index, item in enumerate(options) if not item.is_predicted]:
        if (spread := _Spread.of(ran)) is None:
            return None
        spread_from = "repeats" if np.isfinite(spread.freedom) else "model"
        parts.append((of_runs, _repeats([options[index] for index in of_runs], spread, count)))
    times, energies = np.full((2, count, len(options)), np.nan)
    noise = np.empty((2, len(options)))
    for at, (of_time, of_energy, time_noise, energy_noise) in parts:
        times[:, at] = of_time[:count]
        if of_energy is not None:
            energies[:, at] = of_energy[:count]
        noise[0, at], noise[1, at] = time_noise, energy_noise
    amounts = _amounts(options, count)
    by_energy = by_energy and bool(np.isfinite(energies).all())
    return Draws(
        tuple(options), times * amounts, energies * amounts if by_energy else None, noise[0],
        noise[1], spread_from,
    )  # fmt: skip


_Part = tuple[Floats, Floats | None, Floats | float, Floats | float]


@dataclass(frozen=True)
class _Spread:
    """Standard deviations of the logarithms of a run's time and energy, and their correlation.

    ``freedom`` is that of Student's t; infinite if the model is the source.
    """

    time: float
    energy: float
    correlation: float
    freedom: float

    @classmethod
    def of(cls, options: Sequence[Option]) -> "_Spread | None":
        """Return the spread by the repeats of options, else by their model; None without both.

        The model assumes runs that were measured in one way. Imported runs may differ in anything
        that their file does not say, so only their repeats tell how much they vary.
        """
        are_imported = any(item.source == "imported" for item in options)
        logs = [np.log(item.runs) for item in options if item.runs is not None]
        time = pool({index: values[:, 0] for index, values in enumerate(logs)})
        if time.freedom >= (1 if are_imported else _LEAST_FREEDOM):
            known = [values[np.isfinite(values[:, 1])] for values in logs]
            known = [values for values in known if len(values)] or [np.zeros((1, 2))]
            energy = pool({index: values[:, 1] for index, values in enumerate(known)})
            pairs = np.concatenate([values - values.mean(0) for values in known])
            products = float(np.sqrt((pairs**2).sum(0).prod()))
            rho = float(pairs.prod(1).sum()) / products if products else 0.0
            energy_sd = np.sqrt(energy.variance) if energy.freedom else 0.0
            return cls(float(np.sqrt(time.variance)), float(energy_sd), rho, time.freedom)
        if are_imported or (model := options[0].model) is None:
            return None
        values = fit(model.observations).values
        sd = float(np.median(np.hypot(values["noise"], values["session"])))
        energy_sd = float(np.hypot(sd, POWER_NOISE))
        return cls(sd, energy_sd, sd / energy_sd, np.inf)


def _repeats(options: Sequence[Option], spread: _Spread, count: int) -> _Part:
    """Return draws of time and energy of a unit about the means of options."""
    dice = np.random.default_rng([0, 6])
    rho = spread.correlation
    normals = dice.standard_normal((2, count, len(options)))
    normals[1] = rho * normals[0] + np.sqrt(max(0.0, 1 - rho**2)) * normals[1]
    errors = normals / np.sqrt([item.repeats for item in options])
    if np.isfinite(spread.freedom):
        errors *= np.sqrt(spread.freedom / dice.chisquare(spread.freedom, (count, 1)))
    times = np.array([item.time_s.mean for item in options])
    energies = np.array([item.energy_j.mean if item.energy_j else np.nan for item in options])
    return (
        times * np.exp(spread.time * errors[0]), energies * np.exp(spread.energy * errors[1]),
        spread.time, spread.energy,
    )  # fmt: skip


def _posterior(model: Job, settings: Sequence[Setting]) -> _Part:
    """Return draws of time and energy of a unit by the model of all options."""
    posterior = fit(model.observations)
    times, noise, powers, power_noise = posterior.means(settings, _POSTERIOR_DRAWS)
    unit = np.array([model.unit_time_s(Observation(item, 1.0)) for item in settings])
    times = times * unit
    if (fixed_s := posterior.epoch_s) is not None:
        every = max(1, posterior.draws // _POSTERIOR_DRAWS)  # as in ``means``
        times = times + fixed_s[::every, None]
    if powers is None or power_noise is None:
        return times, None, noise, noise
    watts = powers * np.array([item.gpus for item in settings])
    if model.host is not None:
        watts = watts + model.host.draws(settings, len(times), posterior.seed)
    return times, times * watts, noise, np.hypot(noise, power_noise)


def _amounts(options: Sequence[Option], count: int) -> Floats:
    """Return draws of the amounts to train; options of one batch share theirs."""
    dice = np.random.default_rng([0, 7])
    by_amount: dict[Quantity, Floats] = {}
    for item in options:
        amount = item.amount
        if amount not in by_amount:
            sd = log(amount.high / amount.low) / 3.92 if amount.low and amount.high else 0.0
            by_amount[amount] = amount.mean * np.exp(sd * dice.standard_normal(count))
    return np.column_stack([by_amount[item.amount] for item in options])


@dataclass(frozen=True)
class Savings(Result):
    """The changes of a training from the baseline to the recommended setting, as shares.

    A negative change is a saving. Each has the bounds of its 95 % interval, if they are known.
    """

    time: Quantity
    energy: Quantity | None
    gpu_hours: Quantity
    cost: Quantity | None
    carbon: Quantity | None

    def to_dict(self) -> dict[str, Any]:
        """Return each change, and its bounds in ``<name>_ci``."""
        values: dict[str, Any] = {}
        for name, change in vars(self).items():
            values[name] = None if change is None else change.mean
            values[f"{name}_ci"] = None if change is None else change.interval
        return plain(values)  # type: ignore[no-any-return]


def savings(option: Option, baseline: Option, draws: Draws | None) -> Savings:
    """Return the changes from a baseline to an option, both of which are in the draws."""
    is_same = option is baseline
    at = [] if draws is None else [draws.options.index(item) for item in (option, baseline)]

    def changed(new: Quantity, old: Quantity, values: Floats | None) -> Quantity:
        change = new.mean / old.mean - 1
        if is_same or values is None:
            return Quantity(change)
        low, high = np.quantile(values[:, 0] / values[:, 1], [0.025, 0.975]) - 1
        return Quantity(change, float(low), float(high))

    times = None if draws is None else draws.time_s[:, at]
    energies = None if draws is None or draws.energy_j is None else draws.energy_j[:, at]
    gpus = np.array([[option.gpus, baseline.gpus]])
    hours = None if times is None else times * gpus / HOUR_S

    def known(name: str, values: Floats | None) -> Quantity | None:
        new, old = getattr(option, name), getattr(baseline, name)
        return None if new is None or old is None else changed(new, old, values)

    return Savings(
        changed(option.train_time_s, baseline.train_time_s, times),
        known("train_energy_j", energies),
        changed(option.gpu_hours, baseline.gpu_hours, hours),
        known("cost", _cost(option, hours, energies)),
        known("co2_kg", energies),
    )


def _cost(option: Option, hours: Floats | None, energies: Floats | None) -> Floats | None:
    if option.footprint is None or hours is None:
        return None
    per_joule = option.footprint.of(1.0, 0.0).electricity_cost
    per_hour = option.footprint.of(0.0, 1.0).gpu_hour_cost
    total = np.zeros_like(hours) if per_hour is None else per_hour * hours
    if per_joule is None:
        return total
    return None if energies is None else total + per_joule * energies


@dataclass(frozen=True)
class Tie(Result):
    """An option that may be as good as the recommended one, or is probably better.

    ``probability_better`` is the probability that it is better; ``probability`` that it is within
    the tolerance of the best option.
    """

    option: Option
    probability_better: float
    probability: float
    is_near: bool  # their regrets differ by no more than the tolerance

    @property
    def is_better(self) -> bool:
        """Return whether the option is probably better, and by more than the tolerance."""
        return not self.is_near and self.probability_better > 1 - TIE

    def to_dict(self) -> dict[str, Any]:
        """Return the option's values and the probabilities."""
        own = {name: getattr(self, name) for name in ("probability_better", "probability")}
        return self.option.to_dict() | own


@dataclass(frozen=True)
class NextRun(Result):
    """The run that lowers the expected regret of the decision most per GPU-hour.

    The regret is the share by which the recommended setting may miss the best one.
    """

    option: Option
    gpu_hours: float
    expected_regret: float | None
    regret_after: float | None

    @property
    def is_repeat(self) -> bool:
        """Return whether the setting ran before, and not in a simulation."""
        return self.option.source not in (PREDICTED, "simulated")

    def to_dict(self) -> dict[str, Any]:
        """Return the setting, whether it is a repeat, and the numbers."""
        names = ("gpu_hours", "expected_regret", "regret_after", "is_repeat")
        return plain(dict(self.option.setting) | {name: getattr(self, name) for name in names})  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Certainty:
    """How sure it is that an option is the best, what ties with it, and what to run next."""

    probability: float | None
    ties: tuple[Tie, ...]
    next_run: NextRun | None


def certainty(
    best: Option, options: Sequence[Option], draws: Draws | None, question: Question,
    run_hours: Callable[[Option], float], meets: Callable[[Option], bool],
) -> Certainty:  # fmt: skip
    """Return how sure it is that an option is within the tolerance of the best one.

    ``best`` is one of ``options``, which the first columns of the draws are of. ``run_hours``
    returns the GPU-hours of a run of an option, and ``meets`` whether an option meets the
    constraints: one that does not is never a tie.
    """
    repeat = NextRun(best, run_hours(best), None, None)
    is_needed = best.repeats < 2 or not repeat.is_repeat
    if len(options) == 1 or draws is None:
        return Certainty(None, (), repeat if is_needed or draws is None else None)
    at, count = options.index(best), len(options)
    times = draws.time_s[:, :count]
    energies = None if draws.energy_j is None else draws.energy_j[:, :count]
    regrets = question.regrets([item.training for item in options], times, energies)
    probabilities = (regrets <= question.tolerance).mean(0)
    probability = float(probabilities[at])
    better = (regrets < regrets[:, [at]]).mean(0)
    means = regrets.mean(0)
    is_near = np.abs(means - means[at]) <= question.tolerance
    ties = [
        Tie(item, float(better[index]), float(probabilities[index]), bool(is_near[index]))
        for index, item in enumerate(options)
        if index != at and (better[index] > TIE or is_near[index]) and meets(item)
    ]
    ties.sort(key=lambda tie: -tie.probability_better)
    is_sure = probability >= question.confidence
    if is_sure:
        return Certainty(probability, tuple(ties), repeat if is_needed else None)
    power, power_noise = None, None
    if energies is not None and question.needs_energy:
        power, power_noise = np.log(energies), draws.energy_noise[:count]
    outcomes = Outcomes(np.log(times), draws.time_noise[:count], power, power_noise)
    now, after = float(means.min()), expected_regrets(regrets, outcomes, 0)
    hours = np.array([run_hours(item) for item in options])
    # Where no single run is expected to help, the uncertainty of what it shows decides.
    gain = np.maximum(now - after, 0.0) + 1e-3 * now * outcomes.time.std(0)
    chosen = int((gain / hours).argmax())
    if ties and ties[0].option.is_predicted and ties[0].probability_better > _PROBABLY:
        chosen = options.index(ties[0].option)
    run = NextRun(options[chosen], float(hours[chosen]), now, float(after[chosen]))
    return Certainty(probability, tuple(ties), run)
