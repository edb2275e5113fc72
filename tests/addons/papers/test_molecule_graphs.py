"""Graphs, basis functions and nets against definitions, scipy and PyTorch Geometric."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from wattlaw_papers.workloads.molecules import DimeNetOptions, SchNetOptions, nets
from wattlaw_papers.workloads.molecules.nets import DimeNet, SchNet
from wattlaw_papers.workloads.molecules.regression import DimeNetOnQm9, SchNetOnQm9

FEW = {"train_samples": 32, "evaluation_samples": 8}
SMALL_SCHNET = SchNetOptions(
    **FEW, hidden_channels=16, filters=8, interactions=2, gaussians=8, cutoff=4.0
)
SMALL_DIMENET = DimeNetOptions(
    **FEW, hidden_channels=8, blocks=2, bilinear=3, spherical=7, radial=2, cutoff=3.0
)
WORKLOADS = [SchNetOnQm9(SMALL_SCHNET), DimeNetOnQm9(SMALL_DIMENET)]
BY_NAME = {"ids": ["schnet", "dimenet"]}


def atoms(sizes: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    pos = rng.normal(0, 1.5, (sum(sizes), 3)).astype(np.float32)
    return torch.from_numpy(pos), torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))


def edges_by_definition(pos, batch, cutoff, most):
    """Pairs nearer than the cutoff, per target in the order of the sources, so many at most."""
    found = []
    points, molecule, limit = pos.numpy(), batch.numpy(), np.float32(cutoff * cutoff)
    for target in range(len(points)):
        sources = []
        for source in range(len(points)):
            x, y, z = (points[source] - points[target]) ** 2
            if source != target and molecule[source] == molecule[target] and x + y + z < limit:
                sources.append((source, target))
        found += sources[:most]
    return found


def triplets(edges, num_nodes):
    """PyTorch Geometric's ``triplets``, which needs an extension, by ours."""
    (source, target), (kj, ji) = edges, nets.paths(edges, num_nodes)
    return target, source, target[ji], source[ji], source[kj], kj, ji


def triplets_by_definition(edges):
    """For each edge j->i, in order, the edges k->j by k; not those with k = i."""
    found = []
    for ji, (j, i) in enumerate(edges):
        into_j = sorted((k, kj) for kj, (k, to) in enumerate(edges) if to == j)
        found += [(i, j, k, kj, ji) for k, kj in into_j if k != i]
    return found


SIZES = st.lists(st.integers(1, 29), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(0, 2**32), st.floats(0.3, 6.0), st.sampled_from([1, 5, 32]))
@example([29, 29, 3], 0, 6.0, 32)
@example([29, 3, 40], 1, 6.0, 32)
@example([29, 29, 3], 1, 3.0, 5)
def test_neighbours_are_those_of_the_definition(sizes, seed, cutoff, most):
    pos, batch = atoms(sizes, seed)
    found = nets.radius_graph(pos, cutoff, batch, most).t().tolist()
    assert found == [list(edge) for edge in edges_by_definition(pos, batch, cutoff, most)]


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(0, 2**32), st.floats(0.5, 3.0), st.booleans())
@example([29, 3, 18], 0, 2.0, False)
@example([29, 3, 18], 0, 2.0, True)
def test_triplets_are_those_of_the_definition_in_its_order(sizes, seed, cutoff, shuffled):
    pos, batch = atoms(sizes, seed)
    edges = nets.radius_graph(pos, cutoff, batch)
    if shuffled:
        edges = edges[:, np.random.default_rng(seed).permutation(edges.shape[1])]
    i, j, *found = triplets(edges, len(pos))
    assert torch.equal(torch.stack((j, i)), edges)
    wanted = triplets_by_definition(edges.t().tolist())
    assert torch.stack(found, dim=1).tolist() == [list(triplet) for triplet in wanted]


def with_random_outputs(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = net.state_dict()
    return {name: value + 0.01 * torch.randn_like(value) for name, value in state.items()}


def test_dimenet_starts_and_computes_as_pytorch_geometric_s(monkeypatch):
    o = SMALL_DIMENET
    torch.manual_seed(4)
    ours = DimeNet(o)
    torch.manual_seed(4)
    theirs = nets.dimenet.DimeNet(
        o.hidden_channels, 1, o.blocks, o.bilinear, o.spherical, o.radial, o.cutoff
    )
    start = theirs.state_dict()
    assert list(start) == list(ours.state_dict())
    assert all(torch.equal(value, start[name]) for name, value in ours.state_dict().items())
    weights = with_random_outputs(theirs)
    theirs.load_state_dict(weights)
    ours.load_state_dict(weights)
    z, pos, batch, *graph, _ = WORKLOADS[1].training_data().batch(np.arange(6), np.zeros(6))
    monkeypatch.setattr(nets.dimenet, "radius_graph", nets.radius_graph)
    monkeypatch.setattr(nets.dimenet, "triplets", triplets)
    wanted = theirs(z, pos, batch)
    assert wanted.abs().min() > 1e-3
    torch.testing.assert_close(ours(z, pos, batch, *graph, molecules=6), wanted)


def test_schnet_starts_and_computes_as_pytorch_geometric_s():
    o = SMALL_SCHNET
    z, pos, batch, edges, _ = WORKLOADS[0].training_data().batch(np.arange(6), np.zeros(6))
    length = (pos[edges[0]] - pos[edges[1]]).norm(dim=-1)
    torch.manual_seed(4)
    ours = SchNet(o)
    torch.manual_seed(4)
    theirs = nets.pyg.SchNet(
        o.hidden_channels,
        o.filters,
        o.interactions,
        o.gaussians,
        o.cutoff,
        interaction_graph=lambda pos, batch: (edges, length),
    )
    wanted = theirs(z, pos, batch)
    assert wanted.abs().min() > 1e-3
    torch.testing.assert_close(ours(z, pos, batch, edges, molecules=6), wanted)


class Asking(TorchDispatchMode):
    """Notes what a GPU would have to answer before the host can go on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket._qualified_op_name
        if any(word in name for word in ("local_scalar_dense", "nonzero", "repeat_interleave")):
            self.seen.append(name)
        if "index.Tensor" in str(func) and any(
            part is not None and part.dtype == torch.bool for part in args[1]
        ):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("workload", WORKLOADS, **BY_NAME)
def test_an_update_never_waits_for_the_device(workload):
    model = workload.model()
    data = workload.training_data().batch(np.arange(4), np.zeros(4))
    with Asking() as asking:
        workload.loss(model, data).backward()
    assert asking.seen == []
    with Asking() as asking:
        nets.radius_graph(data[1], 3.0, data[2])
    assert asking.seen  # the graph itself could not be made so, and this test can fail


@pytest.mark.parametrize("workload", WORKLOADS, **BY_NAME)
def test_a_molecule_is_predicted_alike_alone_and_in_a_batch(workload):
    model, dataset = workload.model(), workload.training_data()
    model.load_state_dict(with_random_outputs(model))
    *graph, _ = dataset.batch(np.arange(5), np.zeros(5))
    for index, together in enumerate(model(*graph, molecules=5)):
        *graph, _ = dataset.batch(np.array([index]), np.zeros(1))
        alone = model(*graph, molecules=1)[0]
        torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("workload", WORKLOADS, **BY_NAME)
@pytest.mark.parametrize("distance", [1.0, 50.0])
def test_molecules_without_triplets_or_edges_are_trained_on(workload, distance):
    model = workload.model()
    pos = torch.tensor([[0.0, 0, 0], [distance, 0, 0]])
    batch = torch.zeros(2, dtype=torch.long)
    data = (torch.tensor([1, 8]), pos, batch, *workload._graph(pos, batch), torch.tensor([1.0]))
    loss = workload.loss(model, data)
    loss.backward()
    assert torch.isfinite(loss)
