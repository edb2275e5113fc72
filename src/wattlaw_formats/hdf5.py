"""HDF5 files as plain data, read by a process of its own.

A damaged file can make the HDF5 library loop without end or crash, and a small one can have many
gigabytes of values. The process has limits of time, memory and disk; it writes a JSON file, and a
file for each list of numbers.
"""

import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wattlaw.common.errors import NotAvailable
from wattlaw.common.files import read_bytes
from wattlaw.common.isolation import isolated_environment, isolated_python
from wattlaw.common.processes import run_captured

_MAX_NODES, _MAX_DEPTH = 500_000, 16
#: Values of a file: a hundred times its size, or more of a small one, up to the most readings of a
#: file, each with a time.
_RATIO, _LEAST_VALUES_BYTES, _MAX_VALUES_BYTES = 100, 100 * 2**20, 256 * 2**20
#: Seconds to decode a file: at least, and for each byte.
_LEAST_S, _S_PER_BYTE = 60.0, 1e-6
#: Of the JSON file, and of the process while it reads, in addition to the size of the file.
_MAX_TREE_BYTES, _MEMORY_BYTES = 64 * 2**20, 2**29
#: Larger attributes are left out.
_MAX_ATTRIBUTE_BYTES = 2**16
_TEXT_LENGTH = 200
_TREE = "tree.json"


@dataclass(frozen=True)
class Node:
    """A group or a dataset, with its texts and numbers as attributes and without soft and external
    links; ``refusal`` says why a dataset has no ``values``."""

    name: str
    attributes: Mapping[str, str | float]
    members: Mapping[str, "Node"]
    values: npt.NDArray[np.float64] | None = None
    refusal: str = ""

    @property
    def is_dataset(self) -> bool:
        return self.values is not None or bool(self.refusal)

    @property
    def groups(self) -> list["Node"]:
        return [node for _, node in sorted(self.members.items()) if not node.is_dataset]

    def text(self, attribute: str) -> str:
        value = self.attributes.get(attribute)
        return value if isinstance(value, str) else ""

    def number(self, attribute: str) -> float:
        value = self.attributes.get(attribute)
        return value if isinstance(value, float) else 0.0


def read_tree(path: Path, most_values: int) -> Node:
    """Return the content of an HDF5 file without lists of more than ``most_values`` numbers. Raises
    ``ValueError`` if HDF5 refuses the file, crashes or takes too long."""
    if importlib.util.find_spec("h5py") is None:
        raise NotAvailable(f'{path}: h5py is needed; pip install "wattlaw[import]"')
    size = path.stat().st_size
    most_bytes = min(max(_LEAST_VALUES_BYTES, _RATIO * size), _MAX_VALUES_BYTES)
    limit_s = _LEAST_S + _S_PER_BYTE * size
    # Threads of numerical libraries reserve memory that they do not use.
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="wattlaw-hdf5-") as folder:
        settings = [str(path.absolute()), folder, str(most_values), str(most_bytes)]
        line = isolated_python("-m", __name__, *settings)
        try:
            done = run_captured(line, limit_s, isolated_environment() | threads)
        except subprocess.TimeoutExpired:
            raise ValueError(f"damaged: not decoded within {limit_s:.0f} s") from None
        if done.returncode < 0:
            raise ValueError(f"damaged: decoding crashed (signal {-done.returncode})")
        if done.returncode:
            raise ValueError(done.stderr.strip()[-500:])
        tree = json.loads(read_bytes(Path(folder, _TREE), _MAX_TREE_BYTES))
        return _node("", tree, Path(folder))


def _node(name: str, row: Mapping[str, Any], folder: Path) -> Node:
    file = row.get("file")
    return Node(
        name,
        row["attributes"],
        {key: _node(key, member, folder) for key, member in row["members"].items()},
        None if file is None else np.load(folder / file, allow_pickle=False),
        row.get("refusal", ""),
    )


def _confine(memory_bytes: int, file_bytes: int) -> None:
    """Limit this process for good: more memory than it has now, and the size of each file."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    size_bytes = pages * resource.getpagesize()
    for kind, limit in (
        (resource.RLIMIT_AS, size_bytes + memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (min(limit, hard), hard) if hard >= 0 else (limit, limit))


def _write(path: str, folder: str, most_values: str, most_bytes: str) -> None:
    import h5py

    seen, left = set[Any](), int(most_bytes)
    _confine(_MEMORY_BYTES + Path(path).stat().st_size, max(left + 2**12, _MAX_TREE_BYTES))

    def describe(item: Any, depth: int) -> dict[str, Any]:
        nonlocal left
        about = h5py.h5o.get_info(item.id)
        if (about.fileno, about.addr) in seen:  # a tree of hard links can be infinite
            raise ValueError(f"{item.name[:100]!a} is a second link to the same object")
        seen.add((about.fileno, about.addr))
        if len(seen) > _MAX_NODES or depth > _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_NODES:,} groups, or {_MAX_DEPTH} in each other")
        row: dict[str, Any] = {"attributes": _attributes(item), "members": {}}
        if isinstance(item, h5py.Dataset):
            if item.ndim != 1 or item.size > int(most_values) or item.dtype.kind not in "iuf":
                return row | {"refusal": f"is not a list of up to {int(most_values):,} numbers"}
            if item.is_virtual or item.external:
                return row | {"refusal": "is in another file"}
            left -= 8 * item.size
            if left < 0:
                raise ValueError(f"its values take more than {int(most_bytes):,} bytes")
            name = f"{len(seen)}.npy"
            np.save(Path(folder) / name, item[:].astype(np.float64))
            return row | {"file": name}
        if isinstance(item, h5py.Group):
            for name in item:
                if isinstance(item.get(name, getlink=True), h5py.HardLink):
                    row["members"][name] = describe(item[name], depth + 1)
        return row

    with h5py.File(path, "r") as file:
        tree = describe(file, 0)
    with Path(folder, _TREE).open("w", encoding="utf-8") as output:
        json.dump(tree, output)


def _attributes(item: Any) -> dict[str, str | float]:
    kept: dict[str, str | float] = {}
    for name in item.attrs:
        about = item.attrs.get_id(name)
        if about.shape or about.get_storage_size() > _MAX_ATTRIBUTE_BYTES:
            continue
        value = item.attrs[name]
        if isinstance(value, str):
            kept[name] = value[:_TEXT_LENGTH]
        elif isinstance(value, np.integer | np.floating):
            kept[name] = float(value)
    return kept


if __name__ == "__main__":
    try:
        _write(*sys.argv[1:])
    except MemoryError:
        sys.exit("its content needs more memory than a file may take")
    except Exception as error:
        sys.exit(" ".join(str(error).split()) or type(error).__name__)
