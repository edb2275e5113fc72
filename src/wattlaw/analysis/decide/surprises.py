"""What runs show about the errors of the model: the noise of repeats, and what was not expected.

The learned prior of the noise is that of GPUs, whose runs differ by about 1 %. Runs on the shared
cores of a virtual machine may differ by 20 %, and a decision that does not know it is too sure.

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

from wattlaw.analysis.metrics.result import Result
from wattlaw.analysis.predict.intervals import LEVEL, quantiles
from wattlaw.analysis.predict.observation import Observation
from wattlaw.analysis.predict.parameters import COMPUTE, LEARNED, Prior, Priors
from wattlaw.analysis.predict.posterior import Fitted, fit
from wattlaw.study.setting import Setting

#: Standard deviation of the noise's prior, in logs, where repeats show it. With 2.0, 25 of 30
#: decisions on 9 settings whose runs vary by 20 % were within a tolerance of 10 %; with 0.7, 21.
_SD = 2.0
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
    low, middle, high = quantiles(times, LEVEL).tolist()
    return middle, low, high, float(special.ndtri(share))


def widening(found: Sequence[Surprise]) -> float:
    """Return the factor of the widths of intervals, in logs, after what was found."""
    squares = sum(item.score**2 for item in found)
    factor = np.sqrt((_PRIOR_RUNS + squares) / (_PRIOR_RUNS + len(found)))
    return float(np.clip(factor, _LEAST, _MOST))


def fit_with_repeats(observations: Sequence[Observation], seed: int) -> Fitted:
    repeated = _repeated(observations)
    if not repeated:
        return fit(observations, seed=seed)
    noise = noise_prior(Prior(COMPUTE["noise"].mean, _SD), repeated)
    values = {**LEARNED.values, "noise": (noise.mean, noise.sd)}
    return fit(observations, seed=seed, priors=Priors(values, LEARNED.source))


def noise_of_repeats(posterior: Fitted) -> float:
    """Return the standard deviation of a run's log time; 0 if no setting was measured twice."""
    if not _repeated(posterior.observations):
        return 0.0
    return float(np.median(posterior.values["noise"]))


def noise_prior(prior: Prior, repeated: Sequence[Sequence[float]]) -> Prior:
    """Return the prior of the noise after the logarithms of the times of repeated settings.

    Their pooled variance has the likelihood of normal noise. The posterior of the logarithm of the
    noise is approximated by a normal distribution.
    """
    freedom = sum(len(values) - 1 for values in repeated)
    squares = sum(float(np.var(values)) * len(values) for values in repeated)
    noise = np.linspace(prior.mean - 4 * prior.sd, prior.mean + 8 * prior.sd, 400)
    score = -0.5 * ((noise - prior.mean) / prior.sd) ** 2
    score -= freedom * noise + 0.5 * squares * np.exp(-2 * noise)
    weights = np.exp(score - score.max())
    mean = float(np.average(noise, weights=weights))
    sd = float(np.sqrt(np.average((noise - mean) ** 2, weights=weights)))
    return Prior(mean, sd, prior.scale)


def _repeated(observations: Sequence[Observation]) -> list[list[float]]:
    by_setting: dict[object, list[float]] = {}
    for item in observations:
        key = item.setting, item.epoch_steps
        by_setting.setdefault(key, []).append(float(np.log(item.healthy_step_s)))
    return [times for times in by_setting.values() if len(times) > 1]
