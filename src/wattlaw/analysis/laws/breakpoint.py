"""Where a series leaves its power law: two power laws that meet at a value of x.

Model: ln y = a - b ln x + d max(0, ln x - ln c), with c one of the inner x. d = 0 is the power law.
The statistic is the largest share of the power law's sum of squares that any c takes away (sup-F;
Andrews 1993, Econometrica 61, 821-856). Without a breakpoint its distribution depends only on the x
and repeats, so it is simulated with a fixed seed; the p value is valid for any c.

The observations are the means at each x, weighted with their repeats: deviations that the repeats
of an x share are no breakpoint. The test is exact with equally many repeats or no shared deviation.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from wattlaw.analysis.laws import observations as obs
from wattlaw.analysis.laws.observations import Observations
from wattlaw.analysis.laws.power_law import power_law_design
from wattlaw.analysis.metrics.estimates import LEVEL, Floats, Interval, LeastSquares, t_interval
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
    squares, df = np.maximum(total * (1 - gains), 0), count - _CONSTANTS
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
