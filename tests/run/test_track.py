"""``wattlaw.track``: three lines in any loop."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import wattlaw
from conftest import environment
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.store.store import Store


def windows(store: Path) -> list[dict[str, object]]:
    return Store(store).pandas("epochs").sort_values("start_ns").to_dict("records")


def program(store: Path, body: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    code = f"import sys, time, wattlaw\nstore = {str(store)!r}\n{body}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        env=environment() | variables,
    )  # fmt: skip


def test_three_lines_make_a_stored_run_with_a_window_per_epoch(tmp_path):
    with wattlaw.track("loop", store=tmp_path, quiet=True) as run:
        for _ in run.epochs(range(3), warmup=1):
            time.sleep(0.05)
    found = windows(tmp_path)
    assert [(w["phase"], w["epoch"], w["warmup"]) for w in found] == [
        ("train", 0, True),
        ("train", 1, False),
        ("train", 2, False),
    ]
    assert all(0.05 <= w["duration_s"] < 0.2 for w in found)
    assert run.record.status == "done"
    assert run.record.spec.workload.name == "loop"


def test_an_evaluation_inside_an_epoch_is_not_part_of_its_training(tmp_path):
    with wattlaw.track("loop", store=tmp_path, quiet=True) as run:
        for _ in run.epochs(range(2)):
            time.sleep(0.1)
            with run.evaluation():
                time.sleep(0.2)
            time.sleep(0.1)
    found = windows(tmp_path)
    assert [w["phase"] for w in found] == ["train", "evaluate", "train"] * 2
    store = Store(tmp_path)
    (row,) = run_metrics(store.pandas("runs"), store.pandas("epochs")).to_dict("records")
    assert row["epoch_time_s"] == pytest.approx(0.2, abs=0.03)


def test_the_end_of_an_iteration_is_a_window_only_if_it_has_values(tmp_path):
    with wattlaw.track("loop", store=tmp_path, quiet=True) as run:
        for epoch in run.epochs(range(2)):
            with run.evaluation():
                pass
            time.sleep(0.01)  # on a busy processor
            if epoch == 1:
                run.log(samples=64, loss=0.5)
    found = windows(tmp_path)
    assert [w["phase"] for w in found] == ["train", "evaluate"] * 2 + ["train"]
    assert (found[-1]["samples"], found[-1]["loss"]) == (64, 0.5)


def test_log_accepts_numpy_and_torch_numbers_only_and_keeps_losses_that_diverged(tmp_path):
    import numpy as np
    import torch

    with wattlaw.track("loop", store=tmp_path, quiet=True) as run:
        for loss in (torch.tensor(0.5), float("nan"), float("inf")):
            with run.window("a"):
                run.log(samples=np.int64(64), loss=loss, metric=np.float32(0.25))
                for wrong in ({"loss": "low"}, {"samples": torch.ones(2)}, {"metric": [1]}):
                    with pytest.raises(ValueError, match=r"^log: .*; allowed: a number$"):
                        run.log(**wrong)
                run.log(steps=float("3"), loss=None)
        for name in ("a/b", "", "line\nbreak"):
            with pytest.raises(ValueError, match="window"):
                run.enter(name)
    table = Store(tmp_path).arrow("epochs")
    assert str(table["loss"].to_pylist()) == "[0.5, nan, inf]"
    assert {*table["samples"].to_pylist(), *table["steps"].to_pylist()} == {64, 3}
    assert {*table["metric"].to_pylist()} == {0.25}


def test_windows_nest_under_the_names_of_the_outer_ones(tmp_path):
    with wattlaw.track("loop", store=tmp_path, quiet=True) as run:
        for _ in run.epochs(range(1)):
            with run.window("forward"), run.window("attention"):
                time.sleep(0.02)
            with run.window("backward"):
                time.sleep(0.02)
    names = [w["phase"] for w in windows(tmp_path)]
    assert sorted(names) == ["train", "train/backward", "train/forward", "train/forward/attention"]
    assert {w["epoch"] for w in windows(tmp_path)} == {0}


def test_only_one_of_eight_ranks_on_a_host_records(tmp_path, monkeypatch):
    for rank in range(8):
        for name, value in {"LOCAL_RANK": rank, "RANK": rank, "WORLD_SIZE": 8}.items():
            monkeypatch.setenv(name, str(value))
        with wattlaw.track("x", store=tmp_path, quiet=True) as run, run.window("w"):
            pass
        assert (run.record is None) == (rank > 0)
    (record,) = Store(tmp_path).records()
    assert record.spec.setting.gpus == 8


def test_a_program_continues_with_a_warning_if_nothing_can_be_stored(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.warns(UserWarning, match="recording has stopped") as warned,
        wattlaw.track("x", store=tmp_path / "file" / "store", quiet=True) as run,
    ):
        done = list(run.epochs(range(3)))
    assert done == [0, 1, 2]
    assert run.record is None
    assert [one.filename for one in warned] == [__file__]


def test_a_program_that_raises_is_stored_as_failed_and_still_raises(tmp_path):
    with (
        pytest.raises(RuntimeError),
        wattlaw.track("x", store=tmp_path, quiet=True) as run,
        run.window("a"),
    ):
        raise RuntimeError("broken")
    (record,) = Store(tmp_path).records()
    assert (record.status, record.reason) == ("failed", "RuntimeError: broken")
