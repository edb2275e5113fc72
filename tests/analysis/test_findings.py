"""Findings: every analysis of a store, and the reasons for missing ones."""

import pytest

from made_studies import Model, mit
from made_tables import frames, run_row, window_row
from wattlaw.analysis.findings import analyse, notes
from wattlaw.study.footprint import Footprint

ONE = {"resnet50": Model(3000.0, 0.83, 256)}


def test_a_study_of_caps_and_clocks_has_an_energy_law_without_limits():
    made = mit(models=ONE, power_falls=0.0)
    found = analyse(made.runs, made.epochs)
    (law,) = found.energy_laws.to_dict("records")
    assert law["factor_w"] == pytest.approx(200.0, rel=0.02)
    assert law["exponent_low"] < 1 < law["exponent_high"]


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


def test_notes_name_the_only_setting_that_has_them():
    runs = [run_row(name, gpus=gpus, local_batch=32) for name, gpus in (("a", 1), ("b", 2))]
    table, _ = frames(runs, [])
    table["notes"] = [["2 of 500 steps pause", "of one"], ["9 of 500 steps pause"]]
    assert notes(table) == (
        "2 of 500 steps pause (2 runs; the numbers are those of one of them)",
        "Of one (1 run of gpus 1, global batch 64)",
    )
