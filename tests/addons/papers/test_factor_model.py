"""The model of the energy factor against statsmodels called directly, and refusals."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from made_tables import energy_table as table
from wattlaw.common.errors import Refused
from wattlaw_papers.claims.factor_model import factor_model


def rates(seed: int = 0, samples: float = 0.3, steps: float = 0.1) -> pd.DataFrame:
    """Return a table whose factor follows the two rates, a workload and a hardware."""
    dice = np.random.default_rng(seed)
    parts = []
    for i, (workload, hardware) in enumerate([("a", "x"), ("b", "x"), ("a", "y"), ("b", "y")]):
        rows = table(noise=0, seed=seed * 4 + i, workload=workload, hardware=hardware)
        jitter = rows.groupby(["gpus", "global_batch"])["gpus"].transform(
            lambda one: math.exp(dice.normal(0, 0.05))
        )
        factor = (
            1e5 * rows["samples_per_gpu_hour"] ** samples * rows["steps_per_gpu_hour"] ** steps
            * (2.0 if workload == "b" else 1) * (0.7 if hardware == "y" else 1) * jitter
        )  # fmt: skip
        parts.append(rows.assign(energy_per_gpu_hour_j=factor))
    return pd.concat(parts, ignore_index=True)


def test_the_factor_model_is_a_regression_with_clustered_errors():
    data = rates()
    model = factor_model(data)
    assert model.settings == 40 and model.n == 120
    json.dumps(model.to_dict(), allow_nan=False)
    told = data.assign(
        f=np.log(data["energy_per_gpu_hour_j"]),
        s=np.log(data["samples_per_gpu_hour"]),
        u=np.log(data["steps_per_gpu_hour"]),
        cell=data.groupby(["workload", "hardware", "gpus", "global_batch"]).ngroup(),
    )
    direct = smf.ols("f ~ s + u + C(workload) + C(hardware)", told)
    fit = direct.fit(cov_type="cluster", cov_kwds={"groups": told["cell"]}, use_t=True)
    terms = model.terms.set_index("term")
    assert terms.loc["log_samples", "estimate"] == pytest.approx(fit.params["s"])
    assert terms.loc["log_samples", "se"] == pytest.approx(fit.bse["s"])
    of_hardware = "C(hardware)[T.y]"
    assert terms.loc[of_hardware, "p_value"] == pytest.approx(fit.pvalues[of_hardware])
    interval = terms.loc["log_steps", ["low", "high"]].tolist()
    assert interval == pytest.approx([*fit.conf_int().loc["u"]])
    assert model.r2 == pytest.approx(fit.rsquared)
    assert terms["se"].min() > 1.2 * direct.fit().bse.min()  # repeats share their deviation


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (table(counts=(1, 2)), "settings for 3 terms"),
        (table(epochs={"steps": None}), "not known"),
        (pd.concat([table(), table(150.0, seed=1, power_limit_w=150.0)]), "power_limit_w differs"),
        (pd.concat([table(), table(seed=1, epochs={"cpu_energy_j": 1e4})]), "energy_is differs"),
    ],
)
def test_too_few_settings_unknown_rates_and_mixed_energies_are_refused(rows, reason):
    with pytest.raises(Refused, match=reason):
        factor_model(rows)
