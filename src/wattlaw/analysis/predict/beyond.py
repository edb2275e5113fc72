"""What may be worse beyond the measured range than any fit to it can show.

Within the range, measurements contradict a model that is wrong; beyond it, nothing does. Each draw
of a posterior gets one course of what happens as GPUs are added, which all settings share:

- a slope: stragglers, contention and gathered gradients make each doubling slower than the model
  says, or, less often, faster;
- at one doubling of nodes the network narrows, as beyond a switch, which costs a step the more the
  more it communicates;
- something that all ranks share saturates, such as storage: a step then takes as long as all of its
  samples at the highest throughput. It has been measured already, or is some doublings away.

Where the local batch is not known, a published series may change it, the optimizer or the sharding
between two counts, so that the course goes up or down. Other batches have an error in proportion to
their distance. docs/prediction.md says which families of data the sizes were chosen on.
"""

import numpy as np

from wattlaw.analysis.predict.layout import Layout
from wattlaw.analysis.predict.observation import Floats
from wattlaw.analysis.predict.step_model import Parameters, step

#: Slope of a doubling, in logs: its median, the spread of its logarithm, and the share of jobs that
#: are slower. Those that are faster have half of it.
_SLOPE, _SLOPE_SPREAD, _SLOWER = 0.007, 1.0, 0.8
#: The parameters of a network that narrows; the probability of it in a doubling of nodes, and by
#: which factors, uniform in logs.
NARROWED = ("between_volume", "unplaced_volume")
_NARROW_HAZARD, _NARROW = 0.08, (1.6, 4.0)
#: Probability in each doubling of the highest throughput measured that it is the last; where steps
#: have grown already, of saturation as the cause.
_SATURATION_HAZARD, _BEGUN_HAZARD = 0.015, 0.04
#: Mean growth of a step, in logs, in a doubling of GPUs without a change of regime (.02 to .10 in
#: the zoo's kinds without one that choose sizes, .04 in InternEvo), and where the network narrows.
_ORDINARY, _NARROWED = 0.05, 0.4
#: A model that misses its own runs misses others by as many times more, up to this.
_MOST_MISFIT = 3.0
#: Standard deviation for a doubling of the batch; for the first and each further doubling of GPUs
#: where the batch is not known.
_BATCH, _UNKNOWN_BATCH = 0.04, (0.03, 0.1)


def draw_errors(seen: Layout, wanted: Layout, misfit: float, draws: int, seed: int) -> Floats:
    """Return what the model misses of step times, in logs, shape (draws, settings).

    ``misfit`` is what the model misses of its own runs, relative to what it usually does.
    """
    misfit = min(misfit, _MOST_MISFIT)
    dice = np.random.default_rng([seed, 5])
    size = misfit * _SLOPE * np.exp(_SLOPE_SPREAD * dice.standard_normal((draws, 1)))
    slope = size * np.where(dice.random((draws, 1)) < _SLOWER, 1.0, -0.5)
    gpus = _doublings(seen.gpus, wanted.gpus)
    errors = slope * gpus
    batches = np.maximum(
        _doublings(seen.micro, wanted.micro), _doublings(1 / seen.micro, 1 / wanted.micro)
    )
    errors = errors + misfit * _BATCH * dice.standard_normal((draws, 1)) * batches
    other = _UNKNOWN_BATCH[0] * dice.standard_t(3, (draws, 1)) * np.minimum(gpus, 1.0)
    other = other + _UNKNOWN_BATCH[1] * dice.standard_normal((draws, 1)) * np.maximum(gpus - 1, 0.0)
    return np.asarray(np.where(wanted.has_batch, errors, errors + other))


def saturated_s(
    seen: Layout, seen_s: Floats, wanted: Layout, grown: tuple[float, float], draws: int, seed: int
) -> Floats:
    """Return the least step times that something shared by all ranks allows, (draws, settings).

    ``grown`` is what ``growth`` returns.
    """
    dice = np.random.default_rng([seed, 7])
    doublings = dice.exponential(1 / _SATURATION_HAZARD, (draws, 1))
    has_begun = dice.random((draws, 1)) < _begun(*grown)
    fastest_s = (seen_s / _samples(seen)).min() * np.where(has_begun, 1.0, 2.0**-doublings)
    return np.where(wanted.gpus > seen.gpus.max(), fastest_s * _samples(wanted), 0.0)


def _begun(grown: float, doublings: float) -> float:
    """Return the probability that saturation is why a step grew so much in the last doublings.

    It may have begun anywhere in them, so that all growth up to twice the time for each is equally
    likely. Else the network has narrowed, or nothing has changed.
    """
    if not 0 < grown <= np.log(2) * doublings:
        return 0.0
    usual = _ORDINARY * doublings
    unchanged = np.exp(-_NARROW_HAZARD * doublings)
    saturates = _BEGUN_HAZARD / np.log(2)
    narrows = (1 - unchanged) * np.exp(-grown / _NARROWED) / _NARROWED
    return float(saturates / (saturates + narrows + unchanged * np.exp(-grown / usual) / usual))


def growth(seen: Layout, seen_s: Floats) -> tuple[float, float]:
    """Return by how much a step took longer, in logs, than on the GPU count before; and doublings.

    Settings count that have the same batch and limits. From one node to two, the network slows;
    where the batch is not known, a longer step may have another.
    """
    most = float(seen.gpus.max())
    found = [(0.0, 1.0)]
    for at in np.flatnonzero((seen.gpus == most) & seen.has_batch):
        same = (seen.gpus < most) & ((seen.nodes > 1) == (seen.nodes[at] > 1)) & seen.has_batch
        for values in (seen.micro, seen.parts, seen.power_limit_w, seen.clock_limit_mhz):
            same &= values == values[at]
        if same.any():
            before = same & (seen.gpus == seen.gpus[same].max())
            grown = np.log(seen_s[at] / np.median(seen_s[before]))
            found.append((float(grown), float(np.log2(most / seen.gpus[before][0]))))
    return max(found)


def shown_storage(values: Parameters, seen: Layout) -> Floats:
    """Return the storage time of draws in which storage limits a measured setting, and else 0.

    The other draws have that of the prior, which is wide: a job on 256 GPUs would saturate its
    storage in one of seven further doublings. ``saturated_s`` draws where it does.
    """
    storage = values["storage"]
    samples_s = seen.reference.compute_s * values["compute"] * storage * _samples(seen)
    limits = samples_s > (1 - 1e-9) * step(values, seen, power=False).step_s
    return np.where(limits.any(1, keepdims=True), storage, 0.0)


def _samples(layout: Layout) -> Floats:
    return layout.gpus * layout.micro * layout.parts


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
