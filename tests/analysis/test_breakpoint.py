"""Where a curve leaves its power law: against statsmodels, and by simulation."""

import numpy as np
import pytest
import statsmodels.api as sm

from wattlaw.analysis.laws.power_law import find_breakpoint
from wattlaw.common.errors import Refused

SCHNET = np.array([2.0, 4, 8, 16, 32, 64, 128, 256, 424])


def study(
    counts=SCHNET, flat_from=np.inf, repeats=3, noise=0.05, shared=0.0, seed=0, beta=0.8
) -> tuple[np.ndarray, np.ndarray]:
    """Return runs of 100 N^-beta up to ``flat_from`` and flat beyond."""
    dice = np.random.default_rng(seed)
    x = np.repeat(np.asarray(counts, float), repeats)
    deviations = np.repeat(dice.normal(0, shared, len(counts)), repeats)
    logs = np.log(100) - beta * np.log(np.minimum(x, flat_from))
    return x, np.exp(logs + deviations + dice.normal(0, noise, x.size))


@pytest.mark.parametrize("shared", [0.0, 0.05])
@pytest.mark.parametrize("largest", [128, 256, 424])
def test_a_curve_that_is_flat_beyond_64_has_its_breakpoint_there(largest, shared):
    counts = SCHNET[largest >= SCHNET]
    found = [find_breakpoint(*study(counts, 64, shared=shared, seed=seed)) for seed in range(50)]
    if largest > 128:
        assert all(bend is not None for bend in found)
    elif shared:  # one count beyond, and counts deviate: it cannot always be told
        assert sum(bend is not None for bend in found) >= 25
    breakpoints = [bend for bend in found if bend is not None]
    assert len([bend for bend in breakpoints if bend.at == 64]) >= 0.9 * len(breakpoints)
    assert all(bend.flattens for bend in breakpoints)
    covered = [bend.beta_before_ci[0] <= 0.8 <= bend.beta_before_ci[1] for bend in breakpoints]
    assert np.mean(covered) >= 0.9


@pytest.mark.parametrize("counts", [SCHNET, SCHNET[:5]])
@pytest.mark.parametrize(("repeats", "shared"), [(1, 0.0), (3, 0.1)])
def test_a_pure_power_law_rarely_has_a_breakpoint(counts, repeats, shared):
    told = [
        find_breakpoint(*study(counts, repeats=repeats, shared=shared, seed=seed)) is not None
        for seed in range(200)
    ]
    assert np.mean(told) <= 0.05


def test_the_slopes_are_those_of_a_segmented_regression_of_the_means():
    x, y = study(flat_from=64)
    bend = find_breakpoint(x, y)
    hinge = np.maximum(np.log(SCHNET / 64), 0)
    means = np.log(y).reshape(-1, 3).mean(axis=1)
    direct = sm.OLS(means, sm.add_constant(np.column_stack([np.log(SCHNET), hinge]))).fit()
    assert bend.at == 64
    assert bend.beta_before == pytest.approx(-direct.params[1])
    assert bend.beta_after == pytest.approx(-direct.params[1:].sum())
    # one degree of freedom fewer than the regression has: the breakpoint's place was looked for
    half = np.sqrt(6 / 5) * direct.bse[1] * 2.5705818
    assert np.ptp(bend.beta_before_ci) == pytest.approx(2 * half)
    assert bend.at_range[0] <= 64 <= bend.at_range[1]


def test_an_exact_power_law_does_not_bend_and_an_exact_bend_does():
    assert find_breakpoint(SCHNET, 100 * SCHNET**-0.8) is None
    assert find_breakpoint(SCHNET, [5.0] * 9) is None
    assert find_breakpoint(SCHNET, np.minimum(SCHNET, 64) ** -0.8).at == 64


def test_few_counts_have_no_breakpoint():
    with pytest.raises(Refused, match="4 distinct worker counts"):
        find_breakpoint([1, 2, 4, 8] * 3, [8.0, 4.0, 2.0, 2.0] * 3)
