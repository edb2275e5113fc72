"""The best cap or clock under a rule, and whether the data show that it is the best."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import Limit, at_limit, distinct_limits, with_several_limits
from wattlaw.analysis.groups import groups
from wattlaw.analysis.metrics import SETTINGS
from wattlaw.analysis.result import Result
from wattlaw.analysis.statistics import ERROR, Interval, Pooled, geometric_mean, pool
from wattlaw.errors import BadInput, Refused
from wattlaw.formatting import limit_label

Against = Literal["fastest", "highest"]

_COSTS = ("energy", "energy-delay product", "energy-delay² product")  # by power of the time


class Rule:
    """A rule that selects the limit of least cost among those that it allows.

    ``slowdown`` is the share by which a limit may be slower than ``against``: the fastest limit,
    or no limit (if there is none, the highest). None allows any slow-down.
    """

    power: int = 0
    slowdown: float | None = None
    against: Against = "fastest"

    @property
    def description(self) -> str:
        """Return the rule as text."""
        if self.slowdown is not None:
            return f"least energy at no more than {100 * self.slowdown:g} % slow-down"
        return f"least {_COSTS[self.power]}"

    def cost(self, time_s: pd.Series, energy_j: pd.Series) -> pd.Series:
        """Return ``E T^power`` of each row: J, J s or J s²."""
        cost: pd.Series = energy_j * time_s**self.power
        return cost


@dataclass(frozen=True)
class LeastEnergy(Rule):
    """The limit of least energy, however slow."""


@dataclass(frozen=True)
class LeastEnergyWithin(Rule):
    """The limit of least energy that is at most so much slower.

    The comparison with the fastest limit is the stricter one: by noise a capped run may be faster
    than the uncapped one.
    """

    slowdown: float = 0.10
    against: Against = "fastest"

    def __post_init__(self) -> None:
        if not self.slowdown >= 0:
            raise BadInput(f"slow-down {self.slowdown:g}; allowed: 0 or more")


@dataclass(frozen=True)
class LeastEnergyDelay(Rule):
    """The limit of least ``E T^power``.

    Source: Gonzalez & Horowitz 1996, IEEE Journal of Solid-State Circuits 31(9), for power 1.
    """

    power: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise BadInput(f"energy-delay power {self.power}; allowed: 1, 2")


BEST, NO_REPEATS, UNKNOWN = "best", "no repeats", "cannot tell"
IDENTICAL_REPEATS = "repeats are all the same"
#: A limit that costs at most this share more is as good: meters do not resolve less.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Choice(Result):
    """The chosen limit (None: no limit), against no limit or, where there is none, the highest.

    ``saving`` is of energy and ``slowdown`` of time, both as shares of the reference's (negative:
    more energy, faster). ``candidates`` has a row per limit: ``limit, n, time_s, energy_j, cost``
    (geometric means), ``slowdown`` (as the rule counts it), ``allowed``, ``cost_ratio`` to the
    chosen one with ``_low`` (the one-sided simultaneous bound) and ``rival``: whether it may be
    better.
    """

    rows_field = "candidates"

    limit: float | None
    reference: float | None
    verdict: str
    saving: float
    saving_ci: Interval | None
    slowdown: float
    slowdown_ci: Interval | None
    candidates: pd.DataFrame
    why: str


def best_limit(
    frame: pd.DataFrame, rule: Rule | None = None, kind: Limit = "power_limit_w"
) -> Choice:
    """Return the best limit under ``rule``, by the geometric means over repeats.

    Of equal costs it is the faster, then the higher one.

    Parameters
    ----------
    frame
        One row per run, all at one setting but for the limit: ``limit`` (missing: none),
        ``time_s`` and ``energy_j`` per epoch; ``energy_is`` if known. Rows without time or energy
        are ignored.
    rule
        ``LeastEnergy``, ``LeastEnergyWithin`` (the default, at 10 %) or ``LeastEnergyDelay``.
    kind
        The kind of the limit, for messages.

    Returns
    -------
    Choice
        The verdict says how certain it is:

        ``no repeats``, ``repeats are all the same``
            Costs, or times if the rule limits them, do not scatter; the uncertainty is unknown.
        ``best``
            No other limit may be better by more than 1 %, and the chosen one is surely allowed.
        ``cannot tell``
            Another limit may be better, or the slow-down of the chosen one may be too large.

    Notes
    -----
    Logarithms of times and costs are taken as normal, with the variance pooled over limits. A
    rival may be allowed, and its lower bound of cost relative to the chosen limit is below 1 - 1 %:
    one-sided t bounds at 5 % shared between all comparisons (Bonferroni; Hsu 1984, Annals of
    Statistics 12(3)). The 95 % intervals of saving and slow-down are for the chosen limit alone.

    Raises
    ------
    Refused
        Fewer than two limits with time and energy, or energies that count different things.
    BadInput
        A time or energy that is not above 0.
    """
    rule = LeastEnergyWithin() if rule is None else rule
    runs = _usable(frame)
    limits = distinct_limits(runs["limit"])
    at = [at_limit(runs, "limit", value) for value in limits]
    table = pd.DataFrame(
        {
            "limit": np.array(limits, dtype=float),
            "n": [len(rows) for rows in at],
            "time_s": [geometric_mean(rows["time_s"].to_numpy(float)) for rows in at],
            "energy_j": [geometric_mean(rows["energy_j"].to_numpy(float)) for rows in at],
        }
    )
    table["cost"] = rule.cost(table["time_s"], table["energy_j"])
    base = 0 if rule.against == "highest" else int(table["time_s"].argmin())
    fastest_s = table["time_s"].iloc[base]
    table["slowdown"] = table["time_s"] / fastest_s - 1
    most = np.inf if rule.slowdown is None else 1 + rule.slowdown
    table["allowed"] = table["time_s"] <= fastest_s * most
    order = table[table["allowed"]].sort_values(["cost", "time_s"], kind="stable")
    chosen = int(order.index[0])
    costs = _logs(rule.cost(rows["time_s"], rows["energy_j"]) for rows in at)
    times = _logs(rows["time_s"] for rows in at)
    energies = _logs(rows["energy_j"] for rows in at)
    needed = [costs] if rule.slowdown is None else [costs, times]
    has_scatter = all(sample.freedom for sample in needed)
    table, is_certain = _rivals(table, chosen, base, rule, costs, times, has_scatter=has_scatter)
    saving, saving_ci = _change(energies, chosen)
    slower, slower_ci = _change(times, chosen)
    if not has_scatter:
        verdict = IDENTICAL_REPEATS if any(sample.identical for sample in needed) else NO_REPEATS
    elif is_certain and not table["rival"].any():
        verdict = BEST
    else:
        verdict = UNKNOWN
    return Choice(
        limits[chosen], limits[0], verdict,
        -saving, None if saving_ci is None else (-saving_ci[1], -saving_ci[0]),
        slower, slower_ci, table,
        _explanation(verdict, table, chosen, rule, kind, is_certain=is_certain),
    )  # fmt: skip


def best_limits(
    table: pd.DataFrame, limit: Limit = "power_limit_w", rule: Rule | None = None
) -> pd.DataFrame:
    """Return ``best_limit`` of every setting of a ``run_metrics`` table that has several limits.

    Returns
    -------
    DataFrame
        The settings but the limit, ``energy_is``, then ``limit, reference, verdict, saving,
        saving_low, saving_high, slowdown, slowdown_low, slowdown_high, why``. A setting that has
        several limits and no choice (see ``best_limit``) has the reason in ``why``, and no verdict.
    """
    names = [name for name in SETTINGS if name in table.columns and name != limit]
    several = with_several_limits(table, names, limit).rename(columns={limit: "limit"})
    needed = [name for name in ("limit", "time_s", "energy_j", "energy_is") if name in several]
    rows: list[dict[str, Any]] = []
    for group, runs in groups(several[[*names, *needed]], names):
        try:
            choice = best_limit(runs, rule, limit)
        except Refused as error:
            rows.append({**group, "why": str(error)})
            continue
        row = group | {name: getattr(choice, name, None) for name in _COLUMNS}
        if "energy_is" in runs:
            row["energy_is"] = runs.loc[runs["energy_j"].notna(), "energy_is"].iloc[0]
        for name, ends in (("saving", choice.saving_ci), ("slowdown", choice.slowdown_ci)):
            row[f"{name}_low"], row[f"{name}_high"] = ends or (np.nan, np.nan)
        rows.append(row)
    return pd.DataFrame(rows, columns=[*names, "energy_is", *_COLUMNS])


_COLUMNS = [
    "limit", "reference", "verdict", "saving", "saving_low", "saving_high", "slowdown",
    "slowdown_low", "slowdown_high", "why",
]  # fmt: skip


def _logs(values: Iterable[pd.Series]) -> Pooled[int]:
    return pool({i: np.log(sample.to_numpy(float)) for i, sample in enumerate(values)})


def _change(logs: Pooled[int], i: int) -> tuple[float, Interval | None]:
    """Return limit i over the reference, less 1, with its interval; None without freedom."""
    change, low, high = (float(sample) for sample in np.expm1(logs.interval(i, 0)))
    return change, (low, high) if logs.freedom else None


def _rivals(
    table: pd.DataFrame, chosen: int, base: int, rule: Rule, costs: Pooled[int],
    times: Pooled[int], *, has_scatter: bool,
) -> tuple[pd.DataFrame, bool]:  # fmt: skip
    """Add the costs relative to the chosen limit; say whether that one is surely allowed."""
    share = 1 - ERROR / max(len(table) - 1, 1)
    t, t_times = costs.t(share), times.t(share)
    low, may_be_allowed, is_sure = [], table["allowed"].copy(), True
    for i in table.index:
        ratio, error = costs.difference(i, chosen)
        low.append(np.exp(ratio - t * error))
        if rule.slowdown is not None:
            slower, slow_error = times.difference(i, base)
            half, margin = t_times * slow_error, np.log1p(rule.slowdown)
            may_be_allowed[i] |= slower - half <= margin
            is_sure = is_sure and (i != chosen or slower + half <= margin)
    ratios = table["cost"] / table["cost"].iloc[chosen]
    rival = may_be_allowed & (np.array(low) < 1 - TOLERANCE) & has_scatter
    rival[chosen] = False
    return table.assign(cost_ratio=ratios, cost_ratio_low=low, rival=rival), bool(is_sure)


def _explanation(
    verdict: str, table: pd.DataFrame, chosen: int, rule: Rule, kind: Limit, *, is_certain: bool
) -> str:
    name = limit_label(kind, table["limit"].iloc[chosen])
    text = f"{name} has the {rule.description} of {len(table)} limits"
    if verdict in (NO_REPEATS, IDENTICAL_REPEATS):
        return f"{text}; {verdict}: the uncertainty is unknown."
    if verdict == BEST:
        return f"{text}; no other may be better by more than {100 * TOLERANCE:g} %."
    reasons = []
    rivals = [limit_label(kind, value) for value in table.loc[table["rival"], "limit"]]
    if rivals:
        reasons.append(f"{', '.join(rivals)} may be better by more than {100 * TOLERANCE:g} %")
    if not is_certain and rule.slowdown is not None:
        reasons.append(f"its slow-down may be more than {100 * rule.slowdown:g} %")
    return f"{text} by the means, but {' and '.join(reasons)}: measure more repeats."


def _usable(frame: pd.DataFrame) -> pd.DataFrame:
    needed = ["limit", "time_s", "energy_j"]
    if missing := [name for name in needed if name not in frame.columns]:
        raise BadInput(f"best_limit: no column {', '.join(missing)}")
    runs = frame.dropna(subset=["time_s", "energy_j"])
    if (runs[["time_s", "energy_j"]] <= 0).any(axis=None):
        raise BadInput("best_limit: a time or energy is not above 0")
    if "energy_is" in runs and runs["energy_is"].nunique() > 1:
        text = "; ".join(sorted(runs["energy_is"].dropna().unique()))
        raise Refused(f"energies count different things ({text}): select rows of one kind")
    if runs["limit"].nunique(dropna=False) < 2:
        raise Refused("fewer than two limits have time and energy; measure more limits")
    return runs[needed]
