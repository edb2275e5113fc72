"""The families of laws that are fitted: the power law, and laws beside it.

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
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wattlaw.analysis.laws.observations import Floats


@dataclass(frozen=True)
class Law:
    """A family of curves: its terms, and its parameters as functions of the terms' weights.

    ``in_logs``: ln t, not t, is the weighted sum of the terms.
    """

    name: str
    terms: Callable[[Floats], Floats]  # shape (m,) to (m, constants)
    names: tuple[str, ...]
    parameters: Callable[[Floats], tuple[Floats, Floats]]  # values, and derivatives by weights
    in_logs: bool = False
    least_x: float = 0.0
    shares: tuple[str, ...] = ()  # parameters that cannot be above 1

    @property
    def constants(self) -> int:
        """Return the number of fitted constants of the curve, without the noise."""
        return len(self.names)

    def log_mean(self, weights: Floats, x: Floats) -> tuple[Floats, Floats]:
        """Return ln t at ``x``, and its derivatives by the weights."""
        terms = self.terms(x)
        if self.in_logs:
            return terms @ weights, terms
        values = terms @ weights
        return np.log(values), terms / values[:, None]


def _power_terms(x: Floats) -> Floats:
    return np.column_stack([np.ones_like(x), -np.log(x)])


def _parabola_terms(x: Floats) -> Floats:
    return np.column_stack([np.ones_like(x), -np.log(x), np.log(x) ** 2])


def _amdahl_terms(x: Floats) -> Floats:
    return np.column_stack([1 / x, np.ones_like(x)])


def _usl_terms(x: Floats) -> Floats:
    return np.column_stack([1 / x, np.ones_like(x), x - 1])


def _communication_terms(x: Floats) -> Floats:
    return np.column_stack([1 / x, np.ones_like(x), np.log(x)])


def _in_logs(weights: Floats) -> tuple[Floats, Floats]:
    slopes = np.eye(len(weights))
    slopes[0, 0] = alpha = float(np.exp(weights[0]))
    return np.array([alpha, *weights[1:]]), slopes


def _as_they_are(weights: Floats) -> tuple[Floats, Floats]:
    return weights, np.eye(len(weights))


def _usl(weights: Floats) -> tuple[Floats, Floats]:
    a, b, c = weights
    t1 = a + b
    slopes = np.array([[1, 1, 0], [-b / t1**2, a / t1**2, 0], [-c / t1**2, -c / t1**2, 1 / t1]])
    return np.array([t1, b / t1, c / t1]), slopes


POWER = Law("power", _power_terms, ("alpha", "beta"), _in_logs, in_logs=True)
LAWS = (
    POWER,
    Law("log-normal", _parabola_terms, ("alpha", "beta", "gamma"), _in_logs, in_logs=True),
    Law("amdahl", _amdahl_terms, ("a", "b"), _as_they_are),
    Law("usl", _usl_terms, ("t1", "sigma", "kappa"), _usl, least_x=1, shares=("sigma",)),
    Law("communication", _communication_terms, ("a", "b", "c"), _as_they_are, least_x=1),
)  # fmt: skip

#: Parameters in the units of y.
IN_UNITS_OF_Y = ("alpha", "a", "b", "c", "t1")
