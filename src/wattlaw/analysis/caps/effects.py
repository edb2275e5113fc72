"""Speed and energy under a limit, against no limit at the same GPU count and batch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import Limit, at_limit, distinct_limits, with_several_limits
from wattlaw.analysis.groups import Group, groups
from wattlaw.analysis.metrics import SETTINGS
from wattlaw.analysis.speedup import ratios
from wattlaw.analysis.statistics import Floats
from wattlaw.errors import BadInput
from wattlaw.formatting import limit_label

TIME, ENERGY = "time_s", "energy_j"
_OF_SERIES = ("family", "rule", "batch")
_SUFFIXES = ("", "_low", "_high")
_RATIOS = [f"{name}_ratio{end}" for name in ("time", "speed", "energy") for end in _SUFFIXES]


def limit_effects(table: pd.DataFrame, limit: Limit = "power_limit_w") -> pd.DataFrame:
    """Return time, speed and energy of each limit as ratios to the run without it.

    ``time_ratio = T(limit) / T(reference)`` of geometric means over repeats, ``speed_ratio`` its
    inverse, ``energy_ratio = E(limit) / E(reference)`` of the energy per epoch. The reference is
    the same setting without the limit or, where none was run so, with the highest. 95 % intervals
    (``_low``, ``_high``) are those of ``speedup.ratios``, pooled over the limits of the setting.

    Parameters
    ----------
    table
        Rows of ``metrics.run_metrics`` or of ``series.scaling_series``, whose ``family``, ``rule``
        and ``batch`` are then kept. A column of settings that is missing is taken not to differ.
    limit
        The column of the limit. All else stays the same in a comparison, the other limit included.

    Returns
    -------
    DataFrame
        One row per setting and limit, settings of a single limit left out: the settings, ``limit``
        and ``reference`` (missing: none), the ratios, ``n``, ``n_reference``, and ``energy_is``.
        Energies that count different things have no ratio, and ``energy_is`` names all of them.

    Raises
    ------
    BadInput
        A column that is needed is missing, or a time or energy is not above 0.
    """
    if missing := {limit, TIME} - {*table.columns}:
        raise BadInput(f"limit_effects: no column {', '.join(sorted(missing))}")
    names = [name for name in (*_OF_SERIES, *SETTINGS) if name in table.columns and name != limit]
    several = with_several_limits(table, names, limit)
    measured = [name for name in (limit, TIME, ENERGY, "energy_is") if name in table.columns]
    rows = [
        row
        for group, runs in groups(several, names)
        for row in _of_setting(group, runs[measured], limit)
    ]
    columns = [*names, "limit", "reference", *_RATIOS, "n", "n_reference", "energy_is"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype(dict.fromkeys(["limit", "reference", *_RATIOS], float))


def _of_setting(group: Group, runs: pd.DataFrame, limit: Limit) -> Iterator[dict[str, Any]]:
    limits = distinct_limits(runs[limit])
    at = [at_limit(runs, limit, value) for value in limits]
    times = ratios(dict(enumerate(_logs(rows, TIME, limit) for rows in at)), 0)
    energy_kinds = [_energy_kinds(rows) for rows in at]
    logs = [_logs(rows, ENERGY, limit) for rows in at] if ENERGY in runs else []
    for i, (value, rows) in enumerate(zip(limits, at, strict=True)):
        kinds = sorted({*energy_kinds[0], *energy_kinds[i]})
        row: dict[str, Any] = group | {
            "limit": value, "reference": limits[0], "n": len(rows), "n_reference": len(at[0]),
            "energy_is": "; ".join(kinds) or None,
        }  # fmt: skip
        if i in times:
            row |= _ratio_columns("time", times[i])
            ratio, low, high = times[i]
            row |= _ratio_columns("speed", (1 / ratio, 1 / high, 1 / low))
        if ENERGY in runs and len(kinds) <= 1:
            # Repeats of other limits add to the variance only if they count the same.
            comparable = {j: logs[j] for j, frame in enumerate(energy_kinds) if frame == kinds}
            energies = ratios(comparable, 0)
            row |= _ratio_columns("energy", energies[i]) if i in energies else {}
        yield row


def _energy_kinds(rows: pd.DataFrame) -> list[str]:
    """Return the distinct kinds of the energies that were measured."""
    if "energy_is" not in rows or ENERGY not in rows:
        return []
    return sorted(rows.loc[rows[ENERGY].notna(), "energy_is"].dropna().unique())


def _logs(rows: pd.DataFrame, column: str, limit: Limit) -> Floats:
    frame = rows[column].dropna()
    if (frame <= 0).any():
        where = limit_label(limit, rows[limit].iloc[0])
        raise BadInput(f"{column} at {where} is {frame.min():g}; allowed: above 0")
    logs: Floats = np.log(frame.to_numpy(float))
    return logs


def _ratio_columns(name: str, ratio: tuple[float, float, float]) -> dict[str, float]:
    return {f"{name}_ratio{end}": value for end, value in zip(_SUFFIXES, ratio, strict=True)}
