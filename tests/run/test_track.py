"""``wattlaw.track``: three lines in any loop."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import wattlaw
from conftest import environment
from fake_nvml import FakeGpus
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.running.job_step import first_number
from wattlaw.running.tracker import _LOCAL_RANKS, _WORLDS
from wattlaw.store.store import Store


def windows(store: Path) -> list[dict[str, object]]:
    return Store(store).pandas("epochs").sort_values("start_ns").to_dict("records")


def program(store: Path, body: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a small program whose loop is tracked."""
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
        ("train", 0, True), ("train", 1, False), ("train", 2, False),
    ]  # fmt: skip
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


def test_logged_values_belong_to_the_window_entered_last(tmp_path):
    with wattlaw.track("loop", store=tmp_path, quiet=True) as run:
        run.log(loss=9)  # of no window
        for epoch in run.epochs(range(2)):
            time.sleep(0.01)
            run.log(samples=64, steps=4, loss=0.5)
            run.log(loss=0.25 + epoch)  # what was told last holds
            with run.evaluation():
                run.log(samples=10, metric=0.75)
    told = [
        (w["phase"], w["samples"], w["steps"], w["loss"], w["metric"]) for w in windows(tmp_path)
    ]
    missing = pytest.approx(float("nan"), nan_ok=True)
    for epoch in range(2):
        train, evaluation = told[2 * epoch : 2 * epoch + 2]
        assert train == ("train", 64, 4, 0.25 + epoch, missing)
        assert evaluation == ("evaluate", 10, missing, missing, 0.75)
    assert len(told) == 4


def test_the_end_of_an_iteration_on_a_busy_processor_is_not_a_window(tmp_path):
    with wattlaw.track("loop", store=tmp_path, quiet=True) as run:
        for _ in run.epochs(range(2)):
            with run.evaluation():
                pass
            time.sleep(0.01)
    assert [w["phase"] for w in windows(tmp_path)] == ["train", "evaluate"] * 2


def test_values_logged_after_an_evaluation_are_kept(tmp_path):
    with wattlaw.track("loop", store=tmp_path, quiet=True) as run:
        for _ in run.epochs(range(1)):
            time.sleep(0.01)
            with run.evaluation():
                pass
            run.log(samples=64, loss=0.5)
    found = windows(tmp_path)
    assert [w["phase"] for w in found] == ["train", "evaluate", "train"]
    assert (found[2]["samples"], found[2]["loss"]) == (64, 0.5)


def test_log_accepts_numpy_and_torch_numbers_only(tmp_path):
    import numpy as np
    import torch

    with wattlaw.track("loop", store=tmp_path, quiet=True) as run, run.window("a"):
        run.log(samples=np.int64(64), loss=torch.tensor(0.5), metric=np.float32(0.25))
        for wrong in ({"loss": "low"}, {"samples": torch.ones(2)}, {"metric": [1]}):
            with pytest.raises(ValueError, match=r"^log: .*; allowed: a number$"):
                run.log(**wrong)
        run.log(steps=float("3"), loss=None)
    (window,) = windows(tmp_path)
    assert (window["samples"], window["steps"]) == (64, 3)
    assert (window["loss"], window["metric"]) == (0.5, 0.25)


def test_a_loss_that_diverged_is_stored_as_it_is(tmp_path):
    with wattlaw.track("loop", store=tmp_path, quiet=True) as run:
        for value in (float("nan"), float("inf")):
            with run.window("a"):
                run.log(loss=value, samples=1)
    losses = Store(tmp_path).arrow("epochs")["loss"].to_pylist()
    assert str(losses) == "[nan, inf]"


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


def test_the_energy_of_a_window_is_that_of_the_visible_boards(tmp_path):
    boards = FakeGpus.create(tmp_path / "boards", 2, high_w=[100.0, 250.0])
    body = (
        "with wattlaw.track('x', store=store) as run:\n"
        "    for _ in run.epochs(range(2)): time.sleep(1)\n"
    )
    done = program(tmp_path / "s", body, **boards.environment(), CUDA_VISIBLE_DEVICES="1")
    for window in windows(tmp_path / "s"):
        assert window["gpu_energy_j"] == pytest.approx(250 * window["duration_s"], rel=0.005)
        assert (window["energy_source"], window["energy_verdict"]) == ("counter", "ok")
    assert "train x2" in done.stderr
    (record,) = Store(tmp_path / "s").records()
    assert record.facts.device_ids == (boards[1].uuid.decode(),)


def test_only_one_of_eight_ranks_on_a_host_records(tmp_path):
    body = "with wattlaw.track('x', store=store) as run:\n    with run.window('w'): time.sleep(.1)"
    for rank in range(8):
        done = program(tmp_path, body, LOCAL_RANK=str(rank), WORLD_SIZE="8", RANK=str(rank))
        assert done.returncode == 0, done.stderr
    (record,) = Store(tmp_path).records()
    assert record.spec.setting.gpus == 8


@pytest.mark.parametrize("store", ["file", "file/store"])
def test_a_program_continues_with_a_warning_if_nothing_can_be_stored(tmp_path, store):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.warns(UserWarning, match="recording has stopped"),
        wattlaw.track("x", store=tmp_path / store, quiet=True) as run,
    ):
        done = list(run.epochs(range(3)))
    assert done == [0, 1, 2]
    assert run.record is None


def test_a_sampler_that_dies_does_not_end_the_program_that_is_measured(tmp_path):
    body = (
        "import psutil\n"
        "with wattlaw.track('x', store=store, assume_cpu_w=10) as run:\n"
        "    for n in run.epochs(range(2)):\n"
        "        [c.kill() for c in psutil.Process().children()]; time.sleep(.3)\n"
        "print('trained')"
    )
    done = program(tmp_path, body)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    (record,) = Store(tmp_path).records()
    assert record.status == "done"
    assert any("sampler" in note and "telemetry ends early" in note for note in record.notes)


def test_a_program_that_raises_is_stored_as_failed_and_still_raises(tmp_path):
    with (
        pytest.raises(RuntimeError),
        wattlaw.track("x", store=tmp_path, quiet=True) as run,
        run.window("a"),
    ):
        raise RuntimeError("broken")
    (record,) = Store(tmp_path).records()
    assert (record.status, record.reason) == ("failed", "RuntimeError: broken")


def test_a_program_that_ends_inside_a_run_keeps_what_was_recorded(tmp_path):
    body = (
        "run = wattlaw.track('x', store=store).__enter__()\n"
        "with run.window('a'): time.sleep(.1)\n"
        "sys.exit(4)"
    )
    assert program(tmp_path, body).returncode == 4
    (record,) = Store(tmp_path).records()
    assert (record.status, "ended before" in record.reason) == ("failed", True)
    assert (tmp_path / "runs" / record.run_id / "epochs.parquet").exists()


@pytest.mark.parametrize("name", ["a/b", "", "line\nbreak"])
def test_a_window_that_has_no_usable_name_is_the_callers_mistake(tmp_path, name):
    with (
        wattlaw.track("x", store=tmp_path, quiet=True) as run,
        pytest.raises(ValueError, match="window"),
    ):
        run.enter(name)


def test_a_run_that_has_no_usable_name_or_rate_is_the_callers_mistake(tmp_path):
    with pytest.raises(ValueError, match=r"wattlaw\.track"):
        wattlaw.track("two words", store=tmp_path)
    with pytest.raises(ValueError, match=r"wattlaw\.track"):
        wattlaw.track("x", store=tmp_path, sample_hz=-1)


def test_import_wattlaw_is_quick_and_brings_neither_torch_nor_pandas_nor_pyarrow():
    code = "import sys, wattlaw; print({'torch', 'pandas', 'pyarrow', 'pydantic'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


def test_windows_wait_for_the_gpu_at_their_edges_where_torch_uses_one(tmp_path, monkeypatch):
    """No GPU is here: what torch is asked is noted by a stand-in for its CUDA part alone."""
    import torch

    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: asked.append(time.perf_counter()))
    with wattlaw.track("x", store=tmp_path, quiet=True) as run:
        before = len(asked)
        with run.window("a"):
            pass
        assert len(asked) == before + 2


@pytest.mark.parametrize("damaged", ["9" * 5000, "-1", "\u0663", "x", "", "1e3", "99999999"])
def test_a_damaged_number_in_the_environment_counts_as_none(monkeypatch, damaged):
    for name in (*_WORLDS, *_LOCAL_RANKS):
        monkeypatch.setenv(name, damaged)
    assert first_number(_WORLDS) is None
    assert first_number(_LOCAL_RANKS) is None
