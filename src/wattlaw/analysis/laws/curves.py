"""Families of laws, and the curve of one fitted to a series by least squares of ln t.

power
    t = alpha N^-beta (Frey et al. 2022).
log-normal
    t = alpha N^(-beta + gamma ln N): the shape of a log-normal density, a parabola in logarithms,
    where a power law is a line. The MIT study names a log-normal alternative without its formula;
    this reading has the power law as its case gamma = 0, so that the two can be compared.
amdahl
    t = a / N + b, a, b >= 0 (Amdahl 1967): work that is shared, and work that is not.
usl
    t = t1 (1 + sigma (N - 1) + kappa N (N - 1)) / N, 0 <= sigma <= 1, kappa >= 0 (Gunther 2007,
    "Guerrilla Capacity Planning"): contention and coherency.
communication
    t = a / N + b + c ln N, all >= 0: computing that is shared, and an all-reduce whose steps grow
    with ln N (Thakur, Rabenseifner & Gropp 2005, tree algorithms).

Terms of a sum have weights that are not negative.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from wattlaw.analysis.laws import observations as obs
from wattlaw.analysis.laws.observations import Noise, Observations
from wattlaw.analysis.metrics.estimates import Floats, Interval, aicc, deviance
from wattlaw.analysis.metrics.result import Result
from wattlaw.common.errors import Refused


def _in_logs(weights: Floats) -> tuple[Floats, Floats]:
    slopes = np.eye(len(weights))
    slopes[0, 0] = alpha = float(np.exp(weights[0]))
    return np.array([alpha, *weights[1:]]), slopes


def _usl(weights: Floats) -> tuple[Floats, Floats]:
    a, b, c = weights
    t1 = a + b
    slopes = np.array([[1, 1, 0], [-b / t1**2, a / t1**2, 0], [-c / t1**2, -c / t1**2, 1 / t1]])
    return np.array([t1, b / t1, c / t1]), slopes


@dataclass(frozen=True)
class Law:
    """A family of curves: its terms, and its parameters as functions of the terms' weights.

    ``in_logs``: ln t, not t, is the weighted sum of the terms.
    """

    name: str
    names: tuple[str, ...]
    terms: Callable[[Floats], list[Floats]]  # of shape (m,) each
    #: Values, and their derivatives.
    parameters: Callable[[Floats], tuple[Floats, Floats]] = lambda own: (own, np.eye(len(own)))
    in_logs: bool = False
    least_x: float = 0.0
    shares: tuple[str, ...] = ()  # parameters that cannot be above 1
    without_unit: tuple[str, ...] = ()  # the other parameters are in the unit of t

    @property
    def constants(self) -> int:
        return len(self.names)

    def log_mean(self, weights: Floats, x: Floats) -> tuple[Floats, Floats]:
        """Return ln t at ``x``, and its derivatives by the weights."""
        design = np.column_stack(self.terms(x))
        values = design @ weights
        return (values, design) if self.in_logs else (np.log(values), design / values[:, None])


POWER = Law(
    "power", ("alpha", "beta"),
    lambda x: [x**0, -np.log(x)], _in_logs, in_logs=True, without_unit=("beta",),
)  # fmt: skip
LAWS = (
    POWER,
    Law(
        "log-normal", ("alpha", "beta", "gamma"),
        lambda x: [x**0, -np.log(x), np.log(x) ** 2], _in_logs, in_logs=True,
        without_unit=("beta", "gamma"),
    ),
    Law("amdahl", ("a", "b"), lambda x: [1 / x, x**0]),
    Law(
        "usl", ("t1", "sigma", "kappa"),
        lambda x: [1 / x, x**0, x - 1], _usl, least_x=1, shares=("sigma",),
        without_unit=("sigma", "kappa"),
    ),
    Law("communication", ("a", "b", "c"), lambda x: [1 / x, x**0, np.log(x)], least_x=1),
)  # fmt: skip

_OVERFLOW = "its numbers overflow on these values"


@dataclass(frozen=True)
class Curve(Result):
    """A fitted law.

    ``params_ci`` are 95 % intervals by the delta method with Student's t and the scatter of
    ``observations.noise``, cut where a parameter cannot be: an estimate of zero has an upper bound
    only. ``k`` counts the constants and the noise. ``sigma`` is the standard deviation of a run's
    ln y around the law. ``aicc`` takes runs as the observations; None where ``n <= k + 1``.
    """

    properties = ("intervals_by",)
    intervals_by: ClassVar[str] = "delta method"

    law: str
    params: dict[str, float]
    params_ci: dict[str, Interval]
    n: int
    k: int
    sigma: float
    aicc: float | None
    x_min: float
    x_max: float
    between: float = field(repr=False, compare=False)  # squares of the means around the curve


def fit_curve(law: Law, data: Observations) -> Curve:
    """Fit one law.

    Refused if there are not more distinct x than constants, an x is below what the law is defined
    for, or numbers overflow.
    """
    with np.errstate(all="ignore"):
        weights, scale = _weights(law, data)
        log_mean, slopes = law.log_mean(weights, data.x)
        design = slopes * np.sqrt(data.repeats)[:, None]
        sizes = np.sqrt((design**2).sum(axis=0))  # terms differ by powers of N
        try:
            inverse = np.linalg.pinv(design / sizes)
        except np.linalg.LinAlgError:
            raise Refused(_OVERFLOW) from None
        gram = inverse @ inverse.T / np.outer(sizes, sizes)
        between = obs.sum_of_squares(data, data.means - scale - log_mean)
        if not (np.isfinite(gram).all() and math.isfinite(between)):
            raise Refused(_OVERFLOW)
        noise = obs.noise(data, between, law.constants)
        params, bounds = _parameters(law, weights, scale, gram, noise)
        sigma = math.sqrt(obs.noise_of_runs(data, between, law.constants).scale)
    k = law.constants + 1
    criterion = aicc(deviance(between + data.within, data.n), data.n, k)
    ends = float(data.x[0]), float(data.x[-1])
    return Curve(law.name, params, bounds, data.n, k, sigma, criterion, *ends, between)


def holdout_error(law: Law, data: Observations) -> float:
    """Return predicted / measured - 1 at the largest x, of a law fitted to the others.

    Measured is the geometric mean of its repeats. Refused as ``fit_curve``.
    """
    is_smaller = data.run_x < data.x[-1]
    others = Observations.of(data.run_x[is_smaller], data.log_y[is_smaller], data.noun)
    with np.errstate(all="ignore"):
        weights, scale = _weights(law, others)
        predicted = law.log_mean(weights, data.x[-1:])[0][0] + scale
        error = float(np.expm1(predicted - data.means[-1]))
    if not math.isfinite(error):
        raise Refused("its prediction there overflows")
    return error


def _parameters(
    law: Law, weights: Floats, scale: float, gram: Floats, noise: Noise
) -> tuple[dict[str, float], dict[str, Interval]]:
    values, slopes = law.parameters(weights)
    errors = np.sqrt(np.maximum(noise.scale * np.einsum("ij,jk,ik->i", slopes, gram, slopes), 0))
    params, bounds = {}, {}
    for name, value, error in zip(law.names, values, errors, strict=True):
        low, high = noise.interval(float(value), float(error))
        if not law.in_logs:
            low, high = max(low, 0.0), min(high, 1.0 if name in law.shares else math.inf)
        unit = 1.0 if name in law.without_unit else float(np.exp(scale))
        params[name], bounds[name] = float(value) * unit, (low * unit, high * unit)
    if law.in_logs:  # the first parameter is normal in logarithms
        low, high = noise.interval(float(weights[0]) + scale, float(errors[0] / values[0]))
        bounds[law.names[0]] = (float(np.exp(low)), float(np.exp(high)))
    return params, bounds


def _weights(law: Law, data: Observations) -> tuple[Floats, float]:
    """Return the weights that fit best, and ln of the units they are in."""
    if len(data.x) <= law.constants:
        raise Refused(
            f"{law.constants} constants need at least {law.constants + 1} distinct {data.noun}, "
            f"there are {len(data.x)}"
        )
    if data.x[0] < law.least_x:
        raise Refused(f"not defined below {law.least_x:g}")
    scale = float(data.means.mean())
    logs, root = data.means - scale, np.sqrt(data.repeats)
    terms = np.column_stack(law.terms(data.x))
    if law.in_logs:
        solution = np.linalg.lstsq(terms * root[:, None], logs * root, rcond=None)[0]
        return np.asarray(solution, dtype=float), scale
    from scipy.optimize import least_squares, nnls

    # Minimises the sum of (root (logs - ln(terms @ w)))^2 over w >= 0.
    sizes = np.abs(terms).max(axis=0)
    terms = terms / sizes
    try:
        start = nnls(terms * (root * np.exp(-logs))[:, None], root)[0]
        if not (terms @ start > 0).all():
            start = start + 1e-3
        weights = least_squares(
            lambda w: root * (np.log(terms @ w) - logs), start,
            lambda w: terms * (root / (terms @ w))[:, None],
            bounds=(0, np.inf), method="dogbox", x_scale="jac", ftol=1e-12, xtol=1e-12, gtol=1e-12,
        ).x  # fmt: skip
    except (RuntimeError, ValueError):
        raise Refused(_OVERFLOW) from None
    return weights / sizes, scale
