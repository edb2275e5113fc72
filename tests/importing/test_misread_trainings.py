"""Files of other tools that were read wrongly, each with its right value and a twin of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

import import_samples as samples
from import_samples import mllog
from public_data import misread_file
from wattlaw.api.imports import Import, read_import
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput


def a_file(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def windows(read: Import, *phases: str) -> list[dict[str, Any]]:
    """Return the windows of all runs that have one of the phases, or all of them."""
    rows = [dict(row) for run in read.runs for row in run.windows]
    return [row for row in rows if not phases or row["phase"] in phases]


def left_out(read: Import) -> dict[str, int]:
    """Return the numbers of rows that are left out, by their reason."""
    return {each.reason: each.count for file in read.files for each in file.left_out}


# MLPerf


def test_blocks_that_carry_their_size_are_read():
    read = read_import(misread_file("mlperf_flux1_blocks.txt"), map="gpus=@64")
    blocks = windows(read, "steps")
    assert [(row["steps"], row["samples"]) for row in blocks] == [(128, 262_144)] * 4
    assert [row["duration_s"] for row in blocks] == pytest.approx([123.019] * 4)
    evaluations = windows(read, "evaluate")
    assert [row["epoch"] for row in evaluations] == [0] * 4  # 1,099,776 samples are an epoch
    assert [row["metric"] for row in evaluations] == pytest.approx([0.88, 0.78, 0.68, 0.58])
    assert not left_out(read)


T = 1_769_860_000_000
#: Metadata of three blocks of 10 steps of 50 samples, at their start and end, and of evaluations.
CONVENTIONS = {
    "totals": lambda i: ({"samples_count": 500 * i}, {"samples_count": 500 * i + 500}, {}),
    "sizes and steps": lambda i: (
        {"samples_count": 500, "step": 10 * i}, {"samples_count": 500, "step": 10 * i + 10},
        {"samples_count": 500 * i + 500},
    ),
    "sizes": lambda i: (
        {"samples_count": 500}, {"samples_count": 500}, {"samples_count": 500 * i + 500},
    ),
    "totals of the end": lambda i: (
        {"samples_count": 500 * i + 500, "step": 10 * i},
        {"samples_count": 500 * i + 500, "step": 10 * i + 10}, {},
    ),
    "totals in the stop": lambda i: ({}, {"samples_count": 500 * i + 500}, {}),
    "sizes in the stop": lambda i: ({}, {"samples_count": 500}, {}),
    "totals in the start": lambda i: (
        {"samples_count": 500 * i}, {}, {"samples_count": 500 * i + 500},
    ),
    "totals of evaluations": lambda i: ({}, {}, {"samples_count": 500 * i + 500}),
    "steps": lambda i: ({"step": 10 * i}, {"step": 10 * i + 10}, {}),
    "steps that count samples": lambda i: (
        {"samples_count": 500 * i, "step": 500 * i},
        {"samples_count": 500 * i + 500, "step": 500 * i + 500}, {},
    ),
    "epoch_num of samples": lambda i: (
        {"epoch_num": 500 * i}, {"epoch_num": 500 * i + 500}, {"epoch_num": 500 * i + 500},
    ),
    "epoch_num of tokens": lambda i: (
        {"epoch_num": 500 * 64 * i}, {"epoch_num": 500 * 64 * (i + 1)},
        {"epoch_num": 500 * 64 * (i + 1)},
    ),
    "fractions of epochs": lambda i: (
        {"epoch_num": 500 * i / 600}, {"epoch_num": (500 * i + 500) / 600},
        {"epoch_num": (500 * i + 500) / 600},
    ),
    "first_epoch_num of samples": lambda i: (
        {"first_epoch_num": 500 * i, "epoch_count": 500}, {"first_epoch_num": 500 * i},
        {"epoch_num": 500 * i + 500},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVENTIONS)
def test_each_convention_of_blocks_gives_their_steps_and_samples(tmp_path, name):
    lines = [
        mllog("global_batch_size", T, 50), mllog("train_samples", T, 600), mllog("run_start", T),
    ]  # fmt: skip
    if "tokens" in name:
        lines.append(mllog("max_sequence_length", T, 64))
    for i in range(3):
        begin, end, evaluated = CONVENTIONS[name](i)
        t = T + 20_000 * i
        lines += [
            mllog("block_start", t, **begin), mllog("block_stop", t + 15_500, **end),
            mllog("eval_start", t + 15_500, **evaluated),
            mllog("eval_accuracy", t + 16_000, 0.5 + i / 10, **evaluated),
            mllog("eval_stop", t + 16_000, **evaluated),
        ]  # fmt: skip
    lines.append(mllog("run_stop", T + 60_000, status="success"))
    read = read_import(a_file(tmp_path / "r.txt", "\n".join(lines)), map="gpus=@5")
    blocks = windows(read, "steps")
    assert [(row["steps"], row["samples"]) for row in blocks] == [(10, 500)] * 3
    assert [row["duration_s"] for row in blocks] == pytest.approx([15.5] * 3)
    evaluations = windows(read, "evaluate")
    assert [row["metric"] for row in evaluations] == pytest.approx([0.5, 0.6, 0.7])
    # 500, 1000 and 1500 samples are within the first, second and third epoch of 600.
    assert [row["epoch"] for row in evaluations] == [0, 1, 2]
    assert not left_out(read)


def test_sizes_of_blocks_need_not_be_equal(tmp_path):
    lines = [mllog("global_batch_size", T, 50), mllog("run_start", T)]
    for i, size in enumerate([500, 500, 200]):
        lines += [
            mllog("block_start", T + 10_000 * i, samples_count=size),
            mllog("block_stop", T + 10_000 * i + 9000, samples_count=size),
        ]
    lines.append(mllog("run_stop", T + 60_000, status="success"))
    read = read_import(a_file(tmp_path / "r.txt", "\n".join(lines)), map="gpus=@5")
    assert [row["samples"] for row in windows(read)] == [500, 500, 200]


def test_steps_decide_where_a_block_ended_early(tmp_path):
    size = {"samples_count": 500}
    lines = [mllog("global_batch_size", T, 50), mllog("run_start", T)]
    for i, (begin, end) in enumerate([(0, 10), (10, 20), (20, 24), (24, 24)]):
        lines += [
            mllog("block_start", T + 10_000 * i, step=begin, **size),
            mllog("block_stop", T + 10_000 * i + 9000, step=end, **size),
        ]
    lines.append(mllog("run_stop", T + 60_000, status="aborted"))
    read = read_import(a_file(tmp_path / "r.txt", "\n".join(lines)), map="gpus=@5")
    assert [(row["steps"], row["samples"]) for row in windows(read)] == [
        (10, 500), (10, 500), (4, 200),
    ]  # fmt: skip
    assert left_out(read) == {"a block whose number of steps does not grow": 2}


def test_the_total_before_the_last_block_is_not_its_size(tmp_path):
    lines = [mllog("global_batch_size", T, 50), mllog("run_start", T)]
    for i in range(4):
        lines += [mllog("block_start", T + 10_000 * i, samples_count=500 * i),
                  mllog("block_stop", T + 10_000 * i + 9_000)]  # fmt: skip
    lines.append(mllog("run_stop", T + 60_000, status="success"))
    read = read_import(a_file(tmp_path / "r.txt", "\n".join(lines)), map="gpus=@5")
    assert [row["samples"] for row in windows(read)] == [500] * 3
    assert left_out(read) == {"a block whose size is not logged": 2}


def test_blocks_that_cannot_be_read_are_counted_with_a_reason(tmp_path):
    def block(at_s: int, begin: int, end: int, length_s: int = 10) -> list[str]:
        return [
            mllog(f"block_{edge}", T + 1000 * at, samples_count=count)
            for edge, at, count in (("start", at_s, begin), ("stop", at_s + length_s, end))
        ]  # fmt: skip

    lines = [
        mllog("global_batch_size", T, 50), mllog("run_start", T),
        *block(0, 0, 500), *block(10, 500, 500), *block(20, 500, 1000, 0),
        mllog("block_start", T + 30_000, samples_count=500), *block(40, 500, 1500),
        mllog("epoch_start", T + 45_000, epoch_num=0), mllog("epoch_stop", T + 55_000, epoch_num=1),
        *block(60, 1500, 1520), mllog("block_stop", T + 80_000, samples_count=1600),
        mllog("tracked_stats", T + 81_000, {"throughput": 50.0}),
        mllog("run_stop", T + 90_000, status="success"),
    ]  # fmt: skip
    read = read_import(a_file(tmp_path / "r.txt", "\n".join(lines)), map="gpus=@5")
    assert [row["samples"] for row in windows(read)] == [500, 1000]
    counts = left_out(read)
    assert sum(counts.values()) == 11
    for words, count in (
        ("does not grow", 2), ("not after", 2), ("block_start without", 1), ("overlaps", 2),
        ("less than one step", 2), ("block_stop without", 1), ("tracked_stats", 1),
    ):  # fmt: skip
        assert [number for reason, number in counts.items() if words in reason] == [count], words
    assert {*(each for file in read.files for each in map(str, file.left_out))} <= {
        *read.runs[0].record.notes
    }


def test_a_training_without_blocks_is_one_window_and_says_so(tmp_path):
    lines = [
        mllog("run_start", T), mllog("eval_start", T + 9000, samples_count=640),
        mllog("eval_stop", T + 9500, samples_count=640),
        mllog("run_stop", T + 20_000, status="success"),
    ]  # fmt: skip
    read = read_import(a_file(tmp_path / "r.txt", "\n".join(lines)), map="gpus=@5")
    assert [(row["phase"], row["duration_s"]) for row in windows(read)] == [
        ("run", 20.0), ("evaluate", 0.5),
    ]  # fmt: skip
    assert "no epoch or block is read" in read.files[0].notes[0]
    assert "no epoch or block is read" in " ".join(read.runs[0].record.notes)


def epochs_log(start_ms: int, epochs: int, first: int = 0, **end: Any) -> list[str]:
    """Return a training of epochs of 10 s with a log of 1 s after each, and their evaluation."""
    lines = [mllog("submission_benchmark", start_ms, "net"), mllog("run_start", start_ms)]
    for epoch in range(epochs):
        t = start_ms + 12_000 * epoch
        lines += [
            mllog("block_start", t, first_epoch_num=first + epoch, epoch_count=1),
            mllog("epoch_start", t, epoch_num=first + epoch),
            mllog("epoch_stop", t + 10_000, epoch_num=first + epoch),
            mllog("eval_start", t + 10_000, epoch_num=first + epoch),
            mllog("eval_accuracy", t + 11_000, epoch / 10, epoch_num=first + epoch),
            mllog("eval_stop", t + 11_000, epoch_num=first + epoch),
            mllog("block_stop", t + 11_500, first_epoch_num=first + epoch),
        ]
    t = start_ms + 12_000 * epochs
    return [*lines, mllog("run_stop", t, **end)] if end else lines


def test_epochs_count_from_0_and_evaluations_have_the_epoch_before_them(tmp_path):
    for first in (0, 1):
        lines = epochs_log(T, 3, first, status="success")
        read = read_import(a_file(tmp_path / f"{first}.txt", "\n".join(lines)), map="gpus=@5")
        for phase, duration_s in (("train", 10.0), ("evaluate", 1.0)):
            rows = windows(read, phase)
            assert [row["epoch"] for row in rows] == [0, 1, 2]
            assert [row["duration_s"] for row in rows] == [duration_s] * 3


def test_trainings_in_one_file_are_runs_and_an_aborted_one_says_so(tmp_path):
    lines = [
        *epochs_log(T, 2, status="success"), *epochs_log(T + 10**6, 3), "Killed",
        *epochs_log(T + 2 * 10**6, 1, status="aborted"),
    ]  # fmt: skip
    read = read_import(a_file(tmp_path / "r.txt", "\n".join(lines)), map="gpus=@5")
    epochs = [[row["phase"] for row in run.windows].count("train") for run in read.runs]
    assert epochs == [2, 3, 1]
    notes = [" ".join(run.record.notes) for run in read.runs]
    assert ["did not reach its target" in text for text in notes] == [False, True, True]
    assert "no run_stop" in notes[1]


@pytest.mark.parametrize("prefix", ["", "{rank}: ", "[{rank}] "])
def test_a_training_that_several_ranks_log_counts_once(tmp_path, prefix):
    one = epochs_log(T, 2, status="success")
    lines = [
        prefix.format(rank=rank) + line for line in one for rank in range(2)
    ]  # fmt: skip
    read = read_import(a_file(tmp_path / "r.txt", "\n".join(lines)), map="gpus=@5")
    (run,) = read.runs
    assert len(run.windows) == 4
    (count,) = (n for reason, n in left_out(read).items() if "another rank" in reason)
    # Without a prefix, a name and two results that are logged twice are read twice.
    assert count == (len(one) if prefix else len(one) - 3)
    parts = read_import(a_file(tmp_path / "p.txt", "\n".join([*one, *one])), map="gpus=@5")
    assert len(parts.runs) == 1
    assert sum(left_out(parts).values()) == len(one) + 4


def test_an_evaluation_beside_training_is_in_the_time_of_the_epoch(tmp_path):
    lines = [
        mllog("run_start", T), mllog("epoch_start", T, epoch_num=0),
        mllog("epoch_stop", T + 10_000, epoch_num=0),
        mllog("eval_start", T + 10_001, epoch_num=1),
        mllog("epoch_start", T + 10_002, epoch_num=1),
        mllog("eval_accuracy", T + 14_000, 0.5, epoch_num=1),
        mllog("eval_stop", T + 14_000, epoch_num=1),
        mllog("epoch_stop", T + 21_002, epoch_num=1),
        mllog("run_stop", T + 30_000, status="success"),
    ]  # fmt: skip
    read = read_import(a_file(tmp_path / "r.txt", "\n".join(lines)), map="gpus=@5")
    assert [(row["epoch"], row["duration_s"]) for row in windows(read, "train")] == [
        (0, 10.0), (1, 11.0),
    ]  # fmt: skip
    assert [row["epoch"] for row in windows(read, "evaluate")] == [0]
    assert "1 evaluation ran beside training" in read.files[0].notes[0]


def test_power_readings_without_a_value_are_left_out_and_gaps_are_said(tmp_path):
    lines = samples.mlperf_power().decode().splitlines()
    lines[10] = lines[10].replace("5000.0", "null")
    del lines[20:25]
    log = a_file(tmp_path / "result_0.txt", samples.mlperf())
    power = a_file(tmp_path / "node_0.txt", "\n".join(lines))
    read = read_import([log, power], map="gpus=@8")
    assert left_out(read)["power_reading without a value"] == 1
    assert "2 gaps of up to 6 s" in " ".join(read.files[1].notes)


# Hugging Face


def a_state(path: Path, log: list[dict[str, Any]], **state: Any) -> Path:
    step = max(entry.get("step", 0) for entry in log)
    return a_file(
        path, json.dumps({"global_step": step, "max_steps": step} | state | {"log_history": log})
    )


def losses(*steps: int, loss: float = 2.0) -> list[dict[str, Any]]:
    return [{"epoch": step / 100, "loss": loss, "step": step} for step in steps]


def evaluation(step: int, runtime_s: float, name: str = "") -> dict[str, Any]:
    return {"epoch": step / 100, "step": step, f"eval_{name}loss": 1.0,
            f"eval_{name}runtime": runtime_s, f"eval_{name}acc": 0.5}  # fmt: skip


def trained(
    step: int, runtime_s: float, of: int, loss: float = 2.0, batch: int = 16
) -> dict[str, Any]:
    """Return the last record of a training, with rates that count ``of`` steps."""
    return {"epoch": step / 100, "step": step, "train_loss": loss, "train_runtime": runtime_s,
            "train_steps_per_second": round(of / runtime_s, 3),
            "train_samples_per_second": round(of * batch / runtime_s, 3)}  # fmt: skip


def blocks(read: Import) -> list[tuple[int, float, int | None]]:
    return [(row["steps"], row["duration_s"], row["samples"]) for row in windows(read, "steps")]


def test_each_training_of_a_resumed_state_has_its_own_steps(tmp_path):
    path = misread_file("hf_two_trainings/trainer_state.json")
    read = read_import(path, map="gpus=@1,global_batch=@16")
    assert blocks(read) == [(100, 50.0, 1600), (100, 55.0, 1600)]


@pytest.mark.parametrize("version", [4, 5])
def test_trainings_that_continue_a_state_have_the_steps_since(tmp_path, version):
    log = [
        *losses(20, 40), evaluation(40, 3.0), trained(40, 20.0, 40), evaluation(40, 5.0),
        *losses(70, 100, loss=1.0), evaluation(100, 2.0),
        trained(100, 32.0, 100, 0.6) if version == 4 else trained(100, 32.0, 60, 1.0),
    ]  # fmt: skip
    read = read_import(a_state(tmp_path / "trainer_state.json", log), map="gpus=@2")
    # The evaluation of 5 s follows the first training.
    assert blocks(read) == [(40, 17.0, 640), (60, 30.0, pytest.approx(960, abs=1))]
    assert [row["epoch"] for row in windows(read, "evaluate")] == [0, 0, 0]
    assert not left_out(read)


def test_a_training_that_stopped_early_has_the_samples_that_ran(tmp_path):
    log = [*losses(50, 100, 150), evaluation(150, 10.0, "mnli_"), trained(150, 60.0, 1000)]
    read = read_import(a_state(tmp_path / "trainer_state.json", log, max_steps=1000), map="gpus=@2")
    assert blocks(read) == [(150, 50.0, pytest.approx(2400, abs=1))]
    assert windows(read, "evaluate")[0]["epoch"] == 1
    assert "150 of 1,000 planned steps" in " ".join(read.runs[0].record.notes)
    # A rate of 0.001 may be 0.0005: the samples are not known, but those of a batch are.
    slow = [*losses(50), trained(50, 50_000.0, 70, batch=1)]
    path = a_state(tmp_path / "slow" / "trainer_state.json", slow, max_steps=70)
    assert blocks(read_import(path, map="gpus=@1")) == [(50, 50_000.0, None)]
    assert blocks(read_import(path, map="gpus=@1,global_batch=@8")) == [(50, 50_000.0, 400)]


def test_steps_before_a_checkpoint_do_not_count(tmp_path):
    newer = [*losses(50, 100, 150, 200), trained(200, 55.0, 80)]
    read = read_import(a_state(tmp_path / "trainer_state.json", newer), map="gpus=@2")
    assert blocks(read) == [(80, 55.0, pytest.approx(1280, abs=1))]
    assert windows(read)[0]["from_step"] == 120
    # Rates of all 200 steps, and a mean loss of 80 of them, divided by 200.
    older = [*losses(50, 100, 150, 200), trained(200, 55.0, 200, loss=2.0 * 80 / 200)]
    path = a_state(tmp_path / "older" / "trainer_state.json", older)
    with pytest.raises(BadInput, match="continued from a checkpoint"):
        read_import(path, map="gpus=@2")
    both = [*older, *losses(250, 300), trained(300, 50.0, 300, loss=2.0 / 3), *losses(350)]
    read = read_import(a_state(path, both), map="gpus=@2")
    assert blocks(read) == [(100, 50.0, pytest.approx(1600, abs=1))]
    assert sorted(left_out(read).values()) == [1, 1]


# TensorBoard


def events(folder: Path, points: dict[str, list[tuple[int, float]]]) -> Path:
    """Write an event file of tags with the steps and times of their values; return the file."""
    from tensorboardX import SummaryWriter

    before = {*folder.glob("*")}
    with SummaryWriter(str(folder), filename_suffix=f".{len(before)}") as writer:
        for time_s, tag, step in sorted(
            (time_s, tag, step) for tag, own in points.items() for step, time_s in own
        ):
            writer.add_scalar(tag, 1.0, step, walltime=T // 1000 + time_s)
    (path,) = {*folder.glob("*")} - before
    return path


def steps(first: int, last: int, start_s: float, step_s: float = 2.0) -> list[tuple[int, float]]:
    return [(step, start_s + (step - first) * step_s) for step in range(first, last + 1)]


def training_of(read: Import) -> tuple[int, float]:
    rows = windows(read, "steps")
    return sum(row["steps"] for row in rows), sum(row["duration_s"] for row in rows)


def test_a_pause_and_steps_that_go_back_are_no_training():
    path = misread_file("tb_resume")
    for each in (path, next(path.glob("events*"))):
        read = read_import(each, map="gpus=@1")
        count, duration_s = training_of(read)
        assert duration_s / count == pytest.approx(1.0)
        assert count == 250  # 0 to 150, and again 100 to 200
        assert read.runs[0].record.spec.workload.name == "tb_resume"


def test_steps_that_go_on_after_a_crash_or_a_pause_take_their_own_time(tmp_path):
    # Resumed from an older step, and a pause without one.
    points = [*steps(0, 60, 0), *steps(40, 70, 900), *steps(71, 90, 3000)]
    path = events(tmp_path / "net", {"loss": points})
    read = read_import(path, map="gpus=@1")
    assert training_of(read) == (60 + 30 + 19, pytest.approx(2.0 * (60 + 30 + 19)))
    assert read.runs[0].record.spec.workload.name == "net"
    assert "2 intervals with a pause left out" in " ".join(read.runs[0].record.notes)


def test_the_files_of_a_folder_are_one_training(tmp_path):
    folder = tmp_path / "resnet"
    events(folder, {"loss": steps(1, 20, 0), "lr": steps(1, 20, 0)})
    events(folder, {"loss": steps(21, 40, 100)})
    events(folder, {"loss": steps(21, 40, 101)})  # of another process, at the same time
    events(folder / "validation", {"loss": [(10, 19.0)], "acc": [(10, 19.0)]})
    events(folder / "other", {"loss": steps(1, 5, 0)})
    read = read_import(folder, map="gpus=@1")
    # The interval from step 10 to 11 has the validation.
    assert training_of(read) == (18 + 19, pytest.approx(2.0 * (18 + 19)))
    assert [row["loss"] for row in windows(read, "evaluate")] == [1.0]
    assert read.runs[0].record.spec.workload.name == "resnet"
    counts = left_out(read)
    assert counts["written beside another file or part of it"] == 20
    assert sum(counts.values()) == 20 + 20  # and those of lr
    above = read_import(tmp_path, map="gpus=@1")
    assert [run.record.spec.workload.name for run in above.runs] == ["resnet", "other"]
    assert training_of(above) == (18 + 19 + 4, pytest.approx(2.0 * (18 + 19 + 4)))


def test_a_damaged_record_is_counted_and_the_others_are_read(tmp_path):
    path = events(tmp_path / "net", {"loss": steps(0, 50, 0)})
    content = bytearray(path.read_bytes())
    value = content.index(b"loss", len(content) // 2)
    content[value] = ord("L")
    path.write_bytes(bytes(content) + b"torn")
    read = read_import(path, map="gpus=@1")
    assert training_of(read) == (50, pytest.approx(100.0))
    assert left_out(read)["a record that is damaged or cut off"] == 2


def test_epochs_of_keras_are_no_steps(tmp_path):
    folder = tmp_path / "keras"
    events(folder / "train", {"epoch_loss": steps(0, 4, 0, 30.0)})
    read = read_import(folder, map="gpus=@1")
    assert [row["duration_s"] for row in windows(read, "train")] == pytest.approx([30.0] * 4)
    assert [row["epoch"] for row in windows(read, "train")] == [1, 2, 3, 4]
    events(folder / "validation", {"epoch_loss": steps(0, 4, 0.1, 30.0)})
    with pytest.raises(BadInput, match="log one in each step"):
        read_import(folder, map="gpus=@1")


# Lightning


def test_each_call_of_fit_is_read(tmp_path):
    head = "epoch,step,train/batches,train/samples,train/time,train_loss,val_loss"
    rows = [
        *(f"0,{step},{step},{step * 4},{step * 0.5},," for step in range(5, 41, 5)),
        "0,39,,,,,1.5",
        "0,40,,,,0.5,",
        # Resumed from step 20, with its time from 0 and another column.
        f"{head},lr",
        *(f"1,{step},{step - 20},{(step - 20) * 4},{(step - 20) * 0.7},,,0.1"
          for step in range(25, 51, 5)),
        "1,50,7",
        "2,55,1,4,0.5,,,0.1",
    ]  # fmt: skip
    path = a_file(tmp_path / "net" / "version_0" / "metrics.csv", "\n".join([head, *rows, ""]))
    read = read_import(path, map="gpus=@2")
    assert blocks(read) == [
        (35, pytest.approx(17.5), 35 * 4 * 2), (25, pytest.approx(17.5), 25 * 4 * 2),
    ]  # fmt: skip
    assert [row["from_step"] for row in windows(read, "steps")] == [5, 25]
    assert [row["loss"] for row in windows(read, "evaluate")] == [1.5]
    assert read.runs[0].record.spec.workload.name == "net"
    assert sorted(left_out(read).values()) == [1, 1, 1]


# Logs and windows


def marked(tmp_path: Path, text: str, pattern: str = r"step (?P<step>\d+)") -> Import:
    """Import a log of GPUs from 2026-01-31 12:00:00 on, with windows of the lines of a text."""
    gpus = a_file(tmp_path / "gpu.csv", samples.nvidia_smi(seconds=600))
    return read_import([gpus, a_file(tmp_path / "train.log", text)], pattern=pattern)


FORMS = [
    "[2026-01-31 12:{m:02}:{s:02},500] step {n}", "2026-01-31T12:{m:02}:{s:02}.5Z step {n}",
    "2026/01/31 12:{m:02}:{s:02} step {n}", "2026-01-31T14:{m:02}:{s:02}+0200 step {n}",
    "INFO 20260131 12{m:02}{s:02} step {n}", "31/Jan/2026 12:{m:02}:{s:02} step {n}",
    "Sat Jan 31 12:{m:02}:{s:02} 2026: step {n}", "January 31, 2026 12:{m:02}:{s:02} step {n}",
    "31.01.2026 12:{m:02}:{s:02} step {n}", "01/31/2026 12:{m:02}:{s:02} PM - INFO - step {n}",
    "[{t}.25] step {n}", "ts={t}000 step {n}", '{{"time": "2026-01-31 12:{m:02}:{s:02}"}} step {n}',
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_time_of_a_line_is_read_in_the_forms_of_loggers(tmp_path, form):
    lines = [
        form.format(m=n // 60, s=n % 60, n=n, t=1_769_860_800 + n) for n in range(20, 121, 20)
    ]  # fmt: skip
    rows = windows(marked(tmp_path, "\n".join(lines)), "steps")
    assert [(row["steps"], row["duration_s"]) for row in rows] == [(20, 20.0)] * 5
    assert rows[0]["start_ns"] // 10**9 == 1_769_860_820
    assert all(row["gpu_energy_j"] > 0 for row in rows)


def test_steps_may_have_separators_of_thousands(tmp_path):
    text = "\n".join(f"2026-01-31 12:00:{n:02} step {n * 400:,}" for n in (1, 2, 3, 4))
    rows = windows(marked(tmp_path, text, r"step (?P<step>[\d,]+)"), "steps")
    assert [row["steps"] for row in rows] == [400, 400, 400]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("12:00:{:02} step {}", "line 1 has a time without a date: .12:00:10"),
        ("Jan 31 12:00:{:02} host step {}", "without a year"),
        ("I0131 12:00:{:02}.123456 step {}", "without a year"),
        ("01/02/2026 12:00:{:02} step {}", "month and day"),
        ("2026-13-31 12:00:{:02} step {}", "does not exist"),
        (
            "step {1} after {0} s",
            "3 lines left out, the first is line 1: matches .* has no time such as",
        ),
        ("2026-01-31 12:00:{:02} iteration {}", "3 lines left out, .* does not match"),
    ],
)
def test_a_time_that_is_not_certain_is_named_with_what_is_missing(tmp_path, form, words):
    text = "\n".join(form.format(second, second) for second in (10, 20, 30))
    with pytest.raises(BadInput, match=words):
        marked(tmp_path, text)


@pytest.mark.parametrize("pattern", [r"step \d+", r"step (\d+)", r"step (?P<steps>\d+)"])
def test_a_pattern_without_a_group_is_named_with_what_is_missing(tmp_path, pattern):
    with pytest.raises(BadInput, match="no group step or epoch"):
        marked(tmp_path, "2026-01-31 12:00:10 step 1\n2026-01-31 12:00:20 step 2", pattern)


@pytest.mark.parametrize("is_named", [False, True])
def test_evaluations_pauses_and_steps_that_go_back_are_no_step_time(tmp_path, is_named):
    at = iter([0, 10, 20, 31, 45, 55, 65, 66, 265, 275, 285, 295])
    texts = [
        "step 10", "step 20", "step 30", "Validation: top1=0.7", "step 40", "step 50", "step 60",
        "step 60", "step 70", "step 80", "step 50", "step 60",
    ]  # fmt: skip
    if is_named:
        texts[3] = "top1 0.7"
    lines = [f"2026-01-31 12:{s // 60:02}:{s % 60:02} {text}"
             for s, text in zip(at, texts, strict=True)]  # fmt: skip
    pattern = r"step (?P<step>\d+)" + r"|(?P<evaluation>top1 [\d.]+)" * is_named
    read = marked(tmp_path, "\n".join([*lines, "the end", "step 90 without a time"]), pattern)
    rows = windows(read, "steps")
    assert [(row["steps"], row["duration_s"]) for row in rows] == [(10, 10.0)] * 6
    assert left_out(read) == {
        "a line of an evaluation": 1, "the same step or epoch as the line before": 1,
        "does not match --pattern": 1,
        "matches --pattern but has no time such as 2026-01-31 12:00:00": 1,
    }  # fmt: skip
    notes = " ".join(read.runs[0].record.notes)
    for words in ("with an evaluation", "numbers go back", "with a pause"):
        assert f"1 interval left out: {'in which the ' * words.startswith('n')}{words}" in notes


def test_lines_of_evaluations_that_match_are_none_of_training(tmp_path):
    texts = ["step 10", "step 20", "eval step 1", "eval step 2", "step 30", "step 40"]
    lines = [f"2026-01-31 12:00:{10 * i:02} {text}" for i, text in enumerate(texts)]
    read = marked(tmp_path, "\n".join(lines))
    assert [(row["steps"], row["duration_s"]) for row in windows(read)] == [(10, 10.0)] * 2
    both = [f"2026-01-31 12:00:{10 * i:02} epoch {i} val_loss 0.5" for i in range(3)]
    read = marked(tmp_path, "\n".join(both), r"epoch (?P<epoch>\d+)")
    assert len(windows(read, "train")) == 2
    assert "every line has a word such as eval" in " ".join(read.runs[0].record.notes)


def test_lines_of_several_epochs_are_no_epoch(tmp_path):
    lines = [f"2026-01-31 12:0{i}:00 epoch {n}" for i, n in enumerate((1, 2, 3, 8, 9, 9))]
    read = marked(tmp_path, "\n".join(lines), r"epoch (?P<epoch>\d+)")
    assert [row["epoch"] for row in windows(read, "train")] == [2, 3, 9]
    assert "1 interval left out: of several epochs" in " ".join(read.runs[0].record.notes)


def test_windows_within_others_or_reversed_do_not_count_twice(tmp_path):
    rows = [
        (0, 130, "train"), (0, 500, "run"), (10, 60, "train"), (60, 120, "train"),
        (60, 120, "train"),
        (100, 130, "train"), (110, 140, "evaluate"), (15, 20, "forward"), (200, 150, "train"),
        (300, 310, "12"), (310, "soon", "train"),
    ]  # fmt: skip
    start = 1_769_860_800
    text = "".join(
        f"{start + begin},{end if isinstance(end, str) else start + end},{phase}\n"
        for begin, end, phase in rows
    )
    gpus = a_file(tmp_path / "gpu.csv", samples.nvidia_smi(seconds=600))
    marks = a_file(tmp_path / "windows.csv", "start,end,phase\n" + text)
    read = read_import([gpus, marks])
    assert [(row["phase"], round(row["duration_s"], 6)) for row in windows(read)] == [
        ("run", 500.0), ("train", 50.0), ("forward", 5.0), ("train", 60.0), ("evaluate", 30.0),
    ]  # fmt: skip
    assert "1 window of training with an evaluation" in " ".join(read.runs[0].record.notes)
    assert left_out(read) == {
        "a window that contains others of its phase": 1, "a window that is in the file twice": 1,
        "a window that overlaps the one before": 1,
    }  # fmt: skip
    assert [text.split(":")[0] for text in read.files[1].rejected] == [
        "line 10",
        "line 11",
        "line 12",
    ]
    a_file(marks, "start,end\n5,1\n")
    with pytest.raises(BadInput, match="line 2: the window ends before"):
        read_import([gpus, marks])


# perun


def test_calls_and_sensors_that_are_left_out_are_counted(tmp_path):
    import h5py
    import numpy as np

    path = a_file(tmp_path / "app.hdf5", samples.perun())
    with h5py.File(path, "a") as file:
        regions = file["app/nodes/2026-01-31T12:00:00/nodes/0/regions"]
        # All epochs are within one call of train; a step has no end, another one is of one rank.
        for name, ranks in {"train": [[0, 60], [0, 60]], "step": [[2, 3, 4, 5, 6], [2, 3]],
                            "val": [[21, 20]]}.items():  # fmt: skip
            region = regions.create_group(name)
            region.attrs["id"] = name
            for rank, edges in enumerate(ranks):
                region.create_dataset(f"raw_data/{rank}", data=np.array(edges, np.float32))
        gpu = file["app/nodes/2026-01-31T12:00:00/nodes/0/nodes/host1/nodes/gpu/nodes"]
        power = gpu["CUDA:0_POWER/raw_data/values"]
        seconds = gpu["CUDA:0_POWER/raw_data/timesteps"]
        seconds[5] = -1.0
        assert len(power) == 61
    read = read_import(path)
    assert [row["duration_s"] for row in windows(read, "train")] == pytest.approx(
        [18.5, 19.5, 19.5]
    )
    assert len(windows(read, "steps")) == 1
    # RAPL's core is a part of the package, and CPU_USAGE has no energy.
    assert sorted(left_out(read).values()) == [2, 2]
    notes = " ".join(read.runs[0].record.notes)
    for words in (
        "1 call left out: a window that contains others", "1 call left out: without an end",
        "1 call left out: not of all ranks", "1 call left out: its end is not after its begin",
        "1 reading left out: negative",
    ):  # fmt: skip
        assert words in notes


# Files that are not read

FOREIGN = {
    "perun.json": ('{"id": "app", "type": 1, "metadata": {}, "nodes": [{}]}', "perun", "hdf5"),
    "bench.json": ('[\n    {\n "name": "app_1 - RUNTIME", "unit": "s"}]', "perun", "hdf5"),
    "perun.csv": (
        ",run id,hostname,device_group,sensor,unit,magnitude,timestep,value\n0,0,n1,gpu,x,W\n",
        "perun", "hdf5",
    ),
    "points.txt": ("# made\nPARAMETER p\nPOINTS 4 8\nREGION r\nDATA 1 2\n", "Extra-P", "--map"),
    "points.jsonl": ('{"params":{"x":20},"metric":"m","value":8.5}\n', "Extra-P", "--map"),
    "points.json": ('{"parameters": ["x"], "measurements": {}}', "Extra-P", "--map"),
    "spl.txt": (
        "Time,11-08-2023 12:26:59.302,Watts,317.500000,Volts,229.3,Amps,1.4,PF,0.98,Mark,run\n",
        "PTDaemon", "node_energy_j",
    ),
    "chart.csv": (
        '"Step","a - loss","a - loss__MIN","a - loss__MAX"\n1,2,2,2\n', "Weights & Biases", "--map",
    ),
    "wandb-history.jsonl": ('{"loss": 1, "_step": 1, "_timestamp": 17}\n', "Weights", "--map"),
    "loss": ("1700000000000 0.5 1\n1700000001000 0.4 2\n", "MLflow", "mlflow experiments csv"),
    "train_results.json": (
        '{\n "epoch": 1.0,\n "train_runtime": 5.0\n}', "Hugging Face", "trainer_state.json",
    ),
    "power.json": (
        '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"gpu":"0"},'
        '"values":[[1700000000,"300"]]}]}}', "Prometheus", "DCGM_FI_DEV_POWER_USAGE",
    ),
    "dmon.txt": ("#Entity   POWER\n      W\nGPU 0     300.1\n", "dcgmi dmon", "nvidia-smi"),
    "result_0.txt": (
        "start\n:::MLPv0.6.0 resnet 1560000000.5 (a.py:1) run_start\n", "MLPerf Training", "--map",
    ),
    "scalar.csv": ("Wall time,Step,Value\n1700000000.5,1,0.5\n", "TensorBoard", "event file"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_not_read_is_named_with_a_remedy(tmp_path, capsys, name):
    content, what, remedy = FOREIGN[name]
    path = a_file(tmp_path / name, content)
    assert main(["import", str(path), "--store", str(tmp_path / "store")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(words in line for words in (name, what, remedy))


@pytest.mark.parametrize("name", ["extrap_input.txt", "extrap_2p.txt", "extrap.jsonl"])
def test_real_files_of_extrap_are_named(name):
    path = misread_file("README.md").parents[1] / "formats" / name
    with pytest.raises(BadInput, match="Extra-P"):
        read_import(path)
