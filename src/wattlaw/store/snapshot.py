"""The runs of a store at one moment: run folders and imports, their status and their damage."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common.errors import BadInput, WattlawError, one_line
from wattlaw.common.progress import track
from wattlaw.store.parquet import by_run, read_checked
from wattlaw.store.run_folder import REIMPORT, REPLACE, RunFolder, table_fault
from wattlaw.store.schema import RUNS, check_runs, row_of, rows_table


@dataclass(frozen=True)
class Snapshot:
    """Runs with a missing, cut or overwritten table have the status ``damaged`` and the reason."""

    runs: pa.Table  # those whose record can be read, in order of run id
    damage: Mapping[Path, WattlawError]  # by the folder of a run or of an import
    #: The folders of runs, and of imports whose runs can be read, with the ids of their runs.
    folders: Mapping[Path, frozenset[str]]

    def without(self, damaged: Mapping[str, str]) -> "Snapshot":
        """Return a snapshot without the folders that ``damaged`` has by name; done runs of them are
        damaged, with its reason."""
        reasons = {
            run_id: damaged[folder.name]
            for folder, run_ids in self.folders.items()
            if folder.name in damaged
            for run_id in run_ids
        }
        runs = _marked(self.runs, reasons, {"done", "damaged"})
        left = {path: run_ids for path, run_ids in self.folders.items() if path.name not in damaged}
        return Snapshot(runs, self.damage, left)

    def done(self) -> list[str]:
        is_done = pc.equal(self.runs["status"], "done")
        return self.runs["run_id"].filter(is_done).to_pylist()  # type: ignore[no-any-return]


def read_snapshot(store: Path) -> Snapshot:
    damage: dict[Path, WattlawError] = {}
    folders: dict[Path, frozenset[str]] = {}
    rows = []
    paths = sorted((store / "runs").glob("*/"))
    for path in track(paths, "reading runs", len(paths)):
        folder, folders[path] = RunFolder(path), frozenset((path.name,))
        try:
            record = folder.read()
            fault = folder.damage(record)
            if fault is not None:
                damage[path] = BadInput(fault)
            if record is not None:
                row = row_of(record, "damaged" if fault else folder.state(record), fault)
                if any(isinstance(value, int) and value >= 2**63 for value in row.values()):
                    reason = f"not a run record: a number is too large; {REPLACE}"
                    raise BadInput(f"{folder.record_path}: {reason}")
                rows.append(row)
        except WattlawError as error:
            damage[path] = error
        except OSError as error:
            damage[path] = BadInput(one_line(error))
    tables = [rows_table(rows)]
    seen = {path.name for path in paths}
    for path in sorted((store / "imports").glob("*/")):
        try:
            table = _imported_runs(path)
            run_ids = frozenset(table["run_id"].to_pylist())
            if twice := seen & run_ids:
                raise BadInput(f"{path}: the store has its run {min(twice)} twice; remove a folder")
        except WattlawError as error:
            damage[path] = error
            continue
        seen |= run_ids
        folders[path] = run_ids
        if (fault := table_fault(path)) is not None:
            damage[path] = BadInput(fault)
            table = _marked(table, dict.fromkeys(run_ids, fault), {"done"})
        tables.append(table)
    return Snapshot(by_run(pa.concat_tables(tables)), damage, folders)


def _imported_runs(folder: Path) -> pa.Table:
    path = folder / "runs.parquet"
    table = read_checked(path, RUNS)
    try:
        check_runs(table)
    except ValueError as error:
        raise BadInput(f"{path}: {error}; {REIMPORT}") from None
    return table


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
