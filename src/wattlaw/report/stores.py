"""What the analysis of a report reads from stores: statistics of samples, and scheduler energies.

The analysis itself reads no files.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.analysis.findings import Findings, analyse
from wattlaw.measure.telemetry.window_energy import energy_of_windows
from wattlaw.store.parquet import read_all
from wattlaw.store.record import device_facts
from wattlaw.store.schema import EPOCHS, TELEMETRY, WINDOW_ENERGY
from wattlaw.store.statistics import read_telemetry
from wattlaw.store.store import Store

_WINDOW_FIELDS = [EPOCHS.field(name) for name in ("run_id", "host", "start_ns", "duration_s")]
_SCHEMA = pa.schema([*_WINDOW_FIELDS, *WINDOW_ENERGY])


def read_findings(
    stores: Sequence[Store], runs: pd.DataFrame, epochs: pd.DataFrame, **options: Any
) -> Findings:
    """Return the findings of the tables ``runs`` and ``epochs`` of stores, with their telemetry.

    ``options`` are those of ``wattlaw.analysis.findings.analyse``.
    """
    statistics, joint = read_telemetry(stores, runs)
    return analyse(
        runs, epochs, statistics=statistics, joint=joint,
        accounting_windows=read_accounting_windows(stores), **options,
    )  # fmt: skip


def read_accounting_windows(stores: Sequence[Store]) -> pd.DataFrame:
    """Return the measured energy over the time of the accounting, one row per run and host.

    Only runs that are done and have an energy with times in the accounting count. A row has
    ``run_id, host, start_ns, duration_s``: from the first to the last sample of a host in that
    time, on the host's clock; and the columns of ``store.schema.WINDOW_ENERGY``. A host without two
    samples has none.
    """
    tables = [table for store in stores for table in _windows(store)]
    table: pd.DataFrame = pa.concat_tables([_SCHEMA.empty_table(), *tables]).to_pandas()
    return table


def _windows(store: Store) -> Iterator[pa.Table]:
    runs = store.without_damaged().runs
    is_accounted = pc.and_(pc.equal(runs["status"], "done"), pc.is_valid(runs["site_energy_j"]))
    for run_id in runs["run_id"].filter(is_accounted).to_pylist():
        folder = store.folder(run_id)
        record = folder.read() if run_id not in store.damaged else None
        site = None if record is None else record.site
        if record is None or site is None:
            continue
        if site.energy_start_at is None or site.energy_end_at is None:
            continue
        samples = read_all([folder.telemetry_path], TELEMETRY, store.leave_out, validate=True)
        # The accounting does not include attempts before the job's last start.
        is_counted = (pc.field("t_ns") >= _ns(site.energy_start_at)) & (
            pc.field("t_ns") <= _ns(site.energy_end_at)
        )
        samples = samples.filter(is_counted).drop_columns("run_id")
        by_host = samples.group_by("host").aggregate([("t_ns", "min"), ("t_ns", "max")])
        rows = [
            {"run_id": run_id, "host": host["host"], "start_ns": host["t_ns_min"],
             "duration_s": (host["t_ns_max"] - host["t_ns_min"]) * 1e-9}
            for host in by_host.to_pylist() if host["t_ns_max"] > host["t_ns_min"]
        ]  # fmt: skip
        windows = pa.Table.from_pylist(rows, schema=pa.schema(_WINDOW_FIELDS))
        energy = energy_of_windows(windows, samples, device_facts(record.samplers))
        yield pa.table([*windows.columns, *energy.columns], schema=_SCHEMA)


def _ns(moment: datetime) -> int:
    """Return the time since 1970 in ns, exactly."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
