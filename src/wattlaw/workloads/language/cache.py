"""Caches slow results between runs and for all ranks of a machine."""

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from wattlaw.errors import BadInput
from wattlaw.files import replacing
from wattlaw.workloads.language.masking import Tokens


class Cache:
    """Files in one folder, each named by a hash of its inputs.

    Tokenising WikiText-103 takes long on all cores, and every rank needs the same tokens: one rank
    makes them and the others wait. On a file system without locks each rank makes them, and the
    last file stays. Arrays are mapped from their files, so that ranks share one copy in memory.

    Parameters
    ----------
    folder
        The folder, created if need be. None caches nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def array(self, key: Any, make: Callable[[], Tokens]) -> Tokens:
        """Return the array of a key; ``make`` is called if it is not cached."""
        if self._folder is None:
            return make()
        with self._at(key, ".npy") as path:
            if not path.exists():
                with replacing(path) as temporary, temporary.open("wb") as file:
                    np.save(file, make())
            try:
                kept: Tokens = np.load(path, mmap_mode="r")
            except (ValueError, EOFError):
                raise BadInput(
                    f"{path}: not a complete array; remove it to make it again"
                ) from None
            return kept

    def text(self, key: Any, make: Callable[[], str]) -> str:
        """Return the text of a key; ``make`` is called if it is not cached."""
        if self._folder is None:
            return make()
        with self._at(key, ".json") as path:
            if not path.exists():
                with replacing(path) as temporary:
                    temporary.write_text(make(), encoding="utf-8")
            return path.read_text(encoding="utf-8")

    @contextlib.contextmanager
    def _at(self, key: Any, suffix: str) -> Iterator[Path]:
        if self._folder is None:
            raise ValueError("this cache keeps nothing")
        # Another release of the library might cut words otherwise.
        what = json.dumps([tokenizers.__version__, key])
        name = hashlib.sha256(what.encode()).hexdigest()[:32]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / f"{name}.lock").open("w") as lock:
                with contextlib.suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed
                yield self._folder / f"{name}{suffix}"
        except OSError as error:
            reason = error.strerror or error
            raise BadInput(f"cache {self._folder}: cannot be used: {reason}") from None
