"""The parameters of the model of a step: their meaning, prior and transformation.

A parameter is normal in its own scale (logs of what is positive, log-odds of shares), so that one
table of means and standard deviations is the whole prior. Times are relative to ``compute``, and
powers to ``power``, so that the same priors suit every job. The defaults are weak: they state what
is physically plausible. ``LEARNED`` replaces two of them, and ``hardware_priors`` those of networks
and clocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import numpy as np

from wattlaw.analysis.predict.layout import Reference
from wattlaw.analysis.predict.observation import Floats, Observation

if TYPE_CHECKING:
    from wattlaw.hardware.cluster import Cluster, Gpu, Link


@dataclass(frozen=True)
class Prior:
    """The mean and standard deviation of a parameter in its own scale.

    ``scale`` is ``log``, ``logit`` (0 to 1), ``above_1`` (1 + exp) or ``plain``.
    """

    mean: float
    sd: float
    scale: str = "log"


class Transformation:
    def __init__(self, priors: Sequence[Prior]) -> None:
        self.mean = np.array([[prior.mean] for prior in priors])
        self.sd = np.array([[prior.sd] for prior in priors])
        scales = np.array([prior.scale for prior in priors])
        self.plain, self.logit, self.above = (
            np.flatnonzero(scales == name).tolist() for name in ("plain", "logit", "above_1")
        )

    def values(self, normals: Floats) -> Floats:
        """Return the parameters for standard normal numbers, shape (draws, parameters)."""
        raw = self.mean + self.sd * np.ascontiguousarray(normals.T)
        values: Floats = np.exp(raw)
        for row in self.plain:
            values[row] = raw[row]
        for row in self.logit:
            values[row] /= 1 + values[row]
        for row in self.above:
            values[row] += 1
        return values.T


LN = np.log
#: Always relevant: computing, overhead, noise.
COMPUTE = {
    # The time of the reference micro-batch, relative to the fastest observed step per micro-batch.
    "compute": Prior(-0.2, 0.8),
    # The time that kernels need however small the batch is, relative to `compute`.
    "floor": Prior(LN(0.2), 1.6),
    # Sharpness of the change from the floor to proportional time: 1 is affine, larger is max().
    "sharpness": Prior(LN(0.6), 1.3, "above_1"),
    # Fixed time of an optimizer step (update, logging), relative to `compute`.
    "overhead": Prior(LN(0.03), 1.2),
    # Differences between ranks: the slowest takes 1 + sigma m(N).
    "straggler": Prior(LN(0.01), 0.8),
    # Time to load a sample over that to compute it: by a rank's own cores, and by the storage that
    # all ranks share.
    "loading": Prior(LN(0.25), 0.8),
    "storage": Prior(LN(0.0007), 1.7),
    # Noise of a run, and of a session, in logs.
    "noise": Prior(LN(0.009), 0.7),
    "session": Prior(LN(0.006), 0.5),
}
#: Relevant with more than one GPU.
COMMUNICATION = {
    # Overlap of communication with the backward pass (Pollux's norm).
    "overlap": Prior(LN(2.0), 0.8, "above_1"),
    # The share of the compute time with which communication can overlap.
    "overlappable": Prior(0.8, 0.8, "logit"),
}
#: Within a node: bandwidth and latency of an all-reduce, relative to `compute`.
INSIDE = {"inside_volume": Prior(LN(0.05), 1.5), "inside_latency": Prior(LN(0.002), 1.2)}
#: Between nodes.
BETWEEN = {
    "between_volume": Prior(LN(0.15), 1.6),
    "between_latency": Prior(LN(0.01), 1.2),
    # Exponents: of the GPUs that share a node's adapter, of the nodes that share the network.
    "sharing": Prior(0.15, 0.2, "plain"),
    "contention": Prior(0.1, 0.12, "plain"),
    # On exactly two nodes, relative to more: a ring has all traffic between one pair of hosts, and
    # a tree or a hierarchy has less traffic than on more nodes.
    "two_nodes": Prior(0.1, 0.3),
    # Differences between allocations of nodes, in logs of the communication.
    "allocation": Prior(LN(0.08), 0.6),
}
#: Where the placement is not known, as in published tables, mostly of large clusters.
UNKNOWN_PLACEMENT = {
    # GPUs of a node: 2 to 32, usually 8.
    "node_size": Prior(LN(8.0), 0.5),
    # As `between_volume`.
    "unplaced_volume": Prior(LN(0.15), 1.2),
}
#: Where the local batch is not known: more work per GPU and sample as GPUs are added (smaller local
#: batches, more epochs).
UNKNOWN_BATCH = {
    "growth": Prior(LN(0.15), 1.3),
    "growth_exponent": Prior(LN(0.75), 0.35),
    "batch_noise": Prior(LN(0.04), 0.8),
}
#: Where times of epochs were divided by their steps: what an epoch takes beside them, relative to
#: `compute`: starting loader processes, barriers, the first samples.
EPOCH = {"epoch_overhead": Prior(0.0, 1.8)}
#: With limits or power: the clock's effect on time, and the power of a GPU.
CLOCK = {
    "memory_bound": Prior(-1.5, 1.0, "logit"),
    "top_clock": Prior(0.03, 0.05),
    # The share of communication that a lower clock slows as much as kernels.
    "clocked_communication": Prior(-1.0, 1.5, "logit"),
}
POWER = {
    # Power of computing at the highest clock, relative to the highest observed power.
    "power": Prior(0.02, 0.3),
    # Power that does not depend on the clock; power of waiting, of communication (of the rest).
    "static": Prior(-1.1, 0.5, "logit"),
    "wait_power": Prior(-2.3, 0.9, "logit"),
    "communication_power": Prior(-0.7, 1.3, "logit"),
    # Exponent of the clock in dynamic power above the knee; below it the exponent is 1.
    "clock_exponent": Prior(LN(1.7), 0.35, "above_1"),
    "knee": Prior(0.7, 0.7, "logit"),
    # Standard deviation, in logs, of dynamic power between the phases of a step.
    "phase_spread": Prior(LN(0.35), 0.9),
}
#: With limits, power and several GPUs: the share of the dynamic power of communication, and of
#: waiting for other ranks, that falls with the clock of the kernels. All switching does, unless a
#: power limit lets the clock rise meanwhile.
COMMUNICATION_POWER = {"clocked_communication_power": Prior(1.5, 1.2, "logit")}
#: Speed of a precision relative to the first observed one.
PRECISION = Prior(0.0, 0.6)

GROUPS: dict[str, dict[str, Prior]] = {
    "compute": COMPUTE, "communication": COMMUNICATION, "network inside a node": INSIDE,
    "network between nodes": BETWEEN, "unknown placement": UNKNOWN_PLACEMENT,
    "unknown batch": UNKNOWN_BATCH, "epoch": EPOCH, "clock": CLOCK, "power": POWER,
    "power of communication at lower clocks": COMMUNICATION_POWER,
}  # fmt: skip


@dataclass(frozen=True)
class Priors:
    """Means and standard deviations that replace the defaults, and where they come from."""

    values: Mapping[str, tuple[float, float]]
    source: str = "weak defaults"

    def __hash__(self) -> int:  # equal priors have the same cached fit
        return hash((frozenset(self.values.items()), self.source))

    def apply(self, name: str, prior: Prior) -> Prior:
        if name not in self.values:
            return prior
        return Prior(*self.values[name], prior.scale)


WEAK = Priors({})

#: Learned from published series: ``python benchmarks/prediction.py --learn`` prints the values.
LEARNED = Priors(
    {"node_size": (2.039, 0.417), "unplaced_volume": (-2.304, 0.743)},
    "learned from dlperf_v100, jubench_A100, llmfoundry, mlperf_ttt, mxnet_k80, tf_benchmarks_2017",
)


#: The share of a link's nominal bandwidth that an all-reduce reaches, and the standard deviation of
#: its logarithm and of that of a latency.
_REACHED, _VOLUME_SD, _LATENCY_SD = 0.7, 0.6, 0.9
#: Bytes of a bucket of gradients: each pays the latency (the default of torch's DDP).
_BUCKET_BYTES = 25 * 2**20
_CLOCK_SD, _KNEE_SD, _EXPONENT_SD = 0.02, 0.4, 0.25


def hardware_priors(
    cluster: "Cluster", gradient_bytes: float | None, observations: Sequence[Observation]
) -> Priors:
    """Return the priors of a job on a cluster: networks and clocks that are known before any run.

    Times are relative to the compute time of a step, so that a run is needed to express them. A
    hardware file has the nominal bandwidth of a link; runs reach a part of it that differs between
    systems, which the standard deviations admit. Without ``gradient_bytes``, which the ranks
    exchange in one step, the file does not state the time of communication.
    """
    reference = Reference.of(observations)
    values = dict(LEARNED.values) | _clocks(cluster.node.gpu, reference)
    if gradient_bytes:
        values |= _network("inside", cluster.node.link, gradient_bytes, reference.compute_s)
        values |= _network("between", cluster.network, gradient_bytes, reference.compute_s)
    return Priors(values, f"hardware file {cluster.name}")


def _network(
    place: str, link: "Link", gradient_bytes: float, compute_s: float
) -> dict[str, tuple[float, float]]:
    volume_s = gradient_bytes / (link.bandwidth_gb_s * 1e9 * _REACHED)
    latency_s = link.latency_us * 1e-6 * max(1.0, gradient_bytes / _BUCKET_BYTES)
    return {
        f"{place}_volume": (log(volume_s / compute_s), _VOLUME_SD),
        f"{place}_latency": (log(latency_s / compute_s), _LATENCY_SD),
    }


def _clocks(gpu: "Gpu", reference: Reference) -> dict[str, tuple[float, float]]:
    """Return the priors of the clock: dynamic power is f V(f)^2, with V constant below the knee."""
    knee = min(gpu.knee_clock_mhz / gpu.max_clock_mhz, 0.99)
    values = {"knee": (log(knee / (1 - knee)), _KNEE_SD)}
    if gpu.least_voltage < 1:
        excess = 2 * log(1 / gpu.least_voltage) / log(1 / knee)
        values["clock_exponent"] = (log(excess), _EXPONENT_SD)
    if reference.clock_mhz > 1:  # runs had a locked clock
        values["top_clock"] = (log(gpu.max_clock_mhz / reference.clock_mhz), _CLOCK_SD)
    return values
