"""A store: the folder with the runs of one machine or cluster, and its three tables."""

import json
import os
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattlaw.errors import (
    BadInput,
    DamagedFileWarning,
    NotAvailable,
    NotPermitted,
    WattlawError,
    one_line,
)
from wattlaw.files import abandoned, is_old, read_text, remove_abandoned, write_text
from wattlaw.store.record import RunRecord, Site, now
from wattlaw.store.run_folder import REPLACE, RunFolder
from wattlaw.text import quote

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

#: Increased by every change after which older records or tables cannot be read as they are.
SCHEMA_VERSION = 3
#: Of a store that was written before stores had a version.
_UNVERSIONED = 0
_KEY = "schema_version"
_REPAIR = f'restore the file; this wattlaw writes {{"{_KEY}": {SCHEMA_VERSION}}}'
#: Prefix of the folder in which an import prepares its runs.
IMPORTING = ".importing."
#: Fields of a record that are not columns of the table of runs, or have another name there.
_NESTED = {
    *("spec", "facts", "samplers", "limits", "interrupted", "clocks", "interruptions", "site"),
}


class Store:
    """Runs on disk. An instance is cheap and remembers only which runs are damaged.

    A run with a missing or damaged file is left out of the tables, with a ``DamagedFileWarning``;
    ``damaged`` has the reasons by run id. With ``strict`` the first such file raises ``BadInput``.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        try:
            os.path.abspath(path).encode()  # noqa: PTH100 - Arrow and DuckDB take it as UTF-8
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

        Raises ``BadInput`` if the folder is not a store, or its schema version is another one.
        """
        store = cls(path, strict=strict)
        if not store._runs.is_dir():
            raise BadInput(
                f"{path}: not a store (a store has a folder 'runs'); 'wattlaw run' makes one"
            )
        return store

    @cached_property
    def _runs(self) -> Path:
        """Return the folder of runs, of a store that this wattlaw can read."""
        _check_version(self.path)
        return self.path / "runs"

    def create(self) -> None:
        """Make the folders of a new store; an existing store stays as it is."""
        runs = self._runs
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not version_path(self.path).exists():
                # First, since runs without it are of an older version.
                write_text(version_path(self.path), json.dumps({_KEY: SCHEMA_VERSION}) + "\n")
            runs.mkdir(exist_ok=True)
        except PermissionError as error:
            raise NotAvailable(f"{self.path}: no permission to write a store here") from error
        except OSError as error:
            raise BadInput(f"{self.path}: cannot be a store: {error.strerror}") from None

    def cancel(self) -> None:
        """Request that every campaign on this store stops."""
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
        """Say whether ``cancel`` was called since ``cancelled_at`` returned ``before``.

        A file that cannot be read at the moment counts as no call.
        """
        last = self.cancelled_at()
        return last is not None and last != before

    def folder(self, run_id: str) -> RunFolder:
        """Return the folder of one run, which may not exist."""
        return RunFolder(self._runs / run_id)

    def folders(self, run_ids: Collection[str] | None = None) -> Iterator[RunFolder]:
        """Yield the folders of all runs, or of some, sorted by run id."""
        if not self._runs.is_dir():
            return
        for path in sorted(self._runs.iterdir()):
            if (run_ids is None or path.name in run_ids) and path.is_dir():
                yield RunFolder(path)

    def remove_abandoned(self) -> None:
        """Remove temporary files of killed writers and folders of killed imports."""
        remove_abandoned(self.path)
        for path in self.path.glob(f"{IMPORTING}*"):
            with abandoned(path / "lock") as is_abandoned:
                if is_abandoned or (not (path / "lock").exists() and is_old(path)):
                    shutil.rmtree(path, ignore_errors=True)
        for folder in self.folders():
            folder.remove_abandoned()

    def leave_out(self, path: Path, error: WattlawError) -> None:
        """Leave out the run with a damaged file; raise the error if the store is ``strict``."""
        if self.strict:
            raise error
        run_id = path.parent.name
        if run_id not in self.damaged:
            self.damaged[run_id] = str(error)
            text = f"run {run_id} is left out: {error}"
            warnings.warn(text, DamagedFileWarning, stacklevel=2)

    def records(self) -> list[RunRecord]:
        """Return the records of all runs, whatever their status; damaged records are left out."""
        records = []
        for folder in self.folders():
            try:
                record = folder.read()
            except WattlawError as error:
                self.leave_out(folder.record_path, error)
                continue
            if (damage := folder.damage(record)) is not None:
                self.leave_out(folder.record_path, BadInput(damage))
            records += [record] if record is not None else []
        return records

    def records_by_id(self, run_ids: Collection[str] | None = None) -> dict[str, RunRecord | None]:
        """Return the records of all runs, or of some, by run id; without those that have none.

        A record that cannot be read is None.
        """
        records: dict[str, RunRecord | None] = {}
        for folder in self.folders(run_ids):
            try:
                record = folder.read()
            except WattlawError:
                records[folder.run_id] = None
            else:
                records |= {folder.run_id: record} if record is not None else {}
        return records

    def arrow(self, table: str, *, validate: bool = False) -> "pa.Table":
        """Return the table ``runs`` (any status), ``epochs`` or ``telemetry`` (done runs).

        With ``validate``, a run whose table has a value that no run writes is left out.
        """
        import pyarrow as pa

        from wattlaw.store.parquet import read_all
        from wattlaw.store.schema import RUNS, TABLES

        if table == "runs":
            rows = [self._row(record) for record in self.records()]
            try:
                return pa.Table.from_pylist(rows, schema=RUNS)
            except (pa.ArrowException, OverflowError):
                return pa.concat_tables([RUNS.empty_table(), *self._fitting(rows)])
        return read_all(self.finished(table), TABLES[table], self.leave_out, validate=validate)

    def _row(self, record: RunRecord) -> dict[str, Any]:
        damage = self.damaged.get(record.run_id)
        folder = self.folder(record.run_id)
        return _row(folder, record) | ({"status": "damaged", "reason": damage} if damage else {})

    def _fitting(self, rows: Iterable[dict[str, Any]]) -> Iterator["pa.Table"]:
        """Yield a table for each run; a run whose record does not fit the schema is left out."""
        import pyarrow as pa

        from wattlaw.store.schema import RUNS

        for row in rows:
            try:
                yield pa.Table.from_pylist([row], schema=RUNS)
            except (pa.ArrowException, OverflowError) as error:
                path = self.folder(row["run_id"]).record_path
                reason = f"{path}: not a run record: {one_line(error)[:200]}; {REPLACE}"
                self.leave_out(path, BadInput(reason))

    def pandas(self, table: str) -> "pd.DataFrame":
        """Return a table as a pandas frame."""
        frame: pd.DataFrame = self.arrow(table).to_pandas()
        return frame

    def duckdb(self, table: str) -> "duckdb.DuckDBPyRelation":
        """Return a table as a DuckDB relation; finished files are read as a query needs them."""
        import duckdb
        import pyarrow.dataset as ds

        from wattlaw.store.parquet import check_all
        from wattlaw.store.schema import TABLES

        schema = TABLES[table]
        if table != "runs":
            check_all(self.finished(table), schema, self.leave_out)
        paths = self.finished(table) if table != "runs" else []
        if not paths:
            return duckdb.from_arrow(self.arrow(table))
        # read_parquet would interpret a '[' or '*' in the path of the store as a pattern.
        files = ds.dataset([str(path) for path in paths], schema=schema, format="parquet")
        return duckdb.from_arrow(files)

    def finished(self, table: str) -> list[Path]:
        """Return the files of ``epochs`` or ``telemetry`` of all done runs, sorted by run id."""
        return [
            self.folder(record.run_id).path / f"{table}.parquet"
            for record in self.records()
            if record.status == "done" and record.run_id not in self.damaged
        ]


def version_path(store: Path) -> Path:
    """Return the file with a store's schema version."""
    return store / "store.json"


def _check_version(store: Path) -> None:
    """Check that this wattlaw can read a store. A folder without runs is a new store.

    Raises ``BadInput`` if the store has another schema version, or its ``store.json`` is damaged,
    and ``NotPermitted`` if this user may not read ``store.json``.
    """
    version = _version_of(store)
    if version is None or version == SCHEMA_VERSION:
        return
    from wattlaw import __version__  # read from the package's metadata, which takes a while

    if version > SCHEMA_VERSION:
        advice = "upgrade wattlaw"
    else:
        advice = "use the wattlaw version that wrote it, or run the study into a new store"
    raise BadInput(
        f"{store}: the store has schema version {version}; wattlaw {__version__} reads schema "
        f"version {SCHEMA_VERSION}; {advice}"
    )


def _version_of(store: Path) -> int | None:
    """Return the schema version of a store; None where there is no store yet."""
    path = version_path(store)
    try:
        text = read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return _UNVERSIONED if _has_runs(store) else None
    except PermissionError:
        raise NotPermitted(f"{path}: no permission to read it") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}; {_REPAIR}") from None
    except UnicodeDecodeError:
        text = ""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput(f"{path}: not a JSON file in UTF-8; {_REPAIR}") from None
    version = content.get(_KEY) if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BadInput(f"{path}: {_KEY} is {quote(version)}; allowed: an integer >= 1; {_REPAIR}")
    return version


def _has_runs(store: Path) -> bool:
    try:
        return any((store / "runs").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        raise NotPermitted(f"{store / 'runs'}: no permission to read it") from None


def _row(folder: RunFolder, record: RunRecord) -> dict[str, Any]:
    spec, facts, measure = record.spec, record.facts, record.spec.measure
    command = spec.workload.command
    options = spec.workload.options if command is None else {"command": command}
    return {
        **record.model_dump(exclude=_NESTED),
        **facts.model_dump(exclude={"hosts", "metric"}),
        "status": folder.status(record),
        **spec.setting.model_dump(),
        **measure.model_dump(include={"epochs", "sample_hz", "assume_cpu_w"}),
        "warmup_epochs": None if measure.is_by_steps else measure.warmup_epochs,
        "measure_steps": measure.steps,
        "measure_seconds": measure.seconds,
        "warmup_steps": measure.warmup_steps if measure.is_by_steps else None,
        "dataset_samples": spec.workload.dataset_samples or facts.dataset_samples,
        "workload": spec.workload.name,
        "options": json.dumps(options, sort_keys=True),
        "metric_name": facts.metric,
        "train": spec.train.model_dump_json(),
        "nodes": spec.nodes,
        "repeat": spec.repeat,
        "launcher": spec.launch_kind,
        "hardware": spec.hardware or facts.hardware,
        "power_limit_enforced_w": min(
            (r.power_limit_enforced_w for r in record.limits if r.power_limit_enforced_w),
            default=None,
        ),
        "sampler_cpu_share": max(
            (r.cpu_s / r.duration_s for r in record.samplers if r.duration_s), default=None
        ),
        "software": json.dumps(facts.software, sort_keys=True),
        "interruptions": len(record.interruptions) if record.attempts else None,
        "clock_offset_max_s": max(
            (abs(r.offset_s) + r.uncertainty_s for r in record.clocks), default=None
        ),
        **_site_columns(record.site),
    }


def _site_columns(site: Site | None) -> dict[str, Any]:
    if site is None:
        return {}
    energy = {f"site_{name}": value for name, value in site if name.startswith("energy_")}
    names = {"job_id": site.job_id, "partition": site.partition, "node_names": site.nodes or None}
    return {**names, **energy}
