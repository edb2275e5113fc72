"""How the GPUs of finished runs were used: statistics over every sample, by streaming queries.

A sample counts when it lies in a training window of its run and host that is not warm-up, both
ends included, on the host's clock: ``start_ns <= t_ns <= start_ns + duration_s``, as for the
energy of a window (``telemetry.energy``). However many windows it lies in, it counts once.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from wattlaw.errors import BadInput, one_line
from wattlaw.store.parquet import connection, literal, same_types
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.store import Store, check_all

if TYPE_CHECKING:
    import duckdb

#: Columns of telemetry, and how their statistics are called before and after the statistic.
QUANTITIES = {
    "sm_util": ("sm_util", ""),
    "mem_util": ("mem_util", ""),
    "power_w": ("power", "_w"),
    "sm_clock_mhz": ("sm_clock", "_mhz"),
    "temperature_c": ("temperature", "_c"),
}
_KEYS = ("run_id", "host", "device")
_OF = ("mean", "sd", "min", "max")


def _name(column: str, statistic: str) -> str:
    name, unit = QUANTITIES[column]
    return f"{name}_n" if statistic == "n" else f"{name}_{statistic}{unit}"


_COLUMNS = (
    "run_id", "part", "host", "device", "gpus", "samples",
    *(_name(column, one) for column in QUANTITIES for one in ("n", *_OF)),
    "sm_util_cv", "mem_util_cv", "utilisation_correlation",
)  # fmt: skip

# Windows that overlap or touch become one, so that no sample is counted twice.
_WINDOWS = """
create temp table windows as
with timed as (
    select run_id, host, start_ns,
           start_ns + cast(round_even(duration_s * 1e9, 0) as bigint) as end_ns
    from read_parquet($files, hive_partitioning = false)
    where phase = 'train' and warmup is not true and isfinite(duration_s) and start_ns is not null
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
# A sample is met with the windows of its stretch of time only, not with all of its run's. The
# stretches are 2^shift ns, no shorter than the mean window, so windows have three each at most.
_SHIFT = "select greatest(coalesce(ceil(log2(avg(end_ns - start_ns) + 1)), 0), 10) from windows"
_STRETCHES = """
create temp table stretches as
select *, unnest(range(start_ns >> {shift}, (end_ns >> {shift}) + 1)) as stretch from windows
"""
_SAMPLES = """
from read_parquet($files, hive_partitioning = false) samples
join stretches on samples.run_id = stretches.run_id and samples.host = stretches.host
    and samples.t_ns >> {shift} = stretches.stretch
    and samples.t_ns between stretches.start_ns and stretches.end_ns
where samples.kind = 'gpu'
"""


def statistics(store: Store) -> pd.DataFrame:
    """Return how the GPUs of done runs were used while training; a GPU without samples has no row.

    Parameters
    ----------
    store
        Its runs' ``epochs`` and ``telemetry`` are read, not more of them in memory than a query
        needs.

    Returns
    -------
    DataFrame
        Two kinds of rows, told apart by ``part``: ``gpu``, of one GPU of a run, and ``run``, over
        all samples of all its GPUs together (``host`` and ``device`` are missing). Columns:

        ``run_id, part, host, device, gpus, samples``
            ``gpus`` that have samples: 1 in a row of one GPU.
        ``<quantity>_n, _mean, _sd, _min, _max``
            Of sm_util and mem_util (shares, 0 to 1), power (W), sm_clock (MHz), temperature (°C);
            a unit ends the name: ``power_mean_w``. ``n`` counts the samples that know the
            quantity; sd is the population's, sqrt(sum (x - mean)^2 / n).
        ``sm_util_cv, mem_util_cv``
            Coefficient of variation sd/mean, as the MIT study has it over all samples of a run
            (Frey et al. 2022); missing where the mean is 0.
        ``utilisation_correlation``
            Pearson's correlation of sm_util and mem_util over samples that know both; missing
            where one of them does not vary.

    Raises
    ------
    BadInput
        A file of a done run is missing or damaged; it is named.
    """
    with _queries(store, None) as (database, files, shift):
        found = _by_gpu(database, files, shift) if files else pd.DataFrame()
    if found.empty:
        return pd.DataFrame(columns=list(_COLUMNS))
    by_gpu = found.sort_values(list(_KEYS), ignore_index=True).assign(gpus=1, part="gpu")
    table = pd.concat([_finished(_of_runs(by_gpu)), _finished(by_gpu)], ignore_index=True)
    rank = table["part"].map({"run": 0, "gpu": 1})
    table = table.assign(rank=rank).sort_values(["run_id", "rank", "host", "device"])
    return table[list(_COLUMNS)].reset_index(drop=True)


def joint_utilisation(
    store: Store, run_ids: Sequence[str] | None = None, bins: int = 20
) -> pd.DataFrame:
    """Return how many samples have which SM and memory utilisation, over all GPUs of a run.

    Parameters
    ----------
    store
        As for ``statistics``; the same samples count.
    run_ids
        Of done runs; by default all.
    bins
        Equal parts of the utilisation from 0 to 1.

    Returns
    -------
    DataFrame
        ``run_id, sm_bin, mem_bin, samples``: bin b holds the shares from b/bins up to, but
        without, (b + 1)/bins; the last one also 1. Pairs of bins without samples have no row.

    Raises
    ------
    BadInput
        ``bins`` is no whole number from 1 to 1000, a run is not done, or a file is damaged.
    """
    if not 1 <= bins <= 1000:
        raise BadInput(f"bins: given {bins}; allowed: a whole number from 1 to 1000")
    sm, mem = (f"{_bin(column, bins)} as {column[:-5]}_bin" for column in ("sm_util", "mem_util"))
    with _queries(store, run_ids) as (database, files, shift):
        if not files:
            return pd.DataFrame(columns=["run_id", "sm_bin", "mem_bin", "samples"])
        query = (
            f"select samples.run_id, {sm}, {mem}, count(*) as samples "
            f"{_SAMPLES.format(shift=shift)} and isfinite(sm_util) and isfinite(mem_util) "
            "group by all order by all"
        )
        found: pd.DataFrame = database.execute(query, {"files": files}).df()
    return found


@contextlib.contextmanager
def _queries(
    store: Store, run_ids: Sequence[str] | None
) -> Iterator[tuple["duckdb.DuckDBPyConnection", list[str], int]]:
    """Give a database that knows the windows, the telemetry files, and the stretches' shift."""
    import duckdb

    tables = {"epochs": EPOCHS, "telemetry": TELEMETRY}
    paths = {name: _of(run_ids, store.finished(name)) for name in tables}
    with connection() as database:
        try:
            files = {name: [literal(path) for path in paths[name]] for name in tables}
            for name, schema in tables.items():
                if files[name] and not same_types(database, files[name], schema):
                    check_all(paths[name], schema)
            shift = 0
            if files["epochs"]:
                database.execute(_WINDOWS, {"files": files["epochs"]})
                ((shift,),) = database.execute(_SHIFT).fetchall()
                database.execute(_STRETCHES.format(shift=int(shift)))
            yield database, files["telemetry"], int(shift)
        except duckdb.Error as error:
            for name, schema in tables.items():
                check_all(paths[name], schema)
            words = one_line(error)[:300]
            raise BadInput(f"{store.path}: its telemetry cannot be read: {words}") from None


def _of(run_ids: Sequence[str] | None, paths: list[Path]) -> list[Path]:
    if run_ids is None:
        return paths
    known = {path.parent.name: path for path in paths}
    unknown = next((run_id for run_id in run_ids if run_id not in known), None)
    if unknown is not None:
        raise BadInput(f"run {unknown!a} is not a done run of this store")
    return [known[run_id] for run_id in dict.fromkeys(run_ids)]


def _by_gpu(database: "duckdb.DuckDBPyConnection", files: list[str], shift: int) -> pd.DataFrame:
    """Return the moments of each GPU, one row each.

    Samples that know all or nothing, as nearly all do, are counted a quarter quicker.
    """
    import duckdb

    from_samples = _SAMPLES.format(shift=shift)
    keys = ", ".join(f"samples.{name}" for name in _KEYS)

    def query(value: Callable[[str], str], pairs: Sequence[str]) -> pd.DataFrame:
        told = [one for column in QUANTITIES for one in _moments(column, value(column))]
        pair = f"({value('sm_util')}, {value('mem_util')})"
        told += [f"{name}{pair} as both_{name.removeprefix('regr_')}" for name in pairs]
        text = f"select {keys}, count(*) as samples, {', '.join(told)} {from_samples}"
        return database.execute(f"{text} group by {keys}", {"files": files}).df()

    with contextlib.suppress(duckdb.OutOfRangeException):  # of an infinite value
        found = query(str, ("regr_count", "covar_pop"))
        if _is_plain(found):
            n = found["both_count"]
            return found.assign(
                both_avgy=found["sm_util_mean"],
                both_avgx=found["mem_util_mean"],
                both_syy=n * found["sm_util_sd"] ** 2,
                both_sxx=n * found["mem_util_sd"] ** 2,
                both_sxy=n * found["both_covar_pop"],
            )
    names = ("count", "avgx", "avgy", "sxx", "syy", "sxy")
    return query(_finite, [f"regr_{name}" for name in names])


def _is_plain(found: pd.DataFrame) -> bool:
    """Say whether every value was a number, and both utilisations were known together."""
    n = found[["sm_util_n", "mem_util_n"]]
    ends = [
        found.loc[found[_name(column, "n")] > 0, _name(column, one)]
        for column in QUANTITIES
        for one in ("min", "max")
    ]
    together = n.eq(found["both_count"], axis=0).all(axis=None)
    return bool(together) and all(np.isfinite(one.to_numpy(float)).all() for one in ends)


def _finite(column: str) -> str:
    """Return a column as SQL, null where it is not a finite number."""
    return f"case when isfinite({column}) then {column} end"


def _moments(column: str, value: str) -> list[str]:
    functions = {"n": "count", "mean": "avg", "sd": "stddev_pop", "min": "min", "max": "max"}
    return [f"{how}({value}) as {_name(column, one)}" for one, how in functions.items()]


def _bin(column: str, bins: int) -> str:
    """Return the bin of a share as SQL; what is a little outside 0 to 1 is in the outermost."""
    return f"cast(greatest(least(floor({column} * {bins}), {bins - 1}), 0) as integer)"


def _of_runs(by_gpu: pd.DataFrame) -> pd.DataFrame:
    """Return the moments of each run's GPUs together, exactly: of all samples as one set.

    With n, m, s of each GPU, the mean is M = sum n m / sum n, and the variance
    sum n (s^2 + (m - M)^2) / sum n; covariances likewise.
    """
    runs = by_gpu["run_id"]
    by_run = by_gpu.groupby("run_id", sort=True)
    table = pd.DataFrame({"part": "run", "gpus": by_run.size(), "samples": by_run["samples"].sum()})
    for column in QUANTITIES:
        n, mean, sd = (by_gpu[_name(column, one)] for one in ("n", "mean", "sd"))
        table[_name(column, "n")] = n.groupby(runs).sum()
        table[_name(column, "mean")] = middle = _weighted(mean, n, runs)
        square = _weighted(sd**2 + (mean - runs.map(middle)) ** 2, n, runs)
        table[_name(column, "sd")] = np.sqrt(square)
        for one in ("min", "max"):
            table[_name(column, one)] = by_run[_name(column, one)].agg(one)
    n = by_gpu["both_count"]
    table["both_count"] = n.groupby(runs).sum()
    off_mean = {}
    for axis in ("x", "y"):
        mean = by_gpu[f"both_avg{axis}"]
        off_mean[axis] = (mean - runs.map(_weighted(mean, n, runs))).fillna(0.0)
    for one, other in ("xx", "yy", "xy"):
        within = by_gpu[f"both_s{one}{other}"].fillna(0.0)
        between = n * off_mean[one] * off_mean[other]
        table[f"both_s{one}{other}"] = (within + between).groupby(runs).sum()
    return table.reset_index()


def _weighted(values: pd.Series, n: pd.Series, runs: pd.Series) -> pd.Series:
    """Return the mean of each run's GPUs, weighted with their samples; missing without any."""
    total = n.groupby(runs).sum()
    return (values * n).groupby(runs).sum(min_count=1) / total.where(total > 0)


def _finished(table: pd.DataFrame) -> pd.DataFrame:
    """Add what follows from the moments."""
    spread = (table["both_sxx"] * table["both_syy"]) ** 0.5
    varies = (table["sm_util_sd"] > 0) & (table["mem_util_sd"] > 0) & (spread > 0)
    found = {
        f"{name}_cv": table[f"{name}_sd"] / table[f"{name}_mean"].where(table[f"{name}_mean"] > 0)
        for name in ("sm_util", "mem_util")
    }
    correlation = (table["both_sxy"] / spread.where(varies)).clip(-1.0, 1.0)
    return table.assign(**found, utilisation_correlation=correlation)
