"""Optimizer steps of ``wattlaw.track``: windows of steps, and the steps of epochs."""

import json
import sys
import time
from pathlib import Path

import pytest
import yaml

import wattlaw
from conftest import wattlaw as command
from wattlaw.store.store import Store

Windows = list[dict[str, object]]


def windows(store: Path) -> Windows:
    return Store(store).pandas("epochs").sort_values("start_ns").to_dict("records")


def pick(rows: Windows, *names: str) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_steps_are_a_warmup_window_and_a_measured_one(tmp_path):
    with wattlaw.track("x", tmp_path, steps=5, warmup_steps=2, quiet=True) as run:
        for number in range(20):
            time.sleep(0.02)
            run.step(samples=8, loss=number)
    found = windows(tmp_path)
    assert pick(found, "phase", "warmup", "from_step", "steps", "samples", "loss") == [
        ("steps", True, 0, 2, 16, 0.5),
        ("steps", False, 2, 5, 40, 4.0),
    ]
    assert all(row["epoch"] != row["epoch"] for row in found)  # missing
    measured = found[1]
    assert measured["duration_s"] == pytest.approx(5 * measured["step_time_mean_s"])
    assert 0.02 <= measured["step_time_p50_s"] <= measured["step_time_p95_s"] < 0.1
    assert measured["step_time_cv"] >= 0
    measure = run.record.spec.measure
    assert (measure.epochs, measure.steps, measure.warmup_steps) == (None, 5, 2)
    assert (run.record.status, run.record.notes) == ("done", ())


def test_a_time_is_measured_in_steps_until_it_is_over(tmp_path):
    with wattlaw.track("x", tmp_path, seconds=0.3, warmup_steps=1, quiet=True) as run:
        for _ in range(30):
            time.sleep(0.05)
            run.step()
    warmup, measured = windows(tmp_path)
    assert (warmup["steps"], warmup["warmup"], measured["warmup"]) == (1, True, False)
    assert 0.3 <= measured["duration_s"] < 0.5
    assert measured["steps"] in (4, 5, 6)


def test_evaluations_and_the_time_between_epochs_are_not_part_of_steps(tmp_path):
    with wattlaw.track("x", tmp_path, steps=6, warmup_steps=1, quiet=True) as run:
        for _ in run.epochs(range(3)):
            for number in range(3):
                time.sleep(0.02)
                run.step(samples=4)
                if number == 1:
                    with run.evaluation(), run.window("part"):
                        time.sleep(0.3)
            time.sleep(0.3)
    found = windows(tmp_path)
    assert pick(found, "from_step", "steps", "warmup") == [
        (0, 1, True), (1, 1, False), (2, 1, False), (3, 2, False), (5, 1, False), (6, 1, False),
    ]  # fmt: skip
    assert {row["phase"] for row in found} == {"steps"}
    assert all(row["duration_s"] < 0.2 for row in found)


def test_steps_of_an_epoch_are_values_of_its_window(tmp_path):
    with wattlaw.track("x", tmp_path, quiet=True) as run:
        for _ in run.epochs(range(2)):
            for rows, loss in ((30, 1.0), (10, 5.0)):
                time.sleep(0.02)
                run.step(samples=rows, loss=loss)
        with run.window("rest"):
            run.step(samples=3)
            run.step()
            run.log(loss=7)
    *epochs, rest = windows(tmp_path)
    assert pick(epochs, "phase", "epoch", "steps", "samples", "loss") == [
        ("train", epoch, 2, 40, 2.0) for epoch in (0, 1)
    ]
    assert all(0.02 <= row["step_time_mean_s"] < 0.1 for row in epochs)
    assert (rest["steps"], rest["loss"]) == (2, 7)
    assert rest["samples"] != rest["samples"]  # of one step they are unknown


def test_steps_of_a_block_without_windows_are_values_of_the_block(tmp_path):
    with wattlaw.track("x", tmp_path, quiet=True) as run:
        for _ in range(3):
            run.step(samples=2)
    assert pick(windows(tmp_path), "phase", "steps", "samples") == [("train", 3, 6)]


def test_the_results_of_an_evaluation_are_stored_by_name(tmp_path):
    with wattlaw.track("x", tmp_path, quiet=True) as run, run.evaluation():
        run.log(metrics={"top1": 0.5, "top5": 0.75, "diverged": float("nan")})
    (window,) = windows(tmp_path)
    assert json.loads(window["metrics"]) == {"top1": 0.5, "top5": 0.75}


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": 2}, {"global_batch": 16}, {"options": {"width": 2}}, {"precision": "bf16"},
        {"gradient_accumulation": 2}, {"epochs": 2}, {"steps": 1, "warmup_steps": 0},
        {"seconds": 9},
    ],
)  # fmt: skip
def test_runs_of_other_settings_are_not_repeats_of_each_other(tmp_path, change):
    plain = {"gpus": 1, "global_batch": 8}
    for setting in (plain, plain | change, plain):
        with wattlaw.track("x", tmp_path, quiet=True, **setting) as run:
            run.step()
    runs = Store(tmp_path).pandas("runs")
    assert sorted(runs["repeat"]) == [0, 0, 1]


def test_too_few_steps_are_a_note_and_none_is_a_failure(tmp_path):
    for count in (3, 0):
        with wattlaw.track("x", tmp_path, steps=5, warmup_steps=2, quiet=True) as run:
            for _ in range(count):
                run.step()
        if count:
            assert run.record.status == "done"
            assert "2 warm-up and 1 measured steps, before 5 steps" in run.record.notes[0]
        else:
            assert run.record.status == "failed"
            assert "call step()" in run.record.reason


def test_wrong_arguments_are_the_callers_mistake(tmp_path):
    import torch

    for wrong in ({"steps": 0}, {"steps": 3, "seconds": 3}, {"seconds": -1}, {"precision": "int"}):
        with pytest.raises(ValueError, match=r"wattlaw\.track"):
            wattlaw.track("x", tmp_path, **wrong)
    with wattlaw.track("x", tmp_path, quiet=True) as run:
        for wrong in ({"samples": "many"}, {"loss": "low"}, {"loss": torch.ones(2)}):
            with pytest.raises(ValueError, match=r"^step: .*; allowed: a number$"):
                run.step(**wrong)
        run.step(samples=2, loss=torch.tensor([0.5], requires_grad=True))
    assert pick(windows(tmp_path), "steps", "loss") == [(1, 0.5)]


def test_nothing_waits_for_the_gpu_inside_a_window_of_steps(tmp_path, monkeypatch):
    """No GPU is here: a stand-in for torch's CUDA part notes what it is asked."""
    import torch

    asked = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_s = time.perf_counter()

        def elapsed_time(self, other: "Event") -> float:
            return (other.at_s - self.at_s) * 1e3

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: asked.append(len(counts)))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    counts: list[int] = []
    with wattlaw.track("x", tmp_path, steps=6, warmup_steps=2, quiet=True) as run:
        for number in range(9):
            time.sleep(0.01)
            counts.append(number)
            run.step(loss=torch.tensor(1.0))
    assert set(asked) == {0, 2, 8, 9}  # at the start, the end of both windows, and of the block
    assert [row["steps"] for row in windows(tmp_path)] == [2, 6]
    assert windows(tmp_path)[1]["step_time_mean_s"] == pytest.approx(0.01, rel=0.9)


SCRIPT = """
import time, wattlaw
with wattlaw.track("x", steps=1, warmup_steps=0) as run:
    for _ in run.epochs(range(4)):
        for _ in range(5):
            time.sleep(0.01)
            run.step(samples=4, loss=0.5)
        with run.evaluation():
            time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ({"steps": 6, "warmup_steps": 2},
         [("steps", 2, True), ("steps", 3, False), ("steps", 3, False)]),
        ({"epochs": 4, "warmup_epochs": 1},
         [("train", 5, True)] + [("train", 5, False)] * 3),
    ],
)  # fmt: skip
def test_in_a_study_its_measure_decides(tmp_path, measure, expected):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    study = {
        "name": "steps",
        "workloads": [{"command": [sys.executable, str(script)]}],
        "sweeps": [{"gpus": [1], "local_batch": [4]}],
        "measure": measure,
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    done = command("run", tmp_path / "study.yaml", "--store", tmp_path / "store")
    assert done.returncode == 0, done.stderr
    found = [row for row in windows(tmp_path / "store") if row["phase"] != "evaluate"]
    assert pick(found, "phase", "steps", "warmup") == expected
