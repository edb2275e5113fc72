"""How the GPUs of finished runs were used: statistics over every sample of training windows.

``store.samples`` says which samples count.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from wattlaw.errors import BadInput
from wattlaw.store.samples import SAMPLES, queries
from wattlaw.store.store import Store

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


def read_telemetry(
    paths: Sequence[Path], runs: pd.DataFrame
) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Return how the GPUs of several stores were used; None, None without samples of GPUs.

    Parameters
    ----------
    paths
        The stores.
    runs
        Their runs (``store.tables.read_stores``).

    Returns
    -------
    tuple
        ``statistics`` of all stores, and ``joint_utilisation`` of those runs of each workload that
        have the least and the most GPUs.

    Raises
    ------
    BadInput
        A path is no store, or a file of a done run is missing or damaged.
    """
    stores = [Store.existing(path) for path in paths]
    used = pd.concat([statistics(store) for store in stores], ignore_index=True)
    if used.empty:
        return None, None
    known = runs[(runs["status"] == "done") & runs["run_id"].isin(used["run_id"])]
    by = known.groupby("workload")["gpus"]
    ends = known[(known["gpus"] == by.transform("min")) | (known["gpus"] == by.transform("max"))]
    wanted = set(ends["run_id"])
    parts = []
    for store in stores:
        own = sorted(wanted & {folder.run_id for folder in store.folders()})
        parts += [joint_utilisation(store, own)] if own else []
    return used, pd.concat(parts, ignore_index=True)


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
    with queries(store, None) as (database, files, shift):
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
    with queries(store, run_ids) as (database, files, shift):
        if not files:
            return pd.DataFrame(columns=["run_id", "sm_bin", "mem_bin", "samples"])
        query = (
            f"select samples.run_id, {sm}, {mem}, count(*) as samples "
            f"{SAMPLES.format(shift=shift)} and isfinite(sm_util) and isfinite(mem_util) "
            "group by all order by all"
        )
        found: pd.DataFrame = database.execute(query, {"files": files}).df()
    return found


def _by_gpu(database: "duckdb.DuckDBPyConnection", files: list[str], shift: int) -> pd.DataFrame:
    """Return the moments of each GPU, one row each.

    Samples that know all or nothing, as nearly all do, are counted a quarter quicker.
    """
    import duckdb

    from_samples = SAMPLES.format(shift=shift)
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
