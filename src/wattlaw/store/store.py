"""A store: the folder with the runs of one machine or cluster, and its three tables."""

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattlaw.errors import BadInput, NotAvailable, WattlawError, one_line
from wattlaw.files import abandoned, is_old, read_text, remove_abandoned, write_text
from wattlaw.store.parquet import read_together
from wattlaw.store.record import RunRecord, Site, now
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.version import check_version, write_version
from wattlaw.study.model import WorkloadSpec

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

#: Prefix of the folder in which an import prepares its runs.
IMPORTING = ".importing."
#: Fewer files are read one by one: that is faster than starting DuckDB.
_MANY = 50
#: Fields of a record that are not columns of the table of runs, or have another name there.
_NESTED = {
    *("spec", "facts", "samplers", "limits", "interrupted", "clocks", "interruptions", "site"),
}


class Store:
    """Runs on disk. An instance is cheap and caches nothing."""

    def __init__(self, path: Path) -> None:
        try:
            os.path.abspath(path).encode()  # noqa: PTH100 - Arrow and DuckDB take it as UTF-8
        except UnicodeEncodeError:
            raise BadInput(
                f"{path}: a store needs a path in valid UTF-8, and a UTF-8 locale such as "
                "LC_ALL=C.UTF-8 where it is not ASCII"
            ) from None
        self.path = path
        self._cancelled = path / "cancelled.json"

    @classmethod
    def existing(cls, path: Path) -> "Store":
        """Return the store at ``path``.

        Raises ``BadInput`` if the folder is not a store, or its schema version is another one.
        """
        store = cls(path)
        if not store._runs.is_dir():
            raise BadInput(
                f"{path}: not a store (a store has a folder 'runs'); 'wattlaw run' makes one"
            )
        return store

    @cached_property
    def _runs(self) -> Path:
        """Return the folder of runs, of a store that this wattlaw can read."""
        check_version(self.path)
        return self.path / "runs"

    def create(self) -> None:
        """Make the folders of a new store; an existing store stays as it is."""
        runs = self._runs
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_version(self.path)  # first, since runs without it are of an older version
            runs.mkdir(exist_ok=True)
        except PermissionError as error:
            raise NotAvailable(f"{self.path}: no permission to write a store here") from error
        except OSError as error:
            raise BadInput(f"{self.path}: cannot be a store: {error.strerror}") from None

    def cancel(self) -> None:
        """Ask every campaign on this store to stop."""
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

    def folders(self) -> Iterator[RunFolder]:
        """Yield the folders of all runs, sorted by run id."""
        if not self._runs.is_dir():
            return
        for path in sorted(self._runs.iterdir()):
            if path.is_dir():
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

    def records(self) -> list[RunRecord]:
        """Return the records of all runs, whatever their status."""
        records = (folder.read() for folder in self.folders())
        return [record for record in records if record is not None]

    def records_by_id(self, run_ids: Collection[str]) -> dict[str, RunRecord | None]:
        """Return the records of some runs by run id; runs without a record are left out.

        A record that cannot be read is None.
        """
        try:
            names = sorted(path.name for path in self._runs.iterdir())
        except FileNotFoundError:
            return {}
        records: dict[str, RunRecord | None] = {}
        for name in names:
            if name in run_ids:
                try:
                    record = self.folder(name).read()
                except WattlawError:
                    records[name] = None
                else:
                    records |= {name: record} if record is not None else {}
        return records

    def readable_records(self) -> list[RunRecord]:
        """Return the records of all runs, without those that cannot be read."""
        records = []
        for folder in self.folders():
            with contextlib.suppress(WattlawError):
                records.append(folder.read())
        return [record for record in records if record is not None]

    def arrow(self, table: str) -> "pa.Table":
        """Return the table ``runs`` (any status), ``epochs`` or ``telemetry`` (done runs)."""
        import pyarrow as pa

        from wattlaw.store.schema import RUNS, TABLES

        if table == "runs":
            pairs = ((folder, folder.read()) for folder in self.folders())
            rows = [_row(folder, record) for folder, record in pairs if record is not None]
            try:
                return pa.Table.from_pylist(rows, schema=RUNS)
            except (pa.ArrowException, OverflowError):
                return pa.concat_tables(self._runs_table(row) for row in rows)
        return read_all(self.finished(table), TABLES[table])

    def _runs_table(self, row: dict[str, Any]) -> "pa.Table":
        """Return the table of one run; the error names a record that does not fit the schema."""
        import pyarrow as pa

        from wattlaw.store.schema import RUNS

        try:
            return pa.Table.from_pylist([row], schema=RUNS)
        except (pa.ArrowException, OverflowError) as error:
            path = self.folder(row["run_id"]).record_path
            raise BadInput(f"{path}: not a run record: {one_line(error)[:200]}") from None

    def pandas(self, table: str) -> "pd.DataFrame":
        """Return a table as a pandas frame."""
        frame: pd.DataFrame = self.arrow(table).to_pandas()
        return frame

    def duckdb(self, table: str) -> "duckdb.DuckDBPyRelation":
        """Return a table as a DuckDB relation; finished files are read as a query needs them."""
        import duckdb
        import pyarrow.dataset as ds

        from wattlaw.store.schema import TABLES

        paths = self.finished(table) if table != "runs" else []
        if not paths:
            return duckdb.from_arrow(self.arrow(table))
        schema = TABLES[table]
        check_all(paths, schema)
        # read_parquet would interpret a '[' or '*' in the path of the store as a pattern.
        files = ds.dataset([str(path) for path in paths], schema=schema, format="parquet")
        return duckdb.from_arrow(files)

    def finished(self, table: str) -> list[Path]:
        """Return the files of ``epochs`` or ``telemetry`` of all done runs, sorted by run id.

        Raises ``BadInput`` if a file is missing.
        """
        return [
            self.folder(record.run_id).finished(table)
            for record in self.records()
            if record.status == "done"
        ]


def read_all(paths: Sequence[Path], schema: "pa.Schema") -> "pa.Table":
    """Return the tables of finished runs as one.

    Raises ``BadInput`` if a file is not of this schema, or of another run; it is named.
    """
    import pyarrow as pa

    together = read_together(paths, schema) if len(paths) >= _MANY else None
    if together is not None:
        return together
    return pa.concat_tables([schema.empty_table(), *(_read(path, schema) for path in paths)])


def read_validated(paths: Sequence[Path], schema: "pa.Schema") -> "pa.Table":
    """Return the tables of finished runs as one, with their values checked.

    Raises ``BadInput`` as ``read_all`` does, or if a file has a value that no run writes.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from wattlaw.store.schema import find_faults

    table = read_all(paths, schema)
    if find_faults(table):
        for path in paths:
            with _naming(path):
                for fault, is_bad in find_faults(_read(path, schema)):
                    row = pc.index(is_bad, value=True).as_py() + 1
                    raise pa.ArrowInvalid(f"row {row}: {fault}")
    return table


def check_all(paths: Sequence[Path], schema: "pa.Schema") -> None:
    """Check the columns, but not the rows, of finished runs' files.

    Raises ``BadInput`` if a file is not of this schema; it is named.
    """
    import pyarrow.parquet as pq

    for path in paths:
        with _naming(path):
            _as(schema, pq.read_schema(path).empty_table())


def _read(path: Path, schema: "pa.Schema") -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _naming(path):
        table = _as(schema, pq.read_table(path))
        table.validate(full=True)  # also finds text that is not UTF-8
        others = set(table["run_id"].unique().to_pylist()) - {path.parent.name, None}
        if others:
            raise pa.ArrowInvalid(f"it is of run {others.pop()!a}, not {path.parent.name}")
        return table


def _as(schema: "pa.Schema", table: "pa.Table") -> "pa.Table":
    import pyarrow as pa

    selected = table.select(schema.names)
    if selected.schema != schema:
        raise pa.ArrowInvalid("its columns have other types")
    return selected


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in errors of Arrow."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, KeyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(
            f"{path}: not a table of this store: {reason}; restore it, or move this run's folder "
            "away and start the study again"
        ) from None


def _options(workload: WorkloadSpec) -> dict[str, Any]:
    return workload.options if workload.command is None else {"command": workload.command}


def _row(folder: RunFolder, record: RunRecord) -> dict[str, Any]:
    spec, facts = record.spec, record.facts
    return {
        **record.model_dump(exclude=_NESTED),
        "status": folder.status(record),
        **spec.setting.model_dump(),
        **spec.measure.model_dump(exclude={"evaluate"}),
        "workload": spec.workload.name,
        "options": json.dumps(_options(spec.workload), sort_keys=True),
        "metric_name": facts.metric,
        "parameters": facts.parameters,
        "gradient_bytes": facts.gradient_bytes,
        "flops_per_sample": facts.flops_per_sample,
        "loader_workers": facts.loader_workers,
        "train": spec.train.model_dump_json(),
        "nodes": spec.nodes,
        "threads_per_worker": facts.threads_per_worker,
        "repeat": spec.repeat,
        "launcher": spec.launch_kind,
        "hardware": spec.hardware or facts.hardware,
        "device_ids": facts.device_ids,
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
    return {
        "job_id": site.job_id,
        "partition": site.partition,
        "node_names": site.nodes or None,
        "site_energy_j": site.energy_j,
        "site_energy_source": site.energy_source,
        "site_energy_start_at": site.energy_start_at,
        "site_energy_end_at": site.energy_end_at,
    }
