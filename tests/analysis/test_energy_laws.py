"""Energy laws against statsmodels called directly, laws that were put in, and refusals."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from made_tables import frames, run_row, study, window_row
from wattlaw.analysis.laws.energy_laws import energy_law, energy_laws, factor_model
from wattlaw.analysis.laws.series import fit_metrics, fit_table
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.common.errors import Refused

COUNTS = (1, 2, 4, 8, 16)


def table(
    watts: float = 300.0, base_j: float = 0.0, noise: float = 0.01, *,
    batches: tuple[int, ...] = (256, 1024), repeats: int = 3, drift: float = 0.0,
    counts: tuple[int, ...] = COUNTS, seed: int = 0, epochs: dict[str, object] | None = None,
    **row: object,
) -> pd.DataFrame:  # fmt: skip
    """Return metrics of runs whose GPUs draw ``watts * N ** drift``, plus energy per epoch."""
    dice = np.random.default_rng(seed)
    runs, windows = [], []
    for batch in batches:
        for gpus in counts:
            for repeat in range(repeats):
                run_id = f"{seed:02}{batch:06}{gpus:04}{repeat:04}"
                time_s = 1000 * gpus**-0.8 * math.exp(dice.normal(0, 0.02))
                energy_j = watts * gpus**drift * gpus * time_s * math.exp(dice.normal(0, noise))
                runs.append(run_row(run_id, gpus=gpus, global_batch=batch,
                                    local_batch=batch // gpus, repeat=repeat, **row))  # fmt: skip
                measured = {"gpu_energy_j": energy_j + base_j, "energy_source": "counter",
                            "energy_verdict": "ok", "samples": 100_000,
                            "steps": 100_000 // batch}  # fmt: skip
                windows.append(
                    window_row(run_id, 0, duration_s=time_s, **(measured | (epochs or {})))
                )
    return run_metrics(*frames(runs, windows))


def test_the_law_agrees_with_statsmodels_called_directly():
    rows = table(300.0, base_j=2e4, noise=0.05)
    law = energy_law(rows)
    columns = ["energy_j", "gpu_hours"]
    points = rows.groupby(["gpus", "global_batch"])[columns].mean().set_axis(["e", "h"], axis=1)
    points = points.assign(s=points["h"] * 3600)
    weights = 1 / points["s"] ** 2
    origin = smf.wls("e ~ s - 1", points, weights=weights).fit()
    power = smf.ols("np.log(e) ~ np.log(h)", points).fit()
    for name, fit, term in (("factor_w", origin, "s"), ("exponent", power, "np.log(h)")):
        found = [law[name], law[f"{name}_low"], law[f"{name}_high"]]
        assert found == pytest.approx([fit.params[term], *fit.conf_int().loc[term]])
    assert law["factor_w"] == pytest.approx((points["e"] / points["s"]).mean())  # the mean power
    assert (law["n"], law["runs"]) == (10, 30)


def test_each_group_has_a_row_with_a_law_or_a_reason():
    good = table()
    other = table(seed=1, counts=(1, 2), batches=(64,), hardware="small")
    silent = table(seed=2, hardware="silent", epochs={"gpu_energy_j": None})
    frame = energy_laws(pd.concat([good, other, silent])).set_index("hardware")
    assert pd.isna(frame.loc["board", "reason"]) and frame.loc["board", "factor_w"] > 0
    assert "2 settings with energy" in frame.loc["small", "reason"]
    assert math.isnan(frame.loc["small", "factor_w"])
    assert "no run has an energy" in frame.loc["silent", "reason"]
    assert energy_laws(good.iloc[:0]).empty


@pytest.mark.parametrize(
    ("name", "other", "watts"),
    [
        ("energy_is", {"epochs": {"cpu_energy_j": 1e4}}, 300.0),
        ("power_limit_w", {"power_limit_w": 150.0}, 150.0),
    ],
)
def test_energies_of_different_devices_or_caps_are_never_mixed(name, other, watts):
    both = pd.concat([table(), table(watts, seed=1, **other)])
    for analysis in (energy_law, factor_model):
        with pytest.raises(Refused, match=f"{name} differs"):
            analysis(both)
    found = energy_laws(both)
    assert found[name].nunique(dropna=False) == len(found) == 2
    if name == "power_limit_w":
        assert sorted(found["factor_w"]) == pytest.approx([150, 300], rel=0.02)


def test_an_energy_that_is_computed_from_time_has_no_law():
    estimated = run_metrics(*study((1, 2, 4)))
    with pytest.raises(Refused, match="computed from time"):
        energy_law(estimated)
    fits = [fit_table(estimated, "energy_j"), fit_metrics(estimated, "gpu_hours", "energy_j", None)]
    for rows in fits:
        assert not rows.laws
        assert all("computed from time" in reason for _, reason in rows.refusals)
    assert fit_table(estimated).laws  # of time
    assert energy_law(table())["note"] is None


@pytest.mark.parametrize("verdict", ["partial", "implausible"])
def test_energies_that_are_left_out_are_the_reason_where_they_are(verdict):
    unusable = table(epochs={"energy_verdict": verdict}, repeats=1)
    with pytest.raises(Refused, match=f"energies of 10 of 10 runs are {verdict}: ") as told:
        energy_law(unusable)
    assert "machine with a meter" not in str(told.value)
    (row,) = energy_laws(unusable).to_dict("records")
    assert row["reason"] == str(told.value)


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
    assert terms.loc["C(hardware)[T.y]", "p_value"] == pytest.approx(
        fit.pvalues["C(hardware)[T.y]"]
    )
    assert terms.loc["log_steps", ["low", "high"]].tolist() == pytest.approx(
        [*fit.conf_int().loc["u"]]
    )
    assert model.r2 == pytest.approx(fit.rsquared)
    assert terms["se"].min() > 1.2 * direct.fit().bse.min()  # repeats share their deviation


def test_too_few_settings_or_unknown_rates_are_refused():
    with pytest.raises(Refused, match="hardly differ"):
        energy_law(table(repeats=1).assign(gpu_hours=1.0))
    with pytest.raises(Refused, match="settings for 3 terms"):
        factor_model(table(counts=(1, 2)))
    with pytest.raises(Refused, match="not known"):
        factor_model(table(epochs={"steps": None}))
