"""The program for the first hour on a GPU, rehearsed with the fake driver; its page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import gpu_acceptance
import gpu_page


def acceptance(output: Path, *options: object) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, ROOT / "benchmarks" / "gpu_acceptance.py", "--output", output]
    words = [*line, "--wheels", output / "none", "--short", *options]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=380)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """Return the results of a short rehearsal, and their file."""
    output = tmp_path_factory.mktemp("rehearsal")
    done = acceptance(output)
    content = json.loads((output / "results.json").read_text())
    assert done.returncode == 0, done.stdout + (output / "log.txt").read_text()[-3000:]
    return content, output / "results.json"


def test_a_rehearsal_says_so_and_does_every_part(rehearsed):
    content, path = rehearsed
    assert content["rehearsal"] is True
    assert {name: part["status"] for name, part in content["parts"].items()} == dict.fromkeys(
        gpu_acceptance.LIMITS_S, "done"
    )
    assert sum(gpu_acceptance.LIMITS_S.values()) <= gpu_acceptance.LIMIT_S == 540
    assert path.with_name("grid.zip").exists()


def test_a_rehearsal_measures_the_fake_board(rehearsed):
    parts = {name: part["result"] for name, part in rehearsed[0]["parts"].items()}
    facts = parts["facts"]
    assert facts["missing_packages"] == []
    assert "(fake)" in facts["nvml"]["nvmlDeviceGetName"]
    assert facts["nvml"]["field 83 scope 0"] == 0  # NVML_SUCCESS
    assert parts["unchanged"]["is_unchanged"] is True
    for load, watts in zip(parts["energy"]["loads"], (450, 265, 450), strict=True):
        (row,) = load["windows"]
        assert row["power_mean_w"] == pytest.approx(watts, rel=0.02)
        assert abs(row["ours_over_apart"]["largest"]) < 0.1
        assert abs(row["counter_over_integral"]["median"]) < 0.02
    assert parts["overhead"]["slowdown"]["pairs"] == 2
    (case,) = parts["throughput"]["cases"]
    assert case["samples_per_s"]["ours"] > 0
    assert case["failed"] == {}
    assert {row["gpu_power_w"] for row in parts["study"]["grid"]} == {pytest.approx(450, rel=0.02)}
    assert parts["study"]["regret_by_the_grid"] >= 0
    (predicted,) = parts["predict"]["predictions"]
    assert predicted["gpu_power_w"]["error"] == pytest.approx(0, abs=0.1)
    assert predicted["gpu_memory_peak_bytes"]["error"] == 0


def test_the_scripts_have_the_steps_and_times_of_their_own_timers(rehearsed):
    scripts = {row["mode"]: row for row in rehearsed[0]["parts"]["scripts"]["result"]["scripts"]}
    for mode in ("no_set_device", "graph", "step_in_graph"):
        row = scripts[mode]
        assert row["status"] == "done"
        assert row["steps"] == row["own_steps"]
        assert row["p50_ratio"] == pytest.approx(1, abs=0.05)
    full = scripts["out_of_memory"]
    assert full["status"] == "failed"
    assert "out of memory" in full["reason"]
    assert full["steps"] > 0


def test_the_page_has_a_row_for_each_result_and_refuses_a_rehearsal(rehearsed, monkeypatch):
    content, path = rehearsed
    table = gpu_page.table(content)
    assert gpu_page.NOT_RUN not in table
    for text in ("pulsed, 1 s", "schnet", "out_of_memory", "decision", "bf16" or "fp32"):
        assert text in table
    with pytest.raises(SystemExit, match="rehearsal"):
        gpu_page.keep(path)
    text = gpu_page.PAGE.read_text()
    assert text == gpu_page.page(text, gpu_page.newest())


def test_a_part_that_fails_or_lasts_too_long_does_not_stop_the_next(tmp_path, monkeypatch):
    output = tmp_path / "out"
    done = acceptance(output, "--parts", "predict", "energy", "unchanged", "--limit-s", "22")
    parts = json.loads((output / "results.json").read_text())["parts"]
    assert done.returncode == 1
    assert parts["predict"]["status"] == "failed"  # there is no grid
    assert "exit code" in parts["predict"]["reason"]
