"""Whether caps change the exponent: difference and equivalence, and how often they are wrong."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from statsmodels.stats.anova import anova_lm

from wattlaw.common.errors import Refused
from wattlaw_papers.claims.limit_comparison import BLOCKS, RUNS, compare_limits

COUNTS = (2, 4, 8, 16, 32, 64, 128)


def family(
    betas: dict[float, float], *, seed: int = 0, repeats: int = 3, noise: float = 0.02,
    of_count: float = 0.0, of_cell: float = 0.0, counts: tuple[int, ...] = COUNTS,
    ratio: float = 1.6,
) -> pd.DataFrame:  # fmt: skip
    """Return runs under each limit (NaN: none); ``ratio`` is what each limit adds to alpha.

    ``of_count`` is a deviation from the law that all runs of a GPU count share, ``of_cell`` one
    that the repeats of a count and limit share.
    """
    dice = np.random.default_rng(seed)
    shared = {n: dice.normal(0, of_count) if of_count else 0.0 for n in counts}
    made = []
    for i, (limit, beta) in enumerate(betas.items()):
        for n in counts:
            cell = dice.normal(0, of_cell) if of_cell else 0.0
            logs = np.log(1000 * ratio**i) - beta * np.log(n) + shared[n] + cell
            made += [
                {"power_limit_w": limit, "gpus": n, "time_s": np.exp(logs + e)}
                for e in dice.normal(0, noise, repeats)
            ]
    return pd.DataFrame(made)


def test_it_is_the_analysis_of_covariance_of_statsmodels():
    rows = family({250.0: 0.85, 200.0: 0.84, 100.0: 0.9}, seed=3)
    found = compare_limits(rows)
    data = rows.assign(y=np.log(rows["time_s"]), x=np.log(rows["gpus"]))
    limit = "C(power_limit_w, Treatment(250.0))"
    full, parallel = (smf.ols(f"y ~ {limit} {sign} x", data).fit() for sign in "*+")
    assert found.basis == RUNS
    assert found.difference_p == pytest.approx(anova_lm(parallel, full)["Pr(>F)"].iloc[1])
    table = found.limits.set_index("limit")
    for value in (200.0, 100.0):
        name = f"{limit}[T.{value}]:x"
        low, high = -full.conf_int(0.1).loc[name, [1, 0]]
        assert table.loc[value, "beta_difference"] == pytest.approx(-full.params[name])
        assert table.loc[value, "beta_difference_low"] == pytest.approx(low)
        assert table.loc[value, "beta_difference_high"] == pytest.approx(high)
        if abs(full.params[name]) < 0.05:
            sides = [full.t_test(f"{name} = {edge}").pvalue.item() / 2 for edge in (0.05, -0.05)]
            assert table.loc[value, "equivalence_p"] == pytest.approx(max(sides))
        else:
            assert table.loc[value, "equivalence_p"] > 0.5


@pytest.mark.parametrize(
    ("betas", "noise", "verdict", "text"),
    [
        ({np.nan: 0.85, 200.0: 0.85, 100.0: 0.85}, {}, "same beta", "same as uncapped within 0.05"),
        # as far apart as those of the published clocks
        ({1380.0: 0.82, 735.0: 0.90, 135.0: 0.97}, {}, "different beta", "The exponents differ"),
        ({250.0: 0.85, 100.0: 0.85}, {"noise": 0.15, "repeats": 1, "counts": (2, 4, 8)},
         "cannot tell", "do not show whether the exponents differ by more than 0.05"),
    ],
)  # fmt: skip
def test_the_verdict_is_that_of_the_exponents_behind_the_data(betas, noise, verdict, text):
    found = compare_limits(family(betas, **noise))
    assert found.verdict == verdict
    assert text in found.sentence
    assert (found.difference_p > 0.05) == (verdict != "different beta")


def rates(betas: dict[float, float], **noise: float) -> dict[str, float]:
    """Return how often each verdict is given over 60 studies."""
    verdicts = [compare_limits(family(betas, seed=i, **noise)).verdict for i in range(60)]
    return {verdict: verdicts.count(verdict) / 60 for verdict in set(verdicts)}


@pytest.mark.parametrize(
    "noise", [{"noise": 0.02, "of_cell": 0.03}, {"noise": 0.02, "of_count": 0.1}]
)
def test_equivalence_is_claimed_for_exponents_at_the_margin_in_5_of_100_at_most(noise):
    # Of 60 draws with a probability of 5 % at most 9 come true in 99.9 of 100 cases.
    assert rates({250.0: 0.85, 100.0: 0.90}, **noise).get("same beta", 0) <= 9 / 60


@pytest.mark.parametrize("noise", [{"noise": 0.1}, {"noise": 0.05, "of_cell": 0.1}])
def test_a_difference_is_claimed_for_equal_exponents_in_5_of_100_at_most(noise):
    found = rates({250.0: 0.85, 200.0: 0.85, 100.0: 0.85}, **noise)
    assert found.get("different beta", 0) <= 9 / 60


def test_a_bend_that_all_limits_share_does_not_hide_that_they_are_parallel():
    rows = family({250.0: 0.85, 100.0: 0.85})
    beyond = rows["gpus"] > 16
    rows.loc[beyond, "time_s"] *= (rows.loc[beyond, "gpus"] / 16) ** 0.6
    found = compare_limits(rows)
    assert found.basis == BLOCKS
    assert found.verdict == "same beta"


def test_runs_with_another_limit_are_left_aside():
    capped = family({np.nan: 0.85, 100.0: 0.85}).assign(clock_limit_mhz=np.nan)
    clocked = family({np.nan: 0.3}).assign(clock_limit_mhz=135.0)
    both = pd.concat([capped, clocked])
    assert compare_limits(both).limits.equals(compare_limits(capped).limits)
    clocks = compare_limits(both, "clock_limit_mhz")
    assert len(clocks.limits) == 2
    assert clocks.verdict == "different beta"


def test_too_little_is_refused_with_what_to_do():
    rows = family({250.0: 0.85, 100.0: 0.85}, counts=(2, 4))
    with pytest.raises(Refused, match=r"0 limits with 3 GPU counts .*250 W: 2 GPU counts"):
        compare_limits(rows)
    few = pd.concat([family({250.0: 0.85, 100.0: 0.85}), family({200.0: 0.85}, counts=(2, 4))])
    assert compare_limits(few).limits["limit"].tolist() == [250.0, 100.0]
