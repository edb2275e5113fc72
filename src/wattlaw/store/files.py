"""Files that are whole or not there."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give a temporary path beside ``path``; put it in place when the block ends well.

    Readers see the old file or the new one, never a part. ``durable`` also waits for the disk.
    A link is followed; what is no plain file, such as a pipe, is written to as it is.

    Raises
    ------
    OSError
        Naming ``path``, when it is a folder or its folder is not there.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:  # whose name nobody has heard of
        raise type(error)(error.errno, os.strerror(error.errno or 0), str(path)) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        if durable:
            _sync(temporary)
        temporary.replace(path)
        if durable:
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a whole text file atomically."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_parquet(path: Path, table: "pa.Table", *, durable: bool = True) -> None:
    """Write a whole Parquet file atomically."""
    import pyarrow.parquet as pq

    with replacing(path, durable=durable) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
