"""Writes small synthetic data sets in QM9's format."""

from pathlib import Path

import torch

from wattlaw.workloads.molecules.graphs import neighbours
from wattlaw.workloads.molecules.qm9 import FILE
from wattlaw.workloads.molecules.synthetic import synthetic_molecules
from wattlaw.workloads.workload import check_new_data

_ELEMENTS = (1, 6, 7, 8, 9)
_RADIUS = torch.zeros(10)
_RADIUS[list(_ELEMENTS)] = torch.tensor([0.31, 0.76, 0.71, 0.66, 0.57])  # covalent, in angstrom


def make_data(folder: Path, size: int, seed: int) -> None:
    """Write ``size`` molecules to ``folder/raw/qm9_v3.pt`` in PyTorch Geometric's format.

    Raises ``BadInput`` if the folder is not empty, or ``size`` is too small.
    """
    check_new_data(folder, size, 2)
    molecules = synthetic_molecules(size, seed)
    z = torch.from_numpy(molecules.z).long()
    pos = torch.from_numpy(molecules.pos)
    counts = torch.from_numpy(molecules.counts)
    batch = torch.repeat_interleave(counts)
    bonds = _bonds(z, pos, batch)
    of_molecule = batch[bonds[0]]
    bonds = bonds - (counts.cumsum(0) - counts)[of_molecule]
    kinds = torch.zeros(bonds.shape[1], 4)
    kinds[:, 0] = 1  # single bonds
    in_each = torch.bincount(of_molecule, minlength=size).tolist()
    atoms = counts.tolist()
    ones = [1] * size
    columns = {
        "x": _parts(_features(z, pos, batch), atoms),
        "edge_index": _parts(bonds, in_each, 1),
        "edge_attr": _parts(kinds, in_each),
        "y": _parts(torch.from_numpy(molecules.targets), ones),
        "pos": _parts(pos, atoms),
        "idx": _parts(torch.arange(size), ones),
        "name": [f"gdb_{number + 1}" for number in range(size)],
        "z": _parts(z, atoms),
    }
    records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path = folder / FILE
    path.parent.mkdir(parents=True)
    torch.save(records, path)


def _parts(tensor: torch.Tensor, sizes: list[int], dim: int = 0) -> list[torch.Tensor]:
    """Return views of a tensor, whose storage torch.save writes once."""
    return list(torch.split_with_sizes(tensor, sizes, dim))


def _bonds(z: torch.Tensor, pos: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Return pairs of atoms at about the sum of their radii, shape (2, bonds)."""
    edges = neighbours(pos, batch, 2.0)
    source, target = edges
    length = (pos[source] - pos[target]).norm(dim=-1)
    return edges[:, length < 1.15 * (_RADIUS[z[source]] + _RADIUS[z[target]])].flip(0)


def _features(z: torch.Tensor, pos: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Return element (5 columns), atomic number, aromatic, sp, sp2, sp3, bonded hydrogens."""
    one_hot = (z[:, None] == torch.tensor(_ELEMENTS)).float()
    source, target = _bonds(z, pos, batch)
    hydrogens = torch.bincount(target, weights=(z[source] == 1).double(), minlength=len(z))
    others = torch.zeros(len(z), 6)
    others[:, 0], others[:, 4], others[:, 5] = z, z > 1, hydrogens
    return torch.cat((one_hot, others), dim=1)
