"""Time of an optimizer step and power of a GPU as functions of parameters and settings.

    step = max(overhead + k c (1 + sigma m(N)) + exposed communication, input)

- ``c``, the time of a micro-batch, is the smooth maximum of a floor (kernels and their launch, for
  small batches) and a part proportional to the batch, which a lower clock slows unless memory
  limits it.
- ``k`` is the number of micro-batches; ``m(N)`` the expected maximum of N standard normal numbers
  (Blom 1958): each step waits for the slowest rank.
- Communication adds an all-reduce inside the largest node and one between nodes. Each has a
  bandwidth term, 2 (n - 1) / n (ring through n GPUs: Patarasuk and Yuan 2009, doi
  10.1016/j.jpdc.2008.09.002), and a latency term for the faster of ring and tree,
  min(h - 1, 2 log2 h) for h GPUs of the node or h nodes. The bandwidth term between nodes grows
  with the GPUs that share a node's adapter and with the nodes that share the network, and differs
  on exactly two nodes.
- A lower clock slows a share of the communication as much as a micro-batch: its own kernels run on
  the same processors, and those that overlap with it take longer.
- Input takes the time of a rank's own cores, or of the storage that all ranks share, if longer.
- The exposed part is (b^g + comm^g)^(1/g) - b for an overlappable time b (Qiao et al., Pollux,
  OSDI'21, equation 11 with b instead of the whole compute time).
- Power: P(f) = static + dynamic phi(f) while computing, with phi(f) = f^q above a knee, where the
  voltage rises with the clock f, and proportional to f below. Power of waiting and of communication
  are shares of it; a share of that of communication falls with the clock. A power limit lowers the
  clock until the mean power of computing is within it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.predict.layout import Layout, Paths
from wattlaw.analysis.predict.observation import Floats

Parameters = dict[str, Floats]
Indices = npt.NDArray[np.int64]

_NONE = np.zeros((1, 1))
#: Rounds of the search for the clock under a power limit: its busy share depends on the clock.
_ROUNDS = 2
#: Standard normal quantiles: the phases of a step by their power.
_PHASES = np.array([-1.15, -0.32, 0.32, 1.15])[:, None, None]
#: A larger spread of them is none that a GPU has, and its exponential is no number.
_MOST_SPREAD = 40.0
#: The least dynamic power under a limit, relative to that without.
_LEAST = 1e-3
#: No limit makes a clock lower than this, relative to the highest: 135 of 1530 MHz for a V100, and
#: more for other GPUs. The GPU then needs more power than the limit.
_SLOWEST = 0.09


@dataclass(frozen=True)
class Step:
    """The parts of a step, for each draw (row) and setting (column); seconds and watts."""

    compute_s: Floats
    waiting_s: Floats
    communication_s: Floats
    input_s: Floats
    #: d ln(step) / d ln(communication): how much of a network's deviation reaches the step.
    communication_weight: Floats
    power_w: Floats | None
    #: Power while communicating or waiting, over the mean power.
    waiting_power: Floats | None
    #: Power between steps, in watts.
    idle_w: Floats | None
    #: All parts, and the fixed time of an epoch, divided by its steps, where a time includes it.
    step_s: Floats


def step(values: Parameters, layout: Layout, *, power: bool) -> Step:
    """Return the steps of all settings, for parameters as columns with a row for each draw."""
    # Arrays here are (settings, draws): numpy is fast along the longer of the two.
    layout, values = layout.columns, {name: value.T for name, value in values.items()}
    reference = layout.reference
    unit_s = reference.compute_s * values["compute"]
    floor, sharp = values["floor"], values["sharpness"]
    kinds, which = layout.kinds
    busy = kinds.micro
    for index in kinds.other_precisions:
        other = kinds.micro / values[f"precision_{index}"]
        busy = np.where(kinds.precision == index, other, busy)
    slowed, active_w = busy, 1 - values.get("static", _NONE)
    micro = free = _smooth_max(busy, floor, sharp)[0]
    if kinds.has_limits:
        power_limit, clock_limit = kinds.power_limit_w / reference.power_w, kinds.clock_limit_mhz
        slowed, active_w = at_limits(values, power_limit, clock_limit / reference.clock_mhz, busy)
        micro = _smooth_max(slowed, floor, sharp)[0]
    part_s = _of_each(unit_s * micro, which) * _growth(values, layout)
    parts_s = layout.parts * part_s
    exposed_s = derivative = _NONE
    if layout.has_inside or layout.has_between:
        network_s = unit_s * _network(values, layout)
        if kinds.has_limits:
            more = _of_each(micro / free - 1, which)
            network_s = network_s * (1 + values["clocked_communication"] * more)
        hidden_s = values["overlappable"] * part_s
        both_s, larger = _smooth_max(hidden_s, network_s, values["overlap"])
        exposed_s = both_s - hidden_s
        derivative = both_s * np.where(network_s > hidden_s, larger, 1 - larger)
    compute_s = unit_s * values["overhead"] + parts_s
    waiting_s = parts_s * values["straggler"] * layout.slowest
    busy_s = compute_s + waiting_s + exposed_s
    sample_s = unit_s * np.maximum(values["loading"], values["storage"] * layout.gpus)
    input_s = np.maximum(0.0, sample_s * (layout.micro * layout.parts) - busy_s)
    total_s = busy_s + input_s
    if layout.has_epochs:
        total_s = total_s + unit_s * values["epoch_overhead"] / layout.epoch_steps
    watts = waiting = idle = None
    if power:
        slowed, active_w, micro = (_of_each(part, which) for part in (slowed, active_w, micro))
        active = parts_s / total_s * slowed / micro
        talking = (waiting_s + exposed_s) / total_s
        idle_w, talk_w = values["wait_power"], values["communication_power"]
        static, clocked = values["static"], 1 - values["static"]
        talk_w = talk_w * (
            1 + values.get("clocked_communication_power", _NONE) * (active_w / clocked - 1)
        )
        others = talk_w * talking + idle_w * (1 - active - talking)
        share = static + active_w * active + clocked * others
        watts = reference.power_w * values["power"] * share
        waiting = (static + clocked * talk_w) / share
        idle = reference.power_w * values["power"] * (static + clocked * idle_w)
    parts = compute_s, waiting_s, exposed_s, input_s, derivative / total_s, watts, waiting, idle
    turned = (None if part is None else part.T for part in (*parts, total_s))
    return Step(*turned)  # type: ignore[arg-type]


def _of_each(part: Floats, which: Indices) -> Floats:
    """Return what is known of kinds, for each setting."""
    return part.take(which, axis=0) if len(part) > 1 else part


def _smooth_max(one: Floats, other: Floats, sharpness: Floats) -> tuple[Floats, Floats]:
    """Return (one^s + other^s)^(1/s) for a sharpness s, and the larger part of that sum."""
    high, low = np.maximum(one, other), np.minimum(one, other)
    total = 1 + np.exp(sharpness * np.log(np.maximum(low, 1e-300) / high))
    return high * np.exp(np.log(total) / sharpness), 1 / total


def _growth(values: Parameters, layout: Layout) -> Floats:
    """Return the work per GPU and unit of work where the local batch is not known."""
    if layout.has_every_batch:
        return np.ones((1, 1))
    exponent = values["growth_exponent"]
    ratio = np.log(layout.gpus / layout.reference.gpus)
    return np.where(layout.has_batch, 1.0, 1 + values["growth"] * np.exp(exponent * ratio))


def _network(values: Parameters, layout: Layout) -> Floats:
    """Return the time of the all-reduce, relative to the compute time of the reference."""
    if layout.is_placed_everywhere:
        paths = layout.paths
    else:
        # Full nodes of a size that is one of the unknowns.
        size = np.minimum(layout.gpus, np.maximum(values["node_size"], 1.0))
        most = np.where(layout.is_placed, layout.most_on_node, size)
        nodes = np.where(layout.is_placed, layout.nodes, layout.gpus / size)
        sharing = np.where(layout.is_placed, layout.sharing, size)
        paths = Paths.of(layout.gpus, nodes, most, sharing)._replace(is_on_two=layout.nodes == 2)
    total = _NONE
    if layout.has_inside:
        total = values["inside_volume"] * paths.inside
        total = total + values["inside_latency"] * paths.inside_hops
    if layout.has_between:
        exponent = values["sharing"] * paths.log_sharing
        exponent = exponent + values["contention"] * paths.log_contention
        exponent = exponent + np.log(values["two_nodes"]) * paths.is_on_two
        total = total + _between(values, layout) * np.exp(exponent) * paths.between
        total = total + values["between_latency"] * paths.between_hops
    return total


def _between(values: Parameters, layout: Layout) -> Floats:
    """Return the volume of the network between nodes, which has a prior of its own if unplaced."""
    if layout.is_placed_everywhere:
        return values["between_volume"]
    if not layout.is_placed.any():
        return values["unplaced_volume"]
    return np.where(layout.is_placed, values["between_volume"], values["unplaced_volume"])


def at_limits(
    values: Parameters, power_limit: Floats, clock_limit: Floats, busy: Floats
) -> tuple[Floats, Floats]:
    """Return the time of kernels under limits, and their dynamic power.

    The limits are relative to the power and the clock that parameters relate to.

    A step has phases of different power, and a limit slows those that need more than it. It holds
    for the mean of kernels and gaps between them, which alternate within microseconds. ``busy`` is
    the time of kernels without limits.
    """
    has_limit = bool(np.isfinite(power_limit).any())
    has_lock = bool(np.isfinite(clock_limit).any())
    clocked = 1 - values.get("static", _NONE)
    if not has_limit and not has_lock:
        return busy, clocked
    top: Floats = np.ones((1, 1))
    if has_lock:
        top = np.minimum(1.0, clock_limit / values["top_clock"])
    exponent, log_knee = values["clock_exponent"], np.log(values["knee"])
    memory_bound = values["memory_bound"]
    limit = np.minimum(power_limit / values["power"], 1e6)
    wait = values["static"] + values["wait_power"] * clocked
    log_demand = np.minimum(values["phase_spread"], _MOST_SPREAD) * _PHASES  # of each phase
    demand = np.exp(log_demand)
    highest = _switching(top, exponent, log_knee)
    lowest = np.minimum(_switching(np.full((1, 1), _SLOWEST), exponent, log_knee), highest)
    log_highest, log_lowest = np.log(highest), np.log(lowest)
    slowed = busy / top
    for _ in range(_ROUNDS if has_limit else 1):
        share = slowed / _smooth_max(slowed, values["floor"], values["sharpness"])[0]
        allowed = ((limit - (1 - share) * wait) / share - values["static"]) / clocked
        allowed = np.maximum(allowed, _LEAST) * demand.mean(0)
        log_power = np.minimum(np.log(allowed) - log_demand, log_highest)
        log_power = np.maximum(log_power, log_lowest)
        # The clock of a dynamic power is the inverse of ``_switching``.
        slower = np.maximum(log_power / -exponent, (exponent - 1) * log_knee - log_power)
        slowdown = memory_bound + (1 - memory_bound) * np.exp(slower)
        slowed = busy * slowdown.mean(0)
    power = np.maximum(np.minimum(allowed, demand * highest), demand * lowest)
    return slowed, clocked * (slowdown * power).sum(0) / slowdown.sum(0) / demand.mean(0)


def _switching(clock: Floats, exponent: Floats, log_knee: Floats) -> Floats:
    """Return dynamic power at a clock over that at the highest clock."""
    log_clock = np.log(clock)
    return np.exp(np.maximum(exponent * log_clock, log_clock + (exponent - 1) * log_knee))
