"""QM9 as PyTorch Geometric keeps it, read and checked without writing anything."""

import pickle
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from wattlaw.errors import BadInput, one_line
from wattlaw.workloads.molecules.molecules import Molecules
from wattlaw.workloads.workload import Indices

_PROPERTIES = 19
_HEAVIEST = 94  # the embedding of DimeNet ends here, SchNet's a little later
_PAIRS_AT_ONCE = 10_000_000
_SPLIT_SEED = 0


def read(data: Path) -> Molecules:
    """Return the molecules of ``DATA/raw/qm9_v3.pt``: a list with a dict of tensors for each.

    Of a dict, ``z`` (atoms,), ``pos`` (atoms, 3) and ``y`` (1, 19) are used.

    Raises
    ------
    wattlaw.errors.BadInput
        There is no such file, it cannot be read, or a record of it cannot be trained on.
    """
    path = data / "raw" / "qm9_v3.pt"
    records = _loaded(path)
    if not isinstance(records, list) or not records:
        found = f"a {type(records).__name__}" if not isinstance(records, list) else "no records"
        raise BadInput(f"{path}: holds {found}; allowed: a list with a dict for each molecule")
    for number, record in enumerate(records):
        trouble = _trouble(record)
        if trouble:
            _refuse(path, number, trouble)
    counts = np.array([len(record["z"]) for record in records], np.int64)
    z = torch.cat([record["z"] for record in records]).numpy()
    pos = torch.cat([record["pos"] for record in records]).float().numpy()
    targets = torch.cat([record["y"] for record in records]).float().numpy()
    molecule = np.repeat(np.arange(len(counts)), counts)
    _check_values(path, molecule, z, pos)
    _check_distances(path, counts, pos)
    return Molecules(z.astype(np.uint8), pos, counts, targets)


def check_target(data: Path, values: npt.NDArray[np.float32], name: str) -> None:
    """Refuse a file in which a molecule has no finite value of a property."""
    unknown = np.flatnonzero(~np.isfinite(values))
    if len(unknown):
        number = int(unknown[0])
        trouble = f"y has {values[number]} for target {name}; allowed: a finite number"
        _refuse(data / "raw" / "qm9_v3.pt", number, trouble)


def split(data: Path, molecules: int, train: int, evaluation: int) -> tuple[Indices, Indices]:
    """Return which molecules are for training and which for evaluation.

    The choice is random, but the same in every run. A file with fewer than ``train`` +
    ``evaluation`` molecules is split in the same proportion, at least one for each.

    Raises
    ------
    wattlaw.errors.BadInput
        There is only one molecule.
    """
    if molecules < 2:
        raise BadInput(
            f"{data / 'raw' / 'qm9_v3.pt'}: holds 1 molecule; allowed: 2 or more, to train on "
            "some and evaluate on others"
        )
    order = np.random.default_rng(_SPLIT_SEED).permutation(molecules)
    if molecules < train + evaluation:
        train = min(max(1, round(molecules * train / (train + evaluation))), molecules - 1)
        evaluation = molecules - train
    return order[:train], order[train : train + evaluation]


def _loaded(path: Path) -> Any:
    if not path.is_file():
        raise BadInput(
            f"{path}: no such file; get it on a machine with network and without rdkit: python -c "
            f"\"from torch_geometric.datasets import QM9; QM9('{path.parent.parent}')\""
        )
    try:
        return torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except (
        AttributeError, EOFError, IndexError, KeyError, OSError, RuntimeError, TypeError,
        ValueError, pickle.UnpicklingError, zipfile.BadZipFile,
    ) as error:  # fmt: skip
        words = one_line(error)
        raise BadInput(
            f"{path}: is not a file of tensors that torch.save wrote ({words[:100]}); allowed: "
            "QM9 as PyTorch Geometric downloads it"
        ) from error


def _trouble(record: Any) -> str | None:
    """Return what is wrong with the make of a record."""
    if not isinstance(record, dict):
        return f"is a {type(record).__name__}; allowed: a dict with z, pos and y"
    for key in ("z", "pos", "y"):
        if not isinstance(record.get(key), torch.Tensor):
            found = f"is a {type(record[key]).__name__}" if key in record else "is missing"
            return f"{key} {found}; allowed: a tensor"
    z, pos, y = record["z"], record["pos"], record["y"]
    if z.dim() != 1 or z.is_floating_point() or z.is_complex():
        return _wrong("z", z, "(atoms,) of integers")
    if tuple(pos.shape) != (len(z), 3) or not pos.is_floating_point():
        return _wrong("pos", pos, f"({len(z)}, 3) of floats")
    if tuple(y.shape) != (1, _PROPERTIES) or not y.is_floating_point():
        return _wrong("y", y, f"(1, {_PROPERTIES}) of floats")
    few = f"z has {len(z)} atom(s); allowed: 2 or more, since a net works on pairs"
    return few if len(z) < 2 else None


def _wrong(key: str, tensor: torch.Tensor, allowed: str) -> str:
    return f"{key} has shape {tuple(tensor.shape)} of {tensor.dtype}; allowed: {allowed}"


def _check_values(
    path: Path, molecule: Indices, z: npt.NDArray[np.int64], pos: npt.NDArray[np.float32]
) -> None:
    strange = np.flatnonzero((z < 1) | (z > _HEAVIEST))
    if len(strange):
        trouble = f"z has {z[strange[0]]}; allowed: atomic numbers from 1 to {_HEAVIEST}"
        _refuse(path, int(molecule[strange[0]]), trouble)
    nowhere = np.flatnonzero(~np.isfinite(pos).all(1))
    if len(nowhere):
        trouble = f"pos has {pos[nowhere[0]].tolist()}; allowed: finite numbers"
        _refuse(path, int(molecule[nowhere[0]]), trouble)


def _check_distances(path: Path, counts: Indices, pos: npt.NDArray[np.float32]) -> None:
    """Refuse a molecule with two atoms in one place, between which there is no direction."""
    ends = np.cumsum(counts)
    for size in np.unique(counts):
        alike = np.flatnonzero(counts == size)
        step = max(1, _PAIRS_AT_ONCE // int(size) ** 2)
        for start in range(0, len(alike), step):
            some = alike[start : start + step]
            atoms = (ends[some] - size)[:, None] + np.arange(size)
            places = pos[atoms]
            squares = np.zeros((len(some), size, size), np.float32)
            for axis in range(3):
                squares += (places[:, :, None, axis] - places[:, None, :, axis]) ** 2
            squares[:, np.arange(size), np.arange(size)] = 1
            if not squares.all():
                which, first, second = (int(found[0]) for found in np.nonzero(squares == 0))
                trouble = f"pos has atoms {first} and {second} in one place"
                _refuse(path, int(some[which]), f"{trouble}; allowed: a distance between atoms")


def _refuse(path: Path, number: int, trouble: str) -> NoReturn:
    raise BadInput(f"{path}: record {number} (counted from 0): {trouble}")
