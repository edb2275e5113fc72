"""Energy against GPU-hours, and what the energy of a GPU-hour (the factor) depends on.

Huber et al. 2025, "Energy Consumption in Parallel Neural Network Training" (arXiv 2508.07706): the
energy of a training is close to linear in its GPU-hours; the factor, a mean power per GPU, depends
on model and hardware, and moves with samples and gradient steps per GPU-hour. As parallel
efficiency is lost, GPUs wait more and take less power, so it drifts with N.

Energy E and GPU-hours h are those of one unit: an epoch, a sample, a step or a run.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.laws.curves import aicc
from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS
from wattlaw.analysis.laws.power_law import power_law_design
from wattlaw.analysis.metrics.estimates import ERROR, LeastSquares
from wattlaw.analysis.metrics.groups import groups
from wattlaw.analysis.metrics.metrics import ESTIMATED, HOUR_S, SETTINGS, WHY_NO_LAW, missing_energy
from wattlaw.analysis.metrics.result import Result
from wattlaw.common.errors import Refused

ENERGY, HOURS, FACTOR = "energy_j", "gpu_hours", "energy_per_gpu_hour_j"
#: Columns in which the runs of a law must not differ; a cap or profile changes the power of a GPU.
GROUP_COLUMNS = ("workload", "hardware", "energy_is", *POWER_SETTINGS, "unit")
MIN_SETTINGS, MIN_COUNTS = 4, 3
#: The largest GPU-hours must be at least this multiple of the smallest.
MIN_SPAN = 1.2
ORIGIN, INTERCEPT, LOG_LOG = "through origin", "with intercept", "log-log"
RISES, FALLS, NO_DRIFT, CANNOT_TELL = "rises", "falls", "no drift seen", "cannot tell"
#: A drift within this is none: the factor changes by less than 2 % with a doubling of N.
DRIFT_MARGIN = math.log2(1.02)
_MAY_DIFFER = {
    "precision": "precision", "options": "options", "dataset_fraction": "fraction of the data set",
}  # fmt: skip
_RATES = {"log_samples": "samples_per_gpu_hour", "log_steps": "steps_per_gpu_hour"}
_UNUSABLE = {
    "partial": "a meter missed a part, so their sums are too low and were excluded; measure these "
    "runs again",
    "implausible": "energy_reason in the store's epochs says why",
}
_COLUMNS = [
    *GROUP_COLUMNS, "n", "runs", "hours_min", "hours_max", "factor_w", "factor_w_low",
    "factor_w_high", "r2_origin", "intercept_j", "intercept_j_low", "intercept_j_high",
    "r2_intercept", "exponent", "exponent_low", "exponent_high", "r2_log_log", "best", "note",
    "reason",
]  # fmt: skip
_DRIFT_COLUMNS = [
    "series", "rule", "energy_is", "counts", "gpus_min", "gpus_max", "factor_first_w",
    "factor_last_w", "slope", "slope_low", "slope_high", "verdict",
]  # fmt: skip


def energy_law(table: pd.DataFrame) -> dict[str, Any]:
    """Fit energy against GPU-hours: through the origin, with intercept, and in logarithms.

    The mean of a setting's repeats is one point: repeats share what their setting deviates by, and
    would otherwise narrow every interval. ``table`` has rows of ``run_metrics``. Refused as
    ``with_energy``, of fewer than four settings, or if GPU-hours hardly differ.

    Returns the values of ``GROUP_COLUMNS``; ``n`` settings of ``runs``; ``hours_min, hours_max``;
    ``factor_w`` of E = factor_w 3600 h by least squares weighted with 1 / h^2, as errors grow with
    E: the mean of E / h over settings, in W per GPU; ``intercept_j`` of E = intercept_j + slope
    3600 h, weighted alike; ``exponent`` of E ~ h^exponent by least squares in logs; their standard
    errors ``_se`` and 95 % intervals ``_low`` and ``_high``; ``r2_origin``, ``r2_intercept`` and
    ``r2_log_log``, 1 - sum (E - fit)^2 / sum (E - mean E)^2, None where all energies are the same;
    ``best``, the form with the lowest AICc of the likelihood of E; and ``note``, the settings that
    differ among the runs.
    """
    rows = with_energy(table, GROUP_COLUMNS)
    points = rows.groupby(list(SETTINGS), dropna=False)[[HOURS, ENERGY]].mean()
    hours, energy = (points[name].to_numpy(float) for name in (HOURS, ENERGY))
    if len(points) < MIN_SETTINGS:
        raise Refused(f"{len(points)} settings with energy; at least {MIN_SETTINGS} are needed")
    if hours.max() < MIN_SPAN * hours.min():
        raise Refused("GPU-hours hardly differ; measure more GPU counts or batches")
    seconds, ones = HOUR_S * hours, np.ones_like(hours)
    origin = LeastSquares(ones[:, None], energy / seconds)
    line = LeastSquares(np.column_stack([1 / seconds, ones]), energy / seconds)
    power = LeastSquares(power_law_design(hours), np.log(energy))
    row: dict[str, Any] = next(groups(rows, GROUP_COLUMNS))[0]
    row |= {
        "n": len(points), "runs": len(rows), "hours_min": hours.min(), "hours_max": hours.max(),
    }  # fmt: skip
    for name, fit, i in (
        ("factor_w", origin, 0), ("intercept_j", line, 0), ("exponent", power, 1),
    ):  # fmt: skip
        row[name], row[f"{name}_se"] = float(fit.params[i]), float(fit.errors[i])
        row[f"{name}_low"], row[f"{name}_high"] = fit.interval(i)
    about = float(((energy - energy.mean()) ** 2).sum())
    criteria: dict[str, float] = {}
    for form, name, fit, fitted, scale in (
        (ORIGIN, "r2_origin", origin, energy - origin.residuals * seconds, seconds),
        (INTERCEPT, "r2_intercept", line, energy - line.residuals * seconds, seconds),
        (LOG_LOG, "r2_log_log", power, np.exp(power.y - power.residuals), energy),
    ):
        row[name] = 1 - float(((energy - fitted) ** 2).sum()) / about if about else None
        criterion = aicc(fit.squares, len(points), len(fit.params) + 1)
        if criterion is not None:  # of the residuals; their scale makes it that of E
            criteria[form] = criterion + 2 * float(np.log(scale).sum())
    row["best"] = min(criteria, key=criteria.__getitem__)
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


def factor_drift(series: pd.DataFrame) -> pd.DataFrame:
    """Return the slope of ln factor on ln N, a row for each series of ``scaling_series``.

    Least squares on the means of each count's repeats (of ln factor), with k - 2 degrees of freedom
    for k counts: what a count deviates by is in the interval. ``factor_first_w`` and
    ``factor_last_w`` are geometric means at the least and the greatest count. The verdict is
    ``rises`` or ``falls`` when the interval of the slope is on one side of 0; ``no drift seen``
    when it has 0 and lies within 2 % per doubling of N; ``cannot tell`` otherwise, and with fewer
    than three counts.
    """
    known = series[(series[FACTOR] > 0) & series["energy_is"].notna()]
    known = known[~known["energy_is"].str.contains(ESTIMATED)]
    rows: list[dict[str, Any]] = []
    for group, rows_of_group in groups(known, ["series", "rule", "energy_is"]):
        means = np.log(rows_of_group[FACTOR]).groupby(rows_of_group["gpus"]).mean()
        counts = means.index.to_numpy(float)
        first, last = (np.exp(means.iloc[[0, -1]].to_numpy(float)) / HOUR_S).tolist()
        rows.append(group | {
            "counts": len(means), "gpus_min": int(counts[0]), "gpus_max": int(counts[-1]),
            "factor_first_w": first, "factor_last_w": last, "verdict": CANNOT_TELL,
        })  # fmt: skip
        if len(means) < MIN_COUNTS:
            continue
        fit = LeastSquares(power_law_design(counts), means.to_numpy(float))
        low, high = fit.interval(1)
        rows[-1] |= {"slope": float(fit.params[1]), "slope_low": low, "slope_high": high}
        if low > 0 or high < 0:
            rows[-1]["verdict"] = RISES if low > 0 else FALLS
        elif max(-low, high) <= DRIFT_MARGIN:
            rows[-1]["verdict"] = NO_DRIFT
    return pd.DataFrame(rows, columns=_DRIFT_COLUMNS)


@dataclass(frozen=True)
class FactorModel(Result):
    """ln factor (J per GPU-hour) as a sum of terms.

    ``terms``: ``term, estimate, se, low, high, p_value``; the estimates of ``log_samples`` and
    ``log_steps`` are elasticities: 0.1 means that twice the rate takes 2^0.1 times the energy.
    """

    rows_field = "terms"

    terms: pd.DataFrame
    energy_is: str
    n: int  # runs
    settings: int  # clusters
    r2: float
    left_out: int  # runs without samples or steps


def factor_model(table: pd.DataFrame) -> FactorModel:
    """Fit ln factor ~ ln samples per GPU-hour + ln steps per GPU-hour + workload + hardware.

    Ordinary least squares over runs. Standard errors are robust to what the repeats of a setting
    share (clusters of settings), and the intervals are from Student's t with settings - 1 degrees
    of freedom. The ratio of the two rates is the global batch, so without several of these they
    are confounded. GPU-hours are in all three ratios: an error in them alone looks like a joint
    elasticity of 1. Refused as ``with_energy``, if a rate is unknown or does not vary by itself, or
    if there are fewer settings than terms + 3.
    """
    rows = with_energy(table, ("energy_is", *POWER_SETTINGS))
    known = rows[(rows[list(_RATES.values())] > 0).all(axis=1)]
    if known.empty:
        raise Refused("samples and steps per GPU-hour are not known")
    columns: dict[str, Any] = {"Intercept": 1.0}
    for name in ("workload", "hardware"):
        for level in sorted(known[name].unique())[1:]:
            columns[f"C({name})[T.{level}]"] = known[name] == level
    columns |= {name: np.log(known[column]) for name, column in _RATES.items()}
    design = pd.DataFrame(columns, known.index).astype(float)
    model = LeastSquares(design.to_numpy(), np.log(known[FACTOR].to_numpy(float)))
    clusters = known.groupby(list(SETTINGS), dropna=False).ngroup().to_numpy()
    settings, terms = len(np.unique(clusters)), design.shape[1]
    scaled = model.design / np.linalg.norm(model.design, axis=0)
    if np.linalg.matrix_rank(scaled, tol=1e-8) < terms:
        raise Refused(
            "samples and steps per GPU-hour do not vary by themselves; measure several global "
            "batches per workload and hardware"
        )
    if settings < terms + 3:
        raise Refused(f"{settings} settings for {terms} terms; at least {terms + 3} are needed")
    errors, freedom = model.cluster_errors(clusters), settings - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        p_values = 2 * special.stdtr(freedom, -np.abs(model.params / errors))
    half = special.stdtrit(freedom, 1 - ERROR / 2) * errors
    terms_table = pd.DataFrame({
        "term": design.columns, "estimate": model.params, "se": errors,
        "low": model.params - half, "high": model.params + half, "p_value": p_values,
    })  # fmt: skip
    kind, left_out = str(rows["energy_is"].iloc[0]), len(rows) - len(known)
    return FactorModel(terms_table, kind, len(known), settings, model.r2, left_out)
