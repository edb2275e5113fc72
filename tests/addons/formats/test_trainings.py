"""Trainings of TensorBoard and Hugging Face."""

import json
from pathlib import Path
from typing import Any

import pytest

import import_samples as samples
from imported import a_file, left_out, metrics, notes, windows
from wattlaw.api.imports import Import, read_import
from wattlaw.common.errors import BadInput


def test_tensorboard_steps_are_those_between_evaluations(tmp_path):
    path = a_file(tmp_path / "events.out.tfevents.1.h", samples.tensorboard())
    read = read_import(path, map="gpus=@2")
    blocks = windows(read, "steps")
    # Steps 10 to 50 take 4 s; the interval with the validation of 5 s, to step 60, is left out.
    assert [row["steps"] for row in blocks] == [40, 40]
    assert [row["duration_s"] for row in blocks] == pytest.approx([4.0, 4.0], abs=1e-3)
    assert [row["metric"] for row in windows(read, "evaluate")] == pytest.approx([0.55, 0.6])
    cut = a_file(tmp_path / "events.out.tfevents.2.h", samples.tensorboard()[:-70])
    assert "cut off" in notes(read_import(cut, map="gpus=@2"))


def test_a_trainer_state_has_steps_without_its_evaluations(tmp_path):
    path = a_file(tmp_path / "trainer_state.json", samples.huggingface())
    read = read_import(path, map="gpus=@2,global_batch=@8")
    (block,) = windows(read, "steps")
    assert (block["steps"], block["duration_s"], block["samples"]) == (20, 8.0, 160)
    assert [row["metric"] for row in windows(read, "evaluate")] == [0.6, 0.7]
    assert metrics(read, tmp_path)["time_per_sample_s"].tolist() == [0.05]
    early = json.loads(samples.huggingface())
    early["log_history"].pop()
    with pytest.raises(BadInput, match="save_state"):
        read_import(a_file(path, json.dumps(early)), map="gpus=@2")


def test_a_state_that_the_trainer_writes_is_read(tmp_path):
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    model = BertForSequenceClassification(
        BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=50)
    )
    data = [{"input_ids": torch.arange(8), "labels": torch.tensor(i % 2)} for i in range(40)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, num_train_epochs=2,
        eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:8])
    result = trainer.train().metrics
    trainer.save_state()
    read = read_import(tmp_path / "trainer_state.json", map="gpus=@1")
    (block,) = windows(read, "steps")
    evaluated_s = sum(row["duration_s"] for row in windows(read, "evaluate"))
    assert (block["steps"], block["samples"]) == (20, 80)
    assert block["duration_s"] == pytest.approx(result["train_runtime"] - evaluated_s)


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


def trained(step, runtime_s, of, loss=2.0, batch=16):
    """Return the last record of a training, with rates that count ``of`` steps."""
    return {"epoch": step / 100, "step": step, "train_loss": loss, "train_runtime": runtime_s,
            "train_steps_per_second": round(of / runtime_s, 3),
            "train_samples_per_second": round(of * batch / runtime_s, 3)}  # fmt: skip


def blocks(read: Import) -> list[tuple[int, float, int | None]]:
    return [(row["steps"], row["duration_s"], row["samples"]) for row in windows(read, "steps")]


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


def events(folder: Path, points: dict[str, list[tuple[int, float]]]) -> Path:
    """Write an event file of tags with the steps and times of their values; return the file."""
    from tensorboardX import SummaryWriter

    before = {*folder.glob("*")}
    with SummaryWriter(str(folder), filename_suffix=f".{len(before)}") as writer:
        for time_s, tag, step in sorted(
            (time_s, tag, step) for tag, own in points.items() for step, time_s in own
        ):
            writer.add_scalar(tag, 1.0, step, walltime=1_769_860_000 + time_s)
    (path,) = {*folder.glob("*")} - before
    return path


def steps(first: int, last: int, start_s: float, step_s: float = 2.0) -> list[tuple[int, float]]:
    return [(step, start_s + (step - first) * step_s) for step in range(first, last + 1)]


def training_of(read: Import) -> tuple[int, float]:
    rows = windows(read, "steps")
    return sum(row["steps"] for row in rows), sum(row["duration_s"] for row in rows)


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
