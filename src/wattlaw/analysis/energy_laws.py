"""Energy against GPU-hours: through the origin, with intercept, and as a power.

Huber et al. 2025, "Energy Consumption in Parallel Neural Network Training" (arXiv 2508.07706): the
energy of a training is close to linear in its GPU-hours; the factor, a mean power per GPU, depends
on model and hardware (``analysis.energy_factor`` says on what else).

Energy E and GPU-hours h are those of one unit: an epoch, a sample, a step or a run. The mean of a
setting's repeats is one point: repeats share what their setting deviates by, and would otherwise
narrow every interval.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.groups import Group, groups
from wattlaw.analysis.laws.power_law import power_law_design
from wattlaw.analysis.metrics import ESTIMATED, HOUR_S, SETTINGS, WHY_NO_LAW
from wattlaw.analysis.result import Result
from wattlaw.analysis.statistics import Floats, Interval, LeastSquares, aicc
from wattlaw.errors import Refused

ENERGY, HOURS = "energy_j", "gpu_hours"
#: Columns in which the runs of a law must not differ; a cap changes the power of a GPU.
GROUP_COLUMNS = ("workload", "hardware", "energy_is", *LIMITS, "unit")
ORIGIN, INTERCEPT, LOG_LOG = "through origin", "with intercept", "log-log"
MIN_SETTINGS = 4
_LEAST_SIGMA = 1e-9
_MAY_DIFFER = {
    "precision": "precision", "options": "options", "dataset_fraction": "fraction of the data set",
}  # fmt: skip
#: The largest GPU-hours must be at least this multiple of the smallest.
MIN_SPAN = 1.2


@dataclass(frozen=True)
class EnergyForm(Result):
    """One form of the law; ``parameters`` and their 95 % intervals by name.

    ``through origin``: E = slope_w 3600 h. ``with intercept``: E = intercept_j + slope_w 3600 h.
    Both by least squares weighted with 1 / h^2, as errors grow with E. ``log-log``: E = scale_j
    h^exponent by least squares in logs. ``r2`` is 1 - sum (E - fit)^2 / sum (E - mean E)^2 for all
    three; ``aicc`` that of the likelihood of E, so that the forms compare.
    """

    form: str
    parameters: dict[str, float]
    intervals: dict[str, Interval]
    r2: float | None  # None where all energies are the same
    aicc: float | None


@dataclass(frozen=True)
class EnergyLaw(Result):
    """Energy against GPU-hours of one group.

    ``factor_w`` is the slope through the origin: the mean of E / h over settings, in W per GPU. Of
    ``energy_is`` gpu+cpu+dram it includes the host's share.
    """

    group: Group
    n: int  # settings
    runs: int
    hours_min: float
    hours_max: float
    factor_w: float
    factor_w_ci: Interval
    best: str  # form of the least aicc
    forms: tuple[EnergyForm, ...]
    note: str | None  # settings that differ among the runs

    def form(self, name: str) -> EnergyForm:
        """Return one of the three forms."""
        return next(form for form in self.forms if form.form == name)


def energy_law(table: pd.DataFrame) -> EnergyLaw:
    """Fit energy against GPU-hours in three forms.

    ``table`` has rows of ``run_metrics``; those without an energy are left out.

    Raises
    ------
    Refused
        As ``with_energy`` for ``GROUP_COLUMNS``, fewer than four settings, or GPU-hours that hardly
        differ.
    """
    rows = with_energy(table, GROUP_COLUMNS)
    points = rows.groupby(list(SETTINGS), dropna=False)[[HOURS, ENERGY]].mean()
    hours, energy = (points[name].to_numpy(float) for name in (HOURS, ENERGY))
    if len(points) < MIN_SETTINGS:
        raise Refused(f"{len(points)} settings with energy; at least {MIN_SETTINGS} are needed")
    if hours.max() < MIN_SPAN * hours.min():
        raise Refused("GPU-hours hardly differ; measure more GPU counts or batches")
    linear = [_linear(form, hours, energy) for form in (ORIGIN, INTERCEPT)]
    fits = [*linear, _log_log(hours, energy)]
    forms = tuple(sorted(fits, key=lambda fit: math.inf if fit.aicc is None else fit.aicc))
    origin = next(form for form in forms if form.form == ORIGIN)
    return EnergyLaw(
        group=next(groups(rows, GROUP_COLUMNS))[0],
        n=len(points),
        runs=len(rows),
        hours_min=float(hours.min()),
        hours_max=float(hours.max()),
        factor_w=origin.parameters["slope_w"],
        factor_w_ci=origin.intervals["slope_w"],
        best=forms[0].form,
        forms=forms,
        note=_note(rows),
    )


def energy_laws(table: pd.DataFrame) -> pd.DataFrame:
    """Return a law for each group of ``GROUP_COLUMNS``, as a row of the values of ``EnergyLaw``.

    A group without a law has a ``reason`` and nothing else.
    """
    rows = []
    for group, rows_of_group in groups(table, GROUP_COLUMNS):
        try:
            rows.append(_row(energy_law(rows_of_group)))
        except Refused as refusal:
            rows.append({**group, "reason": str(refusal)})
    return pd.DataFrame(rows, columns=_COLUMNS)


def with_energy(table: pd.DataFrame, constant: tuple[str, ...]) -> pd.DataFrame:
    """Return the rows with energy and GPU-hours.

    Raises
    ------
    Refused
        There are none (where energies are partial, it says so), they are computed from time, or
        they differ in a column of ``constant``.
    """
    rows = table[table[ENERGY].notna() & (table[HOURS] > 0)]
    for verdict, why in _UNUSABLE.items():
        if rows.empty and (count := int((table["energy_verdict"] == verdict).sum())):
            raise Refused(f"the energies of {count} of {len(table)} runs are {verdict}: {why}")
    if rows.empty:
        raise Refused("no run has an energy; measure on a machine with a meter, or assume_cpu_w")
    if rows["energy_is"].str.contains(ESTIMATED).any():
        raise Refused(WHY_NO_LAW)
    for name in constant:
        values = [str(value) for value in rows[name].unique()]
        if len(values) > 1:
            raise Refused(f"{name} differs ({'; '.join(sorted(values))}); select one of them")
    return rows


_UNUSABLE = {
    "partial": "a meter missed a part, so their sums are too low and were excluded; measure these "
    "runs again",
    "implausible": "energy_reason in the store's epochs says why",
}
_COLUMNS = [
    *GROUP_COLUMNS, "n", "runs", "hours_min", "hours_max", "factor_w", "factor_w_low",
    "factor_w_high", "best", "intercept_j", "intercept_j_low", "intercept_j_high", "exponent",
    "exponent_low", "exponent_high", "r2_origin", "r2_intercept", "r2_log_log", "note", "reason",
]  # fmt: skip


def _row(law: EnergyLaw) -> dict[str, object]:
    intercept, power = law.form(INTERCEPT), law.form(LOG_LOG)
    row: dict[str, object] = {name: getattr(law, name, None) for name in _COLUMNS}
    row |= law.group | {
        "intercept_j": intercept.parameters["intercept_j"],
        "exponent": power.parameters["exponent"],
        "r2_origin": law.form(ORIGIN).r2, "r2_intercept": intercept.r2, "r2_log_log": power.r2,
    }  # fmt: skip
    for name, (low, high) in {
        "factor_w": law.factor_w_ci,
        "intercept_j": intercept.intervals["intercept_j"],
        "exponent": power.intervals["exponent"],
    }.items():
        row |= {f"{name}_low": low, f"{name}_high": high}
    return row


def _note(rows: pd.DataFrame) -> str | None:
    """Return the caveats of a law's runs, or None."""
    mixed = [label for name, label in _MAY_DIFFER.items() if rows[name].nunique(dropna=False) > 1]
    return f"the runs of the law differ in {', '.join(mixed)}" if mixed else None


def _linear(form: str, hours: Floats, energy: Floats) -> EnergyForm:
    seconds = HOUR_S * hours
    columns = {"intercept_j": 1 / seconds} if form == INTERCEPT else {}
    columns["slope_w"] = np.ones_like(hours)
    fit = LeastSquares(np.column_stack([*columns.values()]), energy / seconds)
    return EnergyForm(
        form,
        dict(zip(columns, fit.params.tolist(), strict=True)),
        {name: fit.interval(i) for i, name in enumerate(columns)},
        _r2(energy - fit.residuals * seconds, energy),
        _aicc(fit.residuals, len(columns) + 1, float(np.log(seconds).sum())),
    )


def _log_log(hours: Floats, energy: Floats) -> EnergyForm:
    fit = LeastSquares(power_law_design(hours), np.log(energy))
    low, high = fit.interval(0)
    return EnergyForm(
        LOG_LOG,
        {"scale_j": math.exp(fit.params[0]), "exponent": float(fit.params[1])},
        {"scale_j": (math.exp(low), math.exp(high)), "exponent": fit.interval(1)},
        _r2(np.exp(fit.y - fit.residuals), energy),
        _aicc(fit.residuals, 3, float(np.log(energy).sum())),
    )


def _r2(fitted: Floats, energy: Floats) -> float | None:
    about = float(((energy - energy.mean()) ** 2).sum())
    if about == 0:
        return None
    return 1 - float(((energy - fitted) ** 2).sum()) / about


def _aicc(errors: Floats, k: int, log_scales: float) -> float | None:
    """Return AICc of normal errors; ``log_scales`` turns their likelihood into that of E."""
    n = len(errors)
    sigma = max(float(np.sqrt(np.mean(errors**2))), _LEAST_SIGMA)
    log_likelihood = -n / 2 * (math.log(2 * math.pi * sigma**2) + 1) - log_scales
    return aicc(log_likelihood, n, k)
