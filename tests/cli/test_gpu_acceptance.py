"""The program for the first hour on a GPU, rehearsed with the fake driver; its page."""

import json
import os
import sys

import pytest

from conftest import python
from paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import gpu_acceptance
import gpu_page


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    output = tmp_path_factory.mktemp("rehearsal")
    line = (ROOT / "benchmarks" / "gpu_acceptance.py", "--short", "--output", output)
    done = python(*line, "--wheels", output / "none", timeout=880, env=os.environ)
    content = json.loads((output / "results.json").read_text())
    assert done.returncode == 0, done.stdout + (output / "log.txt").read_text()[-3000:]
    return content, output / "results.json"


@pytest.mark.timeout(900)  # a minute, where nothing else runs
def test_a_rehearsal_says_so_and_does_every_part(rehearsed):
    content, path = rehearsed
    assert content["rehearsal"] is True
    assert {name: part["status"] for name, part in content["parts"].items()} == dict.fromkeys(
        gpu_acceptance.LIMITS_S, "done"
    )
    assert sum(gpu_acceptance.LIMITS_S.values()) <= gpu_acceptance.LIMIT_S == 570
    assert path.with_name("grid.zip").exists()


def test_a_rehearsal_measures_the_fake_board(rehearsed):
    parts = {name: part["result"] for name, part in rehearsed[0]["parts"].items()}
    facts = parts["facts"]
    assert facts["missing_packages"] == []
    assert "(fake)" in facts["nvml"]["nvmlDeviceGetName"]
    assert facts["nvml"]["field 83 scope 0"] == 0  # NVML_SUCCESS
    assert parts["unchanged"]["is_unchanged"] is True
    for load, watts in zip(parts["energy"]["loads"], (265, 450), strict=True):
        (row,) = load["windows"]
        assert row["power_mean_w"] == pytest.approx(watts, rel=0.02)
        assert abs(row["ours_over_apart"]["largest"]) < 0.1
        assert abs(row["counter_over_integral"]["median"]) < 0.02
    assert parts["overhead"]["slowdown"]["pairs"] == 2
    (case,) = parts["throughput"]["cases"]
    assert case["samples_per_s"]["ours"] > 0
    assert case["failed"] == {}
    grid = parts["study"]["grid"]
    assert [row["local_batch"] for row in grid] == [32, 64, 128]
    assert [row["power_per_gpu_w"] for row in grid] == [pytest.approx(450, rel=0.02)] * 3
    assert parts["study"]["regret_by_the_grid"] >= 0
    (predicted,) = parts["predict"]["predictions"]
    assert abs(predicted["power_per_gpu_w"]["error"]) < 0.2


def test_the_page_has_a_row_for_each_result_and_refuses_a_rehearsal(rehearsed):
    content, path = rehearsed
    table = gpu_page.table(content)
    assert gpu_page.NOT_RUN not in table
    for text in ("pulsed, 1 s", "vgg16", "out_of_memory", "decision", "fp32, batch 128"):
        assert text in table
    with pytest.raises(SystemExit, match="rehearsal"):
        gpu_page.keep(path)
    text = gpu_page.PAGE.read_text()
    assert text == gpu_page.page(text, gpu_page.newest())
