"""The folder of one import: the tables of its runs."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common.errors import BadInput
from wattlaw.store.parquet import read_checked
from wattlaw.store.run_folder import table_fault
from wattlaw.store.schema import RUNS, TABLES

_REIMPORT = "restore the file, or remove the folder and import again"


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
        return frozenset(self.runs["run_id"].to_pylist())

    def table_path(self, table: str) -> Path:
        return self.path / f"{table}.parquet"

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
