"""``wattlaw.track``: three lines in any loop, its windows, and its optimizer steps."""

import itertools
import json
import sys
import time
from pathlib import Path

import pytest

import wattlaw
from conftest import study_in
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.cli.main import main
from wattlaw.store.store import Store
from wattlaw.study.model import run_id


def windows(store: Path) -> list[dict[str, object]]:
    return Store(store).pandas("epochs").sort_values("start_ns").to_dict("records")


def test_an_epoch_is_a_window_and_an_evaluation_inside_is_not_part_of_its_training(tmp_path):
    with wattlaw.track("loop", store=tmp_path, quiet=True) as run:
        for _ in run.epochs(range(3), warmup=1):
            time.sleep(0.1)
            with run.evaluation():
                time.sleep(0.2)
            time.sleep(0.1)
    parts = ("train", "evaluate", "train")
    found = windows(tmp_path)
    assert pick(found, "phase", "epoch", "warmup") == [
        (phase, epoch, epoch == 0) for epoch in range(3) for phase in parts
    ]
    assert min(gaps_s(found)) > -0.001  # no window has a part of another
    store = Store(tmp_path)
    (row,) = run_metrics(store.pandas("runs"), store.pandas("epochs")).to_dict("records")
    trained_s = [one["duration_s"] for one in found if one["phase"] == "train" and one["epoch"]]
    assert min(trained_s) >= 0.1
    assert row["epoch_time_s"] == pytest.approx(sum(trained_s) / 2)
    assert (run.record.status, run.record.spec.workload.name) == ("done", "loop")


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
    assert (run.result.duration_s, run.result.energy_j) == (None, None)
    assert run.result.reason == "another process of this host measures"
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
    assert run.result.reason.startswith("the recording failed: ")
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


Windows = list[dict[str, object]]


def pick(rows: Windows, *names: str) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def gaps_s(rows: Windows) -> list[float]:
    """Return the time from the end of each window to the start of the next."""
    return [
        (later["start_ns"] - earlier["start_ns"]) * 1e-9 - earlier["duration_s"]
        for earlier, later in itertools.pairwise(rows)
    ]


def test_steps_are_a_warmup_window_and_a_measured_one(tmp_path):
    fast = {"sample_hz": 100, "quiet": True}  # windows of a second are long enough for an energy
    with wattlaw.track("x", tmp_path, steps=30, warmup_steps=2, **fast) as run:
        for number in range(40):
            time.sleep(0.05)
            run.step(samples=8, loss=number)
    found = windows(tmp_path)
    assert pick(found, "phase", "warmup", "from_step", "steps", "samples", "loss") == [
        ("steps", True, 0, 2, 16, 0.5),
        ("steps", False, 2, 30, 240, 16.5),
    ]
    assert all(row["epoch"] != row["epoch"] for row in found)  # missing
    measured = found[1]
    assert measured["duration_s"] == pytest.approx(30 * measured["step_time_mean_s"])
    p50_s, p95_s = measured["step_time_p50_s"], measured["step_time_p95_s"]
    assert 0.05 <= p50_s <= p95_s < measured["duration_s"]
    assert measured["step_time_cv"] >= 0
    measure = run.record.spec.measure
    assert (measure.epochs, measure.steps, measure.warmup_steps) == (None, 30, 2)
    assert run.record.status == "done"
    assert not [note for note in run.record.notes if "too few" in note or "ended" in note]


def test_evaluations_are_not_part_of_steps_and_short_epochs_do_not_divide_them(tmp_path):
    with wattlaw.track("x", tmp_path, steps=6, warmup_steps=1, quiet=True) as run:
        for epoch in run.epochs(range(20)):
            for number in range(3):
                time.sleep(0.02)
                run.step(samples=4)
                if number == 1 and epoch < 2:
                    with run.evaluation(), run.window("part"):
                        time.sleep(0.3)
    found = windows(tmp_path)
    assert {row["phase"] for row in found} == {"steps"}
    assert pick(found[:3], "from_step", "steps", "warmup") == [
        (0, 1, True),
        (1, 1, False),
        (2, 3, False),
    ]
    (rest,) = found[3:]  # until it is long enough for an energy
    assert (rest["from_step"], rest["warmup"]) == (5, False)
    assert rest["duration_s"] >= 1
    assert rest["steps"] <= 51  # each takes 0.02 s or longer
    assert min(gaps_s(found[1:])) > 0.299  # the evaluations


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
    assert all(0.02 <= row["step_time_mean_s"] < row["duration_s"] for row in epochs)
    assert (rest["steps"], rest["loss"]) == (2, 7)
    assert rest["samples"] != rest["samples"]  # of one step they are unknown


def test_the_results_of_an_evaluation_are_stored_by_name(tmp_path):
    with wattlaw.track("x", tmp_path, quiet=True) as run, run.evaluation():
        run.log(metrics={"top1": 0.5, "top5": 0.75, "diverged": float("nan")})
    (window,) = windows(tmp_path)
    assert json.loads(window["metrics"]) == {"top1": 0.5, "top5": 0.75}


def test_runs_of_other_settings_are_not_repeats_of_each_other(tmp_path):
    plain = {"gpus": 1, "global_batch": 8}
    changes = [
        {"gpus": 2}, {"global_batch": 16}, {"options": {"width": 2}}, {"precision": "bf16"},
        {"gradient_accumulation": 2}, {"epochs": 2}, {"steps": 1, "warmup_steps": 0},
        {"seconds": 9},
    ]  # fmt: skip
    specs = [wattlaw.track("x", **plain | one)._recording._spec for one in ({}, *changes)]
    assert len({run_id(spec) for spec in specs}) == 9
    for change in ({}, changes[0], {}):
        with wattlaw.track("x", tmp_path, quiet=True, **plain | change) as run:
            run.step(samples=2)
            run.leave()  # more often than entering is harmless
    assert sorted(Store(tmp_path).pandas("runs")["repeat"]) == [0, 0, 1]
    first = windows(tmp_path)[0]  # steps of a block without windows are values of the block
    assert (first["phase"], first["steps"], first["samples"]) == ("train", 1, 2)


@pytest.mark.parametrize(
    ("count", "status", "said"),
    [
        (9, "done", "more epochs"),  # enough steps, though an energy needs more, and there are none
        (3, "done", "ended after 2 warm-up and 1 measured steps, before 5 steps: the training"),
        (0, "failed", "call step()"),
    ],
)
def test_too_few_steps_are_a_note_and_none_is_a_failure(tmp_path, count, status, said):
    with wattlaw.track("x", tmp_path, steps=5, warmup_steps=2, quiet=True) as run:
        for _ in range(count):
            run.step()
    assert run.record.status == status
    assert said in (run.record.notes[-1] if count else run.record.reason)
    assert any(note.startswith("ended") for note in run.record.notes) is (count == 3)


def test_wrong_arguments_are_the_callers_mistake(tmp_path):
    import torch

    wrongs = [{"name": "two words"}, {"sample_hz": -1}, {"steps": 0}, {"steps": 3, "seconds": 3},
              {"seconds": -1}, {"precision": "int"}, {"gpus": 2, "global_batch": 63}]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"wattlaw\.track"):
            wattlaw.track(**{"name": "x", "store": tmp_path} | wrong)
    with wattlaw.track("x", tmp_path, quiet=True) as run:
        for wrong in ({"samples": "many"}, {"loss": "low"}, {"loss": torch.ones(2)}):
            with pytest.raises(ValueError, match=r"^step: .*; allowed: a number$"):
                run.step(**wrong)
        run.step(samples=2, loss=torch.tensor([0.5], requires_grad=True))
    assert pick(windows(tmp_path), "steps", "loss") == [(1, 0.5)]


def test_steps_are_timed_on_the_gpu_that_has_the_model_and_waited_for_at_the_edges(
    tmp_path, monkeypatch
):
    """The current device is 0; the model lies on 1, and a part of it on 2."""
    import torch

    asked, steps, waited = [], [0], set()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            asked.append(stream)

        def elapsed_time(self, other: "Event") -> float:
            return 20.0

    def synchronize(device: int) -> None:
        asked.append(f"end of {device}")
        waited.add(steps[0])

    fakes = {
        "is_available": lambda: True, "is_initialized": lambda: True, "Event": Event,
        "device_count": lambda: 4, "memory_reserved": [0, 9000, 4000, 0].__getitem__,
        "current_stream": lambda device: f"stream of {device}", "synchronize": synchronize,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    with wattlaw.track("x", tmp_path, steps=2, warmup_steps=2, quiet=True) as run:
        for steps[0] in range(1, 31):
            time.sleep(0.01)
            run.step(loss=torch.tensor(1.0))
    assert {*asked} == {"stream of 1", "end of 1", "end of 2"}
    assert waited == {0, 2, 22, 30}  # at the start, the end of both windows, and of the block
    warmup, measured = windows(tmp_path)
    assert (warmup["steps"], measured["steps"]) == (2, 20)
    assert measured["step_time_mean_s"] == pytest.approx(0.02)


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


def test_in_a_study_its_measure_decides(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    study = {
        "name": "steps",
        "workloads": [{"command": [sys.executable, str(script)]}],
        "sweeps": [{"gpus": [1], "local_batch": [4]}],
        "measure": {"steps": 1, "warmup_steps": 2},
    }
    assert main(["run", str(study_in(tmp_path, study)), "--store", str(tmp_path / "store")]) == 0
    assert pick(windows(tmp_path / "store"), "phase", "steps", "warmup") == [
        ("steps", 2, True), ("steps", 3, False), ("steps", 5, False), ("steps", 2, False),
    ]  # fmt: skip
