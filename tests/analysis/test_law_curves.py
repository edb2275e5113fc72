"""Laws other than the power law: scipy's minimiser, exact laws, Akaike's criterion, errors."""

import json

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from wattlaw.analysis.laws.curves import LAWS, Curve, fit_curve
from wattlaw.analysis.laws.fitting import Selection, selection
from wattlaw.analysis.laws.observations import observe

COUNTS = np.array([1.0, 2, 4, 8, 16, 32, 64])
FORMULAS = {
    "power": lambda n, alpha, beta: alpha * n**-beta,
    "log-normal": lambda n, alpha, beta, gamma: alpha * n ** (-beta + gamma * np.log(n)),
    "amdahl": lambda n, a, b: a / n + b,
    "usl": lambda n, t1, sigma, kappa: t1 * (1 + sigma * (n - 1) + kappa * n * (n - 1)) / n,
    "communication": lambda n, a, b, c: a / n + b + c * np.log(n),
}
TRUTHS = {
    "power": (100.0, 0.8),
    "log-normal": (100.0, 0.9, 0.03),
    "amdahl": (95.0, 5.0),
    "usl": (100.0, 0.05, 0.001),
    "communication": (90.0, 2.0, 1.5),
}
BY_NAME = {law.name: law for law in LAWS}


def noisy(name: str, sd: float, repeats: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.repeat(COUNTS, repeats)
    noise = np.random.default_rng(seed).normal(0, sd, x.size)
    return x, FORMULAS[name](x, *TRUTHS[name]) * np.exp(noise)


def select(x, y) -> Selection:
    return selection(observe(x, y))


def fitted(name: str, x, y) -> Curve:
    return fit_curve(BY_NAME[name], observe(x, y))


def test_every_law_is_tested():
    assert {*TRUTHS} == {*FORMULAS} == {*BY_NAME}


@pytest.mark.parametrize("name", TRUTHS)
def test_intervals_are_those_of_scipys_curve_fit(name):
    x, y = noisy(name, 0.02)
    curve = fitted(name, x, y)
    theta, covariance = optimize.curve_fit(
        lambda n, *p: np.log(FORMULAS[name](n, *p)), x, np.log(y), p0=list(TRUTHS[name])
    )
    if BY_NAME[name].in_logs:  # the interval of the first is made in logarithms
        theta, covariance = theta[1:], covariance[1:, 1:]
    errors = np.sqrt(np.diag(covariance))
    t = stats.t.ppf(0.975, len(x) - len(TRUTHS[name]))
    ends = list(curve.params_ci.values())[-len(theta) :]
    for (low, high), value, error in zip(ends, theta, errors, strict=True):
        assert high == pytest.approx(value + t * error, rel=1e-3)
        # What has no negative value has a lower bound.
        lowest = -np.inf if BY_NAME[name].in_logs else 0
        assert low == pytest.approx(max(value - t * error, lowest), rel=1e-3, abs=1e-9)


def test_the_criterion_is_akaikes_with_the_correction_for_few_observations():
    x, y = noisy("power", 0.05, repeats=2)
    design = sm.add_constant(np.column_stack([np.log(x), np.log(x) ** 2]))
    table = select(x, y).table.set_index("law")
    for name, columns in (("power", 2), ("log-normal", 3)):
        direct = sm.OLS(np.log(y), design[:, :columns]).fit()
        k, n = columns + 1, x.size
        # statsmodels leaves out the noise among the constants, and has n (1 + ln 2 pi) more
        theirs = direct.aic + 2 - n * (1 + np.log(2 * np.pi)) + 2 * k * (k + 1) / (n - k - 1)
        assert table.loc[name, "aicc"] == pytest.approx(theirs)
        assert table.loc[name, "k"] == k
    assert table["weight"].sum() == pytest.approx(1)


@pytest.mark.parametrize("name", TRUTHS)
def test_the_law_that_made_the_data_is_selected(name):
    taken = [select(*noisy(name, 0.003, 3, seed)).best.law for seed in range(20)]
    assert taken.count(name) >= 18


def test_the_holdout_error_is_that_of_the_law_fitted_to_the_other_counts():
    x, y = noisy("amdahl", 0.02, repeats=3)
    table = select(x, y).table.set_index("law")
    kept = x < 64
    for name in ("power", "communication"):
        without = FORMULAS[name](64.0, **fitted(name, x[kept], y[kept]).params)
        measured = np.exp(np.log(y[~kept]).mean())
        assert table.loc[name, "holdout_error"] == pytest.approx(without / measured - 1)
    assert table.loc["power", "holdout_error"] < -0.2  # it promises too much
    assert abs(table.loc["amdahl", "holdout_error"]) < 0.1


def test_four_counts_have_no_criterion_and_say_so():
    chosen = select([1, 2, 4, 8], [100.0, 55.0, 32.5, 21.2])
    table = chosen.table.set_index("law")
    assert table["aicc"].isna().all()
    assert table["weight"].isna().all()
    assert table["reason"].str.contains("AICc is undefined: 4 runs").all()
    assert chosen.best.law == "amdahl"
    assert chosen.reason == "too few observations for AICc; lowest holdout error"
    told = json.loads(json.dumps(chosen.to_dict(), allow_nan=False))
    assert told["aicc"] is None
    assert told["holdout_error"] == pytest.approx(table["holdout_error"]["amdahl"])


def test_fitted_cost_terms_are_not_negative():
    curve = fitted("communication", COUNTS, 5 + 3 * np.log(COUNTS))
    assert curve.params["a"] == pytest.approx(0, abs=1e-6)
    assert min(curve.params.values()) >= 0
    assert min(low for low, _ in curve.params_ci.values()) >= 0


@settings(max_examples=20, deadline=None)
@example(
    {207: 1e199, 284: 7e199, 500: 2e98, 499: 2e199, 50: 2e178, 6: 2e16, 119: 7e199, 195: 4e-196}
)
@given(st.dictionaries(st.integers(1, 500), st.floats(1e-200, 1e200), min_size=3, max_size=8))
def test_any_positive_series_gives_laws_in_plain_json(series):
    chosen = select([float(n) for n in series], list(series.values()))
    json.dumps(chosen.to_dict(), allow_nan=False)
    known = chosen.table[["aicc", "holdout_error"]].notna().all(axis=1)
    assert (known != chosen.table["reason"].notna()).all()
