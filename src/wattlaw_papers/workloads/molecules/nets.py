"""The nets: PyTorch Geometric's layers on graphs that were made with the batch.

Their inputs are the atomic number ``z``, the position ``pos`` in angstrom and the molecule
``batch`` of each atom, the sources and targets ``edges`` (2, edges), for DimeNet the indices ``kj``
and ``ji`` of the two edges of each triplet, and the number of molecules. A forward pass copies no
number from the device to the host, such as that of edges, so that a GPU never waits for the host.
The graphs are made with torch alone: PyTorch Geometric's functions need its extensions.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wattlaw.common.errors import NotAvailable, one_line
from wattlaw_papers.workloads.molecules import DimeNetOptions, SchNetOptions

try:
    import torch_geometric.nn as pyg
    from torch_geometric.nn.models import dimenet, dimenet_utils
except ImportError as error:
    raise NotAvailable(f'{one_line(error)}; try: pip install "wattlaw[molecules]"') from error


class Standardised(nn.Module):
    """A net for a standardised property: ``mean`` and ``std`` restore the unit of the property."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float64))

    def forward(self, *graph: Tensor, molecules: int) -> Tensor:
        predicted: Tensor = self.net(*graph, molecules=molecules)
        return predicted.flatten().float()


class SchNet(pyg.SchNet):  # type: ignore[misc]
    """SchNet (Schuett et al. 2017, arXiv 1706.08566) with edges as an input."""

    def __init__(self, options: SchNetOptions) -> None:
        super().__init__(
            hidden_channels=options.hidden_channels,
            num_filters=options.filters,
            num_interactions=options.interactions,
            num_gaussians=options.gaussians,
            cutoff=options.cutoff,
        )

    def forward(self, *graph: Tensor, molecules: int) -> Tensor:
        z, pos, batch, edges = graph
        source, target = edges
        length = (pos[source] - pos[target]).norm(dim=-1)
        expanded = self.distance_expansion(length)
        state = self.embedding(z)
        for interaction in self.interactions:
            state = state + interaction(state, edges, length, expanded)
        by_atom: Tensor = self.lin2(self.act(self.lin1(state)))
        return _sum_by_molecule(by_atom, batch, molecules)


class DimeNet(nn.Module):
    """DimeNet (Gasteiger et al. 2020, arXiv 2003.03123) with edges and triplets as inputs. Its
    parameters have PyTorch Geometric's names and are drawn in the same order."""

    def __init__(self, options: DimeNetOptions) -> None:
        super().__init__()
        act = nn.functional.silu
        channels, radial = options.hidden_channels, options.radial
        self.rbf = dimenet.BesselBasisLayer(radial, options.cutoff, 5)
        self.sbf = SphericalBasis(options.spherical, radial, options.cutoff)
        self.emb = dimenet.EmbeddingBlock(radial, channels, act)
        self.output_blocks = nn.ModuleList(
            dimenet.OutputBlock(radial, channels, 1, 3, act) for _ in range(options.blocks + 1)
        )
        self.interaction_blocks = nn.ModuleList(
            dimenet.InteractionBlock(
                channels, options.bilinear, options.spherical, radial, 1, 2, act
            )
            for _ in range(options.blocks)
        )

    def forward(self, *graph: Tensor, molecules: int) -> Tensor:
        z, pos, batch, edges, kj, ji = graph
        source, target = edges
        along = pos[source] - pos[target]
        length = along.pow(2).sum(-1).sqrt()
        to_j = along[ji]
        to_k = pos[source[kj]] - pos[target[ji]]
        across = torch.linalg.cross(to_j, to_k).norm(dim=-1)
        angle = torch.atan2(across, (to_j * to_k).sum(-1))
        rbf, sbf = self.rbf(length), self.sbf(length, angle, kj)
        message = self.emb(z, rbf, target, source)
        by_atom: Tensor = self.output_blocks[0](message, rbf, target, len(z))
        blocks: Any = zip(self.interaction_blocks, self.output_blocks[1:], strict=True)
        for interaction, output in blocks:
            message = interaction(message, rbf, sbf, kj, ji)
            by_atom = by_atom + output(message, rbf, target, len(z))
        return _sum_by_molecule(by_atom, batch, molecules)


def _sum_by_molecule(by_atom: Tensor, batch: Tensor, molecules: int) -> Tensor:
    return by_atom.new_zeros(molecules, by_atom.shape[1]).index_add(0, batch, by_atom)


class SphericalBasis(nn.Module):
    """Spherical Bessel functions of distances times spherical harmonics of angles: Gasteiger et al.
    2020 (arXiv 2003.03123), equation 7, with the envelope of equation 8, ``radial`` functions of
    each of ``spherical`` orders. PyTorch Geometric derives them with sympy for each net, which
    takes many seconds, and evaluates them one after the other."""

    zeros: Tensor
    norms: Tensor
    harmonics: Tensor

    def __init__(self, spherical: int, radial: int, cutoff: float) -> None:
        super().__init__()
        self._cutoff = cutoff
        self._envelope = dimenet.Envelope(5)
        zeros = dimenet_utils.Jn_zeros(spherical, radial).astype(np.float64)
        orders = np.arange(spherical)[:, None]
        norms = np.sqrt(2) / np.abs(dimenet_utils.Jn(zeros, orders + 1))
        harmonics = np.sqrt((2 * np.arange(spherical) + 1) / (4 * np.pi))
        for name, array in (("zeros", zeros), ("norms", norms), ("harmonics", harmonics)):
            self.register_buffer(name, torch.from_numpy(array), persistent=False)

    def forward(self, dist: Tensor, angle: Tensor, kj: Tensor) -> Tensor:
        """Return the functions of each triplet, ordered by order: (triplets, orders x functions).

        ``dist`` is the length of each edge; ``angle`` and ``kj`` are the angle and the first edge
        of each triplet.
        """
        share = dist / self._cutoff
        envelope: Tensor = self._envelope(share)
        by_edge = self._by_distance(share) * envelope[:, None, None]
        by_angle = _legendre(angle.cos(), len(self.harmonics)) * self.harmonics.to(angle.dtype)
        return (by_edge[kj] * by_angle.unsqueeze(2)).flatten(1)

    def _by_distance(self, share: Tensor) -> Tensor:
        """Return j_l(z_ln x) times its norm, (edges, orders, functions), in double precision,
        because short distances lead to differences of large numbers."""
        x = share.double()[:, None, None] * self.zeros
        value = x.sin() / x
        functions = [value[:, 0]]
        x = x[:, 1:]
        lower, value = value[:, 1:], value[:, 1:] / x - x.cos() / x
        for order in range(1, len(self.zeros)):
            functions.append(value[:, 0])
            x, lower, value = x[:, 1:], lower[:, 1:], value[:, 1:]
            lower, value = value, value * ((2 * order + 1) / x) - lower
        return (torch.stack(functions, dim=1) * self.norms).to(share.dtype)


def _legendre(x: Tensor, orders: int) -> Tensor:
    values = [torch.ones_like(x), x]
    for order in range(1, orders - 1):
        values.append((x * values[-1] * (2 * order + 1) - values[-2] * order) / (order + 1))
    return torch.stack(values[:orders], dim=1)


def radius_graph(pos: Tensor, r: float, batch: Tensor, max_num_neighbors: int = 32) -> Tensor:
    """Return sources and targets of the edges in molecules, (2, edges), by target, then source.
    Atoms at ``pos`` (atoms, 3) of one molecule (``batch``, ascending) are neighbours if their
    distance is less than ``r``; of more than ``max_num_neighbors`` an atom keeps the first ones. It
    has the arguments of ``torch_geometric.nn.radius_graph``."""
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
    """Return the indices (triplets,) of the pairs of edges k->j and j->i with different atoms i and
    k, of the edges of ``radius_graph``, ordered by j->i and then by k."""
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
