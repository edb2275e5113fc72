"""A store: the folder with the runs of one machine or cluster, and its three tables."""

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from wattlaw.common.errors import BadInput, DamagedFileWarning, NotAvailable, WattlawError
from wattlaw.common.files import (
    abandoned,
    is_old,
    read_bytes,
    read_text,
    remove_abandoned,
    replacing,
    write_text,
)
from wattlaw.store.record import RunRecord, now
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.version import check_version, unreadable, version_path, write_version

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from wattlaw.store.snapshot import Snapshot

#: Prefix of the folder in which an import prepares its runs.
IMPORTING = ".importing."


class Store:
    """Runs on disk. An instance is cheap and remembers only which runs are damaged.

    A run with a missing or damaged file is left out of the tables, with a ``DamagedFileWarning``;
    ``damaged`` has the reasons by run id. With ``strict`` the first such file raises ``BadInput``.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        try:
            os.path.abspath(path).encode()  # noqa: PTH100 - Arrow takes it as UTF-8
        except UnicodeEncodeError:
            raise BadInput(
                f"{path}: a store needs a path in valid UTF-8, and a UTF-8 locale such as "
                "LC_ALL=C.UTF-8 where it is not ASCII"
            ) from None
        self.path = path
        self.strict = strict
        self.damaged: dict[str, str] = {}
        self._cancelled = path / "cancelled.json"

    @classmethod
    def existing(cls, path: Path, *, strict: bool = False) -> "Store":
        """Return the store at ``path``.

        Raises ``BadInput`` if the folder is not a store, or its schema version is another one, and
        ``NotPermitted`` if this user may not read it.
        """
        store = cls(path, strict=strict)
        if not store._runs.is_dir():
            raise BadInput(
                f"{path}: not a store (a store has a folder 'runs'); 'wattlaw run' makes one"
            )
        return store

    @cached_property
    def _runs(self) -> Path:
        check_version(self.path)
        if self.path.is_file():
            raise BadInput(f"{self.path}: a file cannot be a store; give a folder")
        runs = self.path / "runs"
        if runs.exists() and not os.access(runs, os.R_OK | os.X_OK, effective_ids=True):
            raise unreadable(runs)
        return runs

    def create(self) -> None:
        """Make the folders of a new store; an existing store stays as it is."""
        runs = self._runs
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not version_path(self.path).exists():
                write_version(self.path)  # first, since runs without it are of an older version
            runs.mkdir(exist_ok=True)
        except PermissionError as error:
            raise NotAvailable(f"{self.path}: no permission to write a store here") from error
        except OSError as error:
            raise BadInput(f"{self.path}: cannot be a store: {error.strerror}") from None

    def keep_study(self, name: str, text: str, source: Path | None = None) -> None:
        """Keep a study file in the store, for archives, and where it is: runs need neither."""
        with contextlib.suppress(OSError, ValueError):  # a run does not need the copy
            (self.path / "studies").mkdir(exist_ok=True)
            with replacing(self.path / "studies" / f"{name}.yaml", durable=False) as copy:
                copy.write_text(text, encoding="utf-8")
            if source is not None:
                write_text(self._source_file(name), str(source.absolute()))

    def study_file(self, name: str) -> Path | None:
        """Return the file that the last run of a study read; None if it is not here any more."""
        with contextlib.suppress(OSError, ValueError):
            path = Path(read_text(self._source_file(name)))
            if path.is_file():
                return path.relative_to(cwd) if path.is_relative_to(cwd := Path.cwd()) else path
        return None

    def _source_file(self, name: str) -> Path:
        return self.path / "studies" / f"{name}.source"

    def cancel(self) -> None:
        if self._cancelled.exists() and not self._cancelled.is_file():
            raise BadInput(f"{self._cancelled}: not a regular file; remove it")
        write_text(self._cancelled, json.dumps({"cancelled_at": str(now()), "by_pid": os.getpid()}))

    def cancelled_at(self) -> str | None:
        """Return a text that identifies the last call of ``cancel``; None before the first."""
        try:
            return read_text(self._cancelled)
        except (OSError, UnicodeDecodeError):
            return None

    def was_cancelled_since(self, before: str | None) -> bool:
        """Return whether ``cancel`` was called since ``cancelled_at`` returned ``before``.

        A file that cannot be read at the moment counts as no call.
        """
        return self.cancelled_at() not in (None, before)

    def folder(self, run_id: str) -> RunFolder:
        return RunFolder(self._runs / run_id)

    def folders(self, run_ids: Collection[str] | None = None) -> Iterator[RunFolder]:
        if not self._runs.is_dir():
            return
        for path in sorted(self._runs.iterdir()):
            if (run_ids is None or path.name in run_ids) and path.is_dir():
                yield RunFolder(path)

    def remove_abandoned(self) -> None:
        """Remove temporary files of killed writers and folders of killed imports."""
        from wattlaw.store.cache import FOLDER

        cache = self.path / FOLDER
        for folder in (self.path, cache, cache / "data", self.path / "studies"):
            remove_abandoned(folder)
        for path in self.path.glob(f"{IMPORTING}*"):
            with abandoned(path / "lock") as is_abandoned:
                if is_abandoned or (not (path / "lock").exists() and is_old(path)):
                    shutil.rmtree(path, ignore_errors=True)
        for run in self.folders():
            run.remove_abandoned()

    def leave_out(self, path: Path, error: WattlawError) -> None:
        """Leave out the run, or the import, with a damaged file; raise if the store is ``strict``.

        ``path`` is a file of the folder of the run or of the import.
        """
        if self.strict:
            raise error
        run_id = path.parent.name
        if run_id not in self.damaged:
            self.damaged[run_id] = str(error)
            kind = "run" if path.parents[1].name == "runs" else "import"
            text = f"{kind} {run_id} is left out: {error}"
            warnings.warn(text, DamagedFileWarning, stacklevel=2)

    def snapshot(self) -> "Snapshot":
        from wattlaw.store.snapshot import read_snapshot

        return read_snapshot(self._runs.parent)

    def without_damaged(self, snapshot: "Snapshot | None" = None) -> "Snapshot":
        """Return the runs at this moment, or of a snapshot, after damaged ones are left out."""
        snapshot = snapshot or self.snapshot()
        for _, (path, error) in sorted(snapshot.damage.items()):
            self.leave_out(path, error)
        return snapshot

    def records(self) -> list[RunRecord]:
        """Return the records of all runs that can be read, whatever their status."""
        return [record for record in self.records_by_id().values() if record is not None]

    def records_by_id(self, run_ids: Collection[str] | None = None) -> dict[str, RunRecord | None]:
        """Return the records of all runs, or of some, by run id; without those that have none.

        A record that cannot be read is None.
        """
        records: dict[str, RunRecord | None] = {}
        for folder in self.folders(run_ids):
            with contextlib.suppress(WattlawError):
                records[folder.run_id] = None
                if (record := folder.read()) is None:
                    del records[folder.run_id]
                else:
                    records[folder.run_id] = record
        return records

    def arrow(
        self,
        table: str,
        run_ids: Collection[str] | None = None,
        *,
        validate: bool = False,
        snapshot: "Snapshot | None" = None,
    ) -> "pa.Table":
        """Return the table ``runs`` (any status), ``epochs`` or ``telemetry`` (done runs), of some
        runs or all. With ``validate`` a run with a value that no run writes is left out."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from wattlaw.store.cache import by_run, read_through
        from wattlaw.store.parquet import read_all
        from wattlaw.store.schema import TABLES, find_faults

        snapshot = self.without_damaged(snapshot)
        if table == "runs":
            return snapshot.marked(self.damaged)
        schema = TABLES[table]

        def read(run_ids: Sequence[str]) -> tuple[pa.Table, Collection[str]]:
            paths = [self.folder(run_id).path / f"{table}.parquet" for run_id in run_ids]
            rows = read_all(paths, schema, self.leave_out, validate=validate)
            masks = [rows["run_id"].filter(mask) for _, mask in find_faults(rows)]
            return rows, {run_id for column in masks for run_id in column.to_pylist()}

        done = set(snapshot.done()).difference(self.damaged)
        done = done if run_ids is None else done.intersection(run_ids)
        keys = {run_id: key for run_id, key in snapshot.keys.items() if run_id in done}
        if table == "epochs":
            tables = [read_through(self.path, table, schema, keys, read)]
        else:
            tables = [read(list(keys))[0]]
        for folder in snapshot.imports:
            if folder.path.name in self.damaged or done.isdisjoint(folder.run_ids):
                continue
            try:
                rows = folder.read(table, validate=validate)
            except BadInput as error:
                self.leave_out(folder.table_path(table), error)
            else:
                is_chosen = pc.is_in(rows["run_id"], pa.array(done, pa.string()))
                tables.append(rows if run_ids is None else rows.filter(is_chosen))
        return by_run(pa.concat_tables(tables)) if len(tables) > 1 else tables[0]

    def pandas(self, table: str) -> "pd.DataFrame":
        frame: pd.DataFrame = self.arrow(table).to_pandas()
        return frame

    @property
    def documents(self) -> dict[str, bytes]:
        paths = [self.path / "decision.json", *sorted((self.path / "studies").glob("*.yaml"))]
        return {
            str(path.relative_to(self.path)): read_bytes(path) for path in paths if path.is_file()
        }


def read_stores(stores: Sequence[Store]) -> "tuple[pd.DataFrame, pd.DataFrame]":
    import pandas as pd

    tables: dict[str, list[pd.DataFrame]] = {"runs": [], "epochs": []}
    for store in stores:
        snapshot = store.snapshot()
        epochs = store.arrow("epochs", validate=True, snapshot=snapshot)
        tables["epochs"].append(epochs.to_pandas())
        # After the windows, since runs with damaged windows have the status damaged.
        tables["runs"].append(store.arrow("runs", snapshot=snapshot).to_pandas())
    runs, epochs = (pd.concat(parts, ignore_index=True) for parts in tables.values())
    if runs["run_id"].duplicated().any():
        run_id = runs.loc[runs["run_id"].duplicated(), "run_id"].iloc[0]
        raise BadInput(
            f"run {run_id} is in more than one store; set launch.hardware to a label for each "
            "machine's study"
        )
    return runs, epochs
