"""Reads the tables of finished runs, and names the file of whatever is wrong with one."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wattlaw.common.errors import BadInput
from wattlaw.common.progress import track
from wattlaw.store.run_folder import REIMPORT, REPLACE, is_of_run
from wattlaw.store.schema import find_faults

#: How many times its size a file may decode to, more of a small one, and at most: dictionaries, run
#: lengths and shared prefixes repeat a value in every row.
_RATIO, _LEAST_BYTES, _MAX_BYTES = 1000, 100 * 2**20, 4 * 2**30
_LARGE_BYTES = 2**20
#: Is called for a folder with a damaged file; the result lacks its rows if it returns.
OnDamage = Callable[[Path, BadInput], None]


def read_all(
    folders: Mapping[Path, Collection[str]],
    table: str,
    schema: pa.Schema,
    run_ids: Collection[str],
    on_damage: OnDamage,
    *,
    validate: bool = False,
) -> pa.Table:
    """Return the rows of some runs, in order of run id, from folders of runs and imports, each with
    the ids of its runs."""
    tables = [schema.empty_table()]
    wanted = frozenset(run_ids)
    folders = {folder: own for folder, own in folders.items() if not wanted.isdisjoint(own)}
    for folder, own in track(folders.items(), f"reading {table}", len(folders)):
        try:
            rows = read_checked(folder / f"{table}.parquet", schema, own, validate=validate)
        except BadInput as error:
            on_damage(folder, error)
            continue
        if not wanted.issuperset(own):
            rows = rows.filter(pc.is_in(rows["run_id"], pa.array(sorted(wanted), pa.string())))
        tables.append(rows)
    return by_run(pa.concat_tables(tables).combine_chunks())  # thousands of chunks take gigabytes


def by_run(table: pa.Table) -> pa.Table:
    ids = table["run_id"]
    if len(ids) < 2 or pc.all(pc.less_equal(ids[:-1], ids[1:])).as_py():
        return table
    return table.take(pc.sort_indices(table, [("run_id", "ascending")]))


def read_checked(
    path: Path,
    schema: pa.Schema,
    run_ids: Collection[str] | None = None,
    *,
    validate: bool = False,
) -> pa.Table:
    """Return a table that has rows of these runs only, None for any; with ``validate`` without a
    value that no run writes. The text of ``BadInput`` ends with what to do."""
    try:
        table = _read(path, schema)
        table.validate(full=True)  # also finds text that is not UTF-8
        others = set(table["run_id"].unique().to_pylist()) - {*(run_ids or ()), None}
        if others and run_ids is not None:
            expected = path.parent.name if is_of_run(path.parent) else "of this import"
            raise pa.ArrowInvalid(f"it is of run {others.pop()!a}, not {expected}")
        for fault, is_bad in find_faults(table) if validate else ():
            row = pc.index(is_bad, value=True).as_py() + 1
            raise pa.ArrowInvalid(f"row {row}: {fault}")
        return table
    except (pa.ArrowException, KeyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        repair = REPLACE if is_of_run(path.parent) else REIMPORT
        raise BadInput(f"{path}: not a table of this store: {reason}; {repair}") from None


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the columns of a file; dictionaries keep a text that every row has in memory once."""
    size = path.stat().st_size
    most_bytes = min(max(_LEAST_BYTES, _RATIO * size), _MAX_BYTES)
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    is_large = size > _LARGE_BYTES  # else threads take longer than the reading
    # read_table would import pandas
    with pq.ParquetFile(path, read_dictionary=texts, pre_buffer=is_large) as file:
        found = file.schema.to_arrow_schema()
        if found.empty_table().select(schema.names).schema != schema:
            raise pa.ArrowInvalid("its columns have other types")
        if 8 * file.metadata.num_rows * len(schema) <= most_bytes:
            table = file.read(schema.names, use_threads=is_large)
            chunks = [chunk for column in table.columns for chunk in column.chunks]
            if sum(map(_decoded_bytes, chunks)) <= most_bytes:
                return table.cast(schema)
    raise pa.ArrowInvalid(f"it decodes to more than {most_bytes:,} bytes")


def _decoded_bytes(column: pa.Array) -> int:
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    sizes = pc.binary_length(column.dictionary).cast(pa.int64()).take(column.indices)
    return 8 * len(column) + (pc.sum(sizes).as_py() or 0)
