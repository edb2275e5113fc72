"""Communication of gradients: all-reduce on a two-level network, overlapped with the backward pass.

Latency and bandwidth as in Hockney's model. The faster of NCCL's two algorithms is used:

    ring: 2 (N-1)/N (S / b + m l2 + (N-m) l1)
    tree: 2 (S / b + ceil(log2 m) l2 + (g-1) l1)

for S bytes on N GPUs of m nodes with g each; l1 and l2 are the latencies within and between
nodes, b the lowest bandwidth of the route: a ring passes through each node once, and so through all
of its adapters together (Patarasuk and Yuan 2009, doi 10.1016/j.jpdc.2008.09.002; double binary
trees: Sanders, Speck and Traff 2009, doi 10.1016/j.parco.2009.09.001). The network is
assumed to be non-blocking: traffic of other jobs is not modelled.
"""

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from wattlaw.hardware.cluster import Cluster
from wattlaw.workloads.profile import WorkloadProfile
from wattlaw_simulator.kernels import Floats

_MIB = 2**20
#: DDP's first bucket has this size, so that communication starts early.
_FIRST_BUCKET = _MIB


@dataclass(frozen=True)
class Route:
    cluster: Cluster
    gpus: int
    nodes: int
    fraction: float = 1.0

    def allreduce_s(self, size: Floats) -> Floats:
        """Return the time of an all-reduce for each size in bytes, alone on the network."""
        if self.gpus == 1:
            return np.zeros_like(size)
        inner, outer = self.cluster.node.link, self.cluster.network
        links = [inner.bandwidth_gb_s] if self.gpus > self.nodes else []
        links += [outer.bandwidth_gb_s] if self.nodes > 1 else []
        send_s = size / (min(links) * 1e9 * self.fraction)
        per_node = ceil(self.gpus / self.nodes)
        inner_s, outer_s = inner.latency_us * 1e-6, outer.latency_us * 1e-6
        outer_hops = self.nodes if self.nodes > 1 else 0
        ring_s = send_s + outer_hops * outer_s + (self.gpus - outer_hops) * inner_s
        ring_s *= (self.gpus - 1) / self.gpus
        tree_s = send_s + ceil(log2(self.nodes)) * outer_s + (per_node - 1) * inner_s
        return 2 * np.minimum(ring_s, tree_s)


@dataclass(frozen=True)
class Communication:
    total_s: float
    exposed_s: float


def communication(
    profile: WorkloadProfile, route: Route, backward_s: float, bucket_mb: float, overlap: float
) -> Communication:
    """Return the communication of one step. A bucket of ``bucket_mb`` MiB starts when its gradients
    are ready and the bucket before is done; the last is done at max over k of (ready_k + sum of the
    times of k and all after it). ``overlap`` is the share of what can overlap that does."""
    sizes = _buckets(profile, bucket_mb)
    bucket_s = route.allreduce_s(sizes)
    total_s = float(bucket_s.sum())
    done, ready = np.array(profile.gradients_ready).T
    ready_s = backward_s * np.interp(np.cumsum(sizes) / sizes.sum(), ready, done)
    left_s = np.cumsum(bucket_s[::-1])[::-1]
    exposed_s = min(total_s, max(0.0, float((ready_s + left_s).max()) - backward_s))
    return Communication(total_s, exposed_s + (1 - overlap) * (total_s - exposed_s))


def _buckets(profile: WorkloadProfile, bucket_mb: float) -> Floats:
    """Return the bytes of the buckets: a small one, then equal ones, at most one for each tensor.
    That DDP never splits a large tensor is not modelled."""
    total = float(profile.gradient_bytes)
    first = min(total, _FIRST_BUCKET, bucket_mb * _MIB)
    tensors = 2 * profile.layers  # a weight and a bias each
    count = min(tensors, ceil((total - first) / (bucket_mb * _MIB)))
    rest = total - first
    full = max(bucket_mb * _MIB, rest / count) if count else 0.0
    sizes = np.minimum(full, rest - full * np.arange(count))
    return np.concatenate([[first], sizes[sizes > 0]])
