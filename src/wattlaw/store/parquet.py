"""Reads the tables of finished runs, and names the file of whatever is wrong with one."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wattlaw.common.errors import BadInput
from wattlaw.store.run_folder import REPLACE
from wattlaw.store.schema import find_faults

#: How many times its size a file may decode to, more of a small one, and at most: dictionaries, run
#: lengths and shared prefixes repeat a value in every row.
_RATIO, _LEAST_BYTES, _MAX_BYTES = 1000, 100 * 2**20, 4 * 2**30
#: Is called for a file that is damaged; the result lacks the file if it returns.
OnDamage = Callable[[Path, BadInput], None]


def read_all(
    paths: Sequence[Path], schema: pa.Schema, on_damage: OnDamage, *, validate: bool = False
) -> pa.Table:
    tables = [schema.empty_table()]
    for path in paths:
        try:
            run_ids = [path.parent.name] if path.parents[1].name == "runs" else None
            tables.append(read_checked(path, schema, run_ids, validate=validate))
        except BadInput as error:
            on_damage(path, error)
    return pa.concat_tables(tables).combine_chunks()  # thousands of chunks take gigabytes


def read_checked(
    path: Path,
    schema: pa.Schema,
    run_ids: Collection[str] | None,
    *,
    validate: bool = False,
    repair: str = REPLACE,
) -> pa.Table:
    """Return a table that has rows of these runs only, None for any; with ``validate`` without a
    value that no run writes. The text of ``BadInput`` ends with ``repair``."""
    with _errors_name_file(path, repair):
        table = _read(path, schema)
        table.validate(full=True)  # also finds text that is not UTF-8
        others = set(table["run_id"].unique().to_pylist()) - {*(run_ids or ()), None}
        if others and run_ids is not None:
            expected = path.parent.name if len(run_ids) == 1 else "of this import"
            raise pa.ArrowInvalid(f"it is of run {others.pop()!a}, not {expected}")
        for fault, is_bad in find_faults(table) if validate else ():
            row = pc.index(is_bad, value=True).as_py() + 1
            raise pa.ArrowInvalid(f"row {row}: {fault}")
        return table


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the columns of a file; dictionaries keep a text that every row has in memory once."""
    most_bytes = min(max(_LEAST_BYTES, _RATIO * path.stat().st_size), _MAX_BYTES)
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    with pq.ParquetFile(path, read_dictionary=texts) as file:  # read_table would import pandas
        _require(schema, file.schema.to_arrow_schema())
        if 8 * file.metadata.num_rows * len(schema) <= most_bytes:
            table = file.read(schema.names)
            chunks = [chunk for column in table.columns for chunk in column.chunks]
            if sum(map(_decoded_bytes, chunks)) <= most_bytes:
                return table.cast(schema)
    raise pa.ArrowInvalid(f"it decodes to more than {most_bytes:,} bytes")


def _decoded_bytes(column: pa.Array) -> int:
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    sizes = pc.binary_length(column.dictionary).cast(pa.int64()).take(column.indices)
    return 8 * len(column) + (pc.sum(sizes).as_py() or 0)


def _require(schema: pa.Schema, found: pa.Schema) -> None:
    if found.empty_table().select(schema.names).schema != schema:
        raise pa.ArrowInvalid("its columns have other types")


@contextlib.contextmanager
def _errors_name_file(path: Path, repair: str = REPLACE) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, KeyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{path}: not a table of this store: {reason}; {repair}") from None
