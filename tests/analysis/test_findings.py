"""Findings: every analysis of a store, and the reasons for missing ones."""

import pandas as pd
import pytest

from made_studies import MIT, Caps, Model, kit, mit
from made_tables import frames, run_row, study, window_row
from wattlaw.analysis.findings import analyse, facts
from wattlaw.report.topics import data_quality
from wattlaw.study.footprint import Footprint

ONE = {"resnet50": Model(3000.0, 0.83, 256)}


def test_a_study_of_caps_and_clocks_has_comparisons_and_an_energy_law_without_limits():
    made = mit(models=ONE, power_falls=0.0)
    found = analyse(made.runs, made.epochs)
    kinds = [comparison.limit for _, comparison in found.comparisons]
    assert kinds == ["power_limit_w", "clock_limit_mhz"]
    assert {comparison.verdict for _, comparison in found.comparisons} == {"same beta"}
    (law,) = found.energy_laws.to_dict("records")
    assert law["factor_w"] == pytest.approx(200.0, rel=0.02)
    assert law["exponent_low"] < 1 < law["exponent_high"]


def test_a_cap_that_changes_the_exponent_is_found():
    made = mit(models=ONE, caps=Caps(beta_shift=-0.15), clocks=False)
    (comparison,) = [one for _, one in analyse(made.runs, made.epochs).comparisons]
    assert comparison.verdict == "different beta"


def test_limits_with_too_few_counts_are_refused_with_the_reason():
    made = mit(models=ONE, counts=(2, 4), clocks=False)
    found = analyse(made.runs, made.epochs)
    assert found.comparisons == ()
    (label, reason) = found.comparison_refusals[0]
    assert "power_limit_w" in label
    assert "needs two" in reason


def test_every_workload_gets_advice_or_a_reason():
    models = {name: MIT[name] for name in ("resnet50", "schnet")}
    made = mit(models=models, counts=(2, 4), repeats=2, clocks=False)
    found = analyse(made.runs, made.epochs)
    told = {advice.workload for advice in found.advice} | {w for w, _ in found.advice_refusals}
    assert told == set(made.runs["workload"])


def test_totals_sum_measured_values_and_costs():
    gpu = {"energy_source": "counter", "energy_verdict": "ok", "duration_s": 1800.0}
    runs = [run_row("a", gpus=2, local_batch=32), run_row("b", gpus=2, local_batch=32, repeat=1)]
    windows = [window_row(name, 1, gpu_energy_j=3.6e6, **gpu) for name in "ab"]
    found = analyse(*frames(runs, windows), footprint=Footprint(pue=1.5, grid_g_per_kwh=400.0))
    (row,) = found.totals.to_dict("records")
    assert row["runs"] == 2
    assert row["gpu_hours"] == pytest.approx(2.0)
    assert row["energy_j"] == pytest.approx(7.2e6)
    assert row["co2_kg"] == pytest.approx(2 * 1.5 * 0.4)  # 2 kWh x 1.5 x 0.4 kg


def test_totals_with_one_energy_missing_have_no_energy_and_not_a_smaller_sum():
    energy = {"cpu_energy_j": 10.0, "energy_source": "estimated", "energy_verdict": "ok"}
    runs = [run_row("a"), run_row("b", repeat=1)]
    windows = [window_row("a", 1, **energy), window_row("b", 1)]
    totals = analyse(*frames(runs, windows)).totals
    by_energy = {row["energy_is"]: row["energy_j"] for row in totals.to_dict("records")}
    assert by_energy["cpu, estimated"] == 10.0
    assert len(by_energy) == 2
    assert all(pd.isna(value) for name, value in by_energy.items() if name != "cpu, estimated")


def test_a_target_gives_time_and_epochs_by_setting():
    made = kit(repeats=2, counts=(1, 2, 4), growing=False)
    found = analyse(made.runs, made.epochs, target=0.5).targets
    assert found is not None
    assert found.settings["time_to_target_s"].notna().all()
    assert not found.refusals


def test_facts_say_what_ran_and_leave_out_what_is_not_known():
    runs, _ = study()
    said = facts(runs)
    assert said["Workloads"] == "digits-cnn"
    assert said["GPUs or workers"] == "1, 2, 4"
    assert "Power limits (W)" not in said
    assert "Git commit" not in said


def test_done_runs_without_a_window_that_counts_are_named_with_the_reason():
    runs = [run_row(name, gpus=2) for name in ("fine", "warm", "zero", "unknown", "none", "cut")]
    runs.append(run_row("failed", status="failed"))
    windows = [
        window_row("fine", 1),
        window_row("warm", 0, warmup=True),
        window_row("zero", 0, warmup=True),
        window_row("zero", 1, duration_s=0.0),
        window_row("unknown", 1, duration_s=None),
        window_row("none", 1, phase="evaluate", duration_s=9.0),
        window_row("failed", 0, warmup=True),
        window_row("cut", 0, warmup=True),
        window_row("cut", 1, interrupted=True),
    ]
    found = analyse(*frames(runs, windows))
    assert found.runs["run_id"].to_list() == ["fine"]
    assert list(found.not_timed.columns) == ["run_id", "workload", "gpus", "reason"]
    assert dict(found.not_timed[["run_id", "reason"]].to_numpy()) == {
        "cut": "all training windows after warm-up were interrupted",
        "none": "no training window",
        "unknown": "the duration of the training windows is unknown",
        "warm": "all training windows are warm-up",
        "zero": "the training windows have no duration above 0 s",
    }


def test_interruptions_are_told():
    runs = [
        run_row("a", interruptions=2),
        run_row("b", repeat=1, interruptions=0),
        run_row("c", repeat=2, interruptions=1, status="failed", reason="out of tries"),
    ]
    windows = [window_row("a", 1), window_row("b", 1), window_row("a", 2, interrupted=True)]
    text = " ".join(data_quality.status_sentences(analyse(*frames(runs, windows))))
    assert "2 runs were interrupted (3 times in total)" in text
    assert "Left out: 1 training window" in text
    plain = analyse(*study())
    assert plain.targets is None and plain.not_timed.empty
    without = " ".join(data_quality.status_sentences(plain))
    assert "interrupted" not in without
