"""The estimates behind claims, against statsmodels and scipy, and how often verdicts are wrong."""

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import stats

from claims_lab import Lab, capped
from wattlaw.common.errors import Refused
from wattlaw_papers.claims.cases import matches_name
from wattlaw_papers.claims.effects import beyond_law, contrast, exponent, paired
from wattlaw_papers.claims.verdicts import (
    CONTRADICTED,
    MIT,
    SUPPORTED,
    Case,
    ClaimDefinition,
    Effect,
    Within,
)

RUNS = 800
EMPTY = Lab().run(counts=(1,)).findings()


def test_a_paired_effect_is_that_of_a_model_with_an_effect_of_each_cell():
    rows = capped({200: 1.1}, noise=0.05).findings().runs
    rows = rows.assign(y=np.log(rows["time_s"]), on=rows["power_limit_w"].notna())
    fit = smf.ols("y ~ on + C(gpus)", rows).fit()
    found = paired(rows, "time_s", rows["on"], rows["gpus"])
    assert found.estimate == pytest.approx(fit.params["on[T.True]"])
    assert found.se == pytest.approx(fit.bse["on[T.True]"])
    assert found.df == fit.df_resid


def test_a_contrast_is_that_of_a_model_of_cell_means():
    rows = Lab().run(noise=0.05).findings().runs
    fit = smf.ols("np.log(time_s) ~ 0 + C(gpus)", rows).fit()
    told = fit.t_test("C(gpus)[2] - C(gpus)[128]")
    found = contrast(rows, "time_s", "gpus", {2: 1.0, 128: -1.0})
    assert (found.estimate, found.se, found.df) == pytest.approx(
        (told.effect.item(), told.sd.item(), told.df_denom)
    )


def test_the_deviation_from_a_law_is_that_from_the_law_of_the_counts_within():
    rows = Lab().run(noise=0.05).findings().runs
    within = rows[rows["gpus"] <= 64]
    slope, log_alpha = np.polyfit(np.log(within["gpus"]), np.log(within["time_s"]), 1)
    last = np.log(rows.loc[rows["gpus"] == 128, "time_s"]).mean()
    assert beyond_law(rows, 64).estimate == pytest.approx(last - log_alpha - slope * np.log(128))


def with_effects(dice: np.random.Generator, cells: int, sd: float, repeats: int) -> pd.DataFrame:
    """Return runs with and without, whose effect is 0.1 on average and differs between cells."""
    rows = pd.DataFrame(
        [(cell, on) for cell in range(cells) for on in (False, True) for _ in range(repeats)],
        columns=["cell", "on"],
    )
    effects = 0.1 + dice.normal(0, sd, cells)
    logs = rows["cell"] + effects[rows["cell"]] * rows["on"] + dice.normal(0, 0.01, len(rows))
    return rows.assign(time_s=np.exp(logs))


def effect_of(rows: pd.DataFrame) -> Effect:
    return paired(rows, "time_s", rows["on"], rows["cell"])


def test_an_effect_that_differs_between_settings_has_one_difference_each():
    rows = with_effects(np.random.default_rng(0), 4, 0.1, 3)
    means = np.log(rows["time_s"]).groupby([rows["cell"], rows["on"]]).mean().unstack()
    told = stats.ttest_rel(means[True], means[False])
    found = effect_of(rows)
    assert found.estimate / found.se == pytest.approx(told.statistic)
    assert (found.df, found.about) == (told.df, "")


@pytest.mark.parametrize("cells", [1, 2])
def test_an_effect_in_one_or_two_settings_names_them(cells):
    rows = with_effects(np.random.default_rng(0), cells, 0.1, 3)
    fit = smf.ols("np.log(time_s) ~ 0 + C(cell):C(on)", rows).fit()
    told = fit.t_test(np.repeat([-1.0, 1.0], cells) / cells)
    found = effect_of(rows)
    assert (found.estimate, found.se, found.df) == pytest.approx(
        (told.effect.item(), told.sd.item(), told.df_denom)
    )
    assert "at exactly th" in Within("x", "x", found).evidence()


def test_repeats_that_are_all_the_same_give_no_certainty():
    rows = Lab().run(noise=0.0).findings().runs
    with pytest.raises(Refused, match="all repeats are identical"):
        contrast(rows, "time_s", "gpus", {2: 1.0, 128: -1.0})
    with pytest.raises(Refused, match="all repeats are identical"):
        effect_of(rows.assign(cell=0, on=rows["gpus"] > 8)[rows["gpus"].isin([8, 16])])


def test_a_claim_on_a_model_is_about_workloads_with_its_name_as_a_word():
    for workload in ("bert-base", "BERT_base_uncased", "my bert"):
        assert matches_name(workload, "bert"), workload
    for workload in ("roberta", "albert-base", "bert4rec", "distilbert"):
        assert not matches_name(workload, "bert"), workload
    assert matches_name("SchNet-QM9", "schnet")
    assert matches_name("ResNet-50", "vgg16", "resnet50")
    assert matches_name("InceptionV3", "inception")
    assert not matches_name("resnet501", "resnet50")


def test_an_effect_without_freedom_or_repeats_is_refused():
    single = Lab().run(repeats=1).findings().runs
    with pytest.raises(Refused, match="repeats"):
        contrast(single, "time_s", "gpus", {2: 1.0, 128: -1.0})
    with pytest.raises(Refused, match="repeats"):
        Effect(1.0, 0.1, 0)
    with pytest.raises(Refused, match="3"):
        exponent(single[single["gpus"] < 8])


def test_equivalence_is_two_one_sided_tests():
    effect = Effect(0.02, 0.01, 10)
    p = max(stats.t.sf((0.02 + 0.05) / 0.01, 10), stats.t.cdf((0.02 - 0.05) / 0.01, 10))
    for level in (p * 1.01, p * 0.99):
        supported = Within("x", "x", effect, -0.05, 0.05).verdict(level, level) == SUPPORTED
        assert supported == (p < level)


def evaluate(effects: list[Effect], about: str, margin: float) -> str:
    inside = about != "some"
    checks = [Within("x", "x", effect, -margin, margin, inside=inside) for effect in effects]
    cases = [Case("w", str(i), (check,)) for i, check in enumerate(checks)]
    claim = ClaimDefinition("n", "c", MIT, "k", "m", lambda _: cases, about)  # type: ignore[arg-type]
    return claim.evaluate(EMPTY).verdict


def shares(truths: list[float], about: str) -> dict[str, float]:
    dice, found = np.random.default_rng(1), []
    for _ in range(RUNS):
        effects = [
            Effect(truth + dice.normal(0, 0.02), 0.02 * math.sqrt(dice.chisquare(12) / 12), 12)
            for truth in truths
        ]
        found.append(evaluate(effects, about, 0.05))
    return {verdict: found.count(verdict) / RUNS for verdict in (SUPPORTED, CONTRADICTED)}


def test_wrong_verdicts_are_rare_at_the_very_edge_of_the_criterion():
    bound = 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / RUNS)
    assert shares([0.05] * 5, "every")[CONTRADICTED] < bound  # true, just
    assert shares([0.0, 0.0, 0.0501], "every")[SUPPORTED] < bound  # false by one
    assert shares([0.05] * 5, "some")[SUPPORTED] < bound
    assert shares([0.0, 0.0, 0.0501], "some")[CONTRADICTED] < bound
