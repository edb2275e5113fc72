"""Epochs to a target against global batch: laws that were put in, real measurements, refusals."""

import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from public_data import ORIGINS, public_csv
from wattlaw.analysis.laws.critical_batch import CriticalBatch, critical_batch
from wattlaw.common.errors import Refused


def fitted(batch, epochs) -> CriticalBatch:
    """Return the fit of runs that all reached the target."""
    return critical_batch(batch, epochs, epochs)


BATCHES = np.repeat([16.0, 64, 256, 1024, 4096], 3)


@pytest.fixture(params=ORIGINS)
def series(request: pytest.FixtureRequest) -> pd.DataFrame:
    return pd.read_csv(public_csv("epochs_to_target.csv", request.param))


def epochs(s_min: float = 10, b_crit: float = 500, sd: float = 0.1, seed: int = 0) -> np.ndarray:
    noise = np.exp(np.random.default_rng(seed).normal(0, sd, BATCHES.size))
    return s_min * (1 + BATCHES / b_crit) * noise


@settings(max_examples=20, deadline=None)
@given(st.floats(1, 200), st.floats(50, 5000))
def test_an_exact_law_is_found_again(s_min, b_crit):
    found = fitted(BATCHES, s_min * (1 + BATCHES / b_crit))
    assert (found.s_min, found.b_crit) == pytest.approx((s_min, b_crit), rel=1e-3)


def test_the_fit_is_that_of_least_squares_in_logs():
    y = epochs()

    def law(b, log_s, log_b):
        return log_s + np.log1p(b / np.exp(log_b))

    best, _ = optimize.curve_fit(law, BATCHES, np.log(y), p0=[1, 5])
    found = fitted(BATCHES, y)
    assert np.log([found.s_min, found.b_crit]) == pytest.approx(best, abs=1e-4)


def test_the_free_form_is_a_regression_and_its_criterion_that_of_statsmodels():
    y = epochs()
    found = fitted(BATCHES, y)
    data = pd.DataFrame({"y": np.log(y), "b": np.log(BATCHES)})
    direct = smf.ols("y ~ b + I(b**2)", data).fit()
    batches, expected = zip(*found.free_form, strict=True)
    assert batches == pytest.approx(np.unique(BATCHES))
    assert np.log(expected) == pytest.approx(direct.fittedvalues.to_numpy()[::3])
    law = np.log(found.s_min * (1 + BATCHES / found.b_crit))
    n, squares = len(y), float(((np.log(y) - law) ** 2).sum())
    log_likelihood = -n / 2 * (np.log(2 * np.pi * squares / n) + 1)
    criteria = [
        -2 * value + 2 * k + 2 * k * (k + 1) / (n - k - 1)
        for value, k in ((direct.llf, 4), (log_likelihood, 3))
    ]
    assert found.free_aicc == pytest.approx(criteria[0] - criteria[1], abs=1e-4)


def test_the_note_says_whether_the_law_fits_as_well_as_the_free_form():
    assert "fits no better" in fitted(BATCHES, epochs(sd=0.02)).sentence
    bowl = fitted(BATCHES, 10 * np.exp(0.2 * np.log(BATCHES / 256) ** 2) * epochs(b_crit=1e9))
    assert bowl.free_aicc < -2
    assert "a parabola of ln S in ln B fits better" in bowl.sentence
    few = fitted([32, 64, 128, 256], [10, 11, 14, 19])
    assert few.free_aicc is None and "parabola" not in few.sentence


def test_intervals_have_about_their_nominal_coverage():
    ends = [fitted(BATCHES, epochs(seed=seed)).b_crit_ci for seed in range(60)]
    assert np.mean([low <= 500 <= high for low, high in ends]) >= 0.87


def test_epochs_that_the_batch_does_not_change_or_that_follow_it_leave_an_end_open():
    flat, steep = fitted(BATCHES, epochs(b_crit=1e9)), fitted(BATCHES, epochs(1e-6, 1e-6))
    assert flat.b_crit_ci[1] is None and flat.b_crit_ci[0] > 4096
    assert "do not rise measurably" in flat.sentence
    assert steep.b_crit_ci[0] is None and steep.b_crit_ci[1] < 16
    assert "in proportion" in steep.sentence
    json.dumps(flat.to_dict(), allow_nan=False)


def test_runs_that_had_not_reached_the_target_pull_the_law_up():
    y = epochs(b_crit=300, sd=0.15, seed=5)
    limit = np.full(y.size, 60.0)
    seen = np.where(y > limit, np.nan, y)
    assert np.isnan(seen).any()
    full = fitted(BATCHES, y)
    known = critical_batch(BATCHES, seen, limit)
    assert known.censored == int(np.isnan(seen).sum())
    assert "had not reached the target when they ended" in known.sentence
    assert np.log(known.b_crit / full.b_crit) == pytest.approx(0, abs=0.5)
    assert known.b_crit_ci[0] <= 300 <= known.b_crit_ci[1]


def test_batches_that_leave_the_law_widen_its_intervals():
    bumps = np.repeat([1.0, 1.6, 0.7, 1.5, 0.8], 3)
    steady = fitted(BATCHES, epochs(sd=0.02))
    bumpy = fitted(BATCHES, epochs(sd=0.02) * bumps)
    assert steady.lack_of_fit_p > 0.05 > bumpy.lack_of_fit_p
    assert "the batches' means deviate from the law" in bumpy.sentence

    def width(found):
        low, high = found.b_crit_ci
        return np.inf if high is None or low is None else np.log(high / low)

    assert width(bumpy) > 5 * width(steady)


@pytest.mark.parametrize(
    ("batch", "reached", "why"),
    [
        ([1, 2, 2], [3, 4, 5], "2 batches have a run that reached the target"),
        ([1, 2, 4], [3, 4, np.nan], "2 batches"),
        ([1, 2, 4], [3, 4, 0], "not a number above 0"),
        ([1, 2, 4, 8], [3, 3, 3, 3], "every run took 3 epochs"),
    ],
)
def test_invalid_data_for_a_fit_is_rejected_with_a_reason(batch, reached, why):
    with pytest.raises(Refused, match=why):
        critical_batch(batch, reached, [5.0] * len(batch))


def test_every_series_gives_a_law_or_a_reason(series):
    told = []
    for key, rows in series.groupby(["dataset", "network", "optimizer", "target_metric"]):
        try:
            reached = rows.dropna(subset="target_epoch")
            found = fitted(reached["batch_size"], reached["target_epoch"])
        except Refused as refusal:
            told.append((key, str(refusal)))
            continue
        assert found.n == len(reached)
        json.dumps(found.to_dict(), allow_nan=False)
        told.append((key, found.sentence))
    assert len(told) == series.groupby(["dataset", "network", "target_metric"]).ngroups
    assert all(words for _, words in told)


def test_shufflenet_on_cifar100_has_a_critical_batch_of_some_hundreds(series):
    rows = series[(series["network"] == "shufflenetv2") & (series["target_metric"] == 0.4)]
    found = fitted(rows["batch_size"], rows["target_epoch"])
    low, high = found.b_crit_ci
    assert 300 < low < found.b_crit < high < 900
    # By eye: the mean at the largest batch is about (1 + 4096 / B_crit) of that at the smallest.
    means = rows.groupby("batch_size")["target_epoch"].mean()
    expected = (1 + 4096 / found.b_crit) / (1 + 8 / found.b_crit)
    assert means[4096] / means[8] == pytest.approx(expected, rel=0.3)
