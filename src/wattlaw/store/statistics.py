"""GPU utilisation of finished runs: statistics over all samples of training windows.

A sample counts if it is in a training window of its run and host that is neither warm-up nor
interrupted: ``start_ns <= t_ns <= start_ns + duration_s`` on the clock of the host, as for the
energy of a window (``telemetry.energy``). A sample that is in several windows counts once.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common.errors import BadInput
from wattlaw.store.cache import by_run, read_through
from wattlaw.store.parquet import read_all
from wattlaw.store.schema import EPOCHS, TELEMETRY, rows_table
from wattlaw.store.store import Store
from wattlaw.study.sources import TRAINING

#: Columns of telemetry, and the parts of a statistic's name before and after the statistic. The
#: first two are those of the joint utilisation.
QUANTITIES = {
    "sm_util": ("sm_util", ""),
    "mem_util": ("mem_util", ""),
    "power_w": ("power", "_w"),
    "sm_clock_mhz": ("sm_clock", "_mhz"),
    "temperature_c": ("temperature", "_c"),
}
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("run_id", "part", "host", "device")),
        *((name, pa.int64()) for name in ("gpus", "samples")),
        *(
            (f"{name}_{what}{unit}", pa.float64()) if what != "n" else (f"{name}_n", pa.int64())
            for name, unit in QUANTITIES.values()
            for what in ("n", "mean", "sd", "min", "max")
        ),
        *((name, pa.float64()) for name in ("sm_util_cv", "mem_util_cv")),
        ("utilisation_correlation", pa.float64()),
    ]
)
#: The deviation of a constant is rounding, not always 0.
_CONSTANT = 1e-9
_WINDOWS = ("run_id", "host", "phase", "warmup", "interrupted", "start_ns", "duration_s")
_SAMPLES = ("run_id", "host", "device", "kind", "t_ns", *QUANTITIES)
Floats = npt.NDArray[np.float64]
#: The samples of a run that count, by host and device: a row per sample, columns as ``QUANTITIES``.
Gpus = dict[tuple[str, str], Floats]
#: Returns the rows of a run.
Describe = Callable[[str, Gpus], list[dict[str, Any]]]


def read_telemetry(
    stores: Sequence[Store], runs: pd.DataFrame
) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Return the ``statistics`` of done runs, and the ``joint_utilisation`` of those with the
    fewest and the most GPUs of each workload; None, None without GPU samples."""
    table = pd.concat([statistics(store) for store in stores], ignore_index=True)
    table = table[table["run_id"].isin(runs.loc[runs["status"] == "done", "run_id"])]
    if table.empty:
        return None, None
    sampled = runs[runs["run_id"].isin(table["run_id"])]
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
    return _by_run(store, None, "statistics", _SCHEMA, _statistics_of_run)


def _statistics_of_run(run_id: str, gpus: Gpus) -> list[dict[str, Any]]:
    samples = np.concatenate(list(gpus.values()))
    rows = [{"part": "run", "gpus": len(gpus), **_describe(samples)}]
    for (host, device), own in sorted(gpus.items()):
        rows.append({"part": "gpu", "host": host, "device": device, "gpus": 1, **_describe(own)})
    return [{"run_id": run_id, **row} for row in rows]


def _describe(samples: Floats) -> dict[str, Any]:
    row: dict[str, Any] = {"samples": len(samples)}
    for column, (name, unit) in zip(samples.T, QUANTITIES.values(), strict=True):
        values = column[np.isfinite(column)]
        row[f"{name}_n"] = len(values)
        if len(values):
            statistics = {"mean": values.mean(), "sd": values.std()}
            statistics |= {"min": values.min(), "max": values.max()}
            row |= {f"{name}_{what}{unit}": value for what, value in statistics.items()}
    for name in ("sm_util", "mem_util"):
        if row[f"{name}_n"] and row[f"{name}_mean"] > 0:
            row[f"{name}_cv"] = row[f"{name}_sd"] / row[f"{name}_mean"]
    pairs = _utilisation_pairs(samples)
    if len(pairs) and min(pairs.std(axis=0)) > _CONSTANT:
        correlations = np.asarray(np.corrcoef(pairs.T))
        row["utilisation_correlation"] = correlations[0, 1].clip(-1, 1)
    return row


def _utilisation_pairs(samples: Floats) -> Floats:
    """Return sm_util and mem_util of the samples that have both."""
    pairs = samples[:, :2]
    return pairs[np.isfinite(pairs).all(axis=1)]


def joint_utilisation(
    store: Store, run_ids: Sequence[str] | None = None, bins: int = 20
) -> pd.DataFrame:
    """Return the joint histogram of SM and memory utilisation over all GPUs of done runs.

    The same samples count as for ``statistics``. The columns are ``run_id, sm_bin, mem_bin,
    samples``: bin b of the ``bins`` from 0 to 1 counts shares in [b/bins, (b + 1)/bins); the last
    one includes 1, and the first and the last count shares outside. Pairs of bins without samples
    have no row. Raises ``BadInput`` if a run is not done.
    """

    def count(run_id: str, gpus: Gpus) -> list[dict[str, Any]]:
        shares = _utilisation_pairs(np.concatenate(list(gpus.values())))
        places = np.floor(shares * bins).clip(0, bins - 1).astype(int)
        pairs, counts = np.unique(places, axis=0, return_counts=True)
        return [
            {"run_id": run_id, "sm_bin": sm, "mem_bin": mem, "samples": number}
            for (sm, mem), number in zip(pairs, counts, strict=True)
        ]

    schema = pa.schema(
        {"run_id": pa.string(), "sm_bin": pa.int32(), "mem_bin": pa.int32(), "samples": pa.int64()}
    )
    return _by_run(store, run_ids, f"joint-{bins}", schema, count)


def _by_run(
    store: Store, run_ids: Sequence[str] | None, name: str, schema: pa.Schema, describe: Describe
) -> pd.DataFrame:
    """Return the rows of done runs, from the cache ``name`` as possible."""
    snapshot = store.without_damaged()
    done = set(snapshot.done()).difference(store.damaged)
    if run_ids is not None:
        if unknown := set(run_ids) - {*done, *store.damaged}:
            raise BadInput(f"run {min(unknown)!a} is not a done run of this store")
        done &= set(run_ids)

    def rows_of(folder: Path) -> list[dict[str, Any]]:
        columns = (("epochs", EPOCHS, _WINDOWS), ("telemetry", TELEMETRY, _SAMPLES))
        tables = [
            read_all(
                [folder / f"{table}.parquet"],
                pa.schema([known.field(name) for name in names]),
                store.leave_out,
            )
            for table, known, names in columns
        ]
        if folder.name in store.damaged:
            return []
        return [row for run in _training_samples(*tables).items() for row in describe(*run)]

    def read(some: Sequence[str]) -> tuple[pa.Table, Collection[str]]:
        rows = [row for run_id in some for row in rows_of(store.folder(run_id).path)]
        # A row of nulls says that a run has no samples, so that the cache knows the run.
        empty = set(some).difference((row["run_id"] for row in rows), store.damaged)
        return rows_table([*rows, *({"run_id": run_id} for run_id in empty)], schema), ()

    keys = {run_id: key for run_id, key in snapshot.keys.items() if run_id in done}
    tables = [read_through(store.path, name, schema, keys, read)]
    for folder in snapshot.imports:
        if not done.isdisjoint(folder.run_ids):
            rows = [row for row in rows_of(folder.path) if row["run_id"] in done]
            tables.append(rows_table(rows, schema))
    table = by_run(pa.concat_tables(tables))
    frame: pd.DataFrame = table.filter(pc.is_valid(table["samples"])).to_pandas()
    return frame


def _training_samples(epochs: pa.Table, telemetry: pa.Table) -> dict[str, Gpus]:
    """Return the samples that count, by run."""
    is_counted = pc.field("phase").isin([*TRAINING]) & pc.is_finite(pc.field("duration_s"))
    for name in ("warmup", "interrupted"):
        is_counted &= pc.field(name).is_null() | ~pc.field(name)
    windows = defaultdict[tuple[str, str], list[tuple[int, int]]](list)
    for row in epochs.filter(is_counted & pc.field("start_ns").is_valid()).to_pylist():
        end_ns = row["start_ns"] + round(row["duration_s"] * 1e9)
        windows[row["run_id"], row["host"]].append((row["start_ns"], end_ns))
    names = ("run_id", "host", "device")
    is_known = pc.field("t_ns").is_valid()
    for name in names:
        is_known &= pc.field(name).is_valid()
    samples = telemetry.filter((pc.field("kind") == "gpu") & is_known)
    runs = defaultdict[str, Gpus](dict)
    for (run_id, host, device), own in samples.to_pandas().groupby([*names]):
        if spans := windows.get((run_id, host)):
            starts_ns, ends_ns = np.array(sorted(spans), dtype=np.int64).T
            # Of the windows that have begun, the one that ends last: windows may overlap.
            t_ns = own["t_ns"].to_numpy()
            place = np.searchsorted(starts_ns, t_ns, side="right") - 1
            is_in = (place >= 0) & (t_ns <= np.maximum.accumulate(ends_ns)[place])
            if is_in.any():
                runs[run_id][host, device] = own.loc[is_in, [*QUANTITIES]].to_numpy(float)
    return runs
