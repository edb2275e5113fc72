"""The power law t = alpha * N^-beta, fitted by ordinary least squares in logarithms.

Source of the model and of the estimator: Frey et al. 2022, "Benchmarking Resource Usage for
Efficient Distributed Deep Learning". A high R^2 is no proof of skill outside the measured range,
so every law carries its range of N.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.laws import observations as obs
from wattlaw.analysis.laws.observations import Noise, Observations
from wattlaw.analysis.metrics.estimates import ERROR, ROUNDING, Floats, Interval, LeastSquares
from wattlaw.analysis.metrics.result import Result, plain

CONSTANTS = 2
_DESCRIPTIONS = {
    "normality_p": "they are not normal",
    "curvature_p": "they curve with ln N",
    "heteroscedasticity_p": "their spread changes with N",
}


@dataclass(frozen=True)
class Diagnostics(Result):
    """p values of tests on residuals in logarithms; None where the data allow no test.

    ``normality_p``
        Shapiro & Wilk 1965, Biometrika 52, 591-611.
    ``curvature_p``
        t test of a term (ln N)^2 added to the law.
    ``heteroscedasticity_p``
        Breusch & Pagan's test of a spread that changes with ln N, in Koenker's form (1981, Journal
        of Econometrics 17, 107-112).
    """

    properties = ("sentence",)

    normality_p: float | None
    curvature_p: float | None
    heteroscedasticity_p: float | None

    @property
    def sentence(self) -> str:
        """What the tests found at 5 %; each may err in 1 of 20 sound laws."""
        values = asdict(self)
        if all(value is None for value in values.values()):
            return "too few runs, or no scatter, to test the residuals"
        failures = [
            f"{description} (p = {values[name]:.2g})"
            for name, description in _DESCRIPTIONS.items()
            if values[name] is not None and values[name] < ERROR
        ]
        return "residuals: " + ("; ".join(failures) or "consistent with the law")


@dataclass(frozen=True)
class Trusted(Result):
    """The intervals that a report should quote, and why these."""

    interval: Literal["ols", "repeats"]
    beta_se: float
    beta_ci: Interval
    alpha_ci: Interval
    why: str


@dataclass(frozen=True)
class PowerLaw(Result):
    """A fitted law. ``beta > 0`` means that more workers take less time.

    All intervals are at 95 %.

    ``alpha_ci, beta_se, beta_ci, r2, p_value``
        Ordinary least squares over runs, Student's t with ``n - 2`` degrees of freedom: exact if
        every run scatters around the law by itself. None where the data leave none (a constant y
        has no R^2).
    ``beta_se_hc3, beta_ci_hc3``
        Robust to a scatter that changes with N (MacKinnon & White 1985, Journal of Econometrics
        29, 305-325), t with ``n - 2``; rough for few runs.
    ``beta_se_repeats, beta_ci_repeats, alpha_ci_repeats``
        From the means of each count's k repeats, t with ``k - 2``: exact also if the repeats of a
        count share a deviation from the law, where each count has as many. None without repeats.
    ``lack_of_fit_p``
        F test of the law against the counts' means; None without repeats.
    """

    properties = ("diagnostics", "law", "trusted")
    law: ClassVar[str] = "power"

    n: int
    alpha: float
    alpha_ci: Interval
    beta: float
    beta_se: float
    beta_ci: Interval
    beta_se_hc3: float | None
    beta_ci_hc3: Interval | None
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

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Of four runs or more, whose residuals are more than rounding."""
        fit, n = self._fit, self.n
        if n < 4 or np.abs(fit.residuals).max() <= ROUNDING:
            return Diagnostics(None, None, None)
        from scipy import stats

        curved = np.column_stack([fit.design, fit.design[:, 1] ** 2])
        with np.errstate(all="ignore"):
            return Diagnostics(
                normality_p=float(stats.shapiro(fit.residuals).pvalue),
                curvature_p=LeastSquares(curved, fit.y).p_value(2),
                heteroscedasticity_p=float(
                    special.chdtrc(1, n * LeastSquares(fit.design, fit.residuals**2).r2)
                ),
            )

    @property
    def trusted(self) -> Trusted:
        """The intervals to quote: over runs, unless repeats share deviations."""
        se, beta_ci, alpha_ci = self.beta_se_repeats, self.beta_ci_repeats, self.alpha_ci_repeats
        p_value = self.lack_of_fit_p
        if self._noise.share < 1 and se is not None and beta_ci and alpha_ci:
            why = (
                f"repeats of a worker count share deviations from the law (lack of fit p = "
                f"{p_value:.2g}, below {obs.POOLING_LEVEL:g}), so the error is that of the counts' "
                "means"
            )
            return Trusted("repeats", se, beta_ci, alpha_ci, why)
        why = "without repeats, the error is that of the scatter around the law"
        if p_value is not None:
            why = f"repeats share no deviation from the law (lack of fit p = {p_value:.2g})"
        return Trusted("ols", self.beta_se, self.beta_ci, self.alpha_ci, why)

    def beta_within(self, low: float, high: float) -> float | None:
        """Return the exponent over the counts from ``low`` to ``high``.

        It is None unless the runs have counts near both ends (within a factor of 2) and at least
        three of them.
        """
        x = np.exp(self._fit.design[:, 1])
        inside = (x >= low * (1 - 1e-9)) & (x <= high * (1 + 1e-9))
        counts = np.unique(x[inside].round(6))
        if len(counts) < 3 or counts[0] >= 2 * low or counts[-1] <= high / 2:
            return None
        return -float(LeastSquares(self._fit.design[inside], self._fit.y[inside]).params[1])

    def predict(self, x: Sequence[float] | Floats) -> pd.DataFrame:
        """Return ``observations.Noise.frame`` at ``x``, of the scatter that is ``trusted``."""
        at = np.asarray(x, dtype=float)
        design = power_law_design(at)
        leverage = np.einsum("ij,jk,ik->i", design, self._fit.gram, design)
        return self._noise.frame(at, design @ self._fit.params, leverage)


def fit_power_law(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> PowerLaw:
    """Fit ln y = ln alpha - beta ln x to pairs of worker count and time, see ``observe``."""
    return power_law(obs.observe(x, y))


def power_law_design(x: Floats) -> Floats:
    """Return the columns 1 and ln x, shape (n, 2)."""
    return np.column_stack([np.ones_like(x), np.log(x)])


@np.errstate(all="ignore")  # overflows and zero spreads become inf or nan
def power_law(data: Observations) -> PowerLaw:
    fit = LeastSquares(power_law_design(data.run_x), data.log_y)
    log_alpha, slope = (float(value) for value in fit.params)
    slope_ci = fit.interval(1)
    constant = bool(np.ptp(data.log_y) == 0)
    between = obs.sum_of_squares(data, data.means - power_law_design(data.x) @ fit.params)
    robust_se = plain(fit.hc3_error(1))
    spread = Noise(1.0, fit.freedom)
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
        beta_se_hc3=robust_se,
        beta_ci_hc3=None if robust_se is None else spread.interval(-slope, robust_se),
        beta_se_repeats=repeats_se,
        beta_ci_repeats=repeats_ci,
        alpha_ci_repeats=alpha_ci_repeats,
        lack_of_fit_p=obs.lack_of_fit(data, between, CONSTANTS),
        r2=None if constant else plain(fit.r2),
        p_value=None if constant else plain(fit.p_value(1)),
        x_min=float(data.x[0]),
        x_max=float(data.x[-1]),
        _fit=fit,
        _noise=obs.noise(data, between, CONSTANTS),
    )


def _exponential(interval: Sequence[float]) -> Interval:
    return float(np.exp(interval[0])), float(np.exp(interval[1]))
