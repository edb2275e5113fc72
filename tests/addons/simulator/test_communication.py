"""The exchange of gradients against formulas by hand and an event-by-event simulation."""

from math import ceil, log2

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from made_jobs import profile, with_links
from wattlaw.hardware.library import read_cluster
from wattlaw_simulator.communication import Route, communication

MIB = 2**20
CLUSTER = with_links(read_cluster("dgx-h100"), bandwidth_gb_s=100.0, latency_us=10.0)


def test_within_a_node_a_ring_moves_every_byte_nearly_twice():
    (took_s,) = Route(CLUSTER, 8, 1).allreduce_s(np.array([8e9]))
    assert took_s == pytest.approx(2 * 7 / 8 * (8e9 / 100e9 + 8 * 10e-6))


def test_with_many_nodes_small_messages_take_the_tree_and_large_ones_the_ring():
    route = Route(CLUSTER, 8000, 1000)
    small, large = route.allreduce_s(np.array([1e3, 1e13]))
    tree_s = 2 * (1e3 / 100e9 + ceil(log2(1000)) * 10e-6 + 7 * 10e-6)
    ring_s = 2 * 7999 / 8000 * (1e13 / 100e9 + 8000 * 10e-6)
    assert small == pytest.approx(tree_s)
    # So large that even all latencies of a ring are nothing beside the bytes.
    assert large == pytest.approx(ring_s, rel=1e-3)


def test_the_slowest_link_on_the_way_counts():
    network = CLUSTER.network.model_copy(update={"bandwidth_gb_s": 10.0})
    slow = CLUSTER.model_copy(update={"network": network})
    size = np.array([1e12])
    assert Route(slow, 16, 2).allreduce_s(size) == pytest.approx(2 * 15 / 16 * 100, rel=1e-4)
    assert Route(slow, 8, 1).allreduce_s(size) == pytest.approx(2 * 7 / 8 * 10, rel=1e-4)
    # One GPU of each node: the links within nodes are not on the route.
    fast = CLUSTER.node.link.model_copy(update={"bandwidth_gb_s": 1e-3})
    node = CLUSTER.node.model_copy(update={"link": fast})
    lone = Route(CLUSTER.model_copy(update={"node": node}), 4, 4)
    assert lone.allreduce_s(size) == pytest.approx(2 * 3 / 4 * 10, rel=1e-4)


READY = st.lists(st.floats(0, 1), min_size=0, max_size=6)


@given(
    gradient_bytes=st.integers(1, 10**9),
    backward_s=st.floats(1e-6, 10),
    bucket_mb=st.floats(0.01, 1000),
    gpus=st.integers(2, 5000),
    done=READY,
    seed=st.integers(0, 100),
)
# Sizes whose differences leave a part of a byte, which is no bucket.
@example(gradient_bytes=835256152, backward_s=1.0, bucket_mb=0.5, gpus=2, done=[], seed=0)
def test_hidden_and_exposed_agree_with_a_simulation_bucket_by_bucket(
    gradient_bytes, backward_s, bucket_mb, gpus, done, seed
):
    shares = sorted(np.random.default_rng(seed).uniform(size=len(done)))
    curve = ((0.0, 0.0), *zip(sorted(done), map(float, shares), strict=True), (1.0, 1.0))
    made = profile(gradient_bytes=gradient_bytes, gradients_ready=curve)
    route = Route(CLUSTER, gpus, -(-gpus // 8))
    found = communication(made, route, backward_s, bucket_mb, overlap=1.0)

    most = 2 * made.layers  # no more buckets than tensors
    cap = bucket_mb * MIB
    sizes = [min(gradient_bytes, MIB, cap)]
    rest = gradient_bytes - sizes[0]
    count = min(most, ceil(rest / cap))
    each = max(cap, rest / count) if count else 0
    for _ in range(count):
        sizes.append(min(each, rest))
        rest -= sizes[-1]
    assert rest < 1e-3  # bytes: of many subtractions
    clock = sent = total = 0.0
    for size in sizes:
        sent += size
        ready_s = backward_s * float(np.interp(sent / gradient_bytes, *np.array(curve).T[::-1]))
        took_s = float(route.allreduce_s(np.array([size]))[0])
        clock = max(clock, ready_s) + took_s
        total += took_s
    assert found.total_s == pytest.approx(total, rel=1e-6)
    assert found.exposed_s == pytest.approx(max(0.0, clock - backward_s), rel=1e-6, abs=1e-9)
