"""What runs showed that was not expected, and how much wider that makes what is expected next.

Each setting is predicted from the runs before its first one, and compared with that run. If
predictions are right, the quantiles at which the runs lie are uniform; as normal scores z they have
a variance of 1 (Dawid 1984, doi 10.2307/2981683). A campaign whose scores vary more gets intervals
that are wider in proportion, one whose scores vary less gets narrower ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from wattlaw.analysis.decide.repeats import fit_with_repeats
from wattlaw.analysis.metrics.result import Result
from wattlaw.analysis.predict.observation import Observation
from wattlaw.study.setting import Setting

#: That the intervals are right counts as so many runs.
_PRIOR_RUNS = 6
#: The widths of intervals are those of the model times a factor within these bounds.
_LEAST, _MOST = 0.7, 3.0
#: Each comparison takes a fit; the settings that came last count.
_COMPARED, _COMPARED_LAYOUTS = 30, 10


@dataclass(frozen=True)
class Surprise(Result):
    """The step time of a setting as it was predicted (90 % interval) and as it was measured."""

    properties = ("is_inside",)

    setting: Setting
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    score: float  # 0 at the predicted median; beyond -1.64 and 1.64 outside of the interval

    @property
    def is_inside(self) -> bool:
        return self.low_s <= self.measured_s <= self.high_s


@lru_cache(maxsize=4)
def surprises(observations: tuple[Observation, ...], seed: int = 0) -> tuple[Surprise, ...]:
    """Return how each setting but the first was predicted, in the order of the observations."""
    first: dict[Setting, int] = {}
    for index, item in enumerate(observations):
        first.setdefault(item.setting, index)
    found: list[Surprise] = []
    most = _COMPARED if observations[-1].network is None else _COMPARED_LAYOUTS
    for index in list(first.values())[1:][-most:]:
        item = observations[index]
        middle, low, high, score = _compared(observations[:index], item, seed)
        low_s, high_s = (middle * (end / middle) ** widening(found) for end in (low, high))
        found.append(Surprise(item.setting, middle, low_s, high_s, item.step_time_s, score))
    return tuple(found)


@lru_cache(maxsize=256)  # a campaign asks again after each run
def _compared(
    before: tuple[Observation, ...], run: Observation, seed: int
) -> tuple[float, float, float, float]:
    """Return the median and the 90 % interval of a run's step time, and the run's normal score."""
    times = fit_with_repeats(before, seed).runs([run.setting])[1][:, 0]
    share = (np.count_nonzero(times < run.healthy_step_s) + 0.5) / (times.size + 1)
    middle, low, high = map(float, np.quantile(times, (0.5, 0.05, 0.95)))
    return middle, low, high, float(special.ndtri(share))


def widening(found: Sequence[Surprise]) -> float:
    """Return the factor of the widths of intervals, in logs, after what was found.

    Examples
    --------
    >>> widening([])
    1.0
    """
    squares = sum(item.score**2 for item in found)
    factor = np.sqrt((_PRIOR_RUNS + squares) / (_PRIOR_RUNS + len(found)))
    return float(np.clip(factor, _LEAST, _MOST))
