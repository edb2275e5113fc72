"""Means of repeats with one variance that is pooled over all of them, mostly of logarithms."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import stats

from wattlaw.analysis.laws.observations import ROUNDING
from wattlaw.analysis.levels import LEVEL

Floats = npt.NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Pooled(Generic[Key]):
    """Means of samples, and the variance that they share.

    ``freedom`` is 0, and there is no variance, without repeats and where repeats are ``identical``
    up to rounding (a replay, a simulation, a coarse clock): identical repeats do not prove that
    the mean is certain.
    """

    means: Mapping[Key, float]
    sizes: Mapping[Key, int]
    variance: float  # missing without freedom
    freedom: int
    identical: bool

    def contrast(self, weights: Mapping[Key, float]) -> tuple[float, float]:
        """Return the sum of weights times means, and its standard error: missing without freedom.

        s sqrt(sum of weight^2 / n).
        """
        total = sum(weight * self.means[key] for key, weight in weights.items())
        share = sum(weight**2 / self.sizes[key] for key, weight in weights.items())
        return float(total), float(np.sqrt(self.variance * share))

    def difference(self, first_key: Key, other: Key) -> tuple[float, float]:
        """Return the ``contrast`` of one mean with another; a mean does not differ from itself."""
        return (0.0, 0.0) if first_key == other else self.contrast({first_key: 1.0, other: -1.0})

    def interval(self, first_key: Key, other: Key) -> tuple[float, float, float]:
        """Return the difference of two means with its 95 % t interval."""
        change, error = self.difference(first_key, other)
        half = self.t((1 + LEVEL) / 2) * error if error else error
        return change, change - half, change + half

    def t(self, share: float) -> float:
        """Return the quantile of Student's t; missing without freedom."""
        return float(stats.t.ppf(share, self.freedom)) if self.freedom else np.nan


def pool(samples: Mapping[Key, Floats]) -> Pooled[Key]:
    """Return the means of ``samples``, each of one value at least, and their pooled variance.

    s^2 = sum over samples of (x - mean)^2, over n - k degrees of freedom: as many as there are
    repeats beyond the first of each. It assumes one variance, and repeats that are independent.
    """
    means = {key: float(values.mean()) for key, values in samples.items()}
    squares = sum(float(((values - means[key]) ** 2).sum()) for key, values in samples.items())
    count = sum(map(len, samples.values()))
    freedom = count - len(samples)
    is_identical = freedom > 0 and squares <= count * ROUNDING**2
    usable_freedom = 0 if is_identical else freedom
    return Pooled(
        means,
        {key: len(values) for key, values in samples.items()},
        squares / usable_freedom if usable_freedom else np.nan,
        usable_freedom,
        is_identical,
    )


def geometric_mean(values: Floats) -> float:
    """Return exp of the mean of logarithms; of equal values exactly that value."""
    first = float(values[0])
    return first * float(np.exp(np.log(values / first).mean()))
