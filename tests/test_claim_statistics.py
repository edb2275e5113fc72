"""The estimates behind claims, against statsmodels and scipy, and how often verdicts are wrong."""

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import stats

from claims_lab import Lab, capped
from wattlaw.analysis.claims import CONTRADICTED, MIT, SUPPORTED
from wattlaw.analysis.claims import limits as limit_claims
from wattlaw.analysis.claims.effects import beyond_law, contrast, exponent, paired
from wattlaw.analysis.claims.verdicts import Case, Effect, Outside, Statement, Within
from wattlaw.errors import Refused

RUNS = 800


def rows_of(lab: Lab) -> pd.DataFrame:
    return lab.findings().runs


def test_a_paired_effect_is_that_of_a_model_with_an_effect_of_each_cell() -> None:
    rows = rows_of(capped({200: 1.1}, noise=0.05))
    rows = rows.assign(y=np.log(rows["epoch_time_s"]), on=rows["power_limit_w"].notna())
    fit = smf.ols("y ~ on + C(gpus)", rows).fit()
    found = paired(rows, "epoch_time_s", rows["on"], rows["gpus"])
    assert found.estimate == pytest.approx(fit.params["on[T.True]"])
    assert found.se == pytest.approx(fit.bse["on[T.True]"])
    assert found.df == fit.df_resid


def test_a_contrast_is_that_of_a_model_of_cell_means() -> None:
    rows = rows_of(Lab().run(noise=0.05))
    fit = smf.ols("np.log(epoch_time_s) ~ 0 + C(gpus)", rows).fit()
    told = fit.t_test("C(gpus)[2] - C(gpus)[128]")
    found = contrast(rows, "epoch_time_s", "gpus", {2: 1.0, 128: -1.0})
    assert (found.estimate, found.se, found.df) == pytest.approx(
        (told.effect.item(), told.sd.item(), told.df_denom)
    )


def test_the_deviation_from_a_law_is_that_from_the_law_of_the_counts_within() -> None:
    rows = rows_of(Lab().run(noise=0.05))
    within = rows[rows["gpus"] <= 64]
    slope, log_alpha = np.polyfit(np.log(within["gpus"]), np.log(within["epoch_time_s"]), 1)
    last = np.log(rows.loc[rows["gpus"] == 128, "epoch_time_s"]).mean()
    assert beyond_law(rows, 64).estimate == pytest.approx(last - log_alpha - slope * np.log(128))


def test_an_effect_without_freedom_or_repeats_is_refused() -> None:
    single = rows_of(Lab().run(repeats=1))
    with pytest.raises(Refused, match="repeats"):
        contrast(single, "epoch_time_s", "gpus", {2: 1.0, 128: -1.0})
    with pytest.raises(Refused, match="repeats"):
        Effect(1.0, 0.1, 0)
    with pytest.raises(Refused, match="3"):
        exponent(single[single["gpus"] < 8])


def test_equivalence_is_two_one_sided_tests() -> None:
    effect = Effect(0.02, 0.01, 10)
    p = max(stats.t.sf((0.02 + 0.05) / 0.01, 10), stats.t.cdf((0.02 - 0.05) / 0.01, 10))
    for level in (p * 1.01, p * 0.99):
        supported = Within("x", "x", effect, -0.05, 0.05).verdict(level, level) == SUPPORTED
        assert supported == (p < level)


def judged(effects: list[Effect], about: str, margin: float) -> str:
    checks = [Within("x", "x", effect, -margin, margin) for effect in effects]
    made = [Outside(check) if about == "some" else check for check in checks]
    cases = [Case("w", str(i), (check,)) for i, check in enumerate(made)]
    return Statement("n", "c", MIT, "k", "m", about=about).judged(cases).verdict  # type: ignore[arg-type]


def shares(truths: list[float], about: str, n: int = RUNS) -> dict[str, float]:
    dice, found = np.random.default_rng(1), []
    for _ in range(n):
        effects = [
            Effect(truth + dice.normal(0, 0.02), 0.02 * math.sqrt(dice.chisquare(12) / 12), 12)
            for truth in truths
        ]
        found.append(judged(effects, about, 0.05))
    return {verdict: found.count(verdict) / n for verdict in (SUPPORTED, CONTRADICTED)}


def test_wrong_verdicts_are_rare_at_the_very_edge_of_the_criterion() -> None:
    bound = 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / RUNS)
    assert shares([0.05] * 5, "every")[CONTRADICTED] < bound  # true, just
    assert shares([0.0, 0.0, 0.0501], "every")[SUPPORTED] < bound  # false by one
    assert shares([0.05] * 5, "some")[SUPPORTED] < bound
    assert shares([0.0, 0.0, 0.0501], "some")[CONTRADICTED] < bound


def test_where_nothing_differs_no_difference_is_claimed() -> None:
    assert shares([0.0] * 10, "some")[SUPPORTED] < 0.01
    assert shares([0.0] * 5, "every")[CONTRADICTED] < 0.01


def test_caps_that_leave_beta_alone_are_rarely_said_to_change_it() -> None:
    few = (2, 8, 32, 128)
    labs = [capped({100: 1.6}, seed=seed, noise=0.03, counts=few) for seed in range(15)]
    found = [limit_claims.caps_move_alpha(lab.findings()) for lab in labs]
    wrong = sum(claim.verdict == CONTRADICTED for claim in found)
    assert wrong <= 2  # of 15 at 2.5 % each: more with a chance of 0.6 %
