"""Quality against global batch: the comparisons against scipy, falls that were put in are found."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from made_tables import frames, run_row, window_row
from wattlaw.analysis.laws.batch_effects import (
    CANNOT_TELL,
    FALLS,
    NO_FALL,
    compare_with_best,
    quality_by_batch,
)
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.common.errors import Refused

BATCHES = (256, 1024, 4096, 8192, 16384, 65536)


def learned(
    quality: dict[int, float], sd: float = 0.001, repeats: int = 5, seed: int = 0, **row: object
) -> pd.DataFrame:
    """Return metrics of runs whose last evaluation is of this quality, by global batch."""
    dice = np.random.default_rng(seed)
    runs, windows = [], []
    for batch, mean in quality.items():
        for repeat in range(repeats):
            run_id = f"{batch:08}{repeat:08}"
            runs.append(run_row(run_id, global_batch=batch, repeat=repeat, **row))
            windows.append(window_row(run_id, 0))
            metric = mean + sd * float(dice.normal())
            windows.append(window_row(run_id, 0, phase="evaluate", metric=metric))
    return run_metrics(*frames(runs, windows))


def like_resnet50() -> dict[int, float]:
    return dict(zip(BATCHES, (0.763, 0.764, 0.763, 0.762, 0.751, 0.70), strict=True))


@pytest.mark.parametrize("sizes", [(4, 4, 4, 4), (3, 6, 4, 5, 2)])
def test_many_samples_agree_with_scipys_dunnett(sizes):
    dice = np.random.default_rng(3)
    samples = [dice.normal(0.3 * i, 1, n) for i, n in enumerate(sizes)]
    found = compare_with_best(samples)
    for j, control in enumerate(samples):
        others = [one for i, one in enumerate(samples) if i != j]
        test = stats.dunnett(*others, control=control, alternative="greater", rng=dice)
        assert found.p_value[j] == pytest.approx(test.pvalue.min(), abs=2e-3)


def test_one_sample_and_no_repeats_are_refused():
    with pytest.raises(Refused, match="at least two"):
        compare_with_best([np.array([1.0, 2.0])])
    with pytest.raises(Refused, match="measure repeats"):
        compare_with_best([np.array([1.0]), np.array([2.0])])
    with pytest.raises(Refused, match="all repeats are identical"):
        compare_with_best([np.array([1.0, 1.0]), np.array([2.0, 2.0])])


def test_a_fall_beyond_8192_is_found():
    (row,) = quality_by_batch(learned(like_resnet50()))
    assert row.verdict == FALLS
    assert (row.falls_beyond, row.falls_from) == (8192, 16384)
    assert row.holds_to == 8192
    assert "accuracy falls beyond global batch 8192: at 16384" in row.sentence
    assert row.means.loc[row.means["global_batch"] == 65536, "verdict"].item() == "worse"
    at = row.means.set_index("global_batch").loc[16384]
    assert at["worse_by_low"] <= 0.013 <= at["worse_by_high"]


def test_a_loss_falls_in_quality_when_it_rises():
    table = learned({8: 1.0, 16: 1.01, 32: 1.5}, sd=0.01, metric_name="loss")
    (row,) = quality_by_batch(table)
    assert (row.better, row.verdict, row.falls_beyond) == ("lower", FALLS, 16)
    assert row.best_batch == 8


def test_no_fall_is_seen_where_there_is_none():
    (row,) = quality_by_batch(learned(dict.fromkeys(BATCHES, 0.76)))
    assert (row.verdict, row.holds_to) == (NO_FALL, 65536)
    assert "no fall of accuracy" in row.sentence and "65536" in row.sentence


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (learned(like_resnet50(), repeats=1), "no repeats"),
        (learned({64: 0.7}), "one global batch only"),
        (learned(like_resnet50(), metric_name="goodness"), "goodness may be better high or low"),
        (learned(like_resnet50(), metric_name=None), "the metric may be better high or low"),
        (
            learned(dict.fromkeys(BATCHES, 0.76), 0.05, 2, seed=1),
            "may be worse than the best by up",
        ),
    ],
)
def test_an_undecided_result_has_a_reason(table, why):
    (row,) = quality_by_batch(table)
    assert row.verdict == CANNOT_TELL and row.falls_beyond is None
    assert why in row.sentence


def test_runs_that_learn_otherwise_are_not_compared():
    short = learned(like_resnet50())
    long = short.assign(epochs_trained=90, metric=short["metric"] + 0.1)
    found = quality_by_batch(pd.concat([short, long]))
    assert [row.group["epochs_trained"] for row in found] == [1, 90]


def diverged(table: pd.DataFrame, lost: dict[int, int], value: float = np.nan) -> pd.DataFrame:
    """Return the table with this metric for the first repeats of a batch."""
    gone = table["repeat"] < table["global_batch"].map(lost).fillna(0)
    return table.assign(metric=table["metric"].mask(gone, value), loss=table["loss"].mask(gone))


@pytest.mark.parametrize(("value", "lost"), [(np.nan, 1), (np.inf, 2), (-np.inf, 3)])
def test_diverged_runs_at_the_largest_batch_do_not_show_constant_quality(value, lost):
    table = learned(dict.fromkeys((32, 64, 128), 0.76), repeats=3)
    (row,) = quality_by_batch(diverged(table, {128: lost}, value))
    assert row.verdict == CANNOT_TELL and row.holds_to == 64
    assert f"{lost} of 3 repeats at 128 diverged" in row.sentence
    assert "nan" not in row.sentence and "inf" not in row.sentence
    at = row.means.set_index("global_batch").loc[128]
    assert (at["n"], at["diverged"]) == (3 - lost, lost)
    assert at["verdict"] == ("diverged" if lost == 3 else CANNOT_TELL)
    assert "repeats at 128 diverged" in row.warning(128)
    json.dumps(row.to_dict(), allow_nan=False)


@pytest.mark.parametrize("where", [16384, 65536])
def test_a_fall_is_reported_even_if_all_runs_of_a_larger_batch_diverged(where):
    (row,) = quality_by_batch(diverged(learned(like_resnet50()), {where: 5}))
    assert (row.verdict, row.falls_beyond, row.falls_from) == (FALLS, 8192, 16384)
    assert f"5 of 5 repeats at {where} diverged" in row.sentence and "nan" not in row.sentence
    assert row.warning(where) == row.sentence
    json.dumps(row.to_dict(), allow_nan=False)


def test_runs_that_were_not_evaluated_did_not_diverge():
    table = learned(dict.fromkeys((32, 64, 128), 0.76), repeats=3)
    silent = diverged(table, {128: 1})
    silent = silent.assign(eval_time_s=silent["eval_time_s"].where(silent["metric"].notna()))
    (row,) = quality_by_batch(silent)
    assert row.verdict == NO_FALL and row.means["diverged"].sum() == 0
    (none,) = quality_by_batch(table.assign(metric=np.nan))
    assert "no run has a quality" in none.sentence and none.means.empty


def test_a_repeat_that_diverged_on_one_of_several_gpu_counts_has_diverged():
    table = learned(dict.fromkeys((32, 64, 128), 0.76), repeats=3)
    both = pd.concat([table, diverged(table, {128: 1}).assign(gpus=2)])
    (row,) = quality_by_batch(both)
    assert "1 of 3 repeats at 128 diverged" in row.sentence
