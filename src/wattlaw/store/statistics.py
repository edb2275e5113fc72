"""GPU utilisation of finished runs: statistics over all samples of training windows.

``store.samples`` defines which samples count.
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

#: Columns of telemetry, and the parts of a statistic's name before and after the statistic.
QUANTITIES = {
    "sm_util": ("sm_util", ""),
    "mem_util": ("mem_util", ""),
    "power_w": ("power", "_w"),
    "sm_clock_mhz": ("sm_clock", "_mhz"),
    "temperature_c": ("temperature", "_c"),
}
_KEYS = ("run_id", "host", "device")
_STATISTICS = ("mean", "sd", "min", "max")


def _name(column: str, statistic: str) -> str:
    name, unit = QUANTITIES[column]
    return f"{name}_n" if statistic == "n" else f"{name}_{statistic}{unit}"


_COLUMNS = (
    "run_id", "part", "host", "device", "gpus", "samples",
    *(_name(column, statistic) for column in QUANTITIES for statistic in ("n", *_STATISTICS)),
    "sm_util_cv", "mem_util_cv", "utilisation_correlation",
)  # fmt: skip


def read_telemetry(
    paths: Sequence[Path], runs: pd.DataFrame
) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Return the GPU statistics of several stores; None, None without GPU samples.

    Parameters
    ----------
    paths
        The stores.
    runs
        Their runs (``store.tables.read_stores``).

    Returns
    -------
    tuple
        ``statistics`` of all stores, and ``joint_utilisation`` of each workload's runs with the
        fewest and with the most GPUs.

    Raises
    ------
    BadInput
        A path is not a store, or a file of a done run is missing or damaged.
    """
    stores = [Store.existing(path) for path in paths]
    table = pd.concat([statistics(store) for store in stores], ignore_index=True)
    if table.empty:
        return None, None
    sampled = runs[(runs["status"] == "done") & runs["run_id"].isin(table["run_id"])]
    gpus, by_workload = sampled["gpus"], sampled.groupby("workload")["gpus"]
    is_extreme = (gpus == by_workload.transform("min")) | (gpus == by_workload.transform("max"))
    extremes = set(sampled.loc[is_extreme, "run_id"])
    joint = []
    for store in stores:
        run_ids = sorted(extremes & {folder.run_id for folder in store.folders()})
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

    Raises
    ------
    BadInput
        A file of a done run is missing or damaged. The error names it.
    """
    with queries(store, None) as (database, files, shift):
        by_gpu = _by_gpu(database, files, shift) if files else pd.DataFrame()
    if by_gpu.empty:
        return pd.DataFrame(columns=list(_COLUMNS))
    by_gpu = by_gpu.sort_values(list(_KEYS), ignore_index=True).assign(gpus=1, part="gpu")
    table = pd.concat([_with_ratios(_by_run(by_gpu)), _with_ratios(by_gpu)], ignore_index=True)
    rank = table["part"].map({"run": 0, "gpu": 1})
    table = table.assign(rank=rank).sort_values(["run_id", "rank", "host", "device"])
    return table[list(_COLUMNS)].reset_index(drop=True)


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
        ``bins`` is not a whole number from 1 to 1000, a run is not done, or a file is damaged.
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
        histogram: pd.DataFrame = database.execute(query, {"files": files}).df()
    return histogram


def _by_gpu(database: "duckdb.DuckDBPyConnection", files: list[str], shift: int) -> pd.DataFrame:
    """Return the moments of each GPU, one row each.

    The first query is a quarter faster. It is right where each sample has either all quantities or
    none, and all are finite; nearly all stores are so.
    """
    import duckdb

    from_samples = SAMPLES.format(shift=shift)
    keys = ", ".join(f"samples.{name}" for name in _KEYS)

    def query(value: Callable[[str], str], pairs: Sequence[str]) -> pd.DataFrame:
        columns = [sql for column in QUANTITIES for sql in _moments(column, value(column))]
        pair = f"({value('sm_util')}, {value('mem_util')})"
        columns += [f"{name}{pair} as both_{name.removeprefix('regr_')}" for name in pairs]
        text = f"select {keys}, count(*) as samples, {', '.join(columns)} {from_samples}"
        return database.execute(f"{text} group by {keys}", {"files": files}).df()

    with contextlib.suppress(duckdb.OutOfRangeException):  # of an infinite value
        moments = query(str, ("regr_count", "covar_pop"))
        if _are_complete(moments):
            n = moments["both_count"]
            return moments.assign(
                both_avgy=moments["sm_util_mean"],
                both_avgx=moments["mem_util_mean"],
                both_syy=n * moments["sm_util_sd"] ** 2,
                both_sxx=n * moments["mem_util_sd"] ** 2,
                both_sxy=n * moments["both_covar_pop"],
            )
    names = ("count", "avgx", "avgy", "sxx", "syy", "sxy")
    return query(_finite, [f"regr_{name}" for name in names])


def _are_complete(moments: pd.DataFrame) -> bool:
    """Say whether all values were finite, and each sample had both utilisations or neither."""
    n = moments[["sm_util_n", "mem_util_n"]]
    extremes = [
        moments.loc[moments[_name(column, "n")] > 0, _name(column, statistic)]
        for column in QUANTITIES
        for statistic in ("min", "max")
    ]
    are_paired = n.eq(moments["both_count"], axis=0).all(axis=None)
    return bool(are_paired) and all(np.isfinite(e.to_numpy(float)).all() for e in extremes)


def _finite(column: str) -> str:
    """Return a column as SQL, null where it is not a finite number."""
    return f"case when isfinite({column}) then {column} end"


def _moments(column: str, value: str) -> list[str]:
    functions = {"n": "count", "mean": "avg", "sd": "stddev_pop", "min": "min", "max": "max"}
    return [f"{sql}({value}) as {_name(column, name)}" for name, sql in functions.items()]


def _bin(column: str, bins: int) -> str:
    """Return the bin of a share as SQL; a share outside 0 to 1 is in the first or last bin."""
    return f"cast(greatest(least(floor({column} * {bins}), {bins - 1}), 0) as integer)"


def _by_run(by_gpu: pd.DataFrame) -> pd.DataFrame:
    """Return the moments over all samples of all GPUs of each run, exactly.

    With n, m, s of each GPU, the mean is M = sum n m / sum n, and the variance
    sum n (s^2 + (m - M)^2) / sum n; covariances likewise.
    """
    runs = by_gpu["run_id"]
    by_run = by_gpu.groupby("run_id", sort=True)
    table = pd.DataFrame({"part": "run", "gpus": by_run.size(), "samples": by_run["samples"].sum()})
    for column in QUANTITIES:
        n, mean, sd = (by_gpu[_name(column, name)] for name in ("n", "mean", "sd"))
        table[_name(column, "n")] = n.groupby(runs).sum()
        table[_name(column, "mean")] = middle = _weighted(mean, n, runs)
        square = _weighted(sd**2 + (mean - runs.map(middle)) ** 2, n, runs)
        table[_name(column, "sd")] = np.sqrt(square)
        for name in ("min", "max"):
            table[_name(column, name)] = by_run[_name(column, name)].agg(name)
    n = by_gpu["both_count"]
    table["both_count"] = n.groupby(runs).sum()
    off_mean = {}
    for axis in ("x", "y"):
        mean = by_gpu[f"both_avg{axis}"]
        off_mean[axis] = (mean - runs.map(_weighted(mean, n, runs))).fillna(0.0)
    for a, b in ("xx", "yy", "xy"):
        within = by_gpu[f"both_s{a}{b}"].fillna(0.0)
        between = n * off_mean[a] * off_mean[b]
        table[f"both_s{a}{b}"] = (within + between).groupby(runs).sum()
    return table.reset_index()


def _weighted(values: pd.Series, n: pd.Series, runs: pd.Series) -> pd.Series:
    """Return the mean over each run's GPUs, weighted by samples; missing without samples."""
    total = n.groupby(runs).sum()
    return (values * n).groupby(runs).sum(min_count=1) / total.where(total > 0)


def _with_ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Add the coefficients of variation and the correlation."""
    spread = (table["both_sxx"] * table["both_syy"]) ** 0.5
    varies = (table["sm_util_sd"] > 0) & (table["mem_util_sd"] > 0) & (spread > 0)
    variation = {
        f"{name}_cv": table[f"{name}_sd"] / table[f"{name}_mean"].where(table[f"{name}_mean"] > 0)
        for name in ("sm_util", "mem_util")
    }
    correlation = (table["both_sxy"] / spread.where(varies)).clip(-1.0, 1.0)
    return table.assign(**variation, utilisation_correlation=correlation)
