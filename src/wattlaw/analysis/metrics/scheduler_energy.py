"""The energy of runs by a scheduler's accounting, compared with the measured one.

They differ by definition: the accounting counts whole nodes from a job's last start to its end, and
wattlaw counts the metered devices of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wattlaw.analysis.metrics.groups import Group, groups
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.analysis.metrics.run_energy import energies, energy_is

#: Ratios are summarised for runs that agree in these columns.
COMPARED_BY = ("same_time", "ours_is", "site_energy_source")
COLUMNS = (
    "run_id", *SETTINGS, "site_energy_j", "site_energy_source", "ours_j", "ours_is", "same_time",
    "covered", "ratio",
)  # fmt: skip
#: Limits of agreement need this number of runs; fewer runs have a range only.
MIN_RUNS = 5
#: Windows without an energy are ignored up to this share of the time of all windows.
_MAX_UNKNOWN_SHARE = 0.01
#: The accounting has times in whole seconds.
_ROUNDING_NS = 1_000_000_000
_ACCOUNTING_TIMES = ("site_energy_start_at", "site_energy_end_at")


@dataclass(frozen=True)
class Agreement:
    """How far our energies are from the accounting's; ratios are ours divided by theirs.

    ``limits`` are Bland and Altman's limits of agreement (1986, Lancet 327, 307-310) of the ratio,
    on the log scale: exp(m -+ 1.96 s), with mean m and standard deviation s of ln ratio.
    """

    runs: int
    median: float
    low: float  # the least ratio
    high: float
    limits: tuple[float, float] | None  # of at least MIN_RUNS runs

    @classmethod
    def of(cls, ratios: Sequence[float] | pd.Series) -> "Agreement":
        """Return number, median, least and greatest of ratios, and their limits of agreement."""
        values = np.asarray(ratios, dtype=float)
        limits = None
        if len(values) >= MIN_RUNS and (values > 0).all():
            logs = np.log(values)
            middle, half = logs.mean(), 1.96 * logs.std(ddof=1)
            limits = (float(np.exp(middle - half)), float(np.exp(middle + half)))
        ends = float(np.median(values)), float(values.min()), float(values.max())
        return cls(len(values), *ends, limits)


def scheduler_energy(
    table: pd.DataFrame,
    runs: pd.DataFrame,
    epochs: pd.DataFrame,
    accounting_windows: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return the runs that have an energy by the scheduler's accounting, with ours.

    ``table`` is of ``metrics.run_metrics``, and ``accounting_windows`` of
    ``report.stores.read_accounting_windows``, where telemetry was read.

    Returns
    -------
    DataFrame
        ``COLUMNS``. ``ours_j`` is the metered energy of all hosts, missing where a part of it is
        not known; ``ours_is`` says what it counts. ``same_time``: ours is of the accounting's own
        time, as far as there is telemetry (``covered``: its share of that time, the mean of the
        nodes); else it is of the windows in that time, warm-up and evaluation included. ``ratio``
        is ``ours_j / site_energy_j``.
    """
    known = runs[runs["site_energy_j"].notna() & runs["run_id"].isin(table["run_id"])]
    if known.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    accounting = known.set_index("run_id")[
        ["site_energy_j", "site_energy_source", *_ACCOUNTING_TIMES, "node_names"]
    ]
    compared = table.loc[table["run_id"].isin(accounting.index), ["run_id", *SETTINGS]]
    compared = compared.join(accounting, on="run_id").set_index("run_id")
    of_windows = _energy(_windows_in_accounting_time(epochs, compared))
    of_accounting, covered = of_windows.iloc[:0], pd.Series(dtype=float)
    if accounting_windows is not None:
        run_windows = accounting_windows[accounting_windows["run_id"].isin(compared.index)]
        of_accounting, covered = _energy(run_windows), _covered(run_windows, compared)
    same = compared.index.isin(of_accounting.index[of_accounting["ours_j"].notna()])
    ours = pd.concat(
        [of_accounting.loc[compared.index[same]], of_windows.reindex(compared.index[~same])]
    )
    compared = compared.join(ours).assign(
        same_time=same, covered=covered.reindex(compared.index).where(same)
    )
    theirs = compared["site_energy_j"].where(compared["site_energy_j"] > 0)
    compared = compared.assign(ratio=compared["ours_j"].astype(float) / theirs)
    return compared.reset_index()[list(COLUMNS)]


def _windows_in_accounting_time(epochs: pd.DataFrame, compared: pd.DataFrame) -> pd.DataFrame:
    run_windows = epochs[epochs["run_id"].isin(compared.index)]
    if run_windows.empty:
        return run_windows
    start, end = (_ns(run_windows["run_id"].map(compared[name])) for name in _ACCOUNTING_TIMES)
    started = run_windows["start_ns"].astype("Int64")
    outside = (started < start - _ROUNDING_NS) | (started > end + _ROUNDING_NS)
    return run_windows[~outside.fillna(value=False).astype(bool)]


def _ns(moments: pd.Series) -> pd.Series:
    utc = pd.to_datetime(moments, utc=True).astype("datetime64[ns, UTC]")
    return utc.astype("int64").astype("Int64").mask(utc.isna())


def _energy(windows: pd.DataFrame) -> pd.DataFrame:
    """Return ``ours_j`` and ``ours_is`` of each run: the energy of all its windows together.

    The accounting's is that of nodes, so that ours is, too, wherever a meter has read the node.
    """
    of_node = windows["node_energy_verdict"].isin(["ok", "suspect"])
    windows = windows.assign(energy_scope=windows["energy_scope"].mask(of_node, "node"))
    unknown = ~of_node & windows["energy_verdict"].isin(["partial", "implausible", "unavailable"])
    times_s = windows.assign(lost_s=windows["duration_s"].where(unknown, 0.0)).groupby("run_id")
    time_s, lost_s = (times_s[name].transform("sum") for name in ("duration_s", "lost_s"))
    usable = windows[~(unknown & (lost_s <= _MAX_UNKNOWN_SHARE * time_s))]
    by_run = energies(usable.assign(epoch=0))
    kinds = [energy_is(row) for row in by_run.to_dict("records")]
    is_complete = by_run["block_energy_j"].notna()
    ours_is = pd.Series(kinds, by_run.index, dtype=object).where(is_complete, None)
    return pd.DataFrame({"ours_j": by_run["block_energy_j"], "ours_is": ours_is})


def _covered(accounting_windows: pd.DataFrame, compared: pd.DataFrame) -> pd.Series:
    """Return the share of the accounting's time with telemetry, the mean over its nodes."""
    by_run = accounting_windows.groupby("run_id")
    start, end = (pd.to_datetime(compared[name], utc=True) for name in _ACCOUNTING_TIMES)
    accounted_s = (end - start).dt.total_seconds()
    named = compared["node_names"].map(lambda names: 0 if names is None else len(names))
    sampled_nodes = by_run.size()
    nodes = sampled_nodes.where(sampled_nodes > named.reindex(sampled_nodes.index), named)
    return by_run["duration_s"].sum() / (nodes * accounted_s)


@dataclass(frozen=True)
class Sites:
    """Facts of clusters, over all runs of all statuses but for the energies."""

    energies: pd.DataFrame  # analysis.scheduler_energy.scheduler_energy
    agreements: tuple[tuple[Group, Agreement], ...]  # by COMPARED_BY
    interrupted_runs: int
    interruptions: int


def summarise_sites(
    table: pd.DataFrame,
    runs: pd.DataFrame,
    epochs: pd.DataFrame,
    accounting_windows: pd.DataFrame | None,
) -> Sites:
    energies = scheduler_energy(table, runs, epochs, accounting_windows)
    count = runs["interruptions"].fillna(0)
    return Sites(
        energies=energies,
        agreements=tuple(
            (group, Agreement.of(rows["ratio"]))
            for group, rows in groups(energies[energies["ratio"].notna()], COMPARED_BY)
        ),
        interrupted_runs=int((count > 0).sum()),
        interruptions=int(count.sum()),
    )
