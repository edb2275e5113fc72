"""The power law y = alpha * x^-beta, fitted by ordinary least squares in logarithms.

Source of the model and of the estimator: Frey et al. 2022, "Benchmarking Resource Usage for
Efficient Distributed Deep Learning", of time against workers. A high R^2 is no proof of skill
outside the measured range, so every law carries its range of x.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import pandas as pd

from wattlaw.analysis.laws import observations as obs
from wattlaw.analysis.laws.observations import Noise, Observations
from wattlaw.analysis.metrics.estimates import Floats, Interval, LeastSquares
from wattlaw.analysis.metrics.result import Result, plain

CONSTANTS = 2


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
