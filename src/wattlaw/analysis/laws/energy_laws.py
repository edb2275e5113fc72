"""Energy against GPU-hours.

Huber et al. 2025, "Energy Consumption in Parallel Neural Network Training" (arXiv 2508.07706): the
energy of a training is close to linear in its GPU-hours.

Energy E and GPU-hours h are those of one unit: an epoch, a sample, a step or a run.
"""

from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS
from wattlaw.analysis.laws.power_law import power_law_design
from wattlaw.analysis.metrics.estimates import LeastSquares
from wattlaw.analysis.metrics.groups import groups
from wattlaw.analysis.metrics.metrics import ESTIMATED, HOUR_S, SETTINGS, WHY_NO_LAW, missing_energy
from wattlaw.common.errors import Refused

ENERGY, HOURS, FACTOR = "energy_j", "gpu_hours", "energy_per_gpu_hour_j"
#: Columns in which the runs of a law must not differ; a cap or profile changes the power of a GPU.
GROUP_COLUMNS = ("workload", "hardware", "energy_is", *POWER_SETTINGS, "unit")
MIN_SETTINGS = 4
#: The largest GPU-hours must be at least this multiple of the smallest.
MIN_SPAN = 1.2
_MAY_DIFFER = {
    "precision": "precision",
    "options": "options",
    "dataset_fraction": "fraction of the data set",
}
_UNUSABLE = {
    "partial": "a meter missed a part, so their sums are too low and were excluded; measure these "
    "runs again",
    "implausible": "energy_reason in the store's epochs says why",
}
_COLUMNS = [
    *GROUP_COLUMNS, "n", "runs", "hours_min", "hours_max", "factor_w", "factor_w_low",
    "factor_w_high", "r2_origin", "exponent", "exponent_low", "exponent_high", "r2_log_log",
    "note", "reason",
]  # fmt: skip


def energy_law(table: pd.DataFrame) -> dict[str, Any]:
    """Fit energy against GPU-hours: through the origin, and in logarithms.

    The mean of a setting's repeats is one point: repeats share what their setting deviates by, and
    would otherwise narrow every interval. ``table`` has rows of ``run_metrics``. Refused as
    ``with_energy``, of fewer than four settings, or if GPU-hours hardly differ.

    Returns the values of ``GROUP_COLUMNS``; ``n`` settings of ``runs``; ``hours_min, hours_max``;
    ``factor_w`` of E = factor_w 3600 h by least squares weighted with 1 / h^2, as errors grow with
    E; ``exponent`` of E ~ h^exponent in logs; their ``_se`` and 95 % intervals; ``r2_origin`` and
    ``r2_log_log``, of E; and ``note``, the settings that differ among the runs.
    """
    rows = with_energy(table, GROUP_COLUMNS)
    points = rows.groupby(list(SETTINGS), dropna=False)[[HOURS, ENERGY]].mean()
    hours, energy = (points[name].to_numpy(float) for name in (HOURS, ENERGY))
    if len(points) < MIN_SETTINGS:
        raise Refused(f"{len(points)} settings with energy; at least {MIN_SETTINGS} are needed")
    if hours.max() < MIN_SPAN * hours.min():
        raise Refused("GPU-hours hardly differ; measure more GPU counts or batches")
    seconds = HOUR_S * hours
    origin = LeastSquares(np.ones((len(points), 1)), energy / seconds)
    power = LeastSquares(power_law_design(hours), np.log(energy))
    row: dict[str, Any] = next(groups(rows, GROUP_COLUMNS))[0]
    row |= {"n": len(points), "runs": len(rows), "hours_min": hours.min(), "hours_max": hours.max()}
    for name, fit, i in (("factor_w", origin, 0), ("exponent", power, 1)):
        row[name], row[f"{name}_se"] = float(fit.params[i]), float(fit.errors[i])
        row[f"{name}_low"], row[f"{name}_high"] = fit.interval(i)
    about = float(((energy - energy.mean()) ** 2).sum())
    for name, error in (
        ("r2_origin", origin.residuals * seconds),
        ("r2_log_log", energy - np.exp(power.y - power.residuals)),
    ):
        row[name] = 1 - float((error**2).sum()) / about if about else None
    mixed = [label for name, label in _MAY_DIFFER.items() if rows[name].nunique(dropna=False) > 1]
    row["note"] = f"the runs of the law differ in {', '.join(mixed)}" if mixed else None
    return row


def energy_laws(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``energy_law`` of each group; one without a law has a ``reason`` and nothing else."""
    rows = []
    for group, rows_of_group in groups(table, GROUP_COLUMNS):
        try:
            rows.append(energy_law(rows_of_group))
        except Refused as refusal:
            rows.append({**group, "reason": str(refusal)})
    return pd.DataFrame(rows, columns=_COLUMNS)


def with_energy(table: pd.DataFrame, constant: tuple[str, ...]) -> pd.DataFrame:
    """Return the rows with energy and GPU-hours.

    Refused if there are none, with the reason, if energies are computed from time, or if rows
    differ in a column of ``constant``.
    """
    rows = table[table[ENERGY].notna() & (table[HOURS] > 0)]
    for verdict, why in _UNUSABLE.items():
        if rows.empty and (count := int((table["energy_verdict"] == verdict).sum())):
            raise Refused(f"the energies of {count} of {len(table)} runs are {verdict}: {why}")
    if rows.empty:
        raise Refused(
            missing_energy(table)
            or "no run has an energy; measure on a machine with a meter, or assume_cpu_w"
        )
    if rows["energy_is"].str.contains(ESTIMATED).any():
        raise Refused(WHY_NO_LAW)
    for name in constant:
        values = [str(value) for value in rows[name].unique()]
        if len(values) > 1:
            raise Refused(f"{name} differs ({'; '.join(sorted(values))}); select one of them")
    return rows
