"""The folder of one import: the tables of its runs."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.errors import BadInput
from wattlaw.store.decoded_size import check_decoded_size
from wattlaw.store.parquet import read_checked
from wattlaw.store.run_folder import table_fault
from wattlaw.store.schema import RUNS, TABLES

_REIMPORT = "restore the file, or remove the folder and import again"
#: The tables of a folder may decode to so many bytes together: this, or so many times the size of
#: their files, up to a last limit.
_UNLIMITED_BYTES, _MAX_RATIO, _MAX_BYTES = 100 * 2**20, 1000, 4 * 2**30


@dataclass(frozen=True)
class ImportFolder:
    """``STORE/imports/<import id>``. Its files never change."""

    path: Path

    @cached_property
    def runs(self) -> pa.Table:
        """The runs, with the schema ``RUNS``; a damaged table raises ``BadInput``."""
        table = read_checked(self.table_path("runs"), RUNS, None, repair=_REIMPORT)
        ids = table["run_id"]
        has_nulls = ids.null_count or table["status"].null_count
        if has_nulls or pc.count_distinct(ids).as_py() < len(ids):
            fault = "a run has no id, no status, or the id of another"
            raise BadInput(f"{self.table_path('runs')}: {fault}; {_REIMPORT}")
        return table

    @cached_property
    def run_ids(self) -> frozenset[str]:
        """The ids of the runs."""
        return frozenset(self.runs["run_id"].to_pylist())

    def table_path(self, table: str) -> Path:
        """Return the file of a table."""
        return self.path / f"{table}.parquet"

    def check_size(self) -> None:
        """Raise ``BadInput`` if the tables decode to too much.

        It takes a process of its own, and is for tables from elsewhere.
        """
        paths = [path for path in map(self.table_path, TABLES) if path.is_file()]
        size = sum(path.stat().st_size for path in paths)
        columns = {name for schema in TABLES.values() for name in schema.names}
        most_bytes = min(max(_UNLIMITED_BYTES, _MAX_RATIO * size), _MAX_BYTES)
        try:
            if paths:
                check_decoded_size(paths, columns, most_bytes)
        except ValueError as error:
            reason = f"not tables of this store: {error}"
            raise BadInput(f"{self.path}: {reason}; {_REIMPORT}") from None

    def damage(self) -> BadInput | None:
        """Return the error of a file whose ends show that it is missing or damaged."""
        for name in ("epochs", "telemetry"):
            path = self.table_path(name)
            if (fault := table_fault(path)) is not None:
                return BadInput(f"{path}: {fault}; {_REIMPORT}")
        return None

    def read(self, table: str, *, validate: bool = False) -> pa.Table:
        """Return the table ``epochs`` or ``telemetry``; damage raises ``BadInput``."""
        path = self.table_path(table)
        return read_checked(path, TABLES[table], self.run_ids, validate=validate, repair=_REIMPORT)
