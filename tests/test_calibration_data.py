"""The runs of a store as settings to calibrate with."""

from typing import Any

import pytest

from made_jobs import profile
from wattlaw.launch.simulated.calibration_data import (
    CalibrationData,
    WorkloadSource,
    calibration_data,
)
from wattlaw.simulator.library import read_cluster


def row(**changes: Any) -> dict[str, Any]:
    """Return a run as a row of the analysis."""
    given: dict[str, Any] = {
        "workload": "resnet50", "options": "{}", "train": "{}", "hardware": "V100",
        "launcher": "local", "nodes": 1, "gpus": 2, "global_batch": 128, "local_batch": 64,
        "precision": "fp32", "power_limit_w": float("nan"), "clock_limit_mhz": float("nan"),
        "dataset_fraction": 0.5, "epoch_time_s": 100.0, "samples_per_epoch": 1000.0,
        "power_per_gpu_w": 200.0, "energy_source": "counter",
    }  # fmt: skip
    return given | changes


def read(*rows: dict[str, Any], **known: WorkloadSource) -> CalibrationData:
    return calibration_data(rows, read_cluster("mit-v100"), known)


def test_repeats_are_averaged_and_settings_kept_apart() -> None:
    found = read(row(), row(epoch_time_s=110.0, power_per_gpu_w=210.0), row(power_limit_w=150.0))
    first, capped = found.measured
    assert (first.epoch_time_s, first.gpu_power_w) == (105.0, 205.0)
    assert (first.job.samples, first.job.power_limit_w) == (2000, None)  # half of them are used
    assert capped.job.power_limit_w == 150
    assert found.runs == 3


@pytest.mark.parametrize("source", ["simulated", "estimated", "mixed"])
def test_an_energy_that_was_not_measured_gives_no_power(source: str) -> None:
    found = read(row(energy_source=source))
    assert found.measured[0].gpu_power_w is None
    assert any("only times are used" in note for note in found.notes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"workload": "abacus"}, "--as abacus=WORKLOAD"),
        ({"local_batch": float("nan")}, "local batch is unknown"),
        ({"precision": "bf16"}, "given bf16; allowed on NVIDIA V100"),
        ({"power_limit_w": 300.0}, "power_limit_w: given 300; allowed"),
        ({"options": '{"command": ["python"]}'}, "a command has no profile"),
        ({"options": '{"image_size": 160}'}, "no profile is stored"),
    ],
)
def test_unusable_runs_are_left_out_and_counted(changes: dict[str, Any], why: str) -> None:
    found = read(row(), row(**changes), row(repeat=1, **changes))
    assert len(found.measured) == 1
    ((told, runs),) = found.left_out.items()
    assert why in told
    assert runs == 2


def test_unknown_options_distinguish_workloads() -> None:
    found = read(
        row(), row(options='{"dataset": "cars"}'), row(workload="r", options='{"dataset": "cats"}'),
        r=WorkloadSource("resnet50"),
    )  # fmt: skip
    names = [one.workload for one in found.measured]
    assert names == ["resnet50", "resnet50 [dataset=cars]", "resnet50 [dataset=cats, runs=r]"]


def test_samples_missing_in_a_store_are_those_of_the_workload() -> None:
    found = read(row(samples_per_epoch=float("nan")))
    assert found.measured[0].job.samples == 1_281_167
    assert any("the workload's are assumed" in note for note in found.notes)


def test_figures_of_a_file_need_no_workload() -> None:
    found = read(row(workload="mine"), mine=WorkloadSource("plain", profile()))
    assert found.measured[0].job.profile == profile()
    assert found.measured[0].workload == "plain [runs=mine]"
