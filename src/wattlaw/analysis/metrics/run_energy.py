"""The energy of runs from their windows: what is summed, from which source, with which verdict."""

from collections.abc import Mapping
from functools import cache
from itertools import compress
from typing import Any

import pandas as pd

from wattlaw.common.scopes import KINDS, OUTERMOST, scope_of_windows

_VERDICTS = ("ok", "suspect", "partial", "implausible", "unavailable")  # from best to worst
_ENERGY_COLUMNS = [f"{kind}_energy_j" for kind in KINDS]


def energies(windows: pd.DataFrame, energy_scope: str = OUTERMOST) -> pd.DataFrame:
    """Return the mean energy of an epoch's windows; missing when any window lacks a part.

    ``energy_scope`` is ``all`` for the outermost scope that was measured, or the kinds that count,
    such as ``gpu+cpu+dram``; where none of these was measured, the energy is missing.
    """
    by_run = windows.groupby("run_id", sort=True)
    counted = by_run[_ENERGY_COLUMNS].count().set_axis(list(KINDS), axis=1)
    sizes = by_run.size()
    complete = counted.eq(sizes, axis=0)
    if energy_scope == OUTERMOST:
        is_summed = _outermost(windows, counted > 0, complete)
    else:
        is_summed = (counted > 0) & [kind in energy_scope.split("+") for kind in KINDS]
    is_measured = is_summed.any(axis=1)
    is_complete = (complete | ~is_summed).all(axis=1) & is_measured
    per_epoch = windows.groupby(["run_id", "epoch"])[_ENERGY_COLUMNS].sum()
    mean_j = per_epoch.groupby(level="run_id").mean().set_axis(list(KINDS), axis=1)
    energy_j = mean_j.where(is_summed).sum(axis=1)
    partial, suspect = _VERDICTS.index("partial"), _VERDICTS.index("suspect")
    of_devices, of_node = (
        windows[column].fillna("unavailable").map(_VERDICTS.index).groupby(windows["run_id"]).max()
        for column in ("energy_verdict", "node_energy_verdict")
    )
    codes = of_devices.where(~is_summed["node"], of_node)
    # Training uses energy: a sum that is not above 0 means that the meter did not count.
    usable = is_complete & (codes < partial) & (energy_j > 0)
    scope = pd.Series(
        ["+".join(compress(KINDS, row)) for row in is_summed.to_numpy()],
        is_summed.index,
        dtype=object,
    )
    is_node = windows["run_id"].map(is_summed["node"]).astype(bool)
    sources = windows["energy_source"].where(~is_node, windows["node_energy_source"])
    by_run_sources = sources.groupby(windows["run_id"])
    mixed = by_run_sources.nunique(dropna=False) > 1
    worst = codes.where(~mixed, codes.clip(lower=suspect))
    if energy_scope != OUTERMOST:  # the verdict is of what was measured instead
        worst = worst.where(is_measured, _VERDICTS.index("unavailable"))
    gpu = (of_devices < partial) & complete["gpu"] & (mean_j["gpu"] > 0)
    node = (of_node < partial) & complete["node"] & (mean_j["node"] > 0)
    return pd.DataFrame(
        {
            "block_energy_j": energy_j.where(usable),
            "block_gpu_energy_j": mean_j["gpu"].where(gpu),
            "block_node_energy_j": mean_j["node"].where(node),
            "energy_scope": scope.where(usable, None),
            "energy_source": by_run_sources.first().where(~mixed, "mixed"),
            "energy_verdict": worst.map(lambda code: _VERDICTS[code]),
        }
    )


def _outermost(
    windows: pd.DataFrame, measured: pd.DataFrame, complete: pd.DataFrame
) -> pd.DataFrame:
    scopes: dict[Any, set[str | None]] = {run: set() for run in measured.index}
    of_windows = windows[["run_id", "energy_scope"]].drop_duplicates()
    for run, scope in of_windows.itertuples(index=False):
        scopes[run].add(scope if isinstance(scope, str) else None)

    @cache
    def is_summed(scopes: frozenset[str | None], *flags: tuple[bool, ...]) -> list[bool]:
        measured_kinds, complete_kinds = ([*compress(KINDS, flag)] for flag in flags)
        summed = scope_of_windows(scopes, measured_kinds, complete_kinds)
        return [kind in summed for kind in KINDS]

    flags = (map(tuple, frame.to_numpy()) for frame in (measured, complete))
    rows = [is_summed(*row) for row in zip(map(frozenset, scopes.values()), *flags, strict=True)]
    return pd.DataFrame(rows, measured.index, columns=list(KINDS))


def energy_is(row: Mapping[Any, Any]) -> str | None:
    if isinstance(row["energy_scope"], str):
        doubt = ", suspect" if row["energy_verdict"] == "suspect" else ""
        return f"{row['energy_scope']}, {row['energy_source']}{doubt}"
    left_out = row["energy_verdict"] in ("partial", "implausible")
    return f"{row['energy_verdict']}, left out" if left_out else None
