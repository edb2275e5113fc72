"""GPU utilisation of finished runs: statistics over all samples of training windows.

A sample counts if it is in a training window of its run and host that is neither warm-up nor
interrupted: ``start_ns <= t_ns <= start_ns + duration_s`` on the clock of the host, as for the
energy of a window (``telemetry.energy``). A sample that is in several windows counts once.
"""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common import processes
from wattlaw.common.errors import BadInput, one_line
from wattlaw.store.cache import by_run, read_through
from wattlaw.store.parquet import check_columns, read_all
from wattlaw.store.schema import EPOCHS, TELEMETRY, rows_table
from wattlaw.store.store import Store
from wattlaw.study.sources import TRAINING

#: Columns of telemetry, and the parts of a statistic's name before and after the statistic.
QUANTITIES = {
    "sm_util": ("sm_util", ""),
    "mem_util": ("mem_util", ""),
    "power_w": ("power", "_w"),
    "sm_clock_mhz": ("sm_clock", "_mhz"),
    "temperature_c": ("temperature", "_c"),
}
_STATISTICS = {"mean": "avg", "sd": "stddev_pop", "min": "min", "max": "max"}
#: Columns of the statistics, as SQL; the row of a run follows from the same samples as its GPUs'.
_COLUMNS = {
    "run_id": "run_id",
    "part": "if(grouping(device) = 0, 'gpu', 'run')",
    "host": "host",
    "device": "device",
    "gpus": "if(grouping(device) = 0, 1, count(*) over (partition by run_id) - 1)",
    "samples": "count(*)",
}
for _column, (_name, _unit) in QUANTITIES.items():
    _COLUMNS[f"{_name}_n"] = f"count({_column})"
    for _statistic, _function in _STATISTICS.items():
        _COLUMNS[f"{_name}_{_statistic}{_unit}"] = f"{_function}({_column})"
for _name in ("sm_util", "mem_util"):
    _COLUMNS[f"{_name}_cv"] = f"stddev_pop({_name}) / if(avg({_name}) > 0, avg({_name}), null)"
_COLUMNS["utilisation_correlation"] = (
    # The deviation of a constant is rounding, not always 0.
    "if(least(stddev_pop(sm_util), stddev_pop(mem_util)) > 1e-9, corr(sm_util, mem_util), null)"
)
_TEXTS = ("run_id", "part", "host", "device")
_SCHEMA = pa.schema(
    {
        name: pa.string()
        if name in _TEXTS
        else pa.int64()
        if name in ("gpus", "samples") or name.endswith("_n")
        else pa.float64()
        for name in _COLUMNS
    }
)
_FINITE = ", ".join(f"if(isfinite(t.{name}), t.{name}, null) as {name}" for name in QUANTITIES)
#: Each sample is joined with the last window that has begun. It is in some window if it is before
#: the latest end of all windows that have begun, so that windows may overlap.
_SAMPLES = f"""
with windows as (
    select run_id, host, start_ns,
           max(start_ns + cast(round_even(duration_s * 1e9, 0) as bigint))
               over (partition by run_id, host order by start_ns) as end_ns
    from read_parquet($epochs, hive_partitioning = false)
    where phase in {tuple(TRAINING)} and warmup is not true and interrupted is not true
          and isfinite(duration_s) and start_ns is not null
),
samples as (
    select t.run_id, t.host, t.device, {_FINITE}
    from read_parquet($telemetry, hive_partitioning = false) t
    asof join windows w on t.run_id = w.run_id and t.host = w.host and t.t_ns >= w.start_ns
    where t.kind = 'gpu' and t.t_ns <= w.end_ns
)
"""  # noqa: S608 - of constants
_STATISTICS_QUERY = (
    f"{_SAMPLES} select {', '.join(f'{sql} as {name}' for name, sql in _COLUMNS.items())} "  # noqa: S608
    "from samples group by grouping sets ((run_id, host, device), (run_id)) "
    "order by run_id, part desc, host, device"
)
#: Memory limit of queries over a store; they stream and use about a tenth of it.
_MEMORY = "3GB"
_MOST_THREADS = 8


def read_telemetry(
    stores: Sequence[Store], runs: pd.DataFrame
) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Return the GPU statistics of several stores; None, None without GPU samples.

    The first table has the ``statistics`` of all stores, the second the ``joint_utilisation`` of
    each workload's runs with the fewest and with the most GPUs. ``runs`` are the runs of the
    stores. Damaged runs are left out.
    """
    table = pd.concat([statistics(store) for store in stores], ignore_index=True)
    if table.empty:
        return None, None
    sampled = runs[(runs["status"] == "done") & runs["run_id"].isin(table["run_id"])]
    gpus, by_workload = sampled["gpus"], sampled.groupby("workload")["gpus"]
    is_extreme = (gpus == by_workload.transform("min")) | (gpus == by_workload.transform("max"))
    extremes = set(sampled.loc[is_extreme, "run_id"])
    joint = []
    for store in stores:
        run_ids = sorted(extremes.intersection(store.snapshot().done()))
        joint += [joint_utilisation(store, run_ids)] if run_ids else []
    return table, pd.concat(joint, ignore_index=True)


def statistics(store: Store) -> pd.DataFrame:
    """Return the GPU statistics of done runs while training; a GPU without samples has no row.

    The column ``part`` is ``gpu`` in a row of one GPU of a run, and ``run`` in the row over all
    samples of all its GPUs (``host`` and ``device`` are missing). Columns:

    ``run_id, part, host, device, gpus, samples``
        ``gpus`` is the number of GPUs with samples.
    ``<quantity>_n, _mean, _sd, _min, _max``
        Of sm_util and mem_util (shares, 0 to 1), power (W), sm_clock (MHz), temperature (°C); a
        unit ends the name: ``power_mean_w``. ``n`` counts the samples that have the quantity; sd is
        of the population, sqrt(sum (x - mean)^2 / n).
    ``sm_util_cv, mem_util_cv``
        Coefficient of variation sd/mean over all samples of a run, as in the MIT study (Frey et al.
        2022); missing where the mean is 0.
    ``utilisation_correlation``
        Pearson's correlation of sm_util and mem_util over samples that have both; missing where one
        of them is constant.
    """
    table = _by_run(store, None, "statistics", _SCHEMA, _STATISTICS_QUERY)
    if table.empty:
        return pd.DataFrame(columns=list(_COLUMNS))
    correlation = table["utilisation_correlation"].clip(-1.0, 1.0)
    return table.assign(utilisation_correlation=correlation)


def joint_utilisation(
    store: Store, run_ids: Sequence[str] | None = None, bins: int = 20
) -> pd.DataFrame:
    """Return the joint histogram of SM and memory utilisation over all GPUs of done runs.

    The same samples count as for ``statistics``. The columns are ``run_id, sm_bin, mem_bin,
    samples``: bin b of the ``bins`` from 0 to 1 counts shares in [b/bins, (b + 1)/bins); the last
    one includes 1, and the first and the last count shares outside. Pairs of bins without samples
    have no row. Raises ``BadInput`` if a run is not done or there are more than 1000 bins.
    """
    if not 1 <= bins <= 1000:
        raise BadInput(f"bins: given {bins}; allowed: a whole number from 1 to 1000")
    sm, mem = (
        f"cast(greatest(least(floor({name}_util * {bins}), {bins - 1}), 0) as integer)"
        for name in ("sm", "mem")
    )
    query = (
        f"{_SAMPLES} select run_id, {sm} as sm_bin, {mem} as mem_bin, "  # noqa: S608
        "count(*) as samples "
        "from samples where sm_util is not null and mem_util is not null "
        "group by all order by all"
    )
    schema = pa.schema(
        {"run_id": pa.string(), "sm_bin": pa.int32(), "mem_bin": pa.int32(), "samples": pa.int64()}
    )
    return _by_run(store, run_ids, f"joint-{bins}", schema, query)


def _by_run(
    store: Store, run_ids: Sequence[str] | None, name: str, schema: pa.Schema, query: str
) -> pd.DataFrame:
    """Return the result of a query on samples of done runs, from the cache ``name`` as possible."""
    snapshot = store.without_damaged()
    done = set(snapshot.done()).difference(store.damaged)
    if run_ids is not None:
        if unknown := set(run_ids) - {*done, *store.damaged}:
            raise BadInput(f"run {min(unknown)!a} is not a done run of this store")
        done &= set(run_ids)

    def read(some: Sequence[str]) -> tuple[pa.Table, Collection[str]]:
        rows = _query(store, [store.folder(run_id).path for run_id in some], query, schema)
        # A row of nulls says that a run has no samples, so that the cache knows the run.
        empty = set(some).difference(rows["run_id"].to_pylist(), store.damaged)
        return pa.concat_tables([rows, rows_table([{"run_id": n} for n in empty], schema)]), ()

    keys = {run_id: key for run_id, key in snapshot.keys.items() if run_id in done}
    tables = [read_through(store.path, name, schema, keys, read)]
    for folder in snapshot.imports:
        if not done.isdisjoint(folder.run_ids):
            rows = _query(store, [folder.path], query, schema)
            tables.append(rows.filter(pc.is_in(rows["run_id"], pa.array(done, pa.string()))))
    table = by_run(pa.concat_tables(tables))
    frame: pd.DataFrame = table.filter(pc.is_valid(table["samples"])).to_pandas()
    return frame


def _query(store: Store, folders: Sequence[Path], query: str, schema: pa.Schema) -> pa.Table:
    tables = {"epochs": EPOCHS, "telemetry": TELEMETRY}
    while folders := [folder for folder in folders if folder.name not in store.damaged]:
        paths = {name: [folder / f"{name}.parquet" for folder in folders] for name in tables}
        damaged_before = len(store.damaged)
        for name, of_table in tables.items():
            # DuckDB would convert values to the types of the first file where it can.
            check_columns(paths[name], of_table, store.leave_out)
        if len(store.damaged) > damaged_before:
            continue
        files = {name: [_literal(path) for path in paths[name]] for name in tables}
        try:
            with _connection() as database:
                return database.sql(query, params=files).to_arrow_table().cast(schema)
        except (duckdb.Error, UnicodeDecodeError) as error:  # the latter for damaged names
            for name, of_table in tables.items():
                for path in paths[name]:
                    read_all([path], of_table, store.leave_out, validate=True)
            if len(store.damaged) == damaged_before:
                reason = one_line(error)[:300]
                raise BadInput(f"{store.path}: its telemetry cannot be read: {reason}") from None
    return schema.empty_table()


def _connection() -> duckdb.DuckDBPyConnection:
    threads = min(_MOST_THREADS, processes.cores())
    return duckdb.connect(
        config={"memory_limit": _MEMORY, "autoinstall_known_extensions": False, "threads": threads}
    )


def _literal(path: Path) -> str:
    text = os.path.abspath(path)  # noqa: PTH100 - a link stays a link
    pattern = r"[\[*?]"
    if "\\" in text and re.search(pattern, text):
        raise BadInput(
            f"{path}: a path with a backslash and one of [ * ? cannot be read; rename it"
        )
    return re.sub(pattern, r"[\g<0>]", text)
