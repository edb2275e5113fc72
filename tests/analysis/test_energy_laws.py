"""Energy laws against statsmodels called directly, laws that were put in, and refusals."""

import math

import numpy as np  # noqa: F401 - formulas of patsy evaluate it
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from made_tables import energy_table as table
from made_tables import study
from wattlaw.analysis.laws.energy_laws import energy_law, energy_laws
from wattlaw.analysis.laws.series import fit_metrics, fit_table
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.common.errors import Refused


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
    with pytest.raises(Refused, match=f"{name} differs"):
        energy_law(both)
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


def test_gpu_hours_that_hardly_differ_have_no_law():
    with pytest.raises(Refused, match="hardly differ"):
        energy_law(table(repeats=1).assign(gpu_hours=1.0))
