"""The power law y = alpha * x^-beta, and the breakpoint from which another one holds.

The law is fitted by ordinary least squares in logarithms.

Source of the model and of the estimator: Frey et al. 2022, "Benchmarking Resource Usage for
Efficient Distributed Deep Learning", of time against workers. A high R^2 is no proof of skill
outside the measured range, so every law carries its range of x.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.laws import observations as obs
from wattlaw.analysis.laws.observations import Noise, Observations
from wattlaw.analysis.metrics.estimates import LEVEL, Floats, Interval, LeastSquares, t_interval
from wattlaw.analysis.metrics.result import Result, plain
from wattlaw.common.errors import Refused

CONSTANTS = 2
MIN_COUNTS = 5
#: Stricter than the usual 5 %: every series is tested, and a breakpoint changes what a report says.
SIGNIFICANT = 0.02
_SIMULATIONS = 9999
_BREAKPOINT_CONSTANTS = 4  # a, b, d, c


@dataclass(frozen=True)
class Trusted(Result):
    interval: Literal["ols", "repeats"]
    beta_se: float
    beta_ci: Interval
    alpha_ci: Interval
    why: str


@dataclass(frozen=True)
class PowerLaw(Result):
    """A fitted law. ``beta > 0`` means that y falls with x: more workers take less time.

    All intervals are at 95 %.

    ``alpha_ci, beta_se, beta_ci, r2, p_value``
        Ordinary least squares over runs, Student's t with ``n - 2`` degrees of freedom: exact if
        every run scatters around the law by itself. None where the data leave none (a constant y
        has no R^2).
    ``beta_se_repeats, beta_ci_repeats, alpha_ci_repeats``
        From the means at each of k values of x, t with ``k - 2``: exact also if the repeats of an x
        share a deviation from the law, where each x has as many. None without repeats.
    ``lack_of_fit_p``
        F test of the law against the means; None without repeats.
    """

    properties = ("law", "trusted")
    law: ClassVar[str] = "power"

    n: int
    alpha: float
    alpha_ci: Interval
    beta: float
    beta_se: float
    beta_ci: Interval
    beta_se_repeats: float | None
    beta_ci_repeats: Interval | None
    alpha_ci_repeats: Interval | None
    lack_of_fit_p: float | None
    r2: float | None
    p_value: float | None
    x_min: float
    x_max: float
    _fit: LeastSquares = field(repr=False, compare=False)
    _noise: Noise = field(repr=False, compare=False)

    @property
    def trusted(self) -> Trusted:
        """The intervals to quote: over runs, unless repeats share deviations."""
        se, beta_ci, alpha_ci = self.beta_se_repeats, self.beta_ci_repeats, self.alpha_ci_repeats
        p_value = self.lack_of_fit_p
        if self._noise.share < 1 and se is not None and beta_ci and alpha_ci:
            why = (
                f"repeats share deviations from the law (lack of fit p = {p_value:.2g}, below "
                f"{obs.POOLING_LEVEL:g}), so the error is that of their means"
            )
            return Trusted("repeats", se, beta_ci, alpha_ci, why)
        why = "without repeats, the error is that of the scatter around the law"
        if p_value is not None:
            why = f"repeats share no deviation from the law (lack of fit p = {p_value:.2g})"
        return Trusted("ols", self.beta_se, self.beta_ci, self.alpha_ci, why)

    def beta_within(self, low: float, high: float) -> float | None:
        """Return the exponent over x from ``low`` to ``high``.

        It is None unless the runs have x near both ends (within a factor of 2) and at least three.
        """
        x = np.exp(self._fit.design[:, 1])
        inside = (x >= low * (1 - 1e-9)) & (x <= high * (1 + 1e-9))
        counts = np.unique(x[inside].round(6))
        if len(counts) < 3 or counts[0] >= 2 * low or counts[-1] <= high / 2:
            return None
        return -float(LeastSquares(self._fit.design[inside], self._fit.y[inside]).params[1])

    def predict(self, x: Sequence[float] | Floats) -> pd.DataFrame:
        """Return ``x, mean, low, high`` in the units of y: the law, and its 95 % band.

        The scatter is that which is ``trusted``.
        """
        at = np.asarray(x, dtype=float)
        design = power_law_design(at)
        errors = np.sqrt(np.einsum("ij,jk,ik->i", design, self._fit.gram, design))
        mean = design @ self._fit.params
        with np.errstate(all="ignore"):  # without freedom bounds are infinite, not an error
            half = self._noise.interval(0.0, self._noise.scale**0.5)[1] * errors
            ends = {"mean": mean, "low": mean - half, "high": mean + half}
            return pd.DataFrame({"x": at} | {name: np.exp(logs) for name, logs in ends.items()})


def fit_power_law(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> PowerLaw:
    """Fit ln y = ln alpha - beta ln x to pairs, see ``observe``."""
    return power_law(obs.observe(x, y))


def power_law_design(x: Floats) -> Floats:
    return np.column_stack([np.ones_like(x), np.log(x)])


@np.errstate(all="ignore")  # overflows and zero spreads become inf or nan
def power_law(data: Observations) -> PowerLaw:
    fit = LeastSquares(power_law_design(data.run_x), data.log_y)
    log_alpha, slope = (float(value) for value in fit.params)
    slope_ci = fit.interval(1)
    is_constant = bool(np.ptp(data.log_y) == 0)
    between = obs.sum_of_squares(data, data.means - power_law_design(data.x) @ fit.params)
    repeats_se = repeats_ci = alpha_ci_repeats = None
    if data.within_df > 0:
        means = obs.noise_of_means(data, between, CONSTANTS)
        alpha_se, repeats_se = np.sqrt(means.scale * np.diag(fit.gram)).tolist()
        repeats_ci = means.interval(-slope, repeats_se)
        alpha_ci_repeats = _exponential(means.interval(log_alpha, alpha_se))
    return PowerLaw(
        n=data.n,
        alpha=float(np.exp(log_alpha)),
        alpha_ci=_exponential(fit.interval(0)),
        beta=-slope,
        beta_se=float(fit.errors[1]),
        beta_ci=(-slope_ci[1], -slope_ci[0]),
        beta_se_repeats=repeats_se,
        beta_ci_repeats=repeats_ci,
        alpha_ci_repeats=alpha_ci_repeats,
        lack_of_fit_p=obs.lack_of_fit(data, between, CONSTANTS),
        r2=None if is_constant else plain(fit.r2),
        p_value=None if is_constant else plain(fit.p_value(1)),
        x_min=float(data.x[0]),
        x_max=float(data.x[-1]),
        _fit=fit,
        _noise=obs.noise(data, between, CONSTANTS),
    )


def _exponential(interval: Interval) -> Interval:
    return float(np.exp(interval[0])), float(np.exp(interval[1]))


@dataclass(frozen=True)
class Breakpoint(Result):
    """A bend that the data show.

    ``at`` is the x where the laws meet; ``at_range`` the lowest and highest inner x that an F test
    at 5 % does not distinguish from it. The intervals of ``beta_before`` and ``beta_after`` take
    ``at`` as known, with Student's t over distinct x less four constants. ``p_value`` is of the
    power law without a breakpoint, and no less than 1 / 10,000.
    """

    properties = ("sentence",)

    at: float
    at_range: Interval
    beta_before: float
    beta_before_ci: Interval
    beta_after: float
    beta_after_ci: Interval
    p_value: float
    x_min: float
    x_max: float

    @property
    def flattens(self) -> bool:
        return self.beta_after < self.beta_before

    @property
    def sentence(self) -> str:
        (low, high), (low2, high2) = self.beta_before_ci, self.beta_after_ci
        return (
            f"the curve {'flattens' if self.flattens else 'steepens'} beyond {self.at:g}: "
            f"\u03b2 = {self.beta_before:.2f} ({low:.2f} to {high:.2f}) from {self.x_min:g} to "
            f"{self.at:g}, {self.beta_after:.2f} ({low2:.2f} to {high2:.2f}) beyond, up to "
            f"{self.x_max:g} (p = {self.p_value:.2g})"
        )


def find_breakpoint(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> Breakpoint | None:
    """Return where the series leaves its power law; None where no breakpoint is significant at 2 %.

    A curve that flattens little by little is found too: one power law does not hold there either.
    Refused as ``observe``, or if there are fewer than five distinct x.
    """
    return fit_breakpoint(obs.observe(x, y))[0]


def fit_breakpoint(data: Observations) -> tuple[Breakpoint | None, float]:
    """Return the bend of a series, if there is one, and the p value of the law without it.

    Model: ln y = a - b ln x + d max(0, ln x - ln c), with c one of the inner x. d = 0 is the power
    law. The statistic is the largest share of the power law's sum of squares that any c takes away
    (sup-F; Andrews 1993, Econometrica 61, 821-856). Without a breakpoint its distribution depends
    only on the x and repeats, so it is simulated with a fixed seed; the p value is valid for any c.

    The observations are the means at each x, weighted with their repeats: deviations that the
    repeats of an x share are no breakpoint. The test is exact with equally many repeats or no
    shared deviation.
    """
    count = len(data.x)
    if count < MIN_COUNTS:
        raise Refused(
            f"{count} distinct {data.noun}; a test for a breakpoint needs at least {MIN_COUNTS}"
        )
    # What each hinge, and what the data, have beyond the power law.
    inner, root = data.x[1:-1], np.sqrt(data.repeats)[:, None]
    hinges = np.maximum(np.log(data.x)[:, None] - np.log(inner), 0) * root
    line = power_law_design(data.x) * root
    base = np.linalg.qr(line)[0]
    units = hinges - base @ (base.T @ hinges)
    units = units / np.sqrt((units**2).sum(axis=0))
    y = data.means * root[:, 0]
    left = y - base @ (base.T @ y)
    total = obs.sum_of_squares(data, left / root[:, 0])
    if total == 0:
        return None, 1.0
    gains = np.minimum((units.T @ left) ** 2 / total, 1.0)
    # The share of draws of a pure power law whose largest gain is no smaller.
    gain, above = float(gains.max()), 0
    if gain < 1:
        triangle = np.asarray(np.linalg.qr(units)[1])
        drawn = _drawn_gains(triangle.round(9).tobytes(), triangle.shape, count - 2)
        above = len(drawn) - int(np.searchsorted(drawn, gain))
    p_value = (above + 1) / (_SIMULATIONS + 1)
    if p_value > SIGNIFICANT:
        return None, p_value
    squares, df = np.maximum(total * (1 - gains), 0), count - _BREAKPOINT_CONSTANTS
    best = int(squares.argmin())
    variance = float(squares[best]) / df
    fit = LeastSquares(np.column_stack([line, hinges[:, best]]), y)

    def beta(contrast: Floats) -> tuple[float, Interval]:
        value = float(contrast @ fit.params)
        error = float(np.sqrt(variance * (contrast @ fit.gram @ contrast)))
        return value, t_interval(value, error, df)

    before, before_ci = beta(np.array([0.0, -1.0, 0.0]))
    after, after_ci = beta(np.array([0.0, -1.0, -1.0]))
    possible = inner[squares <= squares[best] + variance * special.fdtri(1, df, LEVEL)]
    bend = Breakpoint(
        at=float(inner[best]),
        at_range=(float(possible[0]), float(possible[-1])),
        beta_before=before,
        beta_before_ci=before_ci,
        beta_after=after,
        beta_after_ci=after_ci,
        p_value=p_value,
        x_min=float(data.x[0]),
        x_max=float(data.x[-1]),
    )
    return bend, p_value


@functools.lru_cache(maxsize=512)
def _drawn_gains(triangle: bytes, shape: tuple[int, int], df: int) -> Floats:
    """Return the largest gains of normal noise, ascending; many series have the same x.

    Only the noise along the hinges and the size of the rest matter: the rest is chi-square.
    """
    hinges = np.frombuffer(triangle).reshape(shape)
    generator = np.random.default_rng(1993)
    along = generator.standard_normal((_SIMULATIONS, shape[0]))
    rest = generator.chisquare(df - shape[0], _SIMULATIONS) if df > shape[0] else 0.0
    largest = ((along @ hinges) ** 2).max(axis=1)
    return np.sort(largest / ((along**2).sum(axis=1) + rest))
