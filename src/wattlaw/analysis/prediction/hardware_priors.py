"""Priors from a hardware file: networks and clocks that are known before any run.

Times are relative to the compute time of a step, so that a run is needed to express them. What the
file says of a link is its nominal bandwidth. Runs reach a part of it that differs between systems;
the standard deviations admit that.
"""

from collections.abc import Sequence
from math import log

from wattlaw.analysis.prediction.layout import Reference
from wattlaw.analysis.prediction.parameters import LEARNED, Priors
from wattlaw.analysis.prediction.settings import Observation
from wattlaw.simulator.cluster import Cluster, Gpu, Link

#: The share of a link's nominal bandwidth that an all-reduce reaches, and the standard deviation of
#: its logarithm and of that of a latency.
_REACHED, _VOLUME_SD, _LATENCY_SD = 0.7, 0.6, 0.9
#: Bytes of a bucket of gradients: each pays the latency (the default of torch's DDP).
_BUCKET_BYTES = 25 * 2**20
_CLOCK_SD, _KNEE_SD, _EXPONENT_SD = 0.02, 0.4, 0.25


def hardware_priors(
    cluster: Cluster, gradient_bytes: float | None, observations: Sequence[Observation]
) -> Priors:
    """Return the priors of a job on a cluster.

    Without ``gradient_bytes``, which the ranks exchange in one step, the hardware file says nothing
    of the time of communication.
    """
    reference = Reference.of(observations)
    values = dict(LEARNED.values) | _clocks(cluster.node.gpu, reference)
    if gradient_bytes:
        values |= _network("inside", cluster.node.link, gradient_bytes, reference.compute_s)
        values |= _network("between", cluster.network, gradient_bytes, reference.compute_s)
    return Priors(values, f"hardware file {cluster.name}")


def _network(
    place: str, link: Link, gradient_bytes: float, compute_s: float
) -> dict[str, tuple[float, float]]:
    volume_s = gradient_bytes / (link.bandwidth_gb_s * 1e9 * _REACHED)
    latency_s = link.latency_us * 1e-6 * max(1.0, gradient_bytes / _BUCKET_BYTES)
    return {
        f"{place}_volume": (log(volume_s / compute_s), _VOLUME_SD),
        f"{place}_latency": (log(latency_s / compute_s), _LATENCY_SD),
    }


def _clocks(gpu: Gpu, reference: Reference) -> dict[str, tuple[float, float]]:
    """Return the priors of the clock: dynamic power is f V(f)^2, with V constant below the knee."""
    knee = min(gpu.knee_clock_mhz / gpu.max_clock_mhz, 0.99)
    values = {"knee": (log(knee / (1 - knee)), _KNEE_SD)}
    if gpu.least_voltage < 1:
        excess = 2 * log(1 / gpu.least_voltage) / log(1 / knee)
        values["clock_exponent"] = (log(excess), _EXPONENT_SD)
    if reference.clock_mhz > 1:  # runs had a locked clock
        values["top_clock"] = (log(gpu.max_clock_mhz / reference.clock_mhz), _CLOCK_SD)
    return values
