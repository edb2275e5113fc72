"""Where a series leaves its power law: two power laws that meet at a worker count.

Model: ln t = a - b ln N + d max(0, ln N - ln c), with c one of the inner counts. d = 0 is the power
law. The statistic is the largest share of the power law's sum of squares that any c takes away
(sup-F; Andrews 1993, Econometrica 61, 821-856). Without a breakpoint its distribution depends only
on the counts and repeats, so it is simulated with a fixed seed; the p value is valid for any c.

The observations are the counts' means, weighted with their repeats: deviations that the repeats of
a count share are no breakpoint. The test is exact with equally many repeats or no shared deviation.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from wattlaw.analysis.laws import observations as obs
from wattlaw.analysis.laws.observations import Noise, Observations
from wattlaw.analysis.metrics.estimates import LEVEL, Floats, Interval, LeastSquares
from wattlaw.analysis.metrics.result import Result
from wattlaw.common.errors import Refused

MIN_COUNTS = 5
#: Stricter than the usual 5 %: every series is tested, and a breakpoint changes what a report says.
SIGNIFICANT = 0.02
_SIMULATIONS = 9999
_CONSTANTS = 4  # a, b, d, c


@dataclass(frozen=True)
class Breakpoint(Result):
    """A bend that the data show.

    ``at`` is the worker count where the laws meet; ``at_range`` the lowest and highest inner count
    that an F test at 5 % does not distinguish from it. The intervals of ``beta_before`` and
    ``beta_after`` take ``at`` as known, with Student's t over counts less four constants.
    ``p_value`` is of the power law without a breakpoint, and no less than 1 / 10,000.
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
    Refused as ``observe``, or if there are fewer than five distinct counts.
    """
    return fit_breakpoint(obs.observe(x, y))[0]


def fit_breakpoint(data: Observations) -> tuple[Breakpoint | None, float]:
    """Return the breakpoint of observations if there is one, and the test's p value."""
    counts = len(data.x)
    if counts < MIN_COUNTS:
        raise Refused(
            f"{counts} distinct worker counts; a test for a breakpoint needs at least {MIN_COUNTS}"
        )
    hinges = np.maximum(np.log(data.x)[:, None] - np.log(data.x[1:-1]), 0)
    root = np.sqrt(data.repeats)[:, None]
    line = np.column_stack([np.ones(counts), np.log(data.x)]) * root
    base = np.linalg.qr(line)[0]
    units = hinges * root
    units = units - base @ (base.T @ units)
    units = units / np.sqrt((units**2).sum(axis=0))
    left = data.means * root[:, 0]
    left = left - base @ (base.T @ left)
    total = obs.sum_of_squares(data, left / root[:, 0])
    if total == 0:
        return None, 1.0
    gains = np.minimum((units.T @ left) ** 2 / total, 1.0)
    p_value = _p_value(float(gains.max()), np.asarray(units, dtype=float), counts - 2)
    if p_value > SIGNIFICANT:
        return None, p_value
    squares = np.maximum(total * (1 - gains), 0)
    best, df, inner = int(squares.argmin()), counts - _CONSTANTS, data.x[1:-1]
    design = np.column_stack([line, hinges[:, best] * root[:, 0]])
    fit = LeastSquares(design, data.means * root[:, 0])
    spread = Noise(float(squares[best]) / df, df)
    betas, intervals = [], []
    for contrast in np.array([[0.0, -1.0, 0.0], [0.0, -1.0, -1.0]]):
        betas.append(float(contrast @ fit.params))
        error = float(np.sqrt(spread.scale * (contrast @ fit.gram @ contrast)))
        intervals.append(spread.interval(betas[-1], error))
    possible = inner[squares <= squares[best] + spread.scale * special.fdtri(1, df, LEVEL)]
    found = Breakpoint(
        at=float(inner[best]),
        at_range=(float(possible[0]), float(possible[-1])),
        beta_before=betas[0],
        beta_before_ci=intervals[0],
        beta_after=betas[1],
        beta_after_ci=intervals[1],
        p_value=p_value,
        x_min=float(data.x[0]),
        x_max=float(data.x[-1]),
    )
    return found, p_value


def _p_value(gain: float, units: Floats, df: int) -> float:
    """Return the share of draws of a pure power law whose largest gain is no smaller."""
    if gain >= 1:
        return 1 / (_SIMULATIONS + 1)
    triangle = np.asarray(np.linalg.qr(units)[1])
    drawn = _drawn_gains(triangle.round(9).tobytes(), triangle.shape, df)
    above = len(drawn) - int(np.searchsorted(drawn, gain))
    return (above + 1) / (_SIMULATIONS + 1)


@functools.lru_cache(maxsize=512)
def _drawn_gains(triangle: bytes, shape: tuple[int, int], df: int) -> Floats:
    """Return the largest gains of normal noise, ascending; many series have the same counts.

    Only the noise along the hinges and the size of the rest matter: the rest is chi-square.
    """
    hinges = np.frombuffer(triangle).reshape(shape)
    generator = np.random.default_rng(1993)
    along = generator.standard_normal((_SIMULATIONS, shape[0]))
    rest = generator.chisquare(df - shape[0], _SIMULATIONS) if df > shape[0] else 0.0
    largest = ((along @ hinges) ** 2).max(axis=1)
    return np.sort(largest / ((along**2).sum(axis=1) + rest))
