"""The estimates with standard errors that claims are tested with; all are of logarithms.

Each raises ``Refused`` where the data do not have it, or have no error of it.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from wattlaw.analysis.laws import observations as obs
from wattlaw.analysis.laws.limit_effects import Limit, at_limit, distinct_limits, other_limit
from wattlaw.analysis.laws.power_law import CONSTANTS, fit_power_law, power_law_design
from wattlaw.analysis.metrics.estimates import (
    ROUNDING,
    Floats,
    LeastSquares,
    Mean,
    f_test_p,
    pooled_variance,
)
from wattlaw.analysis.metrics.groups import group_numbers
from wattlaw.analysis.metrics.metrics import SETTINGS, missing_energy
from wattlaw.common.errors import Refused
from wattlaw.study.labels import limit_label
from wattlaw_papers.claims.verdicts import Effect

TIME, ENERGY = "time_s", "energy_j"
_DESCRIPTIONS = {
    TIME: "time", ENERGY: "energy", "metric": "quality",
    "sm_util_mean": "SM utilisation", "sm_util_cv": "SM utilisation over a run",
    "mem_util_mean": "memory utilisation", "mem_util_cv": "memory utilisation over a run",
}  # fmt: skip
#: From this number of settings, the error of a mean change comes from their differences.
MIN_CELLS = 3
#: With fewer counts, the test for deviations that repeats share finds too few of them: intervals
#: beyond a law of three held in 84 % instead of 95 %.
_POOLED_FROM = 4
_IDENTICAL_REPEATS = "all repeats are identical, so the random variation is unknown"


def require_measured(rows: pd.DataFrame, y: str) -> pd.DataFrame:
    """Return the rows that have ``y``; refuse none, and energies that count different things."""
    known = rows[rows[y] > 0]
    if known.empty:
        missing = missing_energy(rows) if "energy" in y else None
        raise Refused(missing or f"no {_DESCRIPTIONS.get(y, y)} was measured")
    if "energy" in y and known["energy_is"].nunique() > 1:
        energy_kinds = "; ".join(sorted(known["energy_is"].dropna().unique()))
        raise Refused(f"energies count different things ({energy_kinds}): measure all alike")
    return known


def exponent(rows: pd.DataFrame, y: str = TIME) -> Effect:
    """Return beta of y = alpha N^-beta, by the interval that ``PowerLaw.trusted`` names."""
    known = require_measured(rows, y)
    law = fit_power_law(known["gpus"].to_numpy(float), known[y].to_numpy(float))
    if law.trusted.interval == "repeats" and law.beta_se_repeats is not None:
        return Effect(law.beta, law.beta_se_repeats, known["gpus"].nunique() - 2)
    return Effect(law.beta, law.beta_se, law.n - 2)


def contrast(rows: pd.DataFrame, y: str, by: str, weights: Mapping[object, float]) -> Effect:
    """Return the sum of weights times mean ln y of the cells ``by``, with the variance pooled over
    all cells of ``rows``."""
    known = require_measured(rows, y)
    cells = np.log(known[y]).groupby(known[by])
    logs: dict[object, Floats] = {cell: values.to_numpy(float) for cell, values in cells}
    if missing := [cell for cell in weights if cell not in logs]:
        raise Refused(f"{_DESCRIPTIONS.get(y, y)} was not measured at {by} {missing[0]}")
    if len(known) == len(logs):
        raise Refused("the ratio has no interval without repeats: measure each setting twice")
    variance, freedom = pooled_variance(logs.values())
    if not freedom:
        raise Refused(_IDENTICAL_REPEATS)
    total = sum(weight * float(logs[cell].mean()) for cell, weight in weights.items())
    share = sum(weight**2 / len(logs[cell]) for cell, weight in weights.items())
    return Effect(total, float(np.sqrt(variance * share)), freedom)


def paired(rows: pd.DataFrame, y: str, treated: pd.Series, cell: pd.Series) -> Effect:
    """Return the mean change of ln y under ``treated``, with all other settings the same. Each
    ``cell`` with runs of both kinds gives a difference of means. If these differ by more than their
    repeats (F test at ``POOLING_LEVEL``), the result is the mean of the k differences, Student's t
    with k - 1; otherwise least squares of ln y on ``treated`` and an effect of each cell. Of fewer
    than ``MIN_CELLS`` it is the mean change of exactly these cells, with the error of their repeats
    alone. See Searle, Casella & McCulloch 1992, 'Variance Components', chapter 4."""
    known = require_measured(rows, y)
    treated, cell = treated[known.index], cell[known.index]
    both = treated.groupby(cell).transform("nunique") == 2
    if not both.any():
        raise Refused("no two runs differ in this alone")
    logs = np.log(known.loc[both, y])
    grouped = logs.groupby([cell[both], treated[both]])
    deviations = (logs - grouped.transform("mean")).to_numpy(float)
    means, sizes = grouped.mean().unstack(), grouped.size().unstack()
    each = (means[True] - means[False]).to_numpy(float)
    weights = 1 / (1 / sizes[True] + 1 / sizes[False]).to_numpy(float)
    cells, freedom = len(each), len(deviations) - 2 * len(each)
    if freedom + cells < 2:
        raise Refused("a single pair of runs: measure repeats, or more GPU counts")
    if (np.abs(np.append(deviations, each - each.mean())) <= ROUNDING).all():
        raise Refused(_IDENTICAL_REPEATS)
    within, mean = float(deviations @ deviations), float(each.mean())
    if cells < MIN_CELLS and freedom:
        which = "this setting" if cells == 1 else f"these {cells} settings"
        error = np.sqrt(within / freedom * (1 / weights).sum()) / cells
        if error <= ROUNDING:
            raise Refused(_IDENTICAL_REPEATS)
        return Effect(mean, float(error), freedom, f"at exactly {which}")
    weighted_mean = float(weights @ each / weights.sum())
    between = float(weights @ (each - weighted_mean) ** 2)
    # Without repeats, differences between cells cannot be told from an interaction.
    is_known = freedom >= 1 and within > freedom * ROUNDING**2
    if not is_known or f_test_p(between, cells - 1, within, freedom) < obs.POOLING_LEVEL:
        return Effect(mean, float(each.std(ddof=1) / np.sqrt(cells)), cells - 1)
    spread = (within + between) / (freedom + cells - 1)
    return Effect(weighted_mean, float(np.sqrt(spread / weights.sum())), freedom + cells - 1)


def varying_only(rows: pd.DataFrame, limit: Limit) -> pd.DataFrame:
    """Return the rows in which ``limit`` is the only limit that differs.

    Where the other limit differs too, the rows without it are kept, or where all have one, those
    with its highest value: a run at a locked clock is no uncapped run.
    """
    other = other_limit(limit)
    if other not in rows or rows[other].nunique(dropna=False) <= 1:
        return rows
    free = rows[rows[other].isna()]
    return free if len(free) else rows[rows[other] == rows[other].max()]


def limited_and_reference(
    rows: pd.DataFrame, limit: Limit, value: float | None = None
) -> pd.DataFrame:
    """Return the rows under a limit (by default the lowest), where ``limited`` is true, and those
    with none, or the highest where none was run so. The other limit does not differ."""
    alone = varying_only(rows, limit)
    limits = distinct_limits(alone[limit])
    reference, at = limits[0], limits[-1] if value is None else value
    if at not in limits or at == reference:
        wanted = "a lower limit" if value is None else limit_label(limit, value)
        available = ", ".join(limit_label(limit, first) for first in limits)
        raise Refused(f"no runs with {wanted} beside a higher one or none (there: {available})")
    kinds = [at_limit(alone, limit, first).assign(limited=first == at) for first in (reference, at)]
    return pd.concat(kinds, ignore_index=True)


def change_under_limit(rows: pd.DataFrame, y: str, limit: Limit) -> Effect:
    return paired(rows, y, rows["limited"], settings(rows, (limit,)))


def settings(rows: pd.DataFrame, but: tuple[str, ...]) -> pd.Series:
    """Return a number for each setting: rows that differ in the columns ``but`` alone share it."""
    return group_numbers(rows, [name for name in SETTINGS if name not in but])


def beyond_law(rows: pd.DataFrame, reach: float) -> Effect:
    """Return ln of the time at the largest count over the law of the runs up to ``reach``, by least
    squares. Where repeats share no deviation from it (``PowerLaw.trusted``), the error is that of
    an indicator of the largest count beside the law. Where they do, or three counts cannot tell, it
    is that of a prediction of one count's mean by the counts, with Student's t over counts less
    two."""
    known = require_measured(rows, TIME)
    counts, times_s = known["gpus"].to_numpy(float), known[TIME].to_numpy(float)
    distinct = np.unique(counts)
    within, beyond = distinct[distinct <= reach], distinct[distinct > reach]
    if len(within) < obs.MIN_DISTINCT or not len(beyond):
        found = f"{len(within)} GPU counts up to {reach:g} and {len(beyond)} beyond"
        raise Refused(f"{found}: 3 and 1 are needed")
    logs, before = np.log(times_s), counts <= reach
    law = fit_power_law(counts[before], times_s[before])
    repeated = law.lack_of_fit_p is not None
    if law.trusted.interval == "repeats" or (repeated and len(within) < _POOLED_FROM):
        data, last = obs.observe(counts[before], times_s[before]), logs[counts == distinct[-1]]
        model = LeastSquares(power_law_design(data.run_x), data.log_y)
        left = data.means - power_law_design(data.x) @ model.params
        (at,) = power_law_design(distinct[-1:])
        spread = obs.noise_of_means(data, obs.sum_of_squares(data, left), CONSTANTS)
        # A count's mean varies by what repeats share and by their noise over their number.
        own = spread.scale * spread.share + spread.within * (1 / len(last) - spread.share)
        error = float(np.sqrt(spread.scale * float(at @ model.gram @ at) + own))
        return Effect(float(last.mean() - at @ model.params), error, spread.df)
    indicators = [(counts == count).astype(float) for count in beyond]
    design = np.column_stack([power_law_design(counts), *indicators])
    model = LeastSquares(design, logs)
    if model.freedom < 1:
        raise Refused("too few runs for an interval of the law: measure repeats or more counts")
    return Effect(float(model.params[-1]), float(model.errors[-1]), model.freedom)


def difference(first: Effect, other: Effect) -> Effect:
    """Return ``other`` minus ``first``, of different runs (Welch's t; Satterthwaite 1946)."""
    means = [Mean(effect.estimate, effect.se**2, effect.df) for effect in (first, other)]
    mean = Mean.combined(means, (-1, 1))
    return Effect(mean.value, mean.variance**0.5, mean.freedom)


def scaled(effect: Effect, factor: float) -> Effect:
    return replace(effect, estimate=effect.estimate * factor, se=effect.se * abs(factor))


def growth(exponent_of: float) -> float:
    """Return the relative change of y ~ x^exponent when x doubles."""
    return float(2.0**exponent_of - 1)
