"""Powers above what a board can draw are refused; the likely cause is their unit."""

import re
from pathlib import Path

import pytest

from wattlaw.api.imports import read_import
from wattlaw.measure.telemetry.plausibility import MAX_DEVICE_W, energy_fault, power_fault


def a_file(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        ("power_w", 1600.0, 1_600_000.0),  # of all four GPUs
        ("power_limit_w", 400.0, 400_000.0),
        ("gpu_energy_j", 16_000.0, 16_000_000.0),
        ("cpu_energy_j", 3000.0, 3_000_000.0),
        ("node_energy_j", 30_000.0, 30_000_000.0),
    ],
)
def test_a_row_in_another_unit_is_left_out_with_the_reason(field, right, wrong, tmp_path):
    lines = [f"4,10,{right}", f"4,10.5,{wrong}", f"4,11,{right}"]
    path = a_file(tmp_path / "t.csv", "gpus,t,x", *lines)
    (file,), runs = (
        (read := read_import(path, map=f"gpus=gpus,epoch_time_s=t,{field}=x")).files,
        read.runs,
    )
    assert [run.windows[0]["duration_s"] for run in runs] == [10.0, 11.0]
    (reason,) = file.rejected
    expected = "gpu_energy_j" if field == "power_w" else field
    assert re.match(f"line 3: {expected}.* mW", reason)


@pytest.mark.parametrize("kind", MAX_DEVICE_W)
def test_no_device_that_exists_is_above_its_bound(kind):
    greatest_w = {"gpu": 1400.0, "cpu": 500.0, "dram": 400.0, "module": 2700.0, "node": 14_000.0}
    assert power_fault("x", kind, 8 * greatest_w[kind], 8, 1) is None
    assert energy_fault({f"{kind}_energy_j": 80 * greatest_w[kind]}, 10.0, 8, 1) is None
    assert "mW" in (power_fault("x", kind, 8000 * greatest_w[kind], 8, 1) or "")
    assert energy_fault({f"{kind}_energy_j": 1e9}, None, 1, 1) is None
