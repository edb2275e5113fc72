"""What may be worse beyond the measured range than any fit to it can show.

Within the range, measurements contradict a model that is wrong; beyond it, nothing does. Each draw
of a posterior gets one course of what happens as GPUs are added, which all settings share:

- a slope: stragglers, contention and gathered gradients make each doubling slower than the model
  says, or, less often, faster;
- at one doubling of nodes the network narrows, as beyond a switch, which costs a step the more the
  more it communicates;
- saturation from some doubling of GPUs on, as of storage that all ranks share: the time of a step
  then doubles with the GPUs.

Where the local batch is not known, a published series may change it, the optimizer or the sharding
between two counts, so that the course goes up or down. Other batches have an error in proportion to
their distance. docs/prediction.md says which families of data the sizes were chosen on.
"""

import numpy as np

from wattlaw.analysis.predict.layout import Layout
from wattlaw.analysis.predict.observation import Floats

#: Slope of a doubling, in logs: its median, the spread of its logarithm, and the share of jobs that
#: are slower. Those that are faster have half of it.
_SLOPE, _SLOPE_SPREAD, _SLOWER = 0.007, 1.0, 0.8
#: The parameters of a network that narrows; the probability of it in a doubling of nodes, and by
#: which factors, uniform in logs.
NARROWED = ("between_volume", "unplaced_volume")
_NARROW_HAZARD, _NARROW = 0.08, (1.6, 4.0)
#: Probability in each doubling that saturation begins.
_SATURATION_HAZARD = 0.015
#: Probability that it has begun, where the last doubling that was seen doubled the time.
_BEGUN = 0.2
#: A model that misses its own runs misses others by as many times more, up to this.
_MOST_MISFIT = 3.0
#: Standard deviation for a doubling of the batch; for the first and each further doubling of GPUs
#: where the batch is not known.
_BATCH, _UNKNOWN_BATCH = 0.04, (0.15, 0.075)


def draw_errors(
    seen: Layout, wanted: Layout, growth_seen: float, misfit: float, draws: int, seed: int
) -> Floats:
    """Return what the model misses of step times, in logs, shape (draws, settings).

    ``growth_seen`` is that of ``growth``. ``misfit`` is what the model misses of its own runs,
    relative to what it usually does.
    """
    misfit = min(misfit, _MOST_MISFIT)
    dice = np.random.default_rng([seed, 5])
    size = misfit * _SLOPE * np.exp(_SLOPE_SPREAD * dice.standard_normal((draws, 1)))
    slope = size * np.where(dice.random((draws, 1)) < _SLOWER, 1.0, -0.5)
    full = dice.exponential(1 / _SATURATION_HAZARD, (draws, 1))
    begun = _BEGUN * min(growth_seen / np.log(2), 1.0) ** 2
    full = np.where(dice.random((draws, 1)) < begun, 0.0, full)
    gpus = _doublings(seen.gpus, wanted.gpus)
    errors = slope * gpus + np.log(2) * np.maximum(gpus - full, 0.0)
    batches = np.maximum(
        _doublings(seen.micro, wanted.micro), _doublings(1 / seen.micro, 1 / wanted.micro)
    )
    errors = errors + misfit * _BATCH * dice.standard_normal((draws, 1)) * batches
    other = _UNKNOWN_BATCH[0] * dice.standard_t(3, (draws, 1)) * np.minimum(gpus, 1.0)
    other = other + _UNKNOWN_BATCH[1] * dice.standard_normal((draws, 1)) * np.maximum(gpus - 1, 0.0)
    return np.asarray(np.where(wanted.has_batch, errors, errors + other))


def growth(seen: Layout, seen_s: Floats) -> float:
    """Return by how much a step took longer, in logs, in the last doubling of GPUs that was seen.

    Settings count that have the same batch and limits. From one node to two, the network slows.
    """
    most = float(seen.gpus.max())
    last = np.flatnonzero(seen.gpus == most)
    found = [0.0]
    for at in last:
        same = np.ones(seen.gpus.size, bool)
        for values in (seen.micro, seen.parts, seen.power_limit_w, seen.clock_limit_mhz):
            same &= values == values[at]
        same &= (seen.gpus < most) & ((seen.nodes > 1) == (seen.nodes[at] > 1))
        if same.any():
            before = np.flatnonzero(same & (seen.gpus == seen.gpus[same].max()))
            doublings = np.log2(most / seen.gpus[before[0]])
            found.append(float(np.log(seen_s[at] / np.median(seen_s[before])) / doublings))
    return max(found)


def narrowing(seen: Layout, wanted: Layout, draws: int, seed: int) -> Floats:
    """Return by what the volume between nodes grows in effect, shape (draws, settings)."""
    dice = np.random.default_rng([seed, 6])
    nodes = np.where(
        wanted.is_placed, _doublings(seen.nodes, wanted.nodes), _doublings(seen.gpus, wanted.gpus)
    )
    first = np.floor(dice.exponential(1 / _NARROW_HAZARD, (draws, 1)))
    low, high = np.log(_NARROW)
    factor = np.exp(dice.uniform(low, high, (draws, 1)))
    return np.where(nodes > first, factor, 1.0)


def _doublings(seen: Floats, wanted: Floats) -> Floats:
    return np.asarray(np.maximum(np.log2(wanted) - np.log2(seen).max(), 0.0))
