"""The energy of runs' devices over the time that a site's accounting speaks of.

Read from the telemetry before the analysis, which reads no files and knows no meters.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.store.record import RunRecord
from wattlaw.store.schema import EPOCHS, TELEMETRY, WINDOW_ENERGY
from wattlaw.store.store import Store, read_validated
from wattlaw.telemetry.energy import energy_of_windows

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPAN = [EPOCHS.field(name) for name in ("run_id", "host", "start_ns", "duration_s")]
_SCHEMA = pa.schema([*_SPAN, *WINDOW_ENERGY])


def read_accounting_windows(paths: Sequence[Path]) -> pd.DataFrame:
    """Return what was metered in the time of the accounting's energy, one row per run and host.

    Parameters
    ----------
    paths
        Stores. Of their runs those count that are done, with such an energy and its times.

    Returns
    -------
    DataFrame
        ``run_id, host, start_ns, duration_s``: the part of the span from a host's first to its last
        sample, on its own clock; and the columns of ``store.schema.WINDOW_ENERGY`` of that part. A
        host without two samples in the span has no row.

    Raises
    ------
    BadInput
        A path is no store, or a file of such a run is missing or damaged; it is named.
    """
    stores = [Store.existing(path) for path in paths]
    found = [_of_run(store, *accounted) for store in stores for accounted in _accounted(store)]
    table: pd.DataFrame = pa.concat_tables([_SCHEMA.empty_table(), *found]).to_pandas()
    return table


def _accounted(store: Store) -> Iterator[tuple[RunRecord, int, int]]:
    """Yield the runs that have an energy by the accounting, with its time in ns since 1970."""
    for record in store.records():
        site = record.site
        if record.status != "done" or site is None or site.energy_j is None:
            continue
        if site.energy_start_at is not None and site.energy_end_at is not None:
            yield record, _ns(site.energy_start_at), _ns(site.energy_end_at)


def _of_run(store: Store, record: RunRecord, start_ns: int, end_ns: int) -> pa.Table:
    samples = read_validated([store.folder(record.run_id).telemetry_path], TELEMETRY)
    # An attempt before the job's last start is no part of its accounting.
    samples = samples.filter(
        (pc.field("t_ns") >= start_ns) & (pc.field("t_ns") <= end_ns)
    ).drop_columns("run_id")
    by_host = samples.group_by("host").aggregate([("t_ns", "min"), ("t_ns", "max")])
    rows: list[dict[str, Any]] = [
        {
            "run_id": record.run_id,
            "host": one["host"],
            "start_ns": one["t_ns_min"],
            "duration_s": (one["t_ns_max"] - one["t_ns_min"]) * 1e-9,
        }
        for one in by_host.to_pylist()
        if one["t_ns_max"] > one["t_ns_min"]
    ]
    windows = pa.Table.from_pylist(rows, schema=pa.schema(_SPAN))
    facts = {(one.host, device.id): device.facts for one in record.samplers
             for device in one.devices}  # fmt: skip
    energy = energy_of_windows(windows, samples, facts)
    return pa.table([*windows.columns, *energy.columns], schema=_SCHEMA)


def _ns(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000
