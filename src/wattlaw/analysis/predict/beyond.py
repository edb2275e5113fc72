"""What may be worse beyond the measured range than any fit to it can show.

Within the range, measurements contradict a model that is wrong; beyond it, nothing does. Each draw
of a posterior gets one course of what happens as GPUs are added, which all settings share:

- a slope: stragglers, contention and gathered gradients make each doubling slower than the model
  says, or, less often, faster;
- a step at one doubling of nodes, where a network narrows beyond a switch;
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
#: Probability of the step in each doubling, and its range in logs.
_STEP_HAZARD, _STEP = 0.04, (0.1, 0.8)
#: Probability in each doubling that saturation begins.
_SATURATION_HAZARD = 0.01
#: Standard deviation for a doubling of the batch; for the first and each further doubling of GPUs
#: where the batch is not known.
_BATCH, _UNKNOWN_BATCH = 0.04, (0.15, 0.075)


def draw_errors(seen: Layout, wanted: Layout, draws: int, seed: int) -> Floats:
    """Return what the model misses of step times, in logs, shape (draws, settings)."""
    dice = np.random.default_rng([seed, 5])
    size = _SLOPE * np.exp(_SLOPE_SPREAD * dice.standard_normal((draws, 1)))
    slope = size * np.where(dice.random((draws, 1)) < _SLOWER, 1.0, -0.5)
    first = np.floor(dice.exponential(1 / _STEP_HAZARD, (draws, 1)))
    step = dice.uniform(*_STEP, (draws, 1))
    full = dice.exponential(1 / _SATURATION_HAZARD, (draws, 1))
    gpus = _doublings(seen.gpus, wanted.gpus)
    nodes = np.where(wanted.is_placed, _doublings(seen.nodes, wanted.nodes), gpus)
    errors = slope * gpus + step * (nodes > first) + np.log(2) * np.maximum(gpus - full, 0.0)
    batches = np.maximum(
        _doublings(seen.micro, wanted.micro), _doublings(1 / seen.micro, 1 / wanted.micro)
    )
    errors = errors + _BATCH * dice.standard_normal((draws, 1)) * batches
    other = _UNKNOWN_BATCH[0] * dice.standard_t(3, (draws, 1)) * np.minimum(gpus, 1.0)
    other = other + _UNKNOWN_BATCH[1] * dice.standard_normal((draws, 1)) * np.maximum(gpus - 1, 0.0)
    return np.asarray(np.where(wanted.has_batch, errors, errors + other))


def _doublings(seen: Floats, wanted: Floats) -> Floats:
    return np.asarray(np.maximum(np.log2(wanted) - np.log2(seen).max(), 0.0))
