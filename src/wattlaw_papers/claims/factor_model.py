"""What the energy of a GPU-hour (the factor) depends on: model, hardware, samples and steps."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.laws.energy_laws import FACTOR, with_energy
from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS
from wattlaw.analysis.metrics.estimates import ERROR, Floats, LeastSquares
from wattlaw.analysis.metrics.groups import group_numbers
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.analysis.metrics.result import Result
from wattlaw.common.errors import Refused

_RATES = {"log_samples": "samples_per_gpu_hour", "log_steps": "steps_per_gpu_hour"}


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

    Ordinary least squares over runs, with standard errors robust to what the repeats of a setting
    share, and Student's t with settings - 1 degrees of freedom. The ratio of the two rates is the
    global batch, so without several of these they are confounded. GPU-hours are in all three
    ratios: an error in them alone looks like a joint elasticity of 1. Refused as ``with_energy``,
    if a rate does not vary by itself, or of fewer settings than terms + 3.
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
    clusters = group_numbers(known, SETTINGS).to_numpy()
    settings, terms = len(np.unique(clusters)), design.shape[1]
    scaled = model.design / np.linalg.norm(model.design, axis=0)
    if np.linalg.matrix_rank(scaled, tol=1e-8) < terms:
        raise Refused(
            "samples and steps per GPU-hour do not vary by themselves; measure several global "
            "batches per workload and hardware"
        )
    if settings < terms + 3:
        raise Refused(f"{settings} settings for {terms} terms; at least {terms + 3} are needed")
    # Errors that are robust to what rows of a cluster share: Liang and Zeger 1986, Biometrika 73,
    # 13-22, times g / (g - 1) (n - 1) / (n - k) for g clusters.
    scores = np.zeros((settings, terms))
    np.add.at(scores, clusters, model.design * model.residuals[:, None])
    factor = settings / (settings - 1) * (len(known) - 1) / (len(known) - terms)
    errors: Floats = np.sqrt(factor * ((scores @ model.gram) ** 2).sum(0))
    freedom = settings - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        p_values = 2 * special.stdtr(freedom, -np.abs(model.params / errors))
    half = special.stdtrit(freedom, 1 - ERROR / 2) * errors
    terms_table = pd.DataFrame({
        "term": design.columns, "estimate": model.params, "se": errors,
        "low": model.params - half, "high": model.params + half, "p_value": p_values,
    })  # fmt: skip
    kind, left_out = str(rows["energy_is"].iloc[0]), len(rows) - len(known)
    return FactorModel(terms_table, kind, len(known), settings, model.r2, left_out)
