"""Live streams: files to which a running process appends rows; a crash can only lose the last ones.

The format is comma-separated text with a header. Writing it takes a fifth of the processor time of
Arrow's stream format, and needs no pyarrow in the sampler or in a training process.
"""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from wattlaw.common import machine
from wattlaw.common.files import naming, read_bytes, write_text
from wattlaw.store.record import Facts
from wattlaw.store.streams import Window

if TYPE_CHECKING:
    import pyarrow as pa

#: The longest stream that is read, since it is read into memory: two weeks of 8 GPUs at 10 Hz.
MAX_BYTES = 8 * 10**9
_HEADER_BYTES = 64 * 1024
_PACKAGES = ("wattlaw", "torch", "numpy", "lightning", "transformers", "nvidia-nccl-cu13")


class LiveWriter:
    """Appends rows of printable texts to a new file, readable at any time, even after a crash."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path = path
        self._file = path.open("x", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, lineterminator="\n")
        self.append([columns])

    def append(self, rows: Iterable[Iterable[Any]]) -> None:
        with naming(self._path):
            self._rows.writerows(rows)
            self._file.flush()

    def sync(self) -> None:
        """Wait until the rows are on disk, where another machine can read them."""
        with naming(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def windows_path(folder: Path, host: str) -> Path:
    return folder / f"windows.{host}.csv"


def open_windows(folder: Path, host: str) -> LiveWriter:
    return LiveWriter(windows_path(folder, host), Window._fields)


def write_window(stream: LiveWriter | None, host: str, **window: Any) -> None:
    if stream is not None:
        stream.append([Window(host, **window)])


def write_facts(live: Path, host: str, known: Mapping[str, Any]) -> None:
    """Write what is known of a program's training, with this host, its hardware and software."""
    software = machine.software(_PACKAGES) | dict(known["software"])
    of_host = {"hosts": (host,), "hardware": machine.hardware(), "software": software}
    facts = Facts.model_validate({**known, **of_host})
    write_text(live / f"facts.{host}.json", facts.model_dump_json())


def read_live(
    path: Path, schema: "pa.Schema", host: str, damage: list[str] | None = None
) -> "pa.Table":
    """Return every complete row of the live file of a host. Columns of the schema that the file
    lacks are null; a file with other columns has no rows. ``damage`` gets a sentence for each kind
    of line that cannot be read and is left out."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    from wattlaw.store.schema import find_faults

    damage = [] if damage is None else damage
    content = read_bytes(path, MAX_BYTES)
    end = content.rfind(b"\n") + 1
    header = content[: max(0, content.find(b"\n", 0, _HEADER_BYTES))]
    names = header.decode("utf-8", "replace").split(",")
    if len({*names} & {*schema.names}) != len(names):
        damage.append(f"{path.name}: the header line has unknown or repeated columns")
        return schema.empty_table()
    if end < len(content):
        damage.append(f"{path.name}: the last line is incomplete")
    reading = arrow_csv.ReadOptions(column_names=names)
    converting = arrow_csv.ConvertOptions(
        column_types={name: schema.field(name).type for name in names},
        null_values=[""],
        strings_can_be_null=True,
    )

    def read(start: int, end: int) -> list[pa.Table]:
        """Return the tables of the lines that can be read: those with a damaged one are halved."""
        try:
            lines = pa.BufferReader(memoryview(content)[start:end])
            return [arrow_csv.read_csv(lines, reading, convert_options=converting)]
        except pa.ArrowException:
            middle = (start + end) // 2
            middle = content.rfind(b"\n", start, middle) + 1 or content.find(b"\n", middle) + 1
            return [] if middle == end else [*read(start, middle), *read(middle, end)]

    start = len(header) + 1
    tables = read(start, end) if start < end else []
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    columns = {name: pa.nulls(len(table), schema.field(name).type) for name in schema.names}
    columns |= {name: table[name] for name in table.column_names}
    columns["host"] = pa.repeat(host, len(table))
    table = pa.table(columns, schema=schema)
    if masks := [is_bad for _, is_bad in find_faults(table, ("start_ns", "duration_s"))]:
        table = table.filter(pc.invert(reduce(pc.or_, masks)))
    lines = content.count(b"\n", start, end)
    if len(table) < lines:
        damage.append(f"{path.name}: {lines - len(table)} of {lines} lines cannot be read")
    return table
