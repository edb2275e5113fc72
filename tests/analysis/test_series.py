"""Scaling series, and what a series is relative to one of its counts."""

import json

import numpy as np
import pytest
from scipy import stats

from made_studies import kit
from made_tables import frames, run_row, window_row
from wattlaw.analysis.laws.series import fit_series, scaling_series, speedups
from wattlaw.analysis.metrics.metrics import run_metrics


def test_a_run_of_one_worker_belongs_to_a_series_of_each_kind():
    runs = [
        run_row("a", gpus=1, global_batch=64, local_batch=64),
        run_row("b", gpus=2, global_batch=64, local_batch=32),
        run_row("c", gpus=2, global_batch=128, local_batch=64),
    ]
    series = scaling_series(run_metrics(*frames(runs, [window_row(n, 1) for n in "abc"])))
    members = {name: set(rows["run_id"]) for name, rows in series.groupby("series")}
    assert members == {"global batch 64": {"a", "b"}, "local batch 64": {"a", "c"}}


def test_a_constant_global_batch_keeps_the_number_or_the_size_of_micro_batches():
    steps = ((1, 4), (2, 4), (2, 2), (4, 1), (4, 2))
    runs = [
        run_row(f"{gpus}.{number}", gpus=gpus, global_batch=64, local_batch=64 // gpus,
                layout=json.dumps({"gradient_accumulation": number}) if number > 1 else None)
        for gpus, number in steps
    ]  # fmt: skip
    windows = [window_row(str(run["run_id"]), 1) for run in runs]
    series = scaling_series(run_metrics(*frames(runs, windows)))
    members = {name: set(rows["run_id"]) for name, rows in series.groupby("series")}
    assert members == {
        "global batch 64, gradient accumulation 4": {"1.4", "2.4"},
        "global batch 64, gradient accumulation 2": {"2.2", "4.2"},
        "global batch 64, micro batch 16": {"1.4", "2.2", "4.1"},
        "global batch 64, micro batch 8": {"2.4", "4.2"},
    }


def test_caps_and_hardware_are_kept_apart_and_named():
    runs = [
        run_row(f"{cap}{gpus}{board}", gpus=gpus, local_batch=64 // gpus, power_limit_w=cap,
                hardware=board)
        for cap in (None, 200.0) for gpus in (1, 2, 4) for board in ("A", "B")
    ]  # fmt: skip
    table = run_metrics(*frames(runs, [window_row(str(r["run_id"]), 1) for r in runs]))
    series = scaling_series(table)
    named = {f"global batch 64, {board}{cap}" for board in "AB" for cap in ("", ", 200 W")}
    assert set(series["series"]) == named
    groups = [group for group, _ in fit_series(series).laws]
    assert {"workload": "digits-cnn", "global_batch": 64, "hardware": "A",
            "power_limit_w": 200.0} in groups  # fmt: skip
    assert len(groups) == 4


def test_speedup_is_a_ratio_of_geometric_means_with_the_interval_of_one_machine():
    times = {1: (10.0, 10.0 * np.exp(0.1)), 2: (5.0, 5.0 * np.exp(0.1))}
    runs, windows = [], []
    for gpus, values in times.items():
        for repeat, time_s in enumerate(values):
            name = f"{gpus}{repeat}"
            runs.append(run_row(name, gpus=gpus, local_batch=64 // gpus, repeat=repeat))
            windows.append(window_row(name, 1, duration_s=time_s))
    table = speedups(scaling_series(run_metrics(*frames(runs, windows)))).set_index("gpus")
    assert table.loc[2, "speedup"] == pytest.approx(2.0)
    assert table.loc[2, "efficiency"] == pytest.approx(1.0)
    # Two repeats beyond the first show the noise; the day and the machine are the same.
    half = stats.t.ppf(0.975, 2) * np.sqrt(0.005 * (1 / 2 + 1 / 2))
    assert table.loc[2, "speedup_low"] == pytest.approx(2 * np.exp(-half))
    assert table.loc[1, "speedup"] == 1.0


def test_a_data_set_that_grows_with_the_gpus_makes_a_series_of_its_own():
    made = kit(repeats=2)
    series = scaling_series(run_metrics(made.runs, made.epochs))
    growing = series[series["fraction_per_gpu"].notna()]
    assert set(growing["series"]) == {
        f"{batch}, {board}, data grows with N"
        for batch in ("global batch 256", "local batch 64")
        for board in ("A100", "H100")
    }
    one = growing[growing["series"] == "local batch 64, A100, data grows with N"]
    assert (one["dataset_fraction"] / one["gpus"]).nunique() == 1
    assert one["gpus"].nunique() == 5
    groups = [group for group, _ in fit_series(series).laws if "fraction_per_gpu" in group]
    assert {group["fraction_per_gpu"] for group in groups} == {1 / 16}
    assert all("dataset_fraction" not in group for group in groups)


def test_a_data_set_that_grows_is_compared_by_the_work_of_a_gpu_and_the_energy_of_a_sample():
    energy = {"energy_source": "counter", "energy_verdict": "ok"}
    runs, windows = [], []
    for gpus in (1, 2, 4):
        runs.append(run_row(str(gpus), gpus=gpus, global_batch=32 * gpus, local_batch=32,
                            dataset_fraction=gpus / 4))  # fmt: skip
        measured = {"samples": 100 * gpus, "cpu_energy_j": 50.0 * gpus**1.5} | energy
        windows.append(window_row(str(gpus), 1, duration_s=12.5 if gpus == 4 else 10.0, **measured))
    table = speedups(scaling_series(run_metrics(*frames(runs, windows)))).set_index("gpus")
    assert table["efficiency"].to_list() == pytest.approx([1.0, 1.0, 0.8])
    assert table["energy_ratio"].to_list() == pytest.approx([1, 2**0.5, 2])
