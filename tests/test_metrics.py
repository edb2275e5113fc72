"""From windows to runs, cells, series and speedups: hand-worked cases."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from made_tables import frames, run_row, study, window_row
from wattlaw.analysis.findings import find
from wattlaw.analysis.metrics import cells, run_metrics
from wattlaw.analysis.series import fit_series, scaling_series, speedups


def one_run(*windows: dict[str, object]) -> pd.Series:
    return run_metrics(*frames([run_row("a")], list(windows))).iloc[0]


def test_warm_up_and_evaluation_are_left_out_of_time_and_energy():
    energy = {"cpu_energy_j": 10.0, "energy_source": "estimated", "energy_verdict": "ok"}
    run = one_run(
        window_row("a", 0, duration_s=50.0, warmup=True, **energy | {"cpu_energy_j": 999.0}),
        window_row("a", 1, duration_s=2.0, **energy),
        window_row("a", 2, duration_s=4.0, **energy | {"cpu_energy_j": 20.0}),
        window_row("a", 2, phase="evaluate", duration_s=70.0, metric=0.9, cpu_energy_j=500.0),
    )
    assert run["epoch_time_s"] == 3.0
    assert run["energy_per_epoch_j"] == 15.0
    assert run["samples_per_s"] == pytest.approx(200 / 6)
    assert run["metric"] == 0.9
    assert (run["energy_scope"], run["energy_source"]) == ("cpu", "estimated")


def test_two_hosts_add_energy_and_samples_and_the_slower_one_sets_the_time():
    energy = {"energy_source": "counter", "energy_verdict": "ok", "cpu_energy_j": 1.0}
    run = one_run(
        window_row("a", 1, host="a", duration_s=2.0, gpu_energy_j=10.0, **energy),
        window_row("a", 1, host="b", duration_s=2.5, gpu_energy_j=12.0, **energy),
    )
    assert run["epoch_time_s"] == 2.5
    assert run["energy_per_epoch_j"] == 24.0
    assert run["energy_scope"] == "gpu+cpu"
    assert run["samples_per_s"] == 80.0


def test_energy_that_one_window_lacks_is_missing_and_not_a_smaller_sum():
    energy = {"cpu_energy_j": 10.0, "energy_source": "estimated", "energy_verdict": "ok"}
    run = one_run(window_row("a", 1, **energy), window_row("a", 2))
    assert np.isnan(run["energy_per_epoch_j"])
    assert run["energy_scope"] is None or pd.isna(run["energy_scope"])
    assert run["energy_verdict"] == "unavailable"


def test_no_mean_is_taken_over_energies_that_count_different_things():
    energy = {"cpu_energy_j": 10.0, "energy_verdict": "ok"}
    runs = [run_row("a"), run_row("b", repeat=1), run_row("c", gpus=2, local_batch=32)]
    windows = [
        window_row("a", 1, energy_source="counter", **energy),
        window_row("b", 1, energy_source="estimated", **energy),
        window_row("c", 1, energy_source="estimated", **energy),
    ]
    found = cells(run_metrics(*frames(runs, windows))).set_index("gpus")
    assert found.loc[1, "energy_is"] == "cpu, counter; cpu, estimated"
    assert np.isnan(found.loc[1, "energy_per_epoch_j"])
    assert found.loc[2, "energy_is"] == "cpu, estimated"
    assert found.loc[2, "energy_per_epoch_j"] == 10.0
    assert find(*frames(runs, windows)).energy == "cpu, counter; cpu, estimated"


def test_energy_of_a_part_of_a_window_is_left_out_and_told():
    energy = {"cpu_energy_j": 100.0, "energy_source": "estimated", "energy_verdict": "ok"}
    windows = [
        window_row("a", 1, **energy),
        window_row("a", 2, **energy | {"cpu_energy_j": 6.0, "energy_verdict": "partial"}),
    ]
    run = one_run(*windows)
    assert np.isnan(run["energy_per_epoch_j"])
    assert run["energy_is"] == "partial, left out"
    findings = find(*frames([run_row("a")], windows))
    assert findings.energy is None
    assert list(findings.cells["energy_is"]) == ["partial, left out"]


def test_a_run_that_diverged_at_its_end_is_not_judged_by_an_earlier_epoch():
    run = one_run(
        window_row("a", 1),
        window_row("a", 1, phase="evaluate", metric=0.9, loss=1.0),
        window_row("a", 2, phase="evaluate", metric=float("nan"), loss=float("nan")),
    )
    assert np.isnan(run["metric"])
    assert np.isnan(run["loss"])


def test_runs_of_different_threads_make_different_series():
    runs = [
        run_row(f"{threads}-{gpus}", gpus=gpus, local_batch=64 // gpus, threads_per_worker=threads)
        for threads in (1, 2)
        for gpus in (1, 2)
    ]
    series = scaling_series(run_metrics(*frames(runs, [window_row(r["run_id"], 1) for r in runs])))
    assert set(series["series"]) == {"global batch 64, 1 threads", "global batch 64, 2 threads"}
    assert find(*frames(runs, [window_row(r["run_id"], 1) for r in runs])).differing == (
        "threads_per_worker",
    )


def test_sources_that_differ_within_a_run_are_called_mixed_and_suspect():
    energy = {"cpu_energy_j": 10.0, "energy_verdict": "ok"}
    run = one_run(
        window_row("a", 1, energy_source="counter", **energy),
        window_row("a", 2, energy_source="estimated", **energy),
    )
    assert (run["energy_source"], run["energy_verdict"]) == ("mixed", "suspect")


def test_the_worst_verdict_of_the_windows_is_the_runs():
    energy = {"cpu_energy_j": 10.0, "energy_source": "estimated"}
    run = one_run(
        window_row("a", 1, energy_verdict="ok", **energy),
        window_row("a", 2, energy_verdict="partial", **energy),
    )
    assert run["energy_verdict"] == "partial"


def test_repeats_become_mean_deviation_and_students_interval():
    runs = [run_row(name, repeat=n) for n, name in enumerate("abc")]
    table = run_metrics(*frames(runs, [window_row(n, 1, duration_s=d) for n, d in
                                       zip("abc", (1.0, 2.0, 3.0), strict=True)]))  # fmt: skip
    (cell,) = cells(table).to_dict("records")
    half = stats.t.ppf(0.975, 2) * 1.0 / np.sqrt(3)
    assert (cell["n"], cell["epoch_time_s"], cell["epoch_time_s_sd"]) == (3, 2.0, 1.0)
    assert cell["epoch_time_s_low"] == pytest.approx(2 - half)
    assert cell["epoch_time_s_high"] == pytest.approx(2 + half)
    assert np.isnan(cell["energy_per_epoch_j"])


def test_one_repeat_has_no_interval():
    table = run_metrics(*frames([run_row("a")], [window_row("a", 1)]))
    (cell,) = cells(table).to_dict("records")
    assert np.isnan(cell["epoch_time_s_low"])


def test_a_run_of_one_worker_belongs_to_a_series_of_each_kind():
    runs = [
        run_row("a", gpus=1, global_batch=64, local_batch=64),
        run_row("b", gpus=2, global_batch=64, local_batch=32),
        run_row("c", gpus=2, global_batch=128, local_batch=64),
    ]
    series = scaling_series(run_metrics(*frames(runs, [window_row(n, 1) for n in "abc"])))
    members = {name: set(rows["run_id"]) for name, rows in series.groupby("series")}
    assert members == {"global batch 64": {"a", "b"}, "local batch 64": {"a", "c"}}


def test_caps_and_hardware_are_kept_apart_and_named():
    runs = [
        run_row(f"{cap}{gpus}{board}", gpus=gpus, local_batch=64 // gpus, power_limit_w=cap,
                hardware=board)
        for cap in (None, 200.0) for gpus in (1, 2, 4) for board in ("A", "B")
    ]  # fmt: skip
    table = run_metrics(*frames(runs, [window_row(str(r["run_id"]), 1) for r in runs]))
    series = scaling_series(table)
    assert set(series["series"]) == {
        "global batch 64, A", "global batch 64, B",
        "global batch 64, A, 200 W", "global batch 64, B, 200 W",
    }  # fmt: skip
    groups = [group for group, _ in fit_series(series).laws]
    assert {"workload": "digits-cnn", "global_batch": 64, "hardware": "A",
            "power_limit_w": 200.0} in groups  # fmt: skip
    assert len(groups) == 4


def test_a_series_of_two_counts_is_refused_and_one_of_three_is_fitted():
    two = fit_series(scaling_series(run_metrics(*study(counts=(1, 2)))))
    assert not two.laws
    assert len(two.refusals) >= 3
    three = find(*study(beta=0.7)).fits
    found = {g["global_batch"]: law for g, law in three.laws if "global_batch" in g}
    assert set(found) == {32, 64, 128}
    for law in found.values():
        assert law.beta_ci[0] < law.beta < law.beta_ci[1]
        assert law.beta == pytest.approx(0.7, abs=0.1)


def test_speedup_is_a_ratio_of_geometric_means_with_a_pooled_interval():
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
    spread = np.sqrt((0.005 + 0.005) / 2 * (1 / 2 + 1 / 2))
    half = stats.t.ppf(0.975, 2) * spread
    assert table.loc[2, "speedup_low"] == pytest.approx(2 * np.exp(-half))
    assert table.loc[1, "speedup"] == 1.0


def test_a_store_without_a_done_run_gives_findings_that_say_so():
    findings = find(*frames([run_row("a", status="failed", reason="broken")], []))
    assert findings.runs.empty
    assert findings.fits.laws == ()
    assert findings.not_done["reason"].to_list() == ["broken"]
    assert findings.energy is None


def test_runs_that_are_not_done_never_enter_a_mean():
    runs = [run_row("a"), run_row("b", repeat=1, status="failed")]
    table = run_metrics(*frames(runs, [window_row("a", 1), window_row("b", 1, duration_s=99.0)]))
    assert table["run_id"].to_list() == ["a"]


def test_a_law_of_energy_says_what_the_energy_is():
    fits = fit_series(scaling_series(run_metrics(*study())), "energy_per_epoch_j")
    assert {group["energy_is"] for group, _ in fits.laws} == {"cpu, estimated"}
