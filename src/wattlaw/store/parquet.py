"""Reads the tables of finished runs; those of many runs at once with DuckDB, which is faster."""

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wattlaw.common import processes
from wattlaw.common.errors import BadInput
from wattlaw.store.decoded_size import ENCODED, decoded_bytes, unpacked_bytes
from wattlaw.store.run_folder import REPLACE
from wattlaw.store.schema import find_faults

if TYPE_CHECKING:
    import duckdb

#: Memory limit of queries over a store; they stream and use about a tenth of it.
MEMORY = "3GB"
_MOST_THREADS = 8
_PATTERN = re.compile(r"[\[*?]")
#: The name of a file's folder, which is the run id.
FOLDER = "parse_filename(parse_dirpath(filename))"
#: Fewer files are read one by one: that is faster than starting DuckDB.
_MIN_FILES_FOR_DUCKDB = 50
#: Parquet's physical and logical type for each Arrow type of a store's tables.
_KINDS = {
    "string": ("BYTE_ARRAY", "StringType()"),
    "int64": ("INT64", None),
    "double": ("DOUBLE", None),
    "bool": ("BOOLEAN", None),
}


OnDamage = Callable[[Path, BadInput], None]


def raise_error(_: Path, error: BadInput) -> None:
    raise error


def connection() -> "duckdb.DuckDBPyConnection":
    """Return a new in-memory DuckDB database that loads nothing from a network."""
    import duckdb

    config: dict[str, Any] = {"memory_limit": MEMORY, "autoinstall_known_extensions": False}
    return duckdb.connect(config=config | {"threads": min(_MOST_THREADS, processes.cores())})


def literal(path: Path) -> str:
    """Return an absolute path for ``read_parquet``, escaped; ``BadInput`` if that is impossible."""
    text = os.path.abspath(path)  # noqa: PTH100 - a link stays a link
    if not _PATTERN.search(text):
        return text
    if "\\" in text:
        raise BadInput(
            f"{path}: a path with a backslash and one of [ * ? cannot be read; rename it"
        )
    return _PATTERN.sub(r"[\g<0>]", text)


def read_together(paths: Sequence[Path], schema: pa.Schema) -> pa.Table | None:
    """Return the tables of several files as one, in their order.

    The result is None where one of them cannot be read or is not the file of a finished run;
    reading them one by one then names the file and the reason.
    """
    import duckdb

    columns = ", ".join(f'"{name}"' for name in schema.names)
    query = (
        f"select {columns}, coalesce(run_id != {FOLDER}, false) as foreign_run "  # noqa: S608
        "from read_parquet($files, hive_partitioning = false, filename = true)"
    )
    try:
        files = [literal(path) for path in paths]
        with connection() as database:
            if not same_types(database, files, schema):
                return None
            table = database.sql(query, params={"files": files}).to_arrow_table()
    except (duckdb.Error, UnicodeDecodeError, BadInput):
        return None
    if pc.any(table["foreign_run"]).as_py():
        return None
    # DuckDB returns a batch with buffers of full size for each file, however few rows it has.
    table = table.select(schema.names).combine_chunks()
    return table if table.schema == schema else None


def same_types(
    database: "duckdb.DuckDBPyConnection", files: Sequence[str], schema: pa.Schema
) -> bool:
    """Say whether every file has every column of a schema, once and with its type.

    Without this check DuckDB converts values to the types of the first file where it can.
    """
    columns = database.execute(
        "select name, type, logical_type::varchar, count(*) from parquet_schema($files) "
        "where type is not null group by all",
        {"files": list(files)},
    ).fetchall()
    counts = {(name, kind, logical): count for name, kind, logical, count in columns}
    return all(
        counts.get((field.name, *_KINDS[str(field.type)])) == len(files)
        and sum(count for (name, *_), count in counts.items() if name == field.name) == len(files)
        for field in schema
    )


def read_all(
    paths: Sequence[Path],
    schema: pa.Schema,
    on_damage: OnDamage = raise_error,
    *,
    validate: bool = False,
) -> pa.Table:
    """Return the tables of finished runs as one.

    ``on_damage`` is called for each file that is damaged, not of this schema, or of another run,
    with an error that names it; the table lacks the file if it returns. With ``validate`` a value
    that no run writes counts as damage.
    """
    if len(paths) >= _MIN_FILES_FOR_DUCKDB:
        together = read_together(paths, schema)
        if together is not None and not (validate and find_faults(together)):
            return together
    tables = [schema.empty_table()]
    for path in paths:
        try:
            run_ids = [path.parent.name] if path.parents[1].name == "runs" else None
            tables.append(read_checked(path, schema, run_ids, validate=validate))
        except BadInput as error:
            on_damage(path, error)
    return pa.concat_tables(tables).combine_chunks()  # thousands of chunks take gigabytes


def check_all(paths: Sequence[Path], schema: pa.Schema, on_damage: OnDamage = raise_error) -> None:
    """Check the columns, but not the rows, of finished runs' files; ``on_damage`` as above."""
    for path in paths:
        try:
            with _errors_name_file(path):
                _with_schema(schema, pq.read_schema(path).empty_table())
        except BadInput as error:
            on_damage(path, error)


def read_checked(
    path: Path,
    schema: pa.Schema,
    run_ids: Collection[str] | None,
    *,
    validate: bool = False,
    repair: str = REPLACE,
) -> pa.Table:
    """Return a table that has rows of these runs only, None for any.

    Raises ``BadInput`` if the file is damaged; with ``validate`` also for a value that no run
    writes. The text ends with ``repair``.
    """
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
    with pq.ParquetFile(path) as file:  # read_table would import pandas
        _with_schema(schema, file.schema_arrow.empty_table())
        cells = file.metadata.num_rows * len(schema)
    most_bytes = unpacked_bytes(path.stat().st_size, ENCODED)
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    if 8 * cells <= most_bytes:
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read(schema.names)
        chunks = [chunk for column in table.columns for chunk in column.chunks]
        if sum(map(decoded_bytes, chunks)) <= most_bytes:
            return table.cast(schema)
    raise pa.ArrowInvalid(f"it decodes to more than {most_bytes:,} bytes")


def _with_schema(schema: pa.Schema, table: pa.Table) -> pa.Table:
    selected = table.select(schema.names)
    if selected.schema != schema:
        raise pa.ArrowInvalid("its columns have other types")
    return selected


@contextlib.contextmanager
def _errors_name_file(path: Path, repair: str = REPLACE) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, KeyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{path}: not a table of this store: {reason}; {repair}") from None
