"""Neighbours and triplets of atoms: PyTorch Geometric's where its extensions are, else plain torch.

The plain functions take and return what PyTorch Geometric's do, on any device.
"""

import torch

from wattlaw.workloads.molecules import pyg


def neighbours(
    pos: torch.Tensor, batch: torch.Tensor, cutoff: float, most: int = 32
) -> torch.Tensor:
    """Return the edges between atoms of the same molecule, sorted by target and then source.

    Parameters
    ----------
    pos
        Places of atoms, shape (atoms, 3).
    batch
        Each atom's molecule, ascending, shape (atoms,).
    cutoff
        Atoms are neighbours when they are nearer than this.
    most
        Sources that an atom has at most.

    Returns
    -------
    torch.Tensor
        Sources and targets, shape (2, edges).
    """
    if not pyg.HAS_RADIUS_GRAPH:
        return radius_graph(pos, cutoff, batch, most)
    edges: torch.Tensor = pyg.radius_graph(pos, cutoff, batch, max_num_neighbors=most)
    return edges[:, torch.argsort(edges[1] * len(pos) + edges[0])]


def paths(edges: torch.Tensor, atoms: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pairs of edges k->j and j->i with i other than k, by their numbers.

    Parameters
    ----------
    edges
        Sources and targets, shape (2, edges).
    atoms
        How many atoms there are.

    Returns
    -------
    tuple of torch.Tensor
        The numbers of the edges k->j and of the edges j->i, each of shape (triplets,), in the
        order of j->i and then of k.
    """
    if pyg.HAS_TRIPLETS:
        found = pyg.dimenet.triplets(edges, num_nodes=atoms)
        return found[5], found[6]
    return _paths(edges, atoms)


def radius_graph(
    pos: torch.Tensor, r: float, batch: torch.Tensor, max_num_neighbors: int = 32
) -> torch.Tensor:
    """Return what ``torch_geometric.nn.radius_graph`` does, without an extension.

    Of more than ``max_num_neighbors`` sources an atom gets the first ones. All distances within
    a molecule are computed, which suits small ones.
    """
    counts = torch.bincount(batch)
    first = counts.cumsum(0) - counts
    longest = int(counts.max()) if len(counts) else 0
    places = torch.arange(len(batch), device=pos.device) - first[batch]
    dense = pos.new_zeros(3, len(counts), longest)
    dense[:, batch, places] = pos.t()
    x, y, z = dense.unsqueeze(-1) - dense.unsqueeze(-2)
    near = x.square_().add_(y.square_()).add_(z.square_()) < r * r
    is_atom = torch.arange(longest, device=pos.device) < counts.unsqueeze(1)
    near &= is_atom.unsqueeze(1)
    near &= is_atom.unsqueeze(2)
    near.diagonal(dim1=1, dim2=2).fill_(value=False)
    if longest > max_num_neighbors + 1:
        near &= near.cumsum(2) <= max_num_neighbors
    molecule, target, source = near.nonzero(as_tuple=True)
    start = first[molecule]
    return torch.stack((start + source, start + target))


def triplets(edge_index: torch.Tensor, num_nodes: int) -> tuple[torch.Tensor, ...]:
    """Return what ``torch_geometric.nn.models.dimenet.triplets`` does, without an extension."""
    source, target = edge_index
    kj, ji = _paths(edge_index, num_nodes)
    return target, source, target[ji], source[ji], source[kj], kj, ji


def _paths(edges: torch.Tensor, atoms: int) -> tuple[torch.Tensor, torch.Tensor]:
    source, target = edges
    by_target = torch.argsort(target * atoms + source)
    incoming = torch.bincount(target, minlength=atoms)
    first = incoming.cumsum(0) - incoming
    counts = incoming[source]  # edges k->j for each edge j->i
    skipped = first[source] - (counts.cumsum(0) - counts)
    # index_select: several times as fast on the CPU as indexing.
    ji = torch.repeat_interleave(counts)
    sorted_kj = skipped.index_select(0, ji).add_(torch.arange(len(ji), device=edges.device))
    kj = by_target.index_select(0, sorted_kj)
    differ = (source.index_select(0, kj) != target.index_select(0, ji)).nonzero().squeeze(1)
    return kj.index_select(0, differ), ji.index_select(0, differ)
