"""Neighbours and triplets of atoms with torch alone: PyTorch Geometric's need its extensions."""

import torch
from torch import Tensor

from wattlaw.common.errors import NotAvailable, one_line

try:
    import torch_geometric.nn as pyg
    from torch_geometric.nn.models import dimenet, dimenet_utils
except ImportError as error:
    raise NotAvailable(f'{one_line(error)}; try: pip install "wattlaw[molecules]"') from error

__all__ = ["dimenet", "dimenet_utils", "paths", "pyg", "radius_graph"]


def radius_graph(pos: Tensor, r: float, batch: Tensor, max_num_neighbors: int = 32) -> Tensor:
    """Return sources and targets of the edges in molecules, (2, edges), by target, then source.

    Atoms at ``pos`` (atoms, 3) of one molecule (``batch``, ascending, one number for each atom) are
    neighbours if their distance is less than ``r``; of more than ``max_num_neighbors`` sources an
    atom keeps the first ones. All distances within a molecule are computed, which is quick for
    small molecules. The arguments are those of ``torch_geometric.nn.radius_graph``.
    """
    counts = torch.bincount(batch)
    first = counts.cumsum(0) - counts
    longest = int(counts.max()) if len(counts) else 0
    ranks = torch.arange(len(batch), device=pos.device) - first[batch]
    dense = pos.new_zeros(3, len(counts), longest)
    dense[:, batch, ranks] = pos.t()
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


def paths(edges: Tensor, atoms: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the pairs of edges k->j and j->i with different atoms i and k.

    ``edges`` are those of ``radius_graph``. Both results have the shape (triplets,) and are ordered
    by j->i and then by k.
    """
    source, target = edges
    by_target = torch.argsort(target * atoms + source)
    incoming = torch.bincount(target, minlength=atoms)
    first = incoming.cumsum(0) - incoming
    counts = incoming[source]  # edges k->j for each edge j->i
    skipped = first[source] - (counts.cumsum(0) - counts)
    # index_select is several times as fast on the CPU as indexing.
    ji = torch.repeat_interleave(counts)
    sorted_kj = skipped.index_select(0, ji).add_(torch.arange(len(ji), device=source.device))
    kj = by_target.index_select(0, sorted_kj)
    differ = (source.index_select(0, kj) != target.index_select(0, ji)).nonzero().squeeze(1)
    return kj.index_select(0, differ), ji.index_select(0, differ)
