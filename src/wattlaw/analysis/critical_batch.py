"""How many epochs a target takes, against global batch.

McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv 1812.06162): with B_crit
the critical batch, a target takes E_min (1 + B / B_crit) samples, S_min (1 + B_crit / B) steps.
Epochs are samples over the samples of the data set, so they follow the first: S = S_min (1 + B /
B_crit) with S in epochs; small batches need S_min, a batch of B_crit needs twice that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from wattlaw.analysis.result import Result
from wattlaw.analysis.statistics import ERROR, LEVEL, Floats, f_test_p
from wattlaw.errors import Refused

Ends = tuple[float | None, float | None]
MIN_BATCHES = 3
#: The search for the critical batch extends beyond the measured batches by this factor.
_SEARCH_FACTOR = 1e4
_LEAST_SIGMA = 1e-6
_LOG_ROOT_2_PI = math.log(2 * math.pi) / 2
_LOG_ROUNDING = 1e-9  # means of logs differ by rounding


@dataclass(frozen=True)
class CriticalBatch(Result):
    """The fit of S = S_min (1 + B / B_crit).

    Intervals are at 95 %, by profile likelihood. A bound is None if the data do not determine it:
    the upper one if S does not rise measurably, the lower one if it rises in proportion to B.
    ``b_crit`` is None if the best fit has no finite one. ``sigma`` is the standard deviation of ln
    S. ``lack_of_fit_p`` (None without repeats, or with censored runs) tests the law against the
    batches' means; below 0.05, the intervals account for the deviations of the means.
    """

    s_min: float  # epochs
    s_min_ci: Ends
    b_crit: float | None
    b_crit_ci: Ends
    sigma: float
    n: int  # runs in the fit
    censored: int  # of these, runs that had not reached the target when they ended
    left_out: int  # runs that never reached it and whose number of epochs is unknown
    batch_min: float
    batch_max: float
    lack_of_fit_p: float | None
    sentence: str


def critical_batch(
    batch: Sequence[float] | Floats,
    epochs_to_target: Sequence[float] | Floats,
    epochs_trained: Sequence[float] | Floats | None = None,
) -> CriticalBatch:
    """Fit S = S_min (1 + B / B_crit) to runs, by maximum likelihood with normal ln S.

    Parameters
    ----------
    batch, epochs_to_target
        Shape (n,), one per run: global batch, and epochs to the target; missing where the run did
        not reach it. Pass the mean of runs that share a seed and differ in the GPU count only
        (``to_target.learning_repeats``); otherwise the intervals are too narrow.
    epochs_trained
        How many epochs each run had; a run that did not reach the target then counts as one that
        needs more (a censored value, as in a Tobit model). Without this parameter such runs are
        excluded, and S is too low at batches that often fail.

    Raises
    ------
    Refused
        A value is not above zero, fewer than three batches have a run that reached the target, or
        all runs took the same number of epochs.
    """
    data = _Runs.read(batch, epochs_to_target, epochs_trained)
    law = _fit(data)
    edges = _search_bounds(data)
    lack_of_fit_p_value, spread, freedom = _lack_of_fit(data, law)
    allowed_deviance = data.n * math.log1p(float(special.fdtri(1, freedom, LEVEL)) * spread)
    crit_low = _profile_bound(data, law, 1, edges[0], allowed_deviance)
    crit_high = _profile_bound(data, law, 1, edges[1], allowed_deviance)
    lowest = data.y.min() - math.log(_SEARCH_FACTOR)
    least = None if crit_low is None else _profile_bound(data, law, 0, lowest, allowed_deviance)
    most = _profile_bound(data, law, 0, float(data.y.max()) + 1.0, allowed_deviance)
    is_inside = edges[0] + 0.01 < law.parameters[1] < edges[1] - 0.01
    fitted = CriticalBatch(
        s_min=math.exp(law.parameters[0]),
        s_min_ci=(_exp(least), _exp(most)),
        b_crit=math.exp(law.parameters[1]) if is_inside else None,
        b_crit_ci=(_exp(crit_low), _exp(crit_high)),
        sigma=law.sigma,
        n=data.n,
        censored=int(data.is_censored.sum()),
        left_out=data.left_out,
        batch_min=math.exp(data.b.min()),
        batch_max=math.exp(data.b.max()),
        lack_of_fit_p=lack_of_fit_p_value,
        sentence="",
    )
    return replace(fitted, sentence=_sentence(fitted))


@dataclass(frozen=True)
class _Runs:
    b: Floats  # ln B
    y: Floats  # ln S, or that of the epochs after which a run had not reached the target
    is_censored: npt.NDArray[np.bool_]
    left_out: int

    @property
    def n(self) -> int:
        return len(self.y)

    @classmethod
    def read(cls, batch: Any, reached: Any, trained: Any) -> "_Runs":
        b, s = np.asarray(batch, dtype=float), np.asarray(reached, dtype=float)
        ended = np.full_like(s, np.nan) if trained is None else np.asarray(trained, dtype=float)
        is_censored = np.isnan(s)
        value = np.where(is_censored, ended, s)
        usable = ~np.isnan(value) & ~np.isnan(b)
        if not (np.isfinite(value[usable]) & (value[usable] > 0) & (b[usable] > 0)).all():
            raise Refused("a batch or a number of epochs is not a number above 0")
        batches = len(np.unique(b[usable & ~is_censored]))
        if batches < MIN_BATCHES:
            raise Refused(
                f"{batches} batches have a run that reached the target; at least {MIN_BATCHES} are "
                "needed: measure more batches, or choose a target that is easier"
            )
        if np.ptp(np.log(value[usable])) < _LOG_ROUNDING:
            raise Refused(
                f"every run took {value[usable][0]:g} epochs, so the batch has no known effect: "
                "choose a target that takes more epochs"
            )
        left_out = int((is_censored & ~usable).sum())
        return cls(np.log(b[usable]), np.log(value[usable]), is_censored[usable], left_out)


@dataclass(frozen=True)
class _Fit:
    parameters: Floats  # ln S_min and ln B_crit
    sigma: float
    log_likelihood: float


def _fit(data: _Runs, fixed: tuple[int, float] | None = None) -> _Fit:
    """Maximise the likelihood, with one parameter fixed or none.

    Without censored runs this is least squares; with them, least squares is the start value.
    """
    from scipy import optimize

    middle = float(data.b.mean())
    start = np.array([float((data.y - np.logaddexp(0.0, data.b - middle)).mean()), middle])
    if fixed is not None:
        start[fixed[0]] = fixed[1]
    free = [i for i in (0, 1) if fixed is None or i != fixed[0]]

    def with_fixed(p: Floats) -> Floats:
        all_parameters = start.copy()
        all_parameters[free] = p
        return all_parameters

    def residuals(p: Floats) -> Floats:
        log_s, log_b = with_fixed(p)
        return np.asarray(data.y - log_s - np.logaddexp(0.0, data.b - log_b))

    def loss(p: Floats) -> float:
        z = residuals(p[:-1]) * math.exp(-p[-1])
        density = -(z[~data.is_censored] ** 2) / 2 - _LOG_ROOT_2_PI - p[-1]
        return -float(density.sum() + special.log_ndtr(-z[data.is_censored]).sum())

    bounds = np.array([(-np.inf, np.inf), _search_bounds(data)])[free]
    if free == [0]:  # ln S_min is added, so it is the mean of what is left
        best = start[free] + residuals(start[free]).mean()
    else:
        best = optimize.least_squares(residuals, start[free], bounds=bounds.T, xtol=1e-10).x
    sigma = float(np.sqrt(np.mean(residuals(best) ** 2)))
    log_sigma = math.log(max(sigma, _LEAST_SIGMA))
    if data.is_censored.any():
        within = [*bounds, (math.log(_LEAST_SIGMA), math.log(10.0))]
        fitted = optimize.minimize(loss, [*best, log_sigma], method="L-BFGS-B", bounds=within)
        best, log_sigma = fitted.x[:-1], float(fitted.x[-1])
    return _Fit(with_fixed(best), math.exp(log_sigma), -loss(np.array([*best, log_sigma])))


def _search_bounds(data: _Runs) -> tuple[float, float]:
    """Return ln of the least and the greatest critical batch of the search."""
    reach = math.log(_SEARCH_FACTOR)
    return float(data.b.min()) - reach, float(data.b.max()) + reach


def _lack_of_fit(data: _Runs, law: _Fit) -> tuple[float | None, float, float]:
    """Return the p value of the lack-of-fit test, and two numbers for the profile intervals.

    These are s^2 / (sum of squared residuals) and the degrees of freedom of s^2. s^2 is the
    variance of the residuals or, if the law does not fit, of the batches' means around the law.
    """
    from_residuals = 1 / (data.n - 2), data.n - 2
    distinct, which = np.unique(data.b, return_inverse=True)
    batches = len(distinct)
    means = data.y - (np.bincount(which, data.y) / np.bincount(which))[which]
    if data.is_censored.any() or data.n == batches:
        return None, *from_residuals
    pure, total = float((means**2).sum()), data.n * law.sigma**2
    lack, freedom = max(total - pure, 0.0), batches - 2
    if pure <= data.n * _LEAST_SIGMA**2:
        return None, *from_residuals
    p_value = f_test_p(lack, freedom, pure, data.n - batches)
    return p_value, *(from_residuals if p_value >= ERROR else (lack / freedom / total, freedom))


def _profile_bound(
    data: _Runs, law: _Fit, at: int, edge: float, allowed_deviance: float
) -> float | None:
    """Return the value of parameter ``at`` at which the deviance exceeds the allowed one.

    None if it does not do so before ``edge``.
    """
    from scipy import optimize

    def beyond(value: float) -> float:
        fixed = _fit(data, (at, value))
        return 2 * (law.log_likelihood - fixed.log_likelihood) - allowed_deviance

    best = float(law.parameters[at])
    if abs(edge - best) < 1e-9 or beyond(edge) <= 0:
        return None
    return float(optimize.brentq(beyond, best, edge, xtol=1e-6))


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)


def _sentence(fitted: CriticalBatch) -> str:
    low, high = fitted.b_crit_ci
    span = f"{fitted.batch_min:g} to {fitted.batch_max:g}"
    if low is not None and high is None:
        text = f"the epochs do not rise measurably over batches {span}; B_crit is above {low:.3g}"
    elif low is None and high is not None:
        text = f"epochs rise in proportion to the batch over {span}; B_crit is below {high:.3g}"
    elif low is None or fitted.b_crit is None:
        text = f"B_crit is unknown for batches {span}: the spread between runs is too large"
    else:
        text = f"B_crit {fitted.b_crit:.3g} ({low:.3g} to {high:.3g}), from batches {span}"
        if fitted.b_crit > fitted.batch_max:
            text += ", beyond the measured range"
    if fitted.lack_of_fit_p is not None and fitted.lack_of_fit_p < ERROR:
        text += f"; the batches' means deviate from the law (p = {fitted.lack_of_fit_p:.2g})"
    if fitted.censored:
        text += f"; {fitted.censored} runs had not reached the target when they ended"
    if fitted.left_out:
        text += f"; {fitted.left_out} runs that never reached the target are left out"
    return text
