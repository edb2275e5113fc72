"""The runs of a store at one moment: run folders and imports, their status and their damage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common.errors import BadInput, WattlawError, one_line
from wattlaw.store.cache import by_run, folder_keys, read_through
from wattlaw.store.parquet import read_checked
from wattlaw.store.run_folder import REPLACE, RunFolder, table_fault
from wattlaw.store.schema import RUNS, TABLES, check_runs, row_of, rows_table

Damage = tuple[Path, WattlawError]
_REIMPORT = "restore the file, or remove the folder and import again"


@dataclass(frozen=True)
class ImportFolder:
    """``STORE/imports/<import id>``. Its files never change."""

    path: Path

    @cached_property
    def runs(self) -> pa.Table:
        """The runs, with the schema ``RUNS``; a damaged table raises ``BadInput``."""
        table = read_checked(self.table_path("runs"), RUNS, None, repair=_REIMPORT)
        try:
            check_runs(table)
        except ValueError as error:
            raise BadInput(f"{self.table_path('runs')}: {error}; {_REIMPORT}") from None
        return table

    @cached_property
    def run_ids(self) -> frozenset[str]:
        return frozenset(self.runs["run_id"].to_pylist())

    def table_path(self, table: str) -> Path:
        return self.path / f"{table}.parquet"

    def damage(self) -> BadInput | None:
        for path in map(self.table_path, ("epochs", "telemetry")):
            if (fault := table_fault(path)) is not None:
                return BadInput(f"{path}: {fault}; {_REIMPORT}")
        return None

    def read(self, table: str, *, validate: bool = False) -> pa.Table:
        path = self.table_path(table)
        return read_checked(path, TABLES[table], self.run_ids, validate=validate, repair=_REIMPORT)


@dataclass(frozen=True)
class Snapshot:
    """Runs with a missing, cut or overwritten table have the status ``damaged`` and the reason."""

    runs: pa.Table  # those whose record can be read, in order of run id
    damage: Mapping[str, Damage]  # the damaged files, by run id or by the id of an import
    keys: Mapping[str, int]  # what the files of the run folders are, by run id
    imports: tuple[ImportFolder, ...]  # those whose runs can be read

    def marked(self, damaged: Mapping[str, str]) -> pa.Table:
        reasons = dict(damaged)
        for folder in self.imports:
            if folder.path.name in damaged:
                reasons |= dict.fromkeys(folder.run_ids, damaged[folder.path.name])
        return _marked(self.runs, reasons, {"done", "damaged"})

    def done(self) -> list[str]:
        is_done = pc.equal(self.runs["status"], "done")
        return self.runs["run_id"].filter(is_done).to_pylist()  # type: ignore[no-any-return]


def read_snapshot(store: Path) -> Snapshot:
    runs = store / "runs"
    keys = folder_keys(runs)
    damage: dict[str, Damage] = {}

    def read(run_ids: Sequence[str]) -> tuple[pa.Table, set[str]]:
        rows, changing = [], set()
        for run_id in run_ids:
            folder = RunFolder(runs / run_id)
            try:
                record = folder.read()
                fault = folder.damage(record)
                if fault is not None:
                    damage[run_id] = folder.record_path, BadInput(fault)
                if record is not None:
                    state = "damaged" if fault is not None else folder.state(record)
                    rows.append(row_of(record, state, fault))
                    if fault is not None or record.status == "running":
                        changing.add(run_id)
            except (WattlawError, OSError) as error:
                reason = error if isinstance(error, WattlawError) else BadInput(one_line(error))
                damage[run_id] = folder.record_path, reason
        return _fitting(rows, runs, damage), changing

    tables = [read_through(store, "runs", RUNS, keys, read)] if keys else [RUNS.empty_table()]
    imports = []
    seen = set(keys)
    for path in sorted((store / "imports").glob("*/")):
        folder = ImportFolder(path)
        try:
            if twice := seen & folder.run_ids:
                raise BadInput(f"{path}: the store has its run {min(twice)} twice; remove a folder")
        except WattlawError as error:
            damage[path.name] = path / "runs.parquet", error
            continue
        seen |= folder.run_ids
        imports.append(folder)
        table = folder.runs
        if (fault := folder.damage()) is not None:
            damage[path.name] = path / "epochs.parquet", fault
            table = _marked(table, dict.fromkeys(folder.run_ids, str(fault)), {"done"})
        tables.append(table)
    return Snapshot(by_run(pa.concat_tables(tables)), damage, keys, tuple(imports))


def _fitting(rows: list[dict[str, Any]], runs: Path, damage: dict[str, Damage]) -> pa.Table:
    """Return the rows as a table; a row with a value that no column holds is damage."""
    try:
        return rows_table(rows)
    except (pa.ArrowException, OverflowError) as error:
        if len(rows) > 1:
            return pa.concat_tables(_fitting([row], runs, damage) for row in rows)
        path = runs / rows[0]["run_id"] / "run.json"
        reason = f"{path}: not a run record: {one_line(error)[:200]}; {REPLACE}"
        damage[rows[0]["run_id"]] = path, BadInput(reason)
        return RUNS.empty_table()


def _marked(table: pa.Table, reasons: Mapping[str, str], statuses: set[str]) -> pa.Table:
    if not reasons:
        return table
    columns = {name: table[name].to_pylist() for name in ("run_id", "status", "reason")}
    for row, (run_id, status) in enumerate(zip(columns["run_id"], columns["status"], strict=True)):
        if run_id in reasons and status in statuses:
            columns["status"][row], columns["reason"][row] = "damaged", reasons[run_id]
    for name in ("status", "reason"):
        column = table.schema.get_field_index(name)
        table = table.set_column(column, RUNS.field(name), pa.array(columns[name], pa.string()))
    return table
