"""From windows to runs, and from runs to cells: hand-worked cases."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from made_tables import frames, run_row, window_row
from wattlaw.analysis.findings import analyse
from wattlaw.analysis.metrics.metrics import direction, run_metrics, with_sampled_utilisation
from wattlaw.analysis.metrics.setting_means import aggregate

COUNTED = {"energy_source": "counter", "energy_verdict": "ok"}
ESTIMATED = {"cpu_energy_j": 10.0, "energy_source": "estimated", "energy_verdict": "ok"}


def one_run(*windows: dict[str, object]) -> pd.Series:
    return run_metrics(*frames([run_row("a")], list(windows))).iloc[0]


def test_only_the_metric_of_interrupted_windows_counts():
    cut = ESTIMATED | {"cpu_energy_j": 999.0, "interrupted": True}
    run = one_run(
        window_row("a", 1, duration_s=2.0, **ESTIMATED),
        window_row("a", 1, phase="evaluate", duration_s=1.0, metric=0.8),
        window_row("a", 2, duration_s=50.0, samples=40, steps=4, **cut),
        window_row("a", 2, duration_s=60.0, samples=60, steps=6, from_step=4, **cut),
        window_row("a", 2, phase="evaluate", duration_s=70.0, metric=0.9, interrupted=True),
    )
    assert (run["epoch_time_s"], run["epochs_trained"]) == (2.0, 2)
    assert (run["energy_per_epoch_j"], run["samples_per_epoch"]) == (10.0, 100)
    assert (run["eval_time_s"], run["metric"]) == (1.0, 0.9)


def test_two_hosts_add_energy_and_samples_and_the_slower_one_sets_the_time():
    energy = COUNTED | {"cpu_energy_j": 1.0}
    run = one_run(
        window_row("a", 1, host="a", duration_s=2.0, gpu_energy_j=10.0, **energy),
        window_row("a", 1, host="b", duration_s=2.5, gpu_energy_j=12.0, **energy),
    )
    assert run["epoch_time_s"] == 2.5
    assert run["energy_per_epoch_j"] == 24.0
    assert run["energy_scope"] == "gpu+cpu"
    assert run["samples_per_s"] == 80.0


def test_energy_that_one_window_lacks_is_missing_and_not_a_smaller_sum():
    run = one_run(window_row("a", 1, **ESTIMATED), window_row("a", 2))
    assert np.isnan(run["energy_per_epoch_j"])
    assert run["energy_scope"] is None or pd.isna(run["energy_scope"])
    assert run["energy_verdict"] == "unavailable"


def test_no_mean_is_taken_over_energies_that_count_different_things():
    runs = [run_row("a"), run_row("b", repeat=1), run_row("c", gpus=2, local_batch=32)]
    windows = [
        window_row("a", 1, **ESTIMATED | {"energy_source": "counter"}),
        window_row("b", 1, **ESTIMATED),
        window_row("c", 1, **ESTIMATED),
    ]
    found = aggregate(run_metrics(*frames(runs, windows))).set_index("gpus")
    assert found.loc[1, "energy_is"] == "cpu, counter; cpu, estimated"
    assert np.isnan(found.loc[1, "energy_per_epoch_j"])
    assert found.loc[2, "energy_is"] == "cpu, estimated"
    assert found.loc[2, "energy_per_epoch_j"] == 10.0
    assert analyse(*frames(runs, windows)).energy == "cpu, counter; cpu, estimated"


@pytest.mark.parametrize("verdict", ["partial", "implausible"])
def test_partial_and_implausible_energy_is_left_out_with_a_note(verdict):
    windows = [
        window_row("a", 1, **ESTIMATED),
        window_row("a", 2, **ESTIMATED | {"energy_verdict": verdict}),
    ]
    run = one_run(*windows)
    assert np.isnan(run["energy_per_epoch_j"])
    assert (run["energy_verdict"], run["energy_is"]) == (verdict, f"{verdict}, left out")
    findings = analyse(*frames([run_row("a")], windows))
    assert findings.energy is None
    assert list(findings.settings["energy_is"]) == [f"{verdict}, left out"]


def test_a_run_that_diverged_at_its_end_has_no_earlier_quality():
    run = one_run(
        window_row("a", 1),
        window_row("a", 1, phase="evaluate", metric=0.9, loss=1.0),
        window_row("a", 2, phase="evaluate", metric=float("nan"), loss=float("nan")),
    )
    assert np.isnan(run["metric"])
    assert np.isnan(run["loss"])


def test_intervals_of_times_are_those_on_other_days_and_of_shares_those_of_repeats():
    runs = [run_row(name, repeat=n) for n, name in enumerate("abc")]
    times, waits = (9.0, 10.0, 11.0), {"data_wait_s": 0.0, "communication_s": 1.0}
    windows = [window_row(n, 1, duration_s=d, **waits, rank_wait_s=d - 9)
               for n, d in zip("abc", times, strict=True)]  # fmt: skip
    table = run_metrics(*frames(runs, windows))
    (cell,) = aggregate(table).to_dict("records")
    assert (cell["data_wait_share"], cell["data_wait_share_high"]) == (0.0, 0.0)
    assert cell["communication_share"] == pytest.approx(np.mean([1 / 9, 1 / 10, 1 / 11]))
    shares = np.array([0, 1 / 10, 2 / 11])
    above = stats.t.ppf(0.975, 2) * shares.std(ddof=1) / np.sqrt(3)
    assert cell["rank_wait_share_low"] == 0.0
    assert cell["rank_wait_share_high"] == pytest.approx(shares.mean() + above)
    # Of a run by the repeats, and of a day by public data. There is one machine.
    parts = np.array([np.log([9.0, 10.0, 11.0]).var(ddof=1) / 3, 0.01**2])
    freedom = parts.sum() ** 2 / (parts**2 / [2, 4]).sum()
    half = stats.t.ppf(0.975, freedom) * np.sqrt(parts.sum())
    origins = ["interval_from", "sessions_from", "nodes_from"]
    assert [cell[name] for name in origins] == ["repeats", "public data", None]
    assert (cell["n"], cell["epoch_time_s"], cell["epoch_time_s_sd"]) == (3, 10.0, 1.0)
    assert cell["epoch_time_s_low"] == pytest.approx(10 * np.exp(-half))
    assert cell["epoch_time_s_high"] == pytest.approx(10 * np.exp(half))
    assert np.isnan(cell["energy_per_epoch_j"])
    (cell,) = aggregate(table[:1]).to_dict("records")
    half = stats.t.ppf(0.975, 0.0005**2 / (0.02**4 / 2 + 0.01**4 / 4)) * np.sqrt(0.0005)
    assert cell["epoch_time_s_high"] == pytest.approx(9 * np.exp(half))
    assert [cell[name] for name in origins] == ["public data", "public data", None]
    (cell,) = aggregate(table[:1].assign(launcher="imported")).to_dict("records")
    assert np.isnan(cell["epoch_time_s_low"])
    assert cell["interval_from"] is None


def test_a_meter_that_did_not_move_measured_no_energy():
    run = one_run(window_row("a", 1, gpu_energy_j=0.0, **COUNTED))
    assert np.isnan(run["energy_per_epoch_j"])
    assert np.isnan(run["gpu_energy_per_epoch_j"])
    assert run["energy_is"] is None
    run = one_run(window_row("a", 1, gpu_energy_j=0.0, cpu_energy_j=2.0, **COUNTED))
    assert run["energy_per_epoch_j"] == 2.0


def test_derived_metrics_equal_a_calculation_by_hand():
    training = COUNTED | {"gpu_energy_j": 7200.0, "samples": 1000, "steps": 20}
    evaluation = COUNTED | {"phase": "evaluate", "cpu_energy_j": 5.0}
    windows = [window_row("a", 0, warmup=True, duration_s=99.0, **training)]
    for epoch, seconds, joules in ((1, 2.0, 50.0), (2, 4.0, 70.0)):
        windows += [
            window_row("a", epoch, duration_s=9.0, cpu_energy_j=1800.0, **training),
            window_row("a", epoch, duration_s=seconds, gpu_energy_j=joules, **evaluation),
        ]
    run = run_metrics(*frames([run_row("a", gpus=4, local_batch=16)], windows)).iloc[0]
    assert run["epoch_time_s"] == 9.0
    assert (run["epochs_trained"], run["train_time_s"]) == (3, 18.0)
    assert (run["samples_per_epoch"], run["steps_per_epoch"]) == (1000, 20)
    assert run["energy_per_epoch_j"] == 9000.0
    assert run["energy_per_sample_j"] == 9.0
    assert run["energy_per_step_j"] == 450.0
    assert run["energy_delay_js"] == 81_000.0
    assert run["gpu_energy_per_epoch_j"] == 7200.0
    assert run["power_per_gpu_w"] == 200.0  # 7,200 J on 4 GPUs in 9 s
    assert run["samples_per_gpu_hour"] == pytest.approx(100_000)
    assert run["steps_per_gpu_hour"] == pytest.approx(2000)
    assert run["energy_per_gpu_hour_j"] == pytest.approx(900_000)
    assert (run["eval_time_s"], run["eval_energy_j"]) == (3.0, 65.0)


def test_utilisation_of_a_run_is_that_of_all_its_samples():
    windows = [[0.1, 0.9, 0.4], [0.5], [1.0, 0.2, 0.2, 0.7]]
    rows = [
        window_row("a", epoch, duration_s=float(len(samples)), sm_util_mean=np.mean(samples),
                   sm_util_cv=np.std(samples) / np.mean(samples))
        for epoch, samples in enumerate(windows)
    ]  # fmt: skip
    run, together = one_run(*rows), np.concatenate(windows)
    assert run["sm_util_mean"] == pytest.approx(together.mean())
    assert run["sm_util_cv"] == pytest.approx(together.std() / together.mean(), abs=1e-6)
    assert run[["mem_util_mean", "mem_util_cv"]].isna().all()


def test_which_way_a_metric_is_better_follows_from_its_name():
    assert direction("val_acc") == "higher"
    assert direction("perplexity") == "lower"
    assert direction("score") is None
    assert direction("rmse_u10") == "lower"
    assert direction("accuracy_loss") is None
    assert direction(None) is None


def test_loop_settings_distinguish_cells_and_the_seed_does_not():
    runs = [
        run_row("a", train='{"compile": false, "seed": 0}'),
        run_row("b", train='{"compile": false, "seed": 1}'),
        run_row("c", train='{"compile": true, "seed": 0}'),
    ]
    found = aggregate(run_metrics(*frames(runs, [window_row(n, 1) for n in "abc"])))
    assert sorted(found["n"]) == [1, 2]


def test_the_statistics_of_all_samples_replace_what_is_pooled_from_windows():
    windows = [window_row(n, 1, sm_util_mean=0.5, sm_util_cv=0.2) for n in "ab"]
    table = run_metrics(*frames([run_row("a"), run_row("b", repeat=1)], windows))
    statistics = pd.DataFrame(
        {"run_id": ["a", "a"], "part": ["gpu", "run"], "sm_util_mean": [0.9, 0.6],
         "sm_util_cv": [0.9, 0.3], "mem_util_mean": [0.9, 0.4], "mem_util_cv": [0.9, 0.1]}
    )  # fmt: skip
    found = with_sampled_utilisation(table, statistics).set_index("run_id")
    assert (found.loc["a", "sm_util_mean"], found.loc["a", "sm_util_cv"]) == (0.6, 0.3)
    assert found.loc["b", "sm_util_mean"] == 0.5
    assert found.loc["b", "sm_util_cv"] == pytest.approx(0.2)
    assert np.isnan(found.loc["b", "mem_util_mean"])
    assert with_sampled_utilisation(table, None) is table
