"""Synthetic molecules with the sizes, elements and bond lengths of QM9's, and a file of them.

Heavy atoms form a random tree, and hydrogens fill their free valences. Each atom is placed in that
of a few random directions in which it is farthest from the other atoms. The shares of the elements
are about QM9's (half of the atoms are hydrogen, a third carbon; from the literature, rounded).
Properties are smooth functions of elements and positions with a little noise. They have about the
magnitude of QM9's, but are not computed by physics.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from wattlaw_papers.workloads.data_sets import check_new_data
from wattlaw_papers.workloads.molecules.molecules import Molecules
from wattlaw_papers.workloads.molecules.qm9 import FILE

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]

_ELEMENTS = np.array([6, 7, 8, 9])
_SHARES = np.array([0.705, 0.135, 0.157, 0.003])
_VALENCES = np.array([4, 3, 2, 1])
_HEAVY = np.arange(1, 10)
_HEAVY_SHARES = np.array([0.0001, 0.0002, 0.0007, 0.002, 0.005, 0.012, 0.03, 0.12, 0.83])
_DIRECTIONS = 12  # candidates for each atom
_NOISE_EV = 0.05

# Of a single atom, by atomic number: energy in eV, polarisability in a0^3, an invented charge.
_ENERGY = np.zeros(10)
_ENERGY[[1, 6, 7, 8, 9]] = [-13.6, -1029.9, -1485.3, -2042.6, -2713.4]
_POLARISABILITY = np.zeros(10)
_POLARISABILITY[[1, 6, 7, 8, 9]] = [2.0, 8.0, 6.5, 5.0, 3.5]
_CHARGE = np.zeros(10)
_CHARGE[[1, 6, 7, 8, 9]] = [0.1, 0.0, -0.15, -0.25, -0.2]


def synthetic_molecules(size: int, seed: int) -> Molecules:
    """Return molecules of 3 to 29 atoms; the same for the same size and seed."""
    rng = np.random.default_rng(seed)
    z, parents, counts = _skeletons(size, rng)
    pos = _positions(z, parents, counts, rng)
    is_atom = np.arange(z.shape[1]) < counts[:, None]
    return Molecules(
        z[is_atom].astype(np.uint8),
        pos[is_atom].astype(np.float32),
        counts,
        _properties(z, pos, is_atom, rng).astype(np.float32),
    )


def _skeletons(size: int, rng: np.random.Generator) -> tuple[_Ints, _Ints, _Ints]:
    """Return atomic numbers and bonded earlier atoms, both (size, 29), and numbers of atoms."""
    most = _HEAVY[-1]
    heavy = rng.choice(_HEAVY, size, p=_HEAVY_SHARES)
    z, parents = np.zeros((size, 29), np.int64), np.zeros((size, 29), np.int64)
    free = np.zeros((size, most), np.int64)
    rows = np.arange(size)
    for atom in range(most):
        kinds = rng.choice(4, size, p=_SHARES)
        # An atom with a single bond would end the growth of the tree.
        kinds = np.where((kinds == 3) & ((atom == 0) | (free.sum(1) < 2)), 0, kinds)
        grows = heavy > atom
        z[grows, atom] = _ELEMENTS[kinds[grows]]
        if atom > 0:
            parents[grows, atom] = _weighted(free, rng)[grows]
            free[rows[grows], parents[grows, atom]] -= 1
        free[grows, atom] = _VALENCES[kinds[grows]] - (atom > 0)
    unsaturated = np.rint(rng.normal(3.2, 0.8, size) * heavy / most).astype(np.int64)
    hydrogens = np.maximum(free.sum(1) - 2 * np.maximum(unsaturated, 0), 0)
    hydrogens = np.maximum(hydrogens, 3 - heavy)
    for step in range(int(hydrogens.max())):
        grows = hydrogens > step
        z[rows[grows], heavy[grows] + step] = 1
        parents[rows[grows], heavy[grows] + step] = _weighted(free, rng)[grows]
        free[rows[grows], parents[rows[grows], heavy[grows] + step]] -= 1
    return z, parents, heavy + hydrogens


def _weighted(free: _Ints, rng: np.random.Generator) -> _Ints:
    """Return for each molecule a random atom, more likely with more free valences."""
    chosen: _Ints = np.argmax(free * rng.random(free.shape), axis=1)
    return chosen


def _positions(z: _Ints, parents: _Ints, counts: _Ints, rng: np.random.Generator) -> _Floats:
    size, width = z.shape
    rows = np.arange(size)
    pos = np.zeros((size, width, 3))
    for atom in range(1, int(counts.max())):
        parent = parents[:, atom]
        polar = z[rows, parent] > 6
        length = np.where(z[:, atom] == 1, np.where(polar, 1.0, 1.09), np.where(polar, 1.4, 1.5))
        length = length + rng.normal(0, 0.015, size)
        candidates = rng.normal(size=(size, _DIRECTIONS, 3))
        candidates *= length[:, None, None] / np.linalg.norm(candidates, axis=2, keepdims=True)
        candidates += pos[rows, parent][:, None]
        # Squared distances as |a|^2 - 2ab + |b|^2: one matrix product per molecule.
        others = pos[:, :atom]
        squares = (candidates**2).sum(2)[:, :, None] + (others**2).sum(2)[:, None]
        nearest = (squares - 2 * candidates @ others.transpose(0, 2, 1)).min(2)
        pos[:, atom] = candidates[rows, nearest.argmax(1)]
    return pos


def _properties(
    z: _Ints, pos: _Floats, is_atom: npt.NDArray[np.bool_], rng: np.random.Generator
) -> _Floats:
    """Return properties in the order of ``Target``, shape (size, 19)."""
    atoms = is_atom.sum(1)
    centred = (pos - (pos * is_atom[..., None]).sum(1, keepdims=True) / atoms[:, None, None]) * (
        is_atom[..., None]
    )
    squares = (centred**2).sum(2)
    pairs = squares[:, :, None] + squares[:, None] - 2 * centred @ centred.transpose(0, 2, 1)
    bound = is_atom[:, :, None] & is_atom[:, None] & ~np.eye(z.shape[1], dtype=bool)
    distance = np.sqrt(np.where(bound, np.maximum(pairs, 0.01), 1.0))
    cohesive = -1.5 * (np.exp(-((distance - 1.0) ** 2)) * bound).sum((1, 2))
    cohesive = cohesive + rng.normal(0, _NOISE_EV, len(z))
    dipole = 4.8 * np.linalg.norm((_CHARGE[z][..., None] * centred).sum(1), axis=1)
    charge = _CHARGE[z].sum(1) / atoms
    homo, lumo = -6.5 + 5 * charge, 0.3 + 10 * charge + 0.01 * cohesive / atoms
    extents = np.linalg.eigvalsh(centred.transpose(0, 2, 1) @ centred)
    energy = (_ENERGY[z] * is_atom).sum(1) + cohesive
    thermal = 0.01 * atoms
    by_name = [
        dipole, _POLARISABILITY[z].sum(1), homo, lumo, lumo - homo, (z * squares).sum(1),
        0.22 * atoms, energy, energy + thermal, energy + thermal + 0.026, energy - 2 * thermal,
        1.7 * atoms, cohesive, cohesive - thermal, cohesive - thermal - 0.026,
        cohesive + 2 * thermal, *(500 / (10 + 12 * extents.T)),
    ]  # fmt: skip
    return np.stack(by_name, axis=1)


def make_data(folder: Path, size: int, seed: int) -> None:
    """Write ``size`` molecules to ``folder/raw/qm9_v3.pt``, with the columns that are read."""
    check_new_data(folder, size, 2)
    molecules = synthetic_molecules(size, seed)
    atoms = molecules.counts.tolist()
    # Views of three tensors, whose storages torch.save writes once.
    columns = {
        "z": torch.split_with_sizes(torch.from_numpy(molecules.z).long(), atoms),
        "pos": torch.split_with_sizes(torch.from_numpy(molecules.pos), atoms),
        "y": torch.from_numpy(molecules.targets)[:, None].unbind(),
    }
    records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path = folder / FILE
    path.parent.mkdir(parents=True)
    torch.save(records, path)
