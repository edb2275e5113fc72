"""Epochs to a target, against hand-worked cases."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from made_tables import Rows, run_row, tables_of, window_row
from wattlaw.analysis.laws.batch_effects import epochs_by_batch, epochs_to_target
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.common.errors import Refused


def trained(run_id: str, metrics: list[float], time_s: float = 10.0, **row: object) -> Rows:
    """Return a run and its windows, one evaluation after each epoch."""
    windows = []
    for epoch, metric in enumerate(metrics):
        energy = {"gpu_energy_j": 100 * time_s, "energy_source": "counter", "energy_verdict": "ok"}
        windows.append(window_row(run_id, epoch, duration_s=time_s, warmup=epoch == 0, **energy))
        windows.append(window_row(run_id, epoch, phase="evaluate", duration_s=1.0, metric=metric))
    return [run_row(run_id, **row)], windows


def store(*runs: Rows):
    made = tables_of(*runs)
    return run_metrics(*made), made[1]


def test_the_first_epoch_that_reaches_it_counts_warm_up_included():
    _, epochs = store(
        trained("a" * 16, [0.1, 0.5, 0.7, 0.6, 0.8]), trained("b" * 16, [0.1, 0.2, 0.3])
    )
    higher = dict.fromkeys(("a" * 16, "b" * 16), "higher")
    found = epochs_to_target(epochs, 0.7, higher).set_index("run_id")
    assert found.loc["a" * 16, "epochs_to_target"] == 3
    missing = found.loc["b" * 16]
    assert not missing["reached"] and math.isnan(missing["epochs_to_target"])


def rise(reach: int, length: int = 10) -> list[float]:
    return [0.8 if epoch + 1 >= reach else 0.1 for epoch in range(length)]


def test_epochs_are_the_geometric_mean_of_repeats_with_an_interval():
    table, epochs = store(
        trained("a" * 16, rise(4), 10.0, gpus=1),
        trained("b" * 16, rise(5), 12.0, gpus=1, repeat=1),
        trained("c" * 16, rise(4), 6.0, gpus=2),
        trained("d" * 16, rise(5), 6.5, gpus=2, repeat=1),
    )
    (found,) = epochs_by_batch(table, epochs, 0.7).to_dict("records")
    assert found["epochs"] == pytest.approx(math.sqrt(4 * 5))
    half = stats.t.ppf(0.975, 1) * np.log([4, 5]).std(ddof=1) / math.sqrt(2)
    assert found["epochs_high"] == pytest.approx(math.sqrt(4 * 5) * math.exp(half))
    assert found["runs"] == 2  # a repeat on other GPUs is the same learning


def test_a_batch_of_which_one_repeat_never_gets_there_has_no_epochs_but_a_reason():
    table, epochs = store(
        trained("a" * 16, rise(4)),
        trained("b" * 16, rise(99), repeat=1),
        trained("c" * 16, rise(2), global_batch=32, local_batch=32),
    )
    found = epochs_by_batch(table, epochs, 0.7).set_index("global_batch")
    assert math.isnan(found.loc[64, "epochs"])
    assert found.loc[64, "why"] == "1 of 2 repeats reached the target"
    assert pd.isna(found.loc[32, "why"]) and found.loc[32, "epochs"] == 2


def test_the_longest_training_of_a_batch_counts():
    table, epochs = store(
        trained("a" * 16, rise(6, 20), 10.0, gpus=1), trained("b" * 16, rise(99, 3), 3.0, gpus=4)
    )
    assert epochs_by_batch(table, epochs, 0.7)["epochs"].to_list() == pytest.approx([6])


def of_batches(reach: dict[int, list[int]], counts: tuple[int, ...] = (1,), **row: object):
    """Return runs by global batch and repeat, each with the same seed on several GPU counts."""
    name = str(row.get("workload", ""))[:2]
    return [
        trained(f"{name:2}{batch:06}{gpus:04}{repeat:04}", rise(at, 40), gpus=gpus,
                global_batch=batch, local_batch=batch // gpus, repeat=repeat, **row)
        for batch, repeats in reach.items()
        for repeat, at in enumerate(repeats)
        for gpus in counts
    ]  # fmt: skip


REACH = {64: [10, 12, 11], 256: [13, 16, 12], 1024: [30, 25, 33]}


def test_the_same_seed_on_several_gpu_counts_counts_once_and_the_longest_runs_count():
    short = [
        trained(f"{'short':12}{i:04}", rise(2, 3), global_batch=64, repeat=i + 3, gpus=16)
        for i in range(4)
    ]
    once = epochs_by_batch(*store(*of_batches(REACH)), 0.7).set_index("global_batch")
    often = epochs_by_batch(*store(*of_batches(REACH, (1, 2, 4)), *short), 0.7)
    for row in often.to_dict("records"):
        assert row["runs"] == 3
        assert row["epochs_high"] == pytest.approx(once["epochs_high"][row["global_batch"]])


def test_runs_with_unknown_batches_are_not_repeats():
    unknown = {"global_batch": None, "local_batch": None}
    table, epochs = store(
        trained("a" * 16, rise(4)),
        trained("b" * 16, rise(2), gpus=2, **unknown),
        trained("c" * 16, rise(9), gpus=4, repeat=1, **unknown),
    )
    found = epochs_by_batch(table, epochs, 0.7)
    assert found["global_batch"].to_list() == [64]
    assert found["epochs"].to_list() == pytest.approx([4])
    assert epochs_by_batch(table[table["global_batch"].isna()], epochs, 0.7).empty


def test_a_target_applies_to_workloads_with_a_metric_of_known_direction():
    table, epochs = store(
        *of_batches(REACH),
        *of_batches({64: [3], 128: [3]}, workload="unnamed", metric_name=None),
        *of_batches({64: [3], 128: [3]}, workload="odd", metric_name="goodness"),
    )
    assert set(epochs_by_batch(table, epochs, 0.7)["workload"]) == {"digits-cnn"}
    with pytest.raises(Refused, match="known to be better"):
        epochs_by_batch(table[table["workload"] == "odd"], epochs, 0.7)
