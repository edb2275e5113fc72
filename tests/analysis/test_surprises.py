"""What runs showed that was not expected."""

from dataclasses import replace

import numpy as np
import pytest

from wattlaw.analysis.decide.surprises import Surprise, surprises, widening
from wattlaw.analysis.predict import Observation, predict
from wattlaw.analysis.predict.posterior import fit
from wattlaw.study.setting import Setting


def packed(gpus: int) -> Setting:
    return Setting.packed(gpus, 4, local_batch=32)


def of_scores(*scores: float) -> list[Surprise]:
    return [Surprise(packed(1), 1.0, 0.5, 2.0, 1.0, score) for score in scores]


def test_settings_are_compared_with_what_the_runs_before_them_predict():
    seen = tuple(Observation(packed(gpus), 0.2) for gpus in (1, 2, 4))
    found = surprises((*seen, seen[0], Observation(packed(8), 5.0)))
    assert [item.setting for item in found] == [packed(2), packed(4), packed(8)]
    assert all(item.is_inside and item.low_s < item.predicted_s < item.high_s for item in found[:2])
    assert found[2].score > 1.64 and not found[2].is_inside
    assert surprises(seen[:1]) == ()
    # Runs that come later change nothing about it.
    assert surprises(seen) == found[:2]


def test_intervals_are_wider_after_surprises_and_narrower_without():
    assert widening(of_scores(0.1, -0.2, 0.1)) < 1 < widening(of_scores(2.0, -3.0))
    assert widening(of_scores(*[3.0] * 40)) > widening(of_scores(3.0))
    right = np.random.default_rng(0).standard_normal(400)
    assert widening(of_scores(*right)) == pytest.approx(1.0, abs=0.1)


def test_a_model_that_misses_its_own_runs_says_by_how_much():
    good = [Observation(packed(gpus), 0.2) for gpus in (1, 2, 4)]
    bad = [good[0], replace(good[1], step_time_s=0.1), good[2]]
    assert fit(good).misfit < 0.02
    assert fit(bad).misfit > 0.1
    codes = [
        {warning.code for row in predict(seen, [packed(8)]) for warning in row.warnings}
        for seen in (good, bad)
    ]
    assert ["misfit" in each for each in codes] == [False, True]
