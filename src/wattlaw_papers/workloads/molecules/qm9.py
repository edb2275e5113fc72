"""Reads and checks the file of QM9 that PyTorch Geometric downloads."""

import functools
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wattlaw.common.errors import BadInput, one_line
from wattlaw.workloads.workload import Indices
from wattlaw_papers.workloads.data_cache import Array, cached_array, signature
from wattlaw_papers.workloads.molecules.molecules import Molecules

FILE = Path("raw", "qm9_v3.pt")
_PROPERTIES = 19
_HEAVIEST = 94  # the largest atomic number of DimeNet's embedding; SchNet's is larger
_SPLIT_SEED = 0


def read(data: Path) -> Molecules:
    """Return the molecules of ``DATA/raw/qm9_v3.pt``: a list of dicts with ``z`` (atoms,), ``pos``
    (atoms, 3) and ``y`` (1, 19). It takes a minute to read, so its arrays are cached."""
    path = data / FILE
    if not path.is_file():
        raise BadInput(
            f"{path}: no such file; download it on a machine without rdkit: python -c "
            f"\"from torch_geometric.datasets import QM9; QM9('{data}')\""
        )
    state, checked = signature([path]), functools.cache(_checked)

    def column(name: str) -> Array:
        return cached_array(["qm9", name, state], lambda: getattr(checked(path), name))

    return Molecules(column("z"), column("pos"), column("counts"), column("targets"))


def _checked(path: Path) -> Molecules:
    records = _loaded(path)
    if not isinstance(records, list) or not records:
        content = "no records" if records == [] else f"a {type(records).__name__}"
        raise BadInput(f"{path}: contains {content}; allowed: a list with a dict for each molecule")
    for number, record in enumerate(records):
        if problem := _problem(record):
            raise BadInput(f"{path}: record {number} (counted from 0): {problem}")
    counts = np.array([len(record["z"]) for record in records], np.int64)
    z = torch.cat([record["z"] for record in records]).numpy()
    pos = torch.cat([record["pos"] for record in records]).float().numpy()
    targets = torch.cat([record["y"] for record in records]).float().numpy()
    return Molecules(z.astype(np.uint8), pos, counts, targets)


def check_target(data: Path, values: npt.NDArray[np.float32], name: str) -> None:
    unknown = np.flatnonzero(~np.isfinite(values))
    if len(unknown):
        value = f"y has {values[unknown[0]]} for target {name}; allowed: a finite number"
        raise BadInput(f"{data / FILE}: record {unknown[0]} (counted from 0): {value}")


def split(data: Path, molecules: int, train: int, evaluation: int) -> tuple[Indices, Indices]:
    """Return the indices of the training and of the evaluation molecules, random but the same in
    every run; too small a file is split in the same proportion."""
    if molecules < 2:
        raise BadInput(f"{data / FILE}: contains 1 molecule; allowed: 2 or more")
    order = np.random.default_rng(_SPLIT_SEED).permutation(molecules)
    if molecules < train + evaluation:
        train = min(max(1, round(molecules * train / (train + evaluation))), molecules - 1)
        evaluation = molecules - train
    return order[:train], order[train : train + evaluation]


def _loaded(path: Path) -> Any:
    try:
        return torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except (
        AttributeError, EOFError, IndexError, KeyError, OSError, RuntimeError, TypeError,
        ValueError, pickle.UnpicklingError, zipfile.BadZipFile,
    ) as error:  # fmt: skip
        raise BadInput(
            f"{path}: not a file of tensors of torch.save ({one_line(error)[:100]}); allowed: "
            "QM9 as PyTorch Geometric downloads it"
        ) from error


def _problem(record: Any) -> str | None:
    if not isinstance(record, dict):
        return f"is a {type(record).__name__}; allowed: a dict with z, pos and y"
    atoms = record["z"].numel() if isinstance(record.get("z"), torch.Tensor) else 0
    shapes = {"z": (atoms,), "pos": (atoms, 3), "y": (1, _PROPERTIES)}
    for key, shape in shapes.items():
        value, is_float = record.get(key), key != "z"
        if not isinstance(value, torch.Tensor):
            return f"{key} is missing or a {type(value).__name__}; allowed: a tensor"
        is_kind = value.is_floating_point() == is_float and not value.is_complex()
        if tuple(value.shape) != shape or not is_kind:
            allowed = f"{shape} of {'floats' if is_float else 'integers'}"
            return f"{key} has shape {tuple(value.shape)} of {value.dtype}; allowed: {allowed}"
    z, pos = record["z"], record["pos"]
    problems = {
        "fewer than 2 atoms; allowed: 2 or more, because a net works on pairs": atoms < 2,
        f"z has other numbers; allowed: atomic numbers from 1 to {_HEAVIEST}": bool(
            ((z < 1) | (z > _HEAVIEST)).any()
        ),
        "pos has a value that is not finite; allowed: finite numbers": not pos.isfinite().all(),
        "pos has a position twice; allowed: different positions": (
            len({*map(tuple, pos.tolist())}) < atoms
        ),
    }
    return next((problem for problem, is_so in problems.items() if is_so), None)
