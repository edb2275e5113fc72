"""Imported runs into a store: each once, each whole or not at all."""

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
from wattlaw.store.importing import ImportedRun, Refused
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.store import IMPORTING, Store, read_all


@dataclass(frozen=True)
class Written:
    """What became of the runs of a table in a store."""

    added: int
    unchanged: int
    refused: tuple[Refused, ...]
    others: int  # runs there that came from a file of this name and are not in the table


def write_runs(store: Store, runs: Sequence[ImportedRun]) -> Written:
    """Put the runs of one table into a store; those that are there already stay as they are.

    A run that is there with other values is refused, and with it every new run of its setting:
    numbered anew, they might count a measurement twice.
    """
    known = {record.run_id: record for record in store.records()}
    old = [run for run in runs if run.record.run_id in known]
    changed = _changed(store, old, known)
    refused = [Refused(run.line, _why(store, run)) for run in changed]
    unsafe = {run.setting for run in changed}
    new = [run for run in runs if run.record.run_id not in known]
    blocked = [run for run in new if unsafe and run.setting in unsafe]
    refused += [Refused(run.line, "another run of its setting has changed") for run in blocked]
    kept_out = {run.record.run_id for run in blocked}
    added = [run for run in new if run.record.run_id not in kept_out]
    _add(store, added)
    own = {run.record.run_id for run in runs}
    source = {run.record.notes[0] for run in runs}
    others = sum(
        run_id not in own and not source.isdisjoint(record.notes[:1])
        for run_id, record in known.items()
    )
    return Written(len(added), len(old) - len(changed), tuple(refused), others)


def _changed(
    store: Store, runs: Sequence[ImportedRun], known: dict[str, RunRecord]
) -> list[ImportedRun]:
    """Return the runs that a store has with other values."""
    there = [run for run in runs if known[run.record.run_id].status == "done"]
    paths = [store.folder(run.record.run_id).epochs_path for run in there]
    windows = _by_run(read_all(paths, EPOCHS).combine_chunks())
    return [
        run
        for run in runs
        if known[run.record.run_id].facts != run.record.facts
        or not _are_same(windows.get(run.record.run_id), run.epochs())
    ]


def _by_run(table: pa.Table) -> dict[str, pa.Table]:
    """Return each run's rows, which follow each other."""
    ids = table["run_id"].to_numpy()
    first = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    bounds = [0, *first.tolist(), len(ids)] if len(ids) else [0]
    return {str(ids[begin]): table.slice(begin, end - begin) for begin, end in pairwise(bounds)}


def _are_same(one: pa.Table | None, other: pa.Table) -> bool:
    if one is None or len(one) != len(other):
        return False
    # As texts if need be: a loss that is no number is unlike itself.
    return one.equals(other) or str(one.to_pylist()) == str(other.to_pylist())


def _why(store: Store, run: ImportedRun) -> str:
    folder = store.folder(run.record.run_id)
    return (
        f"run {folder.run_id} is in the store with other values; to replace it, remove "
        f"{folder.path} and import again"
    )


def _add(store: Store, runs: Sequence[ImportedRun]) -> None:
    """Write runs, each elsewhere first and then put in its place with all that belongs to it."""
    no_samples = io.BytesIO()
    pq.write_table(TELEMETRY.empty_table(), no_samples)
    with (
        naming(store.path),
        tempfile.TemporaryDirectory(dir=store.path, prefix=IMPORTING) as elsewhere,
        RunLock(RunFolder(Path(elsewhere))) as lock,
    ):
        if not lock.acquire():  # so that nobody takes the folder for an abandoned one
            raise BadInput(f"{elsewhere}: removed by another process; import again")
        for run in runs:
            folder = RunFolder(Path(elsewhere) / run.record.run_id)
            folder.write(run.record, durable=False)
            folder.telemetry_path.write_bytes(no_samples.getvalue())
            pq.write_table(run.epochs(), folder.epochs_path, compression="none")  # few rows
            _put(folder.path, store.folder(run.record.run_id))


def _put(made: Path, place: RunFolder) -> None:
    try:
        made.rename(place.path)
    except OSError as error:
        if not place.path.exists():
            raise
        if place.read() is None:  # else another import was quicker
            why = f"{place.path}: is there without a record; remove it"
            raise BadInput(f"{why} ({error.strerror})") from None
