"""Imported runs: measurements of other tools, written into a store completely or not at all."""

import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wattlaw.errors import BadInput
from wattlaw.files import naming
from wattlaw.store.parquet import read_all
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.store import IMPORTING, Store
from wattlaw.study.identity import canonical


@dataclass(frozen=True)
class ImportedRun:
    """A run, its windows as rows of ``EPOCHS``, and its readings as a table of ``TELEMETRY``."""

    record: RunRecord
    windows: list[dict[str, Any]]
    telemetry: pa.Table | None = None
    line: int = 0  # of its file, 0 where a run is not one line

    @property
    def setting(self) -> str:
        """Return the canonical JSON of what was run, without the number of the repeat."""
        return canonical(self.record.spec.model_copy(update={"repeat": 0}))

    def epochs(self) -> pa.Table:
        """Return the windows as a table of ``EPOCHS``."""
        return pa.Table.from_pylist(self.windows, schema=EPOCHS)


@dataclass(frozen=True)
class RejectedRow:
    """A row that is not imported, and the reason."""

    line: int
    reason: str


@dataclass(frozen=True)
class ImportCounts:
    """The result of an import, as numbers of runs."""

    added: int
    unchanged: int
    rejected: tuple[RejectedRow, ...]
    other_runs: int  # runs of the store from a file of this name that are not in the import


def write_runs(store: Store, runs: Sequence[ImportedRun]) -> ImportCounts:
    """Write imported runs into a store; runs that the store has stay as they are.

    A run that the store has with other values is rejected, and so are all new runs of its
    setting: with new repeat numbers they might count a measurement twice.
    """
    known = {record.run_id: record for record in store.records()}
    existing = [run for run in runs if run.record.run_id in known]
    changed = _changed(store, existing, known)
    changed_settings = {run.setting for run in changed}
    added: list[ImportedRun] = []
    rejected = [
        RejectedRow(
            run.line,
            f"run {run.record.run_id} is in the store with other values; to replace it, remove "
            f"{store.folder(run.record.run_id).path} and import again",
        )
        for run in changed
    ]
    for run in runs:
        if run.record.run_id in known:
            continue
        if changed_settings and run.setting in changed_settings:
            rejected.append(RejectedRow(run.line, "another run of its setting has changed"))
        else:
            added.append(run)
    _add(store, added)
    run_ids = {run.record.run_id for run in runs}
    sources = {run.record.notes[0] for run in runs}
    other_runs = sum(
        run_id not in run_ids and not sources.isdisjoint(record.notes[:1])
        for run_id, record in known.items()
    )
    return ImportCounts(len(added), len(existing) - len(changed), tuple(rejected), other_runs)


def _changed(
    store: Store, runs: Sequence[ImportedRun], known: dict[str, RunRecord]
) -> list[ImportedRun]:
    """Return the runs that a store has with other values."""
    done = [run for run in runs if known[run.record.run_id].status == "done"]
    paths = [store.folder(run.record.run_id).epochs_path for run in done]
    windows = _by_run(read_all(paths, EPOCHS).combine_chunks())
    return [
        run
        for run in runs
        if known[run.record.run_id].facts != run.record.facts
        or not _are_equal(windows.get(run.record.run_id), run.epochs())
    ]


def _by_run(table: pa.Table) -> dict[str, pa.Table]:
    ids = table["run_id"].to_numpy()
    first = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    bounds = [0, *first.tolist(), len(ids)] if len(ids) else [0]
    return {str(ids[begin]): table.slice(begin, end - begin) for begin, end in pairwise(bounds)}


def _are_equal(stored: pa.Table | None, imported: pa.Table) -> bool:
    if stored is None or len(stored) != len(imported):
        return False
    # The comparison of text makes NaN, the loss of a diverged run, equal to itself.
    return stored.equals(imported) or str(stored.to_pylist()) == str(imported.to_pylist())


def _add(store: Store, runs: Sequence[ImportedRun]) -> None:
    """Write each run into a temporary folder and then move it to its place."""
    no_samples = io.BytesIO()
    pq.write_table(TELEMETRY.empty_table(), no_samples)
    with (
        naming(store.path),
        tempfile.TemporaryDirectory(dir=store.path, prefix=IMPORTING) as temporary,
        RunLock(RunFolder(Path(temporary))) as lock,
    ):
        if not lock.acquire():  # the lock keeps others from removing the folder as abandoned
            raise BadInput(f"{temporary}: removed by another process; import again")
        for run in runs:
            folder = RunFolder(Path(temporary) / run.record.run_id)
            folder.write(run.record, durable=False)
            if run.telemetry is None:
                folder.telemetry_path.write_bytes(no_samples.getvalue())
            else:
                pq.write_table(run.telemetry, folder.telemetry_path, compression="zstd")
            pq.write_table(run.epochs(), folder.epochs_path, compression="none")  # few rows
            _move(folder.path, store.folder(run.record.run_id))


def _move(path: Path, target: RunFolder) -> None:
    try:
        path.rename(target.path)
    except OSError as error:
        if not target.path.exists():
            raise
        if target.read() is None:  # otherwise another import wrote the same run first
            raise BadInput(
                f"{target.path}: the folder has no record; remove it ({error.strerror})"
            ) from None
