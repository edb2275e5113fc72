"""The files of WikiText and their lines."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from wattlaw.errors import BadInput

Source = Literal["text", "parquet"]

_TRAINING_NAMES = ("wiki.train.tokens", "wiki.train.raw", "train.txt")
_VALIDATION_NAMES = ("wiki.valid.tokens", "wiki.valid.raw", "valid.txt", "validation.txt")
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.parquet")
_COLUMN = "text"
_ROWS_AT_ONCE = 8192


class Text(NamedTuple):
    """Files that make one text, in order, and how they are read."""

    files: tuple[Path, ...]
    source: Source

    def lines(self) -> Iterator[str]:
        """Yield the lines that are not blank; a row of a Parquet file is a line.

        Raises
        ------
        BadInput
            A file cannot be read or is not what it should be; the text names file and line.
        """
        read: Callable[[Path], Iterator[str]]
        read = _text_lines if self.source == "text" else _parquet_lines
        for path in self.files:
            try:
                yield from (line for line in read(path) if not line.isspace() and line)
            except OSError as error:
                raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None

    def signature(self) -> list[tuple[str, int, int]]:
        """Return what tells these files from changed ones: path, size and time of change."""
        found = []
        for path in self.files:
            facts = path.stat()
            found.append((str(path.resolve()), facts.st_size, facts.st_mtime_ns))
        return found


def training_text(folder: Path, source: Source) -> Text:
    """Return the training text of a folder; ``BadInput`` if it is missing or not unique."""
    return _find(folder, source, _TRAINING_NAMES, "train")


def validation_text(folder: Path, source: Source) -> Text:
    """Return the validation text of a folder; ``BadInput`` if it is missing or not unique."""
    return _find(folder, source, _VALIDATION_NAMES, "validation")


def _find(folder: Path, source: Source, names: tuple[str, ...], split: str) -> Text:
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; data must be the folder with the files")
    if source == "parquet":
        return Text(_shards(folder, split), source)
    files = [folder / name for name in names if (folder / name).is_file()]
    if len(files) != 1:
        there = "and ".join(f"{path.name} " for path in files) or "none "
        raise BadInput(
            f"{folder}: has {there}of the {split} files; needs one of {', '.join(names)}"
        )
    return Text(tuple(files), source)


def _shards(folder: Path, split: str) -> tuple[Path, ...]:
    files = sorted(folder.glob(f"{split}-*.parquet"))
    if not files:
        raise BadInput(f"{folder}: has no file {split}-*.parquet")
    if irregular := [path for path in files if not path.is_file()]:
        raise BadInput(f"{irregular[0]}: is not a regular file")
    numbered = [_SHARD.search(path.name) for path in files]
    totals = {int(match[2]) for match in numbered if match}
    if totals:
        total = max(totals)
        numbers = sorted(int(match[1]) for match in numbered if match)
        if len(totals) > 1 or None in numbered or numbers != list(range(total)):
            raise BadInput(
                f"{folder}: has {len(files)} files {split}-*.parquet that are not all parts of one "
                f"set of {total}: needs {split}-00000-of-{total:05} to {total - 1:05} and no other"
            )
    return tuple(files)


def _text_lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise BadInput(
                    f"{path}: line {number}: not UTF-8 at byte {error.start + 1} of the line"
                ) from None


def _parquet_lines(path: Path) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if _COLUMN not in names:
                raise BadInput(f"{path}: has no column {_COLUMN!r}, only {', '.join(names)}")
            kind = file.schema_arrow.field(_COLUMN).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise BadInput(f"{path}: column {_COLUMN!r} is {kind}; it must be a string")
            first = 1
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[_COLUMN]):
                yield from _rows(path, batch.column(0).cast(pa.large_binary()), first)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        words = " ".join(str(error).split())
        raise BadInput(f"{path}: not a Parquet file that can be read: {words}") from None


def _rows(path: Path, column: Any, first: int) -> Iterator[str]:
    for number, value in enumerate(column.to_pylist(), start=first):
        if value is None:
            raise BadInput(f"{path}: row {number}: {_COLUMN!r} is null; it must be a string")
        try:
            yield value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(
                f"{path}: row {number}: not UTF-8 at byte {error.start + 1} of the row"
            ) from None
