"""What can be worse beyond the measured range than any fit to it can show.

Within the range, data exclude a model that is wrong; beyond it, nothing does. Each draw of a posterior
gets one course of what may happen as GPUs are added, which is the same for all settings of a call:

- a slope: stragglers, contention and sparse gradients make each doubling somewhat slower than the
  model says, or, less often, faster;
- a step at one doubling, where a network narrows beyond a switch;
- a limit from some doubling on, where storage that all ranks share is saturated: the time doubles
  with the GPUs.

Batches and limits beyond the measured ones have an error in proportion to their distance.
"""

import numpy as np

from wattlaw.analysis.predict.layout import Layout
from wattlaw.analysis.predict.observation import Floats

#: Slope, in logs for each doubling: its median size, the spread of its log, the share that is slower.
SLOPE, SLOPE_SPREAD, SLOWER = 0.04, 0.9, 0.8
#: Probability for each doubling of a step, and its range in logs.
STEP_HAZARD, STEP_SIZE = 0.07, (0.2, 1.0)
#: Probability for each doubling that shared storage is saturated from there on.
STORAGE_HAZARD = 0.05
#: Error, in logs, for each doubling of the batch, and for each factor e of a limit.
BATCH, LIMIT = 0.04, 0.1


def draw_beyond(seen: Layout, wanted: Layout, draws: int, seed: int) -> Floats:
    """Return what is missed beyond the measured range, in logs of time, shape (draws, settings)."""
    dice = np.random.default_rng([seed, 5])
    size = SLOPE * np.exp(SLOPE_SPREAD * dice.standard_normal((draws, 1)))
    slope = size * np.where(dice.random((draws, 1)) < SLOWER, 1.0, -0.5)
    step_at = np.floor(dice.exponential(1 / STEP_HAZARD, (draws, 1)))
    step = dice.uniform(*STEP_SIZE, (draws, 1))
    full_at = dice.exponential(1 / STORAGE_HAZARD, (draws, 1))
    batch, limit = dice.standard_normal((2, draws, 1))
    gpus = _beyond(np.log2(seen.gpus), np.log2(wanted.gpus))
    nodes = np.maximum(_beyond(np.log2(seen.nodes), np.log2(wanted.nodes)), gpus * ~wanted.is_placed)
    missed = slope * gpus + step * (nodes > step_at) + np.log(2) * np.maximum(gpus - full_at, 0.0)
    missed = missed + BATCH * batch * _outside(np.log2(seen.micro), np.log2(wanted.micro))
    return np.asarray(missed)


def _beyond(seen: Floats, wanted: Floats) -> Floats:
    return np.maximum(wanted - seen.max(), 0.0)


def _outside(seen: Floats, wanted: Floats) -> Floats:
    return np.maximum(np.maximum(wanted - seen.max(), seen.min() - wanted), 0.0)
