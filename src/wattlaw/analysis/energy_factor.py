"""What the energy of a GPU-hour depends on, and how it drifts with N.

Huber et al. 2025 (arXiv 2508.07706): the factor between energy and GPU-hours depends on model and
hardware and moves with samples per GPU-hour and gradient steps per GPU-hour. As parallel
efficiency is lost, GPUs wait more and take less power, so it drifts with N.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.energy_laws import with_energy
from wattlaw.analysis.groups import groups
from wattlaw.analysis.laws.power_law import power_law_design
from wattlaw.analysis.metrics import ESTIMATED, HOUR_S, SETTINGS
from wattlaw.analysis.result import Result
from wattlaw.analysis.series import scaling_series
from wattlaw.analysis.statistics import ERROR, LeastSquares
from wattlaw.errors import Refused

FACTOR = "energy_per_gpu_hour_j"
RISES, FALLS, NO_DRIFT, CANNOT_TELL = "rises", "falls", "no drift seen", "cannot tell"
MIN_COUNTS = 3
#: A drift within this is none: the factor changes by less than 2 % with a doubling of N.
MARGIN = math.log2(1.02)
_RATES = {"log_samples": "samples_per_gpu_hour", "log_steps": "steps_per_gpu_hour"}
_LEVELS = ("workload", "hardware")


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
    share (clusters of settings; Liang and Zeger 1986, with statsmodels' small-sample factor), the
    intervals from Student's t with settings - 1 degrees of freedom. The ratio of the two rates is
    the global batch, so without several of these they are confounded. GPU-hours are in all
    three ratios: an error in them alone looks like a joint elasticity of 1.

    Raises
    ------
    Refused
        As ``with_energy``, a rate is unknown or does not vary by itself, or there are fewer
        settings than terms + 3.
    """
    import statsmodels.formula.api as smf

    rows = with_energy(table, ("energy_is", *LIMITS))
    known = rows[(rows[list(_RATES.values())] > 0).all(axis=1)]
    if known.empty:
        raise Refused("samples and steps per GPU-hour are not known")
    data = known.assign(
        log_factor=np.log(known[FACTOR]),
        **{name: np.log(known[column]) for name, column in _RATES.items()},
    )
    levels = [f"C({name})" for name in _LEVELS if known[name].nunique() > 1]
    model = smf.ols(" + ".join(["log_factor ~ log_samples + log_steps", *levels]), data)
    clusters = known.groupby(list(SETTINGS), dropna=False).ngroup().to_numpy()
    settings, terms = len(np.unique(clusters)), model.exog.shape[1]
    scaled = model.exog / np.linalg.norm(model.exog, axis=0)
    if np.linalg.matrix_rank(scaled, tol=1e-8) < terms:
        raise Refused(
            "samples and steps per GPU-hour do not vary by themselves; measure several global "
            "batches per workload and hardware"
        )
    if settings < terms + 3:
        raise Refused(f"{settings} settings for {terms} terms; at least {terms + 3} are needed")
    fit = model.fit(cov_type="cluster", cov_kwds={"groups": clusters}, use_t=True)
    columns = {"estimate": fit.params, "se": fit.bse, "low": 0.0, "high": 0.0}
    terms_table = pd.DataFrame(columns | {"p_value": fit.pvalues})
    terms_table[["low", "high"]] = fit.conf_int(alpha=ERROR)
    return FactorModel(
        terms=terms_table.rename_axis("term").reset_index(),
        energy_is=str(rows["energy_is"].iloc[0]),
        n=len(known),
        settings=settings,
        r2=float(fit.rsquared),
        left_out=len(rows) - len(known),
    )


def factor_drift(table: pd.DataFrame) -> pd.DataFrame:
    """Return the slope of ln factor on ln N in each scaling series.

    Least squares on the means of each count's repeats (of ln factor), with k - 2 degrees of freedom
    for k counts: what a count deviates by is in the interval.

    Returns
    -------
    DataFrame
        A row per series. ``factor_first_w`` and ``factor_last_w`` are geometric means at the least
        and the greatest count. The verdict is ``rises`` or ``falls`` when the interval of the slope
        is on one side of 0; ``no drift seen`` when it has 0 and lies within 2 % per doubling of N;
        ``cannot tell`` otherwise, and with fewer than three counts.
    """
    series = scaling_series(table)
    known = series[(series[FACTOR] > 0) & series["energy_is"].notna()]
    known = known[~known["energy_is"].str.contains(ESTIMATED)]
    rows = []
    for group, rows_of_group in groups(known, ["series", "rule", "energy_is"]):
        means = np.log(rows_of_group[FACTOR]).groupby(rows_of_group["gpus"]).mean().sort_index()
        rows.append(group | _drift(means))
    return pd.DataFrame(rows, columns=_COLUMNS)


_COLUMNS = [
    "series", "rule", "energy_is", "counts", "gpus_min", "gpus_max", "factor_first_w",
    "factor_last_w", "slope", "slope_low", "slope_high", "p_value", "verdict", "why",
]  # fmt: skip


def _drift(means: pd.Series) -> dict[str, object]:
    counts = means.index.to_numpy(float)
    first, last = (np.exp(means.iloc[[0, -1]].to_numpy(float)) / HOUR_S).tolist()
    row: dict[str, object] = {
        "counts": len(means), "gpus_min": int(counts[0]), "gpus_max": int(counts[-1]),
        "factor_first_w": first, "factor_last_w": last, "verdict": CANNOT_TELL, "why": None,
    }  # fmt: skip
    if len(means) < MIN_COUNTS:
        return row | {"why": f"{len(means)} GPU counts; at least {MIN_COUNTS} are needed"}
    fit = LeastSquares(power_law_design(counts), means.to_numpy(float))
    low, high = fit.interval(1)
    row |= {"slope": float(fit.params[1]), "slope_low": low, "slope_high": high}
    row["p_value"] = fit.p_value(1)
    if low > 0 or high < 0:
        return row | {"verdict": RISES if low > 0 else FALLS}
    if max(-low, high) <= MARGIN:
        return row | {"verdict": NO_DRIFT}
    return row | {"why": "the interval of the slope holds 0, and more than 2 % per doubling"}
