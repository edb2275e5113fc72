"""The data that laws are fitted to: logarithms, their means at each x, and their scatter.

A run's ln y is the law, plus a deviation that all repeats of its x share, plus noise of its own. If
the shared part is zero, every run is an observation of the law; otherwise only the mean at each x
is. Both give the same estimates when means are weighted with their repeats; what differs is the
error of the estimates. See Searle, Casella & McCulloch 1992, "Variance Components", and Draper &
Smith 1998, "Applied Regression Analysis", section 2.1 (lack of fit).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattlaw.analysis.metrics.estimates import (
    ROUNDING,
    Floats,
    Interval,
    f_test_p,
    t_interval,
)
from wattlaw.common.errors import Refused

MIN_DISTINCT = 3
#: Runs of all x are pooled only if a test at this level finds no deviation that repeats share: at
#: the usual 5 % too many such deviations pass, and intervals come out too short
#: (Bancroft 1964, Biometrics 20, 427-442; benchmarks/coverage.py measures it).
POOLING_LEVEL = 0.25
#: What the values of x are called.
WORKERS = "worker counts"


@dataclass(frozen=True)
class Observations:
    """Positive pairs, and per distinct x (ascending) the mean of ln y and the repeats."""

    run_x: Floats  # of runs, shape (n,)
    log_y: Floats
    x: Floats  # distinct, shape (k,)
    means: Floats  # of ln y
    repeats: Floats
    within: float  # sum of squares of ln y around the means
    noun: str

    @classmethod
    def of(cls, run_x: Floats, log_y: Floats, noun: str) -> "Observations":
        distinct, which = np.unique(run_x, return_inverse=True)
        repeats = np.bincount(which, minlength=len(distinct)).astype(float)
        means = np.bincount(which, log_y, len(distinct)) / repeats
        within = float(((log_y - means[which]) ** 2).sum())
        return cls(run_x, log_y, distinct, means, repeats, within, noun)

    @property
    def n(self) -> int:
        return len(self.run_x)

    @property
    def within_df(self) -> int:
        return self.n - len(self.x)


def observe(
    x: Sequence[float] | Floats, y: Sequence[float] | Floats, noun: str = WORKERS
) -> Observations:
    """Return what a law is fitted to; pairs with a missing value are left out.

    Refused if a value is not a number above zero, or fewer than three distinct x are left.
    """
    pairs = np.column_stack([np.asarray(x, dtype=float), np.asarray(y, dtype=float)])
    pairs = pairs[~np.isnan(pairs).any(axis=1)]
    wrong = int((~(pairs > 0) | np.isinf(pairs)).any(axis=1).sum())
    if wrong:
        raise Refused(f"{wrong} of {len(pairs)} rows have a value that is not a number above 0")
    if not len(pairs):
        raise Refused("no run has the value; a law needs it")
    data = Observations.of(pairs[:, 0], np.log(pairs[:, 1]), noun)
    if len(data.x) < MIN_DISTINCT:
        raise Refused(
            f"{len(data.x)} distinct {noun}; a law needs at least {MIN_DISTINCT}: measure more"
        )
    return data


@dataclass(frozen=True)
class Noise:
    """The scatter around a fitted law, and the errors that follow from it.

    ``scale`` is the mean square per run that the estimates' errors are made of, with ``df`` degrees
    of freedom. A new run at a new x varies by ``share * scale + (1 - share) * within``: with share
    1 the scale itself; from means of r repeats share is 1/r, since the scale then holds r times
    what repeats share.
    """

    scale: float
    df: int
    share: float = 1.0
    within: float = 0.0

    def interval(self, estimate: float, se: float) -> Interval:
        return t_interval(estimate, se, self.df)


def sum_of_squares(data: Observations, residuals: Floats) -> float:
    """Return the weighted sum of squares of the means around a law, zero if rounding."""
    return float(data.repeats @ np.where(np.abs(residuals) > ROUNDING, residuals, 0.0) ** 2)


def noise_of_runs(data: Observations, between: float, constants: int) -> Noise:
    """Return the scatter if every run is an observation of a law with ``constants`` constants."""
    df = data.n - constants
    return Noise((between + data.within) / df if df > 0 else 0.0, df)


def noise_of_means(data: Observations, between: float, constants: int) -> Noise:
    """Return the scatter if only the means are observations.

    Exact where every x has as many repeats; else their effective number is used, as in a one-way
    analysis of variance: r0 = (n - sum r^2 / n) / (k - 1).
    """
    k, n = len(data.x), data.n
    effective = (n - float((data.repeats**2).sum()) / n) / (k - 1)
    df = k - constants
    scale = between / df if df > 0 else 0.0
    return Noise(scale, df, 1 / effective, data.within / data.within_df)


def lack_of_fit(data: Observations, between: float, constants: int) -> float | None:
    """Return the p value of the law against the means.

    F = (between / (k - constants)) / (within / (n - k)). None without repeats, or with as many
    constants as distinct x.
    """
    df = len(data.x) - constants
    if df < 1 or data.within_df < 1:
        return None
    if data.within <= data.n * ROUNDING**2:
        return 1.0 if between == 0 else 0.0
    return f_test_p(between, df, data.within, data.within_df)


def noise(data: Observations, between: float, constants: int) -> Noise:
    """Return the scatter that intervals should be made of.

    The runs', unless ``lack_of_fit`` finds at ``POOLING_LEVEL`` that repeats share deviations.
    """
    p_value = lack_of_fit(data, between, constants)
    if p_value is not None and p_value < POOLING_LEVEL:
        return noise_of_means(data, between, constants)
    return noise_of_runs(data, between, constants)
