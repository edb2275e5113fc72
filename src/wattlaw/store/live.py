"""Live streams: rows that are on file while a run goes on, of which only the tail can be lost.

Comma-separated text with a header. It costs a writer a fifth of the processor time of Arrow's
stream format, and no import of pyarrow in the sampler or in a training process.
"""

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from wattlaw.files import naming, read_bytes

if TYPE_CHECKING:
    import pyarrow as pa

#: The longest stream that is read: it is held in memory. 8 GPUs at 10 Hz fill it in two weeks.
MAX_BYTES = 8 * 10**9
_HEADER_BYTES = 64 * 1024


class LiveWriter:
    """Appends rows to a new file; it can be read at any moment, even after this process was killed.

    Texts must be printable: a line is a row.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path = path
        self._file = path.open("x", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, lineterminator="\n")
        with naming(path):
            self._rows.writerow(columns)
            self._file.flush()

    def append(self, rows: Iterable[Iterable[Any]]) -> None:
        """Write rows, values in the order of the columns and None for missing, to the system."""
        with naming(self._path):
            self._rows.writerows(rows)
            self._file.flush()

    def sync(self) -> None:
        """Wait until the rows are on disk, from where another machine can read them."""
        with naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """End the file and wait until it is on disk."""
        self.sync()
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


def read_live(
    path: Path, schema: "pa.Schema", host: str | None = None, damage: list[str] | None = None
) -> "pa.Table":
    """Return every whole row of a live file; a torn tail costs the torn rows only.

    Columns of the schema that the file has not are null; a file of other columns has no rows.
    With ``host``, that is the host of every row: a file belongs to one. A line that cannot be
    read, other than a torn tail, is left out; ``damage`` gets a sentence that names the file.

    Raises
    ------
    OSError
        The file cannot be read; it is named.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    from wattlaw.store.schema import faults_of

    whole = read_bytes(path, MAX_BYTES)
    end = whole.rfind(b"\n") + 1
    header = whole[: max(0, whole.find(b"\n", 0, _HEADER_BYTES))]
    names = header.decode("utf-8", "replace").split(",")
    if len({*names} & {*schema.names}) != len(names):
        if damage is not None:
            damage.append(f"{path.name}: the header line has unknown or repeated columns")
        return schema.empty_table()
    if end < len(whole) and damage is not None:
        damage.append(f"{path.name}: the last line is incomplete")
    body = memoryview(whole)[len(header) + 1 : end]
    if not body:
        return schema.empty_table()
    types = {name: schema.field(name).type for name in names}
    lines = bad = None
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(body),
            read_options=arrow_csv.ReadOptions(column_names=names),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types, null_values=[""], strings_can_be_null=True
            ),
        )
    except pa.ArrowException:
        lines = whole.count(b"\n", len(header) + 1, end)
        table = pa.Table.from_pylist(_good_rows(bytes(body), names, types), schema=schema)
    missing = {n: pa.nulls(len(table), schema.field(n).type) for n in schema.names}
    if host is not None:
        missing["host"] = pa.array([host] * len(table), pa.string())
        table = table.drop_columns(["host"]) if "host" in table.column_names else table
    columns = [table[n] if n in table.column_names else missing[n] for n in schema.names]
    table = pa.table(columns, schema=schema)
    lines = len(table) if lines is None else lines
    checked = table if host is not None else table.drop_columns(["host"])
    for _, is_bad in faults_of(checked, ("start_ns", "duration_s")):
        bad = is_bad if bad is None else pc.or_(bad, is_bad)
    table = table if bad is None else table.filter(pc.invert(bad))
    if len(table) < lines and damage is not None:
        damage.append(f"{path.name}: {lines - len(table)} of {lines} lines cannot be read")
    return table


def _good_rows(body: bytes, names: list[str], types: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that can be understood, of a file that was damaged."""
    rows = []
    for line in body.split(b"\n"):
        try:
            (values,) = csv.reader([line.decode("utf-8")], strict=True)
            row = zip(names, values, strict=True)
            rows.append({name: _value(text, types[name]) for name, text in row})
        except (ValueError, csv.Error):
            continue
    return rows


def _value(text: str, kind: Any) -> Any:
    import pyarrow as pa

    if text == "":
        return None
    if pa.types.is_boolean(kind):
        return {"True": True, "False": False}[text] if text in ("True", "False") else _no(text)
    if pa.types.is_integer(kind):
        number = int(text)
        return number if abs(number) < 2**63 else _no(text)
    return float(text) if pa.types.is_floating(kind) else text


def _no(text: str) -> Any:
    raise ValueError(text)
