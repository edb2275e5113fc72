"""Arrays that are slow to make from a data set: made once, and mapped by all ranks and later runs.

Such as the molecules of QM9, or the tokens of a text. A file is named by a hash of
its inputs, among them the ``signature`` of the files of the data set, so that a changed data set
has other files. It has the format of numpy, without pickles, and ends with a checksum.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wattlaw.common.errors import BadInput
from wattlaw.common.files import open_regular, replacing
from wattlaw.workloads.workload import DATA_CACHE

_CHECKSUM_BYTES = 4

Array = npt.NDArray[Any]


def signature(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
        found.append((str(path.resolve()), status.st_size, status.st_mtime_ns))
    return found


def cached_array(key: Any, make: Callable[[], Array]) -> Array:
    """Return an array from the folder that ``DATA_CACHE`` names; without it, each process makes its
    own. One process makes an array while the others wait for its lock. On a file system without
    locks several may make it, and the last file remains."""
    folder = os.environ.get(DATA_CACHE)
    if not folder:
        return make()
    path = Path(folder) / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.npy"
    if (found := _read(path)) is not None:
        return found
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open_regular(path.with_suffix(".lock"), append=True))
        except OSError as error:
            _refuse(folder, error)
            return make()
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if (found := _read(path)) is not None:
            return found
        made = make()
        try:
            _write(path, made)
        except OSError as error:
            _refuse(folder, error)
    found = _read(path)
    return made if found is None else found


def _refuse(folder: str, error: OSError) -> None:
    why = f"cache {folder}: cannot be used: {error.strerror or error}"
    print(f"wattlaw: {why}; each rank makes its own data", file=sys.stderr, flush=True)


def _read(path: Path) -> Array | None:
    try:
        content = np.memmap(path, np.uint8, mode="r").data
        checksum = int.from_bytes(content[-_CHECKSUM_BYTES:], "little")
        if zlib.crc32(content[:-_CHECKSUM_BYTES]) != checksum:
            return None
        # As a plain array, whose elements are quicker to read than those of a memmap.
        return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError):
        return None


def _write(path: Path, array: Array) -> None:
    with replacing(path) as temporary, temporary.open("w+b") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        checksum = zlib.crc32(np.memmap(file, np.uint8, mode="r").data)
        file.seek(0, os.SEEK_END)
        file.write(checksum.to_bytes(_CHECKSUM_BYTES, "little"))
