"""How sure a choice is: draws of mean time and energy, savings, ties, and what to run next.

Options of runs are drawn about their own means. The standard deviation of a run and the
correlation of time and energy are those of all settings with repeats, pooled; with few repeats,
those of the prediction model. What sessions and nodes add is that of ``metrics.variation``.
Predicted options are drawn together from the posterior of the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.advise.choice import TIE, Choice, NextRun, Savings, Tie
from wattlaw.analysis.advise.option import Option, Quantity
from wattlaw.analysis.decide.decision import Decision
from wattlaw.analysis.decide.next_runs import CERTAIN, MOST_SHORT
from wattlaw.analysis.decide.regret import expected_regrets, regrets
from wattlaw.analysis.metrics.estimates import Floats, pooled_variance
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.analysis.metrics.result import Caution
from wattlaw.analysis.metrics.variation import PRIOR
from wattlaw.analysis.predict.model_error import POWER_NOISE
from wattlaw.analysis.predict.posterior import fit
from wattlaw.study.sources import origin_of

#: Fewer repeats beyond the first of each setting do not tell the spread of runs.
_LEAST_FREEDOM = 3
#: Draws of settings that ran; those of the posterior are fewer.
_DRAWS, _POSTERIOR_DRAWS = 4000, 1000
#: A predicted option that is better with more than this probability is what to measure next.
_PROBABLY = 0.5


def certainty(choice: Choice, base: Option, ran: Sequence[Option], rows: pd.DataFrame) -> Choice:
    """Return the choice with how sure it is, and what to run next.

    The probability is that of the recommended option to be within the tolerance of the best one.
    Savings are relative to ``base``. ``ran`` are all options that ran, and ``rows`` their runs.
    """
    best, compared = choice.recommended, choice.compared
    if best is None:
        return choice
    drawn = [*compared, *([] if base in compared else [base])]
    draws = draw(drawn, ran) if len(drawn) > 1 else None
    saved = savings(best, base, draws)
    hours = run_hours(rows)
    repeat = NextRun(best, hours(best))
    is_needed = best.repeats < 2 or not repeat.is_repeat
    if len(compared) == 1 or draws is None:
        following = repeat if is_needed or draws is None else None
        return replace(choice, next_measurement=following, savings=saved)
    question, at, count = choice.question, compared.index(best), len(compared)
    times = draws.time_s[:, :count]
    energies = None if draws.energy_j is None else draws.energy_j[:, :count]
    beside = (
        draws.beside_s[:, :count],
        np.array([item.beside_j for item in compared]),
    )
    settings = [item.setting for item in compared]
    regret = regrets(question, settings, times, energies, beside)
    probabilities = (regret <= question.tolerance).mean(0)
    better, means = (regret < regret[:, [at]]).mean(0), regret.mean(0)
    is_near = np.abs(means - means[at]) <= question.tolerance
    ties = [
        Tie(item, float(better[index]), float(probabilities[index]), bool(is_near[index]))
        for index, item in enumerate(compared)
        if index != at and (better[index] > TIE or is_near[index]) and item in choice.eligible
    ]
    ties.sort(key=lambda tie: -tie.probability_better)
    probability = min(float(probabilities[at]), 1.0 if best.is_measured else MOST_SHORT)
    run = repeat if is_needed or best.is_short else None
    if probability < question.confidence:
        outcomes = [(np.log(times), draws.time_noise[:count])]
        if energies is not None and question.needs_energy:
            outcomes.append((np.log(energies), draws.energy_noise[:count]))
        now, after = float(means.min()), expected_regrets(regret, outcomes, 0)
        costs = np.array([hours(item) for item in compared])
        # Where no single run is expected to help, the uncertainty of what it shows decides.
        gain = np.maximum(now - after, 0.0) + 1e-3 * now * outcomes[0][0].std(0)
        chosen = int((gain / costs).argmax())
        if ties and ties[0].option.is_predicted and ties[0].probability_better > _PROBABLY:
            chosen = compared.index(ties[0].option)
        run = NextRun(compared[chosen], float(costs[chosen]), now, float(after[chosen]))
    return replace(
        choice, probability=probability, ties=tuple(ties), next_measurement=run,
        spread_from=draws.spread_from, savings=saved,
    )  # fmt: skip


def as_decided(
    decision: Decision, choice: Choice, base: Option, ran: Sequence[Option], rows: pd.DataFrame
) -> Choice:
    """Return the setting of a study's decision, with its probability, as the choice.

    The choice of the runs stays, with a warning, where they show that setting to be worse, or where
    it is no option; and where the decision is not of these runs.
    """
    wanted, best = decision.setting, choice.recommended
    if wanted is None or set(rows["launcher"].map(origin_of)) != {decision.origin}:
        return choice
    leading = next((item for item in [*choice.compared, *ran] if item.is_at(wanted)), None)
    ties = [tie.option for tie in choice.ties]
    may_be_best = leading == best or leading in ties or choice.probability is None
    if best is None or leading not in choice.eligible or not may_be_best:
        name = "a setting that did not run" if leading is None else leading.label
        text = f"The decision of the study leads with {name}; the present runs do not support that."
        caution = Caution("decision-differs", text)
        return replace(choice, warnings=(*choice.warnings, caution))
    if leading != best:
        choice = replace(choice, recommended=leading, reason="least expected regret")
        choice = certainty(choice, base, ran, rows)
    is_sure = decision.stopped_because == CERTAIN and decision.origin != "simulated"
    following = None if is_sure else choice.next_measurement
    probability = decision.probability
    if probability is not None and not leading.is_measured:
        probability = min(probability, MOST_SHORT)
    return replace(
        choice, probability=probability, spread_from="decision",
        next_measurement=following,
    )  # fmt: skip


@dataclass(frozen=True)
class Draws:
    """Draws of the mean time and energy of a training, shape (draws, options).

    ``energy_j`` is None unless every option has an energy. The noises are the standard deviations
    of the logarithm of a run, for each option. ``spread_from`` says what the spread of runs is
    taken from: ``repeats``, or the prediction ``model``, which assumes it.
    """

    options: Sequence[Option]
    time_s: Floats
    energy_j: Floats | None
    beside_s: Floats  # of the job, beside its training
    time_noise: Floats
    energy_noise: Floats
    spread_from: str


def draw(options: Sequence[Option], ran: Sequence[Option]) -> Draws | None:
    """Return draws of options; None where the uncertainty of one of them is unknown."""
    models = {id(item.model): item.model for item in options if item.is_predicted}
    parts: list[tuple[list[int], Floats, Floats | None, Any, Any]] = []
    for key, model in models.items():
        if model is None:
            return None
        at = [index for index, item in enumerate(options)
              if item.is_predicted and id(item.model) == key]  # fmt: skip
        settings = [options[index].setting for index in at]
        times, energies, noise, energy_noise = model.means(settings, _POSTERIOR_DRAWS)
        parts.append((at, times, energies, noise, noise if energies is None else energy_noise))
    count = min([_DRAWS, *(len(times) for _, times, *_ in parts)])
    spread_from = "model"
    if of_runs := [index for index, item in enumerate(options) if not item.is_predicted]:
        about = _about_means([options[index] for index in of_runs], ran, count)
        if about is None:
            return None
        times, energies, sd, energy_sd, spread_from = about
        parts.append((of_runs, times, energies, sd, energy_sd))
    time_s, energy_j = np.full((2, count, len(options)), np.nan)
    noises = np.empty((2, len(options)))
    for at, times, energies, noise, energy_noise in parts:
        time_s[:, at], noises[0, at], noises[1, at] = times[:count], noise, energy_noise
        if energies is not None:
            energy_j[:, at] = energies[:count]
    # Options of one batch share the draws of what is to be trained.
    dice, amounts = np.random.default_rng([0, 7]), {}
    for item in options:
        amount = item.amount
        if amount not in amounts:
            sd = log(amount.high / amount.low) / 3.92 if amount.low and amount.high else 0.0
            amounts[amount] = amount.mean * np.exp(sd * dice.standard_normal(count))
    dice = np.random.default_rng([0, 9])
    beside_s = np.array([item.beside_s for item in options]) * np.exp(
        [item.beside_error for item in options] * dice.standard_normal((count, len(options)))
    )
    total = np.column_stack([amounts[item.amount] for item in options])
    by_energy = all(item.energy_j for item in options) and bool(np.isfinite(energy_j).all())
    return Draws(
        options,
        time_s * total,
        energy_j * total if by_energy else None,
        beside_s,
        noises[0],
        noises[1],
        spread_from,
    )


def _about_means(
    options: Sequence[Option], ran: Sequence[Option], count: int
) -> tuple[Floats, Floats, float, float, str] | None:
    """Return draws of time and energy of options that ran, and the standard deviations of the
    logarithms of those of a run, with what shows them: ``repeats``, else the ``model``.

    None without both. The model assumes runs that were measured in one way. Imported runs may
    differ in anything that their file does not say, so only their repeats tell how much they vary.
    """
    are_imported = any(item.source == "imported" for item in ran)
    logs = [np.log(item.runs) for item in ran if item.runs is not None]
    variance, freedom = pooled_variance(values[:, 0] for values in logs)
    if freedom >= (1 if are_imported else _LEAST_FREEDOM):
        spread_from, sd = "repeats", float(np.sqrt(variance))
        known = [values[np.isfinite(values[:, 1])] for values in logs]
        known = [values for values in known if len(values)] or [np.zeros((1, 2))]
        energy_variance, is_known = pooled_variance(values[:, 1] for values in known)
        pairs = np.concatenate([values - values.mean(0) for values in known])
        products = float(np.sqrt((pairs**2).sum(0).prod()))
        rho = float(pairs.prod(1).sum()) / products if products else 0.0
        energy_sd = float(np.sqrt(energy_variance)) if is_known else 0.0
    elif are_imported or (model := ran[0].model) is None:
        return None
    else:
        spread_from, values = "model", fit(model.observations).values
        sd = float(np.median(np.hypot(values["noise"], values["session"])))
        energy_sd = float(np.hypot(sd, POWER_NOISE))
        rho = sd / energy_sd
    dice = np.random.default_rng([0, 6])
    normals = dice.standard_normal((2, count, len(options)))
    normals[1] = rho * normals[0] + np.sqrt(max(0.0, 1 - rho**2)) * normals[1]
    errors = normals / np.sqrt([item.repeats for item in options])
    if spread_from == "repeats":
        errors *= np.sqrt(freedom / dice.chisquare(freedom, (count, 1)))
    own = np.array([item.time_error for item in options])
    errors *= np.array([np.fmax(each, own) for each in (sd, energy_sd)])[:, None]
    # Settings on the same nodes, and those of one session there, deviate together.
    dice, of_nodes = np.random.default_rng([0, 8]), PRIOR["nodes"][1]
    tail = np.sqrt(of_nodes / dice.chisquare(of_nodes, (count, 1)))
    for key in dict.fromkeys(key for item in options for key in item.shared):
        sds = np.array([item.shared.get(key, (0.0, 0.0)) for item in options])
        errors += dice.standard_normal((count, 1)) * tail * sds.T[:, None]
    # Elsewhere, runs of a slow node take between its time and that of its peers.
    errors -= dice.uniform(size=(count, 1)) * np.array([item.slow_log for item in options])
    times = np.array([item.time_s.mean for item in options])
    energies = np.array([item.energy_j.mean if item.energy_j else np.nan for item in options])
    return times * np.exp(errors[0]), energies * np.exp(errors[1]), sd, energy_sd, spread_from


def savings(option: Option, baseline: Option, draws: Draws | None) -> Savings:
    times = energies = hours = costs = None
    if draws is not None and option is not baseline:
        at = [draws.options.index(item) for item in (option, baseline)]
        times, energies = draws.time_s[:, at] + draws.beside_s[:, at], None
        if draws.energy_j is not None:
            energies = draws.energy_j[:, at] + [option.beside_j, baseline.beside_j]
        hours = times * np.array([[option.gpus, baseline.gpus]]) / HOUR_S
        if (prices := option.footprint) is not None:
            per_joule = prices.of(1.0, 0.0).electricity_cost
            costs = (prices.of(0.0, 1.0).gpu_hour_cost or 0.0) * hours
            if per_joule is not None:
                costs = None if energies is None else costs + per_joule * energies

    def change(name: str, values: Floats | None) -> Quantity | None:
        new, old = getattr(option, name), getattr(baseline, name)
        if new is None or old is None:
            return None
        share = new.mean / old.mean - 1
        if values is None:
            return Quantity(share)
        low, high = np.quantile(values[:, 0] / values[:, 1], [0.025, 0.975]) - 1
        return Quantity(share, float(low), float(high))

    return Savings(
        time=change("job_time_s", times),
        energy=change("job_energy_j", energies),
        gpu_hours=change("gpu_hours", hours),
        cost=change("cost", costs),
        carbon=change("co2_kg", energies),
    )


def run_hours(rows: pd.DataFrame) -> Callable[[Option], float]:
    """Return a function of an option: the GPU-hours of its run, without start-up.

    A run has the median number of units of ``rows``. Where most of them measured steps, it has
    their steps or seconds, and those of the warm-up.
    """
    by_steps = rows["basis"] == "steps"
    if by_steps.mean() <= 0.5:
        median = float((rows["train_time_s"] / rows["time_s"]).median())
        units = median if median > 0 else 1.0
        return lambda option: option.gpus * option.time_s.mean * units / HOUR_S
    own = rows[by_steps]
    seconds, warmup = own["measure_seconds"].astype(float), own["warmup_steps"].astype(float)
    steps = (own["train_time_s"] / own["step_time_s"]).where(seconds.isna(), 0.0)
    measured_s = float(seconds.fillna(0.0).median())
    count = float((steps + warmup.fillna(0.0)).median())
    of_unit = own["step_time_s"] / own["time_s"]
    per_sample = float((of_unit / own["global_batch"].astype(float)).median())
    per_step = float(of_unit.median())

    def hours(option: Option) -> float:
        of_step = per_sample * option.global_batch if option.global_batch else per_step
        time_s = measured_s + count * of_step * option.time_s.mean
        return option.gpus * time_s / HOUR_S

    return hours
