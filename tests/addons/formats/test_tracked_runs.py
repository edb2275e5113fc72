"""Runs of Weights & Biases and MLflow, as their own packages write them."""

from pathlib import Path

import pandas as pd
import pytest

import real_runs
from fake_nvml import FakeGpus
from import_samples import history_csv
from imported import a_file, joules, left_out, metrics, notes, refusal, verdicts, windows
from wattlaw.api.imports import read_import

MAP = "gpus=gpu_count,global_batch=batch_size"


def mlflow_folder(folder: Path, **changes: bytes) -> Path:
    for name, content in (real_runs.mlflow_files() | changes).items():
        a_file(folder / "7" / "run" / name, content)
    return folder / "7" / "run"


def assert_two_blocks_around_an_evaluation(read) -> None:
    found = [(row["from_step"], row["steps"], row["duration_s"], row["samples"])
             for row in windows(read, "steps")]  # fmt: skip
    assert found == [(0, 9, pytest.approx(9.0), 576), (10, 9, pytest.approx(9.0), 576)]
    assert [row["metric"] for row in windows(read, "evaluate")] == [0.5]
    assert verdicts(read) == {"unavailable"}


def test_an_offline_run_has_its_steps_and_its_configuration_as_setting(tmp_path):
    path = a_file(tmp_path / "run-1.wandb", real_runs.wandb_log())
    read = read_import(path, map=MAP)
    assert_two_blocks_around_an_evaluation(read)
    spec = read.runs[0].record.spec
    assert (spec.workload.name, spec.setting.gpus, spec.setting.global_batch) == ("nets", 2, 64)
    assert spec.workload.options == {"lr": 0.1, "optimizer.name": "sgd"}
    assert metrics(read, tmp_path)["time_per_sample_s"].tolist() == [pytest.approx(1 / 64)]


def test_the_exported_history_of_a_run_has_the_same_steps(tmp_path):
    assert_two_blocks_around_an_evaluation(
        read_import(a_file(tmp_path / "history.csv", history_csv()), map="gpus=@2")
    )
    events = pd.DataFrame({"_timestamp": range(100), "system.gpu.0.powerWatts": 250.0})
    events["_timestamp"] += real_runs.BEGIN_S
    power = a_file(tmp_path / "events.csv", events.to_csv(index=False))
    both = read_import([tmp_path / "history.csv", power], map="gpus=@1")
    assert joules(both) == [pytest.approx(18 * 250.0)]


def test_a_run_of_mlflow_has_its_steps_and_its_parameters_as_setting(tmp_path):
    folder = mlflow_folder(tmp_path)
    a_file(folder.parent / "meta.yaml", "experiment_id: '7'\nname: nets\n")
    read = read_import(tmp_path, map=MAP)
    assert_two_blocks_around_an_evaluation(read)
    (spec,) = (run.record.spec for run in read.runs)
    assert (spec.workload.name, spec.setting.gpus, spec.setting.global_batch) == ("nets", 2, 64)
    assert spec.workload.options == {"lr": 0.1}
    assert "finished" not in notes(read)


@pytest.mark.parametrize(
    ("write", "source"), [(real_runs.wandb_run, "counter"), (real_runs.mlflow_run, "integral")]
)
def test_the_power_that_the_tool_logs_becomes_the_energy_of_the_steps(tmp_path, write, source):
    gpus = FakeGpus.create(tmp_path / "boards", 2)  # at 250 W
    rows = real_runs.history(40, has_times=False)
    del rows[10]["val/acc"]
    run = write(tmp_path, rows, 0.1, **gpus.environment())
    read = read_import(run, map="gpus=@2")
    (block,) = windows(read, "steps")
    assert block["steps"] == 39
    assert block["energy_source"] == source
    assert block["gpu_energy_j"] == pytest.approx(500.0 * block["duration_s"], rel=0.2)
    assert block["sm_util_mean"] == pytest.approx(0.95)
    assert {row["power_source"] for row in read.runs[0].telemetry.to_pylist()} <= {"measured", None}
    # A run of which only one node has logged its power has no energy.
    (block,) = windows(read_import(run, map="gpus=@4,nodes=@2"), "steps")
    assert block["energy_verdict"] == "unavailable"


def test_what_follows_a_damaged_block_of_a_log_is_read(tmp_path):
    content = real_runs.wandb_run(tmp_path, real_runs.history(400)).read_bytes()
    assert len(content) > 3 * 32_768
    whole = read_import(a_file(tmp_path / "whole.wandb", content), map="gpus=@2")
    assert sum(row["steps"] for row in windows(whole, "steps")) == 398
    damaged = bytearray(content)
    damaged[40_000] ^= 255  # in the second block
    read = read_import(a_file(tmp_path / "damaged.wandb", bytes(damaged)), map="gpus=@2")
    last, steps = windows(read, "steps")[-1], sum(row["steps"] for row in windows(read, "steps"))
    assert (last["from_step"] + last["steps"], steps > 200) == (399, True)
    assert left_out(read)["a record that is damaged or cut off"] >= 1
    in_a_head = a_file(tmp_path / "cut.wandb", content[:65_539])  # in the head of a piece
    cut = read_import(in_a_head, map="gpus=@2")
    assert 0 < sum(row["steps"] for row in windows(cut, "steps")) < 398
    assert "cut off" in notes(cut)


def test_what_is_no_value_of_a_metric_is_left_out(tmp_path):
    lines = b"1769860000000 1.0 0\nx\n1769860001000 nan 1\n1769860002000 0.5 2\n\xff\n"
    folder = mlflow_folder(tmp_path, **{"metrics/train/loss": lines, "metrics/samples": b""})
    read = read_import(folder, map="gpus=@2")
    assert [(row["steps"], row["duration_s"]) for row in windows(read, "steps")] == [(2, 2.0)]
    assert left_out(read)["no time, value and step"] == 3


def test_a_run_that_cannot_be_read_is_refused_with_the_reason(tmp_path, capsys):
    folder = mlflow_folder(tmp_path)
    assert "gpu_number" in refusal(folder, capsys, "--map", "gpus=gpu_number")
    assert "name the folder" in refusal(folder / "metrics" / "train" / "loss", capsys)
    meta = (folder / "meta.yaml").read_text().replace("stage: active", "stage: deleted")
    a_file(folder / "meta.yaml", meta)
    assert "deleted" in refusal(folder, capsys, "--map", "gpus=@2")
    log = a_file(tmp_path / "run-1.wandb", real_runs.wandb_log())
    assert "batch_size" in refusal(log, capsys, "--map", "gpus=batch")
    assert "--map gpus=@N" in refusal(log, capsys)
