"""``wattlaw simulate``: sums of rows, sweeps, and errors for impossible settings."""

import json
from dataclasses import replace
from itertools import pairwise
from math import log
from typing import Any

import pytest

import paths
from made_jobs import job, profile
from wattlaw.cli.main import main
from wattlaw_simulator.command import PARTS
from wattlaw_simulator.simulate_step import predict
from wattlaw_simulator.simulated_job import Parameters

BASE = ("simulate", "--workload", "resnet50", "--hardware", "mit-v100", "--local-batch", "64")
KEYS = (
    "simulated", "workload", "options", "hardware", "calibration", "gpus", "nodes", "local_batch",
    "global_batch", "precision", "power_limit_w", "clock_limit_mhz", "dataset_fraction", "epochs",
    "memory_gb", "fits_memory", "epoch_time_s", "train_time_s", "samples_per_s",
    "steps_per_epoch",
    "power_per_gpu_w", "gpu_energy_per_epoch_j",
    "cpu_energy_per_epoch_j", "dram_energy_per_epoch_j", "energy_per_epoch_j", "gpu_energy_j",
    "cpu_energy_j", "dram_energy_j", "energy_j", "gpu_hours", "eval_time_s", "eval_gpu_energy_j",
    "sm_util", "mem_util", "sm_clock_mhz", "limited_by", "power_throttle_share", "step_time_s",
    *PARTS, "step_time_cv", "roofline_s", "startup_s", "bottleneck", "warnings", "speedup",
    "parallel_efficiency", "beta",
)  # fmt: skip


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_the_json_has_the_documented_keys_and_says_that_it_is_simulated(capsys):
    (row,) = rows(capsys, *BASE)
    assert tuple(row) == KEYS
    assert row["simulated"] is True
    document = (paths.ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    assert [key for key in KEYS if f"`{key}`" not in document] == []


@pytest.mark.parametrize("gpus", ["1", "1,2"])
def test_settings_that_do_not_fit_into_memory_are_marked_first(gpus, capsys):
    line = [*BASE[:-1], "4096", "--gpus", gpus]
    assert {row["fits_memory"] for row in rows(capsys, *line)} == {False}
    assert {row["fits_memory"] for row in rows(capsys, *BASE)} == {True}
    assert main(line) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert "does not fit" in first
    assert sum("does not fit" in text for text in others) == (0 if gpus == "1" else 3)


def test_parts_add_up_to_the_update_and_energies_to_their_sum(capsys):
    (row,) = rows(capsys, *BASE, "--gpus", "16", "--power-limit", "150", "--epochs", "90")
    assert sum(row[part] for part in PARTS) == pytest.approx(row["step_time_s"])
    assert row["step_time_s"] >= row["roofline_s"]
    parts = [row[f"{part}_energy_per_epoch_j"] for part in ("gpu", "cpu", "dram")]
    assert sum(parts) == pytest.approx(row["energy_per_epoch_j"])
    assert row["energy_j"] == pytest.approx(90 * row["energy_per_epoch_j"])
    assert row["train_time_s"] == pytest.approx(90 * row["epoch_time_s"])
    assert row["gpu_hours"] == pytest.approx(16 * row["train_time_s"] / 3600)
    assert row["power_per_gpu_w"] <= 150
    assert row["limited_by"] == "power_limit_w"
    gpus_j = row["power_per_gpu_w"] * 16 * row["epoch_time_s"]
    assert gpus_j == pytest.approx(row["gpu_energy_per_epoch_j"])
    assert row["samples_per_s"] * row["epoch_time_s"] == pytest.approx(1_281_167, rel=1e-3)


def test_a_sweep_has_a_row_for_each_setting_and_compares_within_equal_limits(capsys):
    found = rows(capsys, *BASE, "--gpus", "8,2,4", "--power-limit", "100,none")
    assert [(row["power_limit_w"], row["gpus"]) for row in found] == [
        (cap, gpus) for cap in (100, None) for gpus in (2, 4, 8)
    ]
    for own in (found[:3], found[3:]):
        least = own[0]
        assert (least["speedup"], least["beta"]) == (1.0, None)
        for before, row in pairwise(own):
            ratio = row["epoch_time_s"] / before["epoch_time_s"]
            assert row["beta"] == pytest.approx(-log(ratio) / log(2))
            speedup = least["epoch_time_s"] / row["epoch_time_s"]
            assert row["speedup"] == pytest.approx(speedup)
            assert row["parallel_efficiency"] == pytest.approx(speedup * 2 / row["gpus"])


def test_settings_that_cannot_be_are_named_and_the_others_kept(capsys):
    arguments = ["simulate", "-w", "resnet50", "--hardware", "mit-v100", "--global-batch", "256"]
    assert main([*arguments, "--gpus", "2,3,4", "--power-limit", "90,200", "--json"]) == 1
    out, err = capsys.readouterr()
    assert [(row["gpus"], row["power_limit_w"]) for row in json.loads(out)] == [(2, 200), (4, 200)]
    lines = err.splitlines()
    assert len(lines) == 4
    assert "2 GPUs, 90 W: power_limit_w: given 90; allowed on NVIDIA V100" in lines[0]
    assert "3 GPUs, 200 W: --global-batch: is not a multiple" in lines[3]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (("--gpus", "2,x"), '--gpus: "x" is not valid; expected integers from 1'),
        (("--power-limit", "nan"), '--power-limit: "nan" is not valid; expected numbers > 0'),
        (("--power-limit", "90"), "power_limit_w: given 90; allowed on NVIDIA V100 PCIe"),
        (("--power-limit", "90,95"), "none of the 2 settings can be simulated"),
        (("--precision", "bf16"), "precision: given bf16; allowed on NVIDIA V100 PCIe"),
        (("--dataset-fraction", "2"), "'--dataset-fraction': "),
        (("--global-batch", "64"), "exactly one of --local-batch and --global-batch"),
        (("--hardware", "abacus"), 'no hardware is named "abacus"; allowed'),
        (("--options", '{"depth": 3}'), "resnet50.options.depth: unknown key; allowed"),
        (("--options", '{"image_size": 160}'), "no profile is stored for these options"),
        (("--profile", "nowhere.json"), "nowhere.json: cannot be read"),
        (("--gpus-per-node", "4"), "--gpus-per-node: 4 is too large"),
    ],
)
def test_an_invalid_option_gives_one_line_with_allowed_values(capsys, changed, told):
    assert main([*BASE, *changed]) == 2
    out, err = capsys.readouterr()
    assert not out
    lines = err.splitlines()
    assert told in lines[-1]
    assert all(line.startswith("wattlaw: ") for line in lines)
    assert len(lines) == 1 or "none of the 2 settings" in told


def test_a_profile_file_describes_an_unregistered_workload(tmp_path, capsys):
    path = tmp_path / "plain.json"
    path.write_text(profile().model_dump_json(), encoding="utf-8")
    arguments = ["simulate", "--profile", str(path), "--hardware", "mit-v100", "--gpus", "4",
                 "--local-batch", "64"]  # fmt: skip
    assert main(arguments) == 2
    assert "plain" in capsys.readouterr().err
    (row,) = rows(capsys, *arguments, "--samples", "1024000")
    edges_ms = job().cluster.epoch_ms
    assert edges_ms
    expected = predict(job(4, parameters=Parameters(epoch_ms=edges_ms))).train
    assert row["workload"] == "plain"
    assert row["epoch_time_s"] == pytest.approx(expected.duration_s)
    assert row["gpu_energy_per_epoch_j"] == pytest.approx(expected.gpu_energy_j)


def test_hardware_is_listed_with_every_source(capsys):
    line = ("simulate", "--list-hardware")
    assert {"mit-v100", "v100-pcie-32gb"} <= {row["name"] for row in rows(capsys, *line)}
    assert all(entry["source"] for entry in rows(capsys, *line, "--hardware", "mit-v100"))
    assert main(["simulate", "--list-hardware"]) == 0
    assert "mit-v100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("of", "held"),
    [
        (job(1), "compute"),
        (job(1, local_batch=1, parameters=Parameters(launch_us=50.0)), "launch"),
        (job(8, local_batch=1, parameters=Parameters(network=1e-3)), "communication"),
        (job(1, profile=profile(input_cpu_s_per_sample=0.1)), "input"),
        (job(1, power_limit_w=100.0, parameters=Parameters(power_memory=20.0)), "compute"),
    ],
)
def test_the_bottleneck_is_the_part_whose_speed_matters(of, held):
    found = predict(of)
    assert found.bottleneck == held
    easier = {
        "compute": replace(of, parameters=replace(of.parameters, compute_fp32=1.0)),
        "launch": replace(of, parameters=replace(of.parameters, launch_us=1.0)),
        "communication": replace(of, parameters=replace(of.parameters, network=1.0)),
        "input": replace(of, profile=profile(input_cpu_s_per_sample=0.001)),
    }
    assert predict(easier[held]).split.step_s < found.split.step_s
