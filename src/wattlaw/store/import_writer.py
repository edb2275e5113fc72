"""Writes imported runs into a store: each run once, and each completely or not at all."""

import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wattlaw.errors import BadInput
from wattlaw.files import naming
from wattlaw.store.importing import ImportedRun, RejectedRow
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.store import IMPORTING, Store, read_all


@dataclass(frozen=True)
class ImportResult:
    """The result of importing a table into a store, as numbers of runs."""

    added: int
    unchanged: int
    rejected: tuple[RejectedRow, ...]
    other_runs: int  # runs of the store from a file of this name that are not in the table


def write_runs(store: Store, runs: Sequence[ImportedRun]) -> ImportResult:
    """Write the runs of one table into a store; runs that the store has stay as they are.

    A run that the store has with other values is rejected, and so are all new runs of its
    setting: with new repeat numbers they might count a measurement twice.
    """
    known = {record.run_id: record for record in store.records()}
    existing = [run for run in runs if run.record.run_id in known]
    changed = _changed(store, existing, known)
    changed_settings = {run.setting for run in changed}
    added: list[ImportedRun] = []
    rejected = [RejectedRow(run.line, _change_reason(store, run)) for run in changed]
    for run in runs:
        if run.record.run_id in known:
            continue
        if changed_settings and run.setting in changed_settings:
            rejected.append(RejectedRow(run.line, "another run of its setting has changed"))
        else:
            added.append(run)
    _add(store, added)
    run_ids = {run.record.run_id for run in runs}
    source = {run.record.notes[0] for run in runs}
    other_runs = sum(
        run_id not in run_ids and not source.isdisjoint(record.notes[:1])
        for run_id, record in known.items()
    )
    return ImportResult(len(added), len(existing) - len(changed), tuple(rejected), other_runs)


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
    """Return the rows of each run, which are contiguous."""
    ids = table["run_id"].to_numpy()
    first = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    bounds = [0, *first.tolist(), len(ids)] if len(ids) else [0]
    return {str(ids[begin]): table.slice(begin, end - begin) for begin, end in pairwise(bounds)}


def _are_equal(stored: pa.Table | None, imported: pa.Table) -> bool:
    if stored is None or len(stored) != len(imported):
        return False
    # The comparison of text makes NaN, the loss of a diverged run, equal to itself.
    return stored.equals(imported) or str(stored.to_pylist()) == str(imported.to_pylist())


def _change_reason(store: Store, run: ImportedRun) -> str:
    folder = store.folder(run.record.run_id)
    return (
        f"run {folder.run_id} is in the store with other values; to replace it, remove "
        f"{folder.path} and import again"
    )


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
            folder.telemetry_path.write_bytes(no_samples.getvalue())
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
