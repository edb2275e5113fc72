"""Files that are whole or not there, and streams of which only the tail can be lost."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq


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
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
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


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a whole Parquet file atomically and durably."""
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


#: What Arrow raises where a stream breaks off or goes on in garbage.
_NOT_A_BATCH = (pa.ArrowException, OSError, MemoryError, EOFError, UnicodeDecodeError)


class StreamWriter:
    """An Arrow IPC stream that can be read at any moment, even after this process was killed."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = path.open("xb")
        self._stream = pa.ipc.new_stream(self._file, schema)
        self._file.flush()

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows (missing columns are null) as one batch and hand it to the system."""
        if rows:
            self._stream.write_batch(pa.RecordBatch.from_pylist(list(rows), schema=self._schema))
            self._file.flush()

    def close(self) -> None:
        """End the stream and wait until it is on disk."""
        self._stream.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_stream(path: Path, schema: pa.Schema) -> pa.Table:
    """Return every whole batch of a stream; a torn tail costs the torn batch only."""
    batches: list[pa.RecordBatch] = []
    with path.open("rb") as file, contextlib.suppress(*_NOT_A_BATCH):
        for batch in pa.ipc.open_stream(file):
            if batch.schema != schema:
                break
            batch.validate(full=True)  # unread bytes of a broken disk can look like a batch
            batches.append(batch)
    return pa.Table.from_batches(batches, schema)


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
