"""The nets: PyTorch Geometric's layers, given graphs that were made with the batch.

A forward pass asks the device for no number, so that a GPU never waits for the host: neither the
edges nor the number of molecules are looked for in it.
"""

from typing import Any

import torch
from torch import nn

from wattlaw.workloads.molecules import DimeNetOptions, SchNetOptions
from wattlaw.workloads.molecules.basis import SphericalBasis
from wattlaw.workloads.molecules.pyg import dimenet, schnet


class Standardised(nn.Module):
    """A net that predicts a property less its mean, in units of its standard deviation.

    Parameters
    ----------
    net
        Called with what a batch has but the targets, and the number of molecules.
    mean, std
        Of the property over the training molecules: kept with the weights, so that a saved model
        has what turns its predictions into the property's unit.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, net: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float64))

    def forward(self, *graph: torch.Tensor, molecules: int) -> torch.Tensor:
        """Return a standardised prediction for each molecule, shape (molecules,)."""
        predicted: torch.Tensor = self.net(*graph, molecules=molecules)
        return predicted.flatten().float()


class SchNet(schnet.SchNet):  # type: ignore[misc]
    """SchNet (Schuett et al. 2017, arXiv 1706.08566) on given edges."""

    def __init__(self, options: SchNetOptions) -> None:
        super().__init__(
            hidden_channels=options.hidden_channels,
            num_filters=options.filters,
            num_interactions=options.interactions,
            num_gaussians=options.gaussians,
            cutoff=options.cutoff,
        )

    def forward(
        self,
        z: torch.Tensor,
        pos: torch.Tensor,
        batch: torch.Tensor,
        edges: torch.Tensor,
        *,
        molecules: int,
    ) -> torch.Tensor:
        """Return a prediction for each molecule, shape (molecules, 1).

        Parameters
        ----------
        z, pos, batch
            Atomic numbers, places in angstrom and molecules of the atoms.
        edges
            Sources and targets, shape (2, edges).
        molecules
            How many molecules there are.
        """
        source, target = edges
        length = (pos[source] - pos[target]).norm(dim=-1)
        described = self.distance_expansion(length)
        state = self.embedding(z)
        for interaction in self.interactions:
            state = state + interaction(state, edges, length, described)
        by_atom: torch.Tensor = self.lin2(self.act(self.lin1(state)))
        return _summed(by_atom, batch, molecules)


class DimeNet(nn.Module):
    """DimeNet (Gasteiger et al. 2020, arXiv 2003.03123) on given edges and triplets.

    Its parameters have the names of PyTorch Geometric's, and are drawn in the same order.
    """

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

    def forward(
        self,
        z: torch.Tensor,
        pos: torch.Tensor,
        batch: torch.Tensor,
        edges: torch.Tensor,
        kj: torch.Tensor,
        ji: torch.Tensor,
        *,
        molecules: int,
    ) -> torch.Tensor:
        """Return a prediction for each molecule, shape (molecules, 1).

        Parameters
        ----------
        z, pos, batch, edges, molecules
            As for ``SchNet``.
        kj, ji
            The numbers of the two edges of each triplet.
        """
        source, target = edges
        along = pos[source] - pos[target]
        length = along.pow(2).sum(-1).sqrt()
        to_j = along[ji]
        to_k = pos[source[kj]] - pos[target[ji]]
        across = torch.linalg.cross(to_j, to_k).norm(dim=-1)
        angle = torch.atan2(across, (to_j * to_k).sum(-1))
        rbf, sbf = self.rbf(length), self.sbf(length, angle, kj)
        message = self.emb(z, rbf, target, source)
        by_atom: torch.Tensor = self.output_blocks[0](message, rbf, target, len(z))
        blocks: Any = zip(self.interaction_blocks, self.output_blocks[1:], strict=True)
        for interaction, output in blocks:
            message = interaction(message, rbf, sbf, kj, ji)
            by_atom = by_atom + output(message, rbf, target, len(z))
        return _summed(by_atom, batch, molecules)


def _summed(by_atom: torch.Tensor, batch: torch.Tensor, molecules: int) -> torch.Tensor:
    return by_atom.new_zeros(molecules, by_atom.shape[1]).index_add(0, batch, by_atom)
