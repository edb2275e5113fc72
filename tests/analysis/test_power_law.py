"""Power laws against statsmodels called directly, exact laws, real series, and refusals."""

import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

from wattlaw.analysis.laws.fitting import fit_groups
from wattlaw.analysis.laws.observations import POOLING_LEVEL
from wattlaw.analysis.laws.power_law import fit_power_law
from wattlaw.cli.main import main
from wattlaw.common.errors import Refused


@pytest.mark.parametrize("seed", range(8))
def test_it_agrees_with_statsmodels_called_directly(seed):
    dice = np.random.default_rng(seed)
    x = dice.choice([1, 2, 4, 8, 16, 64, 424], size=dice.integers(6, 60)).astype(float)
    x[:3] = 1, 2, 4
    y = dice.uniform(1, 1e4) * x ** -dice.uniform(-0.2, 1.1) * np.exp(dice.normal(0, 0.1, x.size))
    table = pd.DataFrame({"n": x, "t": y})
    law = fit_power_law(table["n"], table["t"])
    direct = smf.ols("np.log(t) ~ np.log(n)", table).fit()
    low, high = direct.conf_int().loc["np.log(n)"]
    expected = [
        np.exp(direct.params["Intercept"]),
        *np.exp(direct.conf_int().loc["Intercept"]),
        -direct.params["np.log(n)"],
        direct.bse["np.log(n)"],
        -high,
        -low,
        direct.rsquared,
        direct.pvalues["np.log(n)"],
    ]
    found = [law.alpha, *law.alpha_ci, law.beta, law.beta_se, *law.beta_ci, law.r2, law.p_value]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
    saturated = smf.ols("np.log(t) ~ C(n)", table).fit()
    if saturated.df_resid > 0:
        lack = saturated.compare_f_test(direct)[1]
        assert law.lack_of_fit_p == pytest.approx(lack, rel=1e-6)
        assert law.trusted.interval == ("repeats" if lack < POOLING_LEVEL else "ols")
    if law.trusted.interval == "ols":
        at = [1.0, 3.0, 424.0]
        frame = direct.get_prediction(pd.DataFrame({"n": at})).summary_frame(0.05)
        band = law.predict(at)
        for column, theirs in (("low", "mean_ci_lower"), ("high", "mean_ci_upper")):
            assert band[column].to_numpy() == pytest.approx(np.exp(frame[theirs]), rel=1e-9)


def shared(counts=(1, 2, 4, 8, 16), repeats=3, between=0.1, noise=0.02, seed=0, beta=0.8):
    """Return runs whose repeats share a deviation from 100 N^-beta."""
    dice = np.random.default_rng(seed)
    x = np.repeat(np.array(counts, float), repeats)
    deviations = np.repeat(dice.normal(0, between, len(counts)), repeats)
    return x, 100 * x**-beta * np.exp(deviations + dice.normal(0, noise, x.size))


def test_intervals_from_repeats_are_those_of_a_line_through_the_means():
    x, y = shared()
    law = fit_power_law(x, y)
    means = pd.Series(np.log(y)).groupby(x).mean()
    direct = sm.OLS(means.to_numpy(), sm.add_constant(np.log(means.index.to_numpy()))).fit()
    (a_low, a_high), (low, high) = direct.conf_int()
    assert law.beta_se_repeats == pytest.approx(direct.bse[1])
    assert law.beta_ci_repeats == pytest.approx((-high, -low))
    assert law.alpha_ci_repeats == pytest.approx((np.exp(a_low), np.exp(a_high)))
    assert law.trusted.interval == "repeats"
    assert law.trusted.beta_ci == law.beta_ci_repeats
    assert "share deviations" in law.trusted.why
    band = law.predict([3.0]).iloc[0]
    frame = direct.get_prediction([[1.0, np.log(3.0)]]).summary_frame(0.05).iloc[0]
    assert np.log(band[["low", "high"]].astype(float)).tolist() == pytest.approx(
        [frame["mean_ci_lower"], frame["mean_ci_upper"]]
    )


@pytest.mark.parametrize(("between", "least"), [(0.0, 0.93), (0.05, 0.91)])
def test_trusted_intervals_cover_the_truth(between, least):
    hits = []
    for seed in range(400):
        law = fit_power_law(*shared((2, 4, 8, 16, 32, 64, 128), 3, between, 0.05, seed))
        (low, high), (least_s, most_s) = law.trusted.beta_ci, law.trusted.alpha_ci
        hits.append((low <= 0.8 <= high, least_s <= 100 <= most_s))
    assert (np.mean(hits, axis=0) >= least).all()


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ([1, 2, np.nan], [3.0, 2.0, 1.0], "2 distinct worker counts; a law needs at least 3"),
        ([0, 1, 2], [3.0, 2.0, 1.0], "1 of 3 rows"),
        ([1, 2, 4], [3.0, -2.0, 1.0], "above 0"),
        ([1, 2, 4], [3.0, np.inf, 1.0], "1 of 3 rows"),
    ],
)
def test_invalid_data_for_a_law_is_rejected_with_a_reason(x, y, says):
    with pytest.raises(Refused, match=says):
        fit_power_law(x, y)


def test_a_constant_time_has_no_r_squared_and_no_gain():
    law = fit_power_law([1, 2, 4, 8], [5.0] * 4)
    assert law.beta == pytest.approx(0)
    assert law.r2 is None
    assert law.p_value is None
    json.dumps(law.to_dict(), allow_nan=False)


def test_missing_group_values_are_a_group_and_refusals_carry_their_group():
    table = pd.DataFrame(
        {"cap": [None] * 3 + [100.0] * 2, "n": [1, 2, 4, 1, 2], "t": [4.0, 2.1, 1.0, 9.0, 5.0]}
    )
    fits = fit_groups(table, "n", "t", ["cap"])
    assert [group for group, _ in fits.laws] == [{"cap": None}]
    assert fits.refusals[0][0] == {"cap": 100.0}
    refused = next(row.to_dict() for row in fits.rows if row.law is None)
    assert refused["law"] is None
    assert refused["beta"] is None
    assert refused["reason"].startswith("2 distinct values of n")


def test_the_same_column_as_x_and_y_is_one_line(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("gpus,t\n1,8\n2,4\n4,2\n")
    assert main(["fit", str(tmp_path / "t.csv"), "--y", "gpus"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "x and y: both given 'gpus'" in line


def test_the_exponent_within_a_range_uses_its_counts_only_and_needs_both_ends():
    counts = np.array([2.0, 4, 8, 16, 32, 64, 128, 256, 424])
    law = fit_power_law(counts, np.maximum(1 / counts, 1 / 64))
    assert law.beta < 0.9
    assert law.beta_within(2, 64) == pytest.approx(1)
    assert law.beta_within(64, 424) == pytest.approx(0, abs=1e-9)
    assert law.beta_within(2, 500) == pytest.approx(law.beta)
    assert law.beta_within(2, 1000) is None
    assert law.beta_within(2, 5) is None
