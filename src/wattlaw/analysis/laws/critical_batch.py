"""How many epochs a target takes, against global batch.

McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv 1812.06162): with B_crit
the critical batch, a target takes E_min (1 + B / B_crit) samples, S_min (1 + B_crit / B) steps.
Epochs are samples over the samples of the data set, so they follow the first: S = S_min (1 + B /
B_crit) with S in epochs; small batches need S_min, a batch of B_crit needs twice that. The law is
compared with a free form, a parabola of ln S in ln B.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from wattlaw.analysis.laws.series_fits import AICC_TOLERANCE
from wattlaw.analysis.metrics.estimates import ERROR, LEVEL, Floats, LeastSquares, f_test_p
from wattlaw.analysis.metrics.result import Result
from wattlaw.common.errors import Refused

Ends = tuple[float | None, float | None]
MIN_BATCHES = 3
MIN_COMPARED = 6  # AICc of a parabola is undefined for fewer runs
#: The search for the critical batch extends beyond the measured batches by this factor.
_SEARCH_FACTOR = 1e4
_SEARCH_POINTS = 100
_LEAST_SIGMA = 1e-6
_LOG_ROOT_2_PI = math.log(2 * math.pi) / 2
_LOG_ROUNDING = 1e-9  # means of logs differ by rounding


@dataclass(frozen=True)
class CriticalBatch(Result):
    """The fit of S = S_min (1 + B / B_crit).

    The interval is at 95 %, by profile likelihood. A bound is None if the data do not determine it:
    the upper one if S does not rise measurably, the lower one if it rises in proportion to B.
    ``b_crit`` is None if the best fit has no finite one. ``sigma`` is the standard deviation of ln
    S. ``lack_of_fit_p`` (None without repeats, or with censored runs) tests the law against the
    batches' means; below 0.05, the interval accounts for the deviations of the means.

    ``free_form`` has each batch and the epochs of the free form. ``free_aicc`` is its AICc less
    that of the law, None for fewer than six runs; below -2, the law does not fit as well.
    """

    s_min: float  # epochs
    b_crit: float | None
    b_crit_ci: Ends
    sigma: float
    n: int  # runs in the fit
    censored: int  # of these, runs that had not reached the target when they ended
    batch_min: float
    batch_max: float
    lack_of_fit_p: float | None
    free_form: tuple[tuple[float, float], ...]
    free_aicc: float | None
    sentence: str


def critical_batch(
    batch: Sequence[float] | Floats,
    epochs_to_target: Sequence[float] | Floats,
    epochs_trained: Sequence[float] | Floats,
) -> CriticalBatch:
    """Fit S = S_min (1 + B / B_crit) to runs, by maximum likelihood with normal ln S.

    ``epochs_to_target`` is missing where a run did not reach the target: it counts as one that
    needs more than the ``epochs_trained`` (a censored value, as in a Tobit model). Pass the mean of
    runs that share a seed and differ in the GPU count only (``to_target.learning_repeats``);
    otherwise the intervals are too narrow. Refused if a value is not above zero, fewer than three
    batches have a run that reached the target, or all runs took the same number of epochs.
    """
    from scipy import optimize

    data = _read(batch, epochs_to_target, epochs_trained)
    reach = math.log(_SEARCH_FACTOR)
    edges = float(data.b.min()) - reach, float(data.b.max()) + reach

    def deviance(log_b: float) -> float:
        return -2 * _fit(data, log_b).log_likelihood

    grid = np.linspace(*edges, _SEARCH_POINTS)
    start = int(np.argmin([deviance(value) for value in grid]))
    around = grid[max(start - 1, 0)], grid[min(start + 1, _SEARCH_POINTS - 1)]
    best = float(optimize.minimize_scalar(
        deviance, bounds=around, method="bounded", options={"xatol": 1e-8}
    ).x)  # fmt: skip
    law = _fit(data, best)
    lack_of_fit_p_value, spread, freedom = _lack_of_fit(data, law)
    allowed = data.n * math.log1p(float(special.fdtri(1, freedom, LEVEL)) * spread)

    def bound(edge: float) -> float | None:
        """Return the batch at which the deviance exceeds the allowed one; None before the edge."""

        def beyond(log_b: float) -> float:
            return deviance(log_b) + 2 * law.log_likelihood - allowed

        if abs(edge - best) < 1e-6 or beyond(edge) <= 0:
            return None
        return math.exp(optimize.brentq(beyond, best, edge, xtol=1e-6))

    parabola = np.column_stack([(data.b - data.b.mean()) ** i for i in range(3)])
    free = _fit(data, None, parabola)
    first = np.unique(data.b, return_index=True)[1]
    epochs = np.exp(parabola[first] @ free.coefficients)
    is_inside = edges[0] + 0.01 < best < edges[1] - 0.01
    fitted = CriticalBatch(
        s_min=math.exp(law.coefficients[0]),
        b_crit=math.exp(best) if is_inside else None,
        b_crit_ci=(bound(edges[0]), bound(edges[1])),
        sigma=law.sigma,
        n=data.n,
        censored=int(data.is_censored.sum()),
        batch_min=math.exp(data.b.min()),
        batch_max=math.exp(data.b.max()),
        lack_of_fit_p=lack_of_fit_p_value,
        free_form=tuple(zip(np.exp(data.b[first]).tolist(), epochs.tolist(), strict=True)),
        free_aicc=_aicc(free, data.n) - _aicc(law, data.n) if data.n >= MIN_COMPARED else None,
        sentence="",
    )
    return replace(fitted, sentence=_sentence(fitted))


@dataclass(frozen=True)
class _Runs:
    b: Floats  # ln B
    y: Floats  # ln S, or that of the epochs after which a run had not reached the target
    is_censored: npt.NDArray[np.bool_]

    @property
    def n(self) -> int:
        return len(self.y)


def _read(batch: Any, reached: Any, trained: Any) -> _Runs:
    b, s, ended = (np.asarray(values, dtype=float) for values in (batch, reached, trained))
    is_censored = np.isnan(s)
    value = np.where(is_censored, ended, s)
    if not (np.isfinite(value) & (value > 0) & (b > 0)).all():
        raise Refused("a batch or a number of epochs is not a number above 0")
    batches = len(np.unique(b[~is_censored]))
    if batches < MIN_BATCHES:
        raise Refused(
            f"{batches} batches have a run that reached the target; at least {MIN_BATCHES} are "
            "needed: measure more batches, or choose a target that is easier"
        )
    if np.ptp(np.log(value)) < _LOG_ROUNDING:
        raise Refused(
            f"every run took {value[0]:g} epochs, so the batch has no known effect: "
            "choose a target that takes more epochs"
        )
    return _Runs(np.log(b), np.log(value), is_censored)


@dataclass(frozen=True)
class _Fit:
    coefficients: Floats  # of a law, ln S_min
    constants: int
    sigma: float
    log_likelihood: float


def _aicc(fit: _Fit, n: int) -> float:
    k = fit.constants + 1  # the noise too
    return -2 * fit.log_likelihood + 2 * k * n / (n - k - 1)


def _fit(data: _Runs, log_b: float | None, design: Floats | None = None) -> _Fit:
    """Maximise the likelihood at a critical batch, or of a free form with the columns of a design.

    That is the mean of ln S - ln(1 + B / B_crit), or least squares of ln S: with censored runs, the
    start value.
    """
    from scipy import optimize

    left = data.y if log_b is None else data.y - np.logaddexp(0.0, data.b - log_b)
    terms = np.ones((data.n, 1)) if design is None else design

    def loss(p: Floats) -> float:
        z = (left - terms @ p[:-1]) * math.exp(-p[-1])
        density = -(z[~data.is_censored] ** 2) / 2 - _LOG_ROOT_2_PI - p[-1]
        return -float(density.sum() + special.log_ndtr(-z[data.is_censored]).sum())

    fit = LeastSquares(terms, left)
    sigma = max(math.sqrt(fit.squares / data.n), _LEAST_SIGMA)
    best = np.array([*fit.params, math.log(sigma)])
    if data.is_censored.any():
        within = [(None, None)] * terms.shape[1] + [(math.log(_LEAST_SIGMA), math.log(10.0))]
        best = optimize.minimize(loss, best, method="L-BFGS-B", bounds=within).x
    constants = terms.shape[1] + (log_b is not None)
    return _Fit(best[:-1], constants, math.exp(best[-1]), -loss(best))


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
    if fitted.free_aicc is not None:
        is_better = fitted.free_aicc < -AICC_TOLERANCE
        text += f"; a parabola of ln S in ln B fits {'' if is_better else 'no '}better"
    if fitted.lack_of_fit_p is not None and fitted.lack_of_fit_p < ERROR:
        text += f"; the batches' means deviate from the law (p = {fitted.lack_of_fit_p:.2g})"
    if fitted.censored:
        text += f"; {fitted.censored} runs had not reached the target when they ended"
    return text
