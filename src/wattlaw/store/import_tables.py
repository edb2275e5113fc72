"""Writes imported runs into a store: the runs of one import as three tables, completely or not."""

import contextlib
import fcntl
import hashlib
import itertools
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wattlaw.common.errors import BadInput
from wattlaw.common.files import naming, open_regular
from wattlaw.common.progress import track
from wattlaw.store.cache import by_run
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.schema import EPOCHS, RUNS, TELEMETRY, find_faults, row_of, rows_table
from wattlaw.store.snapshot import ImportFolder, Snapshot
from wattlaw.store.store import IMPORTING, Store
from wattlaw.study.model import ID_DIGITS, canonical

#: Columns of a run that may differ from those of the same run in the store.
_MAY_DIFFER = ("study", "notes")
_BATCH_ROWS = 50_000


@dataclass(frozen=True)
class ImportedRun:
    record: RunRecord
    windows: Sequence[dict[str, Any]]  # stored, as samples are, if the run is done
    telemetry: pa.Table | None = None
    line: int = 0  # of its file; 0 where a run is not one line

    @property
    def setting(self) -> str:
        return canonical(self.record.spec.model_copy(update={"repeat": 0}))


@dataclass(frozen=True)
class RejectedRow:
    line: int
    reason: str


@dataclass(frozen=True)
class ImportCounts:
    added: int
    unchanged: int
    rejected: tuple[RejectedRow, ...]
    other_runs: int  # runs of the store from a file of this name that are not in the import


def write_runs(store: Store, runs: Sequence[ImportedRun]) -> ImportCounts:
    """Runs that the store has stay as they are. A run that the store has with other values is
    rejected, and so are all new runs of its setting: with new repeat numbers they might count a
    measurement twice. Raises ``BadInput``, and writes nothing, if a run has a value that no table
    of a store may have, or the store is damaged."""
    with naming(store.path), _lock(store.path / "imports"):
        snapshot = store.snapshot()
        _refuse_damaged(store, snapshot, runs)
        known = set(snapshot.runs["run_id"].to_pylist())
        existing = [run for run in runs if run.record.run_id in known]
        changed_ids = _changed_ids(store, snapshot, existing)
        changed = [run for run in existing if run.record.run_id in changed_ids]
        changed_settings = {run.setting for run in changed}
        added, rejected = list[ImportedRun](), list[RejectedRow]()
        for run in changed:
            how = _how_to_remove(store, snapshot, run.record.run_id)
            reason = f"run {run.record.run_id} is in the store with other values; to replace it, "
            rejected.append(RejectedRow(run.line, f"{reason}{how} and import again"))
        for run in runs:
            if run.record.run_id in known:
                continue
            if changed_settings and run.setting in changed_settings:
                rejected.append(RejectedRow(run.line, "another run of its setting has changed"))
            else:
                added.append(run)
        if added:
            _write(store, sorted(added, key=lambda run: run.record.run_id))
    imported = {run.record.run_id for run in runs}
    sources = {run.record.notes[:1] for run in runs}
    stored = snapshot.runs.select(["run_id", "notes"]).to_pylist()
    other_runs = sum(
        row["run_id"] not in imported and tuple((row["notes"] or ())[:1]) in sources
        for row in stored
    )
    return ImportCounts(len(added), len(existing) - len(changed), tuple(rejected), other_runs)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    with open_regular(folder / "lock", append=True) as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _refuse_damaged(store: Store, snapshot: Snapshot, runs: Sequence[ImportedRun]) -> None:
    run_ids = {run.record.run_id for run in runs}
    if len(run_ids) < len(runs):
        raise BadInput("the import has a run twice")
    for name, (path, error) in snapshot.damage.items():
        if name in run_ids or path.parents[1].name == "imports":
            raise error
    readable = snapshot.runs["run_id"].to_pylist()
    if hidden := run_ids.intersection(snapshot.keys).difference(readable):
        raise BadInput(f"{store.folder(min(hidden)).path}: the folder has no record; remove it")


def _how_to_remove(store: Store, snapshot: Snapshot, run_id: str) -> str:
    for folder in snapshot.imports:
        if run_id in folder.run_ids:
            others = len(folder.run_ids) - 1
            also = f" (with {others:,} other runs of that import)" if others else ""
            return f"remove {folder.path}{also}"
    return f"remove {store.folder(run_id).path}"


def _changed_ids(store: Store, snapshot: Snapshot, runs: Sequence[ImportedRun]) -> set[str]:
    if not runs:
        return set()
    run_ids = pa.array([run.record.run_id for run in runs], pa.string())
    changed = set()
    for stored, batches in (
        (snapshot.runs, _run_batches(runs)),
        (store.arrow("epochs", snapshot=snapshot), _window_batches(runs)),
    ):
        tables = []
        for table in (stored, pa.concat_tables([stored.schema.empty_table(), *batches])):
            own = table.filter(pc.is_in(table["run_id"], run_ids))
            names = [name for name in own.column_names if name not in _MAY_DIFFER]
            tables.append(by_run(own.select(names)))
        if not tables[0].equals(tables[1]):  # for rows as text, NaN equals NaN
            before, after = map(_rows_by_run, tables)
            changed |= {name for name in before | after if before.get(name) != after.get(name)}
    return changed


def _rows_by_run(table: pa.Table) -> dict[str, list[str]]:
    rows = defaultdict(list)
    for row in table.to_pylist():
        rows[row["run_id"]].append(str(row))
    return dict(rows)


def _run_batches(runs: Sequence[ImportedRun]) -> Iterator[pa.Table]:
    tracked = track(runs, "importing runs", len(runs))
    return _batches((row_of(run.record, run.record.state) for run in tracked), RUNS)


def _window_batches(runs: Iterable[ImportedRun]) -> Iterator[pa.Table]:
    rows = (row for run in runs if run.record.status == "done" for row in run.windows)
    for table in _batches(rows, EPOCHS):
        for fault, is_bad in find_faults(table):
            run_id = table["run_id"][pc.index(is_bad, value=True).as_py()]
            raise BadInput(f"run {run_id}: {fault}")
        yield table


def _batches(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.Table]:
    while batch := list(itertools.islice(rows, _BATCH_ROWS)):
        try:
            yield rows_table(batch, schema)
        except (pa.ArrowException, OverflowError) as error:
            raise BadInput(f"a value does not fit its column: {error}") from None


def _write(store: Store, runs: Sequence[ImportedRun]) -> None:
    names = "\n".join(run.record.run_id for run in runs)
    import_id = hashlib.sha256(names.encode()).hexdigest()[:ID_DIGITS]
    with (
        tempfile.TemporaryDirectory(dir=store.path, prefix=IMPORTING) as temporary,
        RunLock(RunFolder(Path(temporary))) as lock,
    ):
        if not lock.acquire():  # the lock keeps others from removing the folder as abandoned
            raise BadInput(f"{temporary}: removed by another process; import again")
        folder = ImportFolder(Path(temporary) / import_id)
        folder.path.mkdir()
        samples = (
            run.telemetry.select(TELEMETRY.names).cast(TELEMETRY)
            for run in runs
            if run.record.status == "done" and run.telemetry is not None
        )
        parts = (
            ("runs", RUNS, _run_batches(runs)),
            ("epochs", EPOCHS, _window_batches(runs)),
            ("telemetry", TELEMETRY, samples),
        )
        for name, schema, batches in parts:
            with pq.ParquetWriter(folder.table_path(name), schema, compression="zstd") as file:
                for batch in batches:
                    file.write_table(batch)
        folder.path.rename(store.path / "imports" / import_id)
