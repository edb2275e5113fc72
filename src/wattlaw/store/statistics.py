"""GPU utilisation of finished runs: statistics over all samples of training windows.

A sample counts if it is in a training window of its run and host that is neither warm-up nor
interrupted: ``start_ns <= t_ns <= start_ns + duration_s`` on the clock of the host, as for the
energy of a window (``telemetry.energy``). A sample that is in several windows counts once.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common.errors import BadInput, one_line
from wattlaw.store.cache import by_run, read_through
from wattlaw.store.parquet import check_all, connection, literal, read_all, same_types
from wattlaw.store.schema import EPOCHS, TELEMETRY, rows_table
from wattlaw.store.store import Store

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
# Windows that overlap or touch become one, so that no sample is counted twice.
_WINDOWS = """
create temp table windows as
with timed as (
    select run_id, host, start_ns,
           start_ns + cast(round_even(duration_s * 1e9, 0) as bigint) as end_ns
    from read_parquet($files, hive_partitioning = false)
    where phase in ('train', 'steps', 'run') and warmup is not true and interrupted is not true
          and isfinite(duration_s) and start_ns is not null
),
marked as (
    select *, coalesce(start_ns > max(end_ns) over before, true) as is_new
    from timed
    window before as (partition by run_id, host order by start_ns, end_ns
                      rows between unbounded preceding and 1 preceding)
),
numbered as (
    select *, sum(is_new::int) over (partition by run_id, host order by start_ns, end_ns
                                     rows unbounded preceding) as island
    from marked
)
select run_id, host, min(start_ns) as start_ns, max(end_ns) as end_ns
from numbered group by run_id, host, island
"""
# A sample is joined with the windows of its time bucket only, not with all windows of its run. A
# bucket is 2^shift ns, at least the mean window, so that an average window is in at most three.
_SHIFT = "select greatest(coalesce(ceil(log2(avg(end_ns - start_ns) + 1)), 0), 10) from windows"
_BUCKETS = """
create temp table buckets as
select *, unnest(range(start_ns >> {shift}, (end_ns >> {shift}) + 1)) as bucket from windows
"""
_SAMPLES = """
from read_parquet($files, hive_partitioning = false) samples
join buckets on samples.run_id = buckets.run_id and samples.host = buckets.host
    and samples.t_ns >> {shift} = buckets.bucket
    and samples.t_ns between buckets.start_ns and buckets.end_ns
where samples.kind = 'gpu'
"""


_FINITE = ", ".join(
    f"if(isfinite(samples.{name}), samples.{name}, null) as {name}" for name in QUANTITIES
)
_STATISTICS_QUERY = (
    f"with finite as (select samples.run_id, samples.host, samples.device, {_FINITE} "  # noqa: S608
    f"{_SAMPLES}) select {', '.join(f'{sql} as {name}' for name, sql in _COLUMNS.items())} "
    "from finite group by grouping sets ((run_id, host, device), (run_id)) "
    "order by run_id, part desc, host, device"
)
_TEXTS = ("run_id", "part", "host", "device")
_SCHEMA = pa.schema(
    {
        name: pa.string() if name in _TEXTS
        else pa.int64() if name in ("gpus", "samples") or name.endswith("_n")
        else pa.float64()
        for name in _COLUMNS
    }
)  # fmt: skip


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

    Parameters
    ----------
    store
        The store. Queries stream its tables and keep only what they need in memory.

    Returns
    -------
    DataFrame
        The column ``part`` is ``gpu`` in a row of one GPU of a run, and ``run`` in the row over all
        samples of all its GPUs (``host`` and ``device`` are missing). Columns:

        ``run_id, part, host, device, gpus, samples``
            ``gpus`` is the number of GPUs with samples.
        ``<quantity>_n, _mean, _sd, _min, _max``
            Of sm_util and mem_util (shares, 0 to 1), power (W), sm_clock (MHz), temperature (°C);
            a unit ends the name: ``power_mean_w``. ``n`` counts the samples that have the
            quantity; sd is of the population, sqrt(sum (x - mean)^2 / n).
        ``sm_util_cv, mem_util_cv``
            Coefficient of variation sd/mean over all samples of a run, as in the MIT study (Frey et
            al. 2022); missing where the mean is 0.
        ``utilisation_correlation``
            Pearson's correlation of sm_util and mem_util over samples that have both; missing
            where one of them is constant.

    """
    table = _by_run(store, None, "statistics", _SCHEMA, _STATISTICS_QUERY)
    if table.empty:
        return pd.DataFrame(columns=list(_COLUMNS))
    correlation = table["utilisation_correlation"].clip(-1.0, 1.0)
    return table.assign(utilisation_correlation=correlation)


def joint_utilisation(
    store: Store, run_ids: Sequence[str] | None = None, bins: int = 20
) -> pd.DataFrame:
    """Return the joint histogram of SM and memory utilisation over all GPUs of each run.

    Parameters
    ----------
    store
        The store; the same samples count as for ``statistics``.
    run_ids
        Done runs; by default all.
    bins
        Number of equal bins from 0 to 1.

    Returns
    -------
    DataFrame
        ``run_id, sm_bin, mem_bin, samples``: bin b counts shares in [b/bins, (b + 1)/bins); the
        last bin includes 1. Pairs of bins without samples have no row.

    Raises
    ------
    BadInput
        ``bins`` is not a whole number from 1 to 1000, or a run is not done.
    """
    if not 1 <= bins <= 1000:
        raise BadInput(f"bins: given {bins}; allowed: a whole number from 1 to 1000")
    sm, mem = (f"{_bin(column, bins)} as {column[:-5]}_bin" for column in ("sm_util", "mem_util"))
    query = (
        f"select samples.run_id, {sm}, {mem}, count(*) as samples "
        f"{_SAMPLES} and isfinite(sm_util) and isfinite(mem_util) "
        "group by all order by all"
    )
    schema = pa.schema({"run_id": pa.string(), "sm_bin": pa.int32(), "mem_bin": pa.int32(),
                        "samples": pa.int64()})  # fmt: skip
    return _by_run(store, run_ids, f"joint-{bins}", schema, query)


def _bin(column: str, bins: int) -> str:
    """Return the bin of a share as SQL; a share outside 0 to 1 is in the first or last bin."""
    return f"cast(greatest(least(floor({column} * {bins}), {bins - 1}), 0) as integer)"


def _by_run(
    store: Store, run_ids: Sequence[str] | None, name: str, schema: pa.Schema, query: str
) -> pd.DataFrame:
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
    """Return the result of a query on the samples in windows of run folders or imports.

    Damaged ones are left out. ``{shift}`` in the query is replaced by the buckets' shift.
    """
    tables = {"epochs": EPOCHS, "telemetry": TELEMETRY}
    while folders := [folder for folder in folders if folder.name not in store.damaged]:
        paths = {name: [folder / f"{name}.parquet" for folder in folders] for name in tables}
        damaged_before = len(store.damaged)
        with connection() as database:
            try:
                files = {name: [literal(path) for path in paths[name]] for name in tables}
                for name, of_table in tables.items():
                    if not same_types(database, files[name], of_table):
                        check_all(paths[name], of_table, store.leave_out)
                if len(store.damaged) > damaged_before:
                    continue
                database.execute(_WINDOWS, {"files": files["epochs"]})
                ((shift,),) = database.execute(_SHIFT).fetchall()
                database.execute(_BUCKETS.format(shift=int(shift)))
                sql = query.format(shift=int(shift))
                result = database.sql(sql, params={"files": files["telemetry"]}).to_arrow_table()
                return result.cast(schema)
            except (duckdb.Error, UnicodeDecodeError) as error:  # the latter for damaged names
                for name, of_table in tables.items():
                    for path in paths[name]:
                        read_all([path], of_table, store.leave_out, validate=True)
                if len(store.damaged) == damaged_before:
                    reason = one_line(error)[:300]
                    raise BadInput(
                        f"{store.path}: its telemetry cannot be read: {reason}"
                    ) from None
    return schema.empty_table()
