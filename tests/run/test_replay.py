"""Replayed runs: the times and energies of a table, in a store like that of other runs."""

from datetime import UTC, datetime

import pandas as pd
import pytest

from wattlaw.api import results
from wattlaw.api.studies import run
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput
from wattlaw.running.replay import read_replay_table

TABLE = """\
workload,hardware,gpus,nodes,local_batch,step_time_s,power_per_gpu_w,power_limit_w,startup_s
bert,T4,1,1,8,0.5,60,,20
bert,T4,1,1,8,0.7,64,,
bert,T4,1,1,8,0.8,40,50,20
bert,T4,4,1,8,0.6,55,,30
bert,T4,4,2,8,0.9,50,,35
"""
STUDY = {
    "workloads": [{"name": "bert", "dataset_samples": 1000}],
    "sweeps": [
        {"gpus": [1, 2], "local_batch": [8], "power_limit_w": [None, 50]},
        {"gpus": [4], "local_batch": [8], "nodes": [1, 2]},
    ],
    "measure": {"steps": 100, "warmup_steps": 10},
    "launch": {"kind": "replay", "table": "table.csv"},
}
ONE = {"sweeps": [{"gpus": [1], "local_batch": [8]}]}


@pytest.fixture
def replayed(write_study, tmp_path):
    def replay(table: str = TABLE, **changes: object) -> results.Results:
        (tmp_path / "table.csv").write_text(table)
        run(write_study(**STUDY | changes), tmp_path / "store")
        return results.open(tmp_path / "store")

    return replay


def setting_of(frame, **values):
    for name, value in values.items():
        frame = frame[frame[name].isna() if value is None else frame[name] == value]
    return frame


def test_runs_have_the_times_and_powers_of_their_rows(replayed):
    metrics = replayed(repeats=2).metrics
    both = setting_of(metrics, gpus=1, power_limit_w=None).sort_values("repeat")
    assert both["step_time_s"].tolist() == pytest.approx([0.5, 0.7])
    assert both["time_per_sample_s"].tolist() == pytest.approx([0.5 / 8, 0.7 / 8])
    assert both["power_per_gpu_w"].tolist() == pytest.approx([60, 64])
    assert both["energy_per_sample_j"].tolist() == pytest.approx([60 * 0.5 / 8, 64 * 0.7 / 8])
    assert both["epoch_time_s"].tolist() == pytest.approx([0.5 * 125, 0.7 * 125])
    capped = setting_of(metrics, power_limit_w=50)
    assert capped["step_time_s"].tolist() == pytest.approx([0.8, 0.8])  # one row for two repeats
    by_nodes = metrics[metrics["gpus"] == 4].groupby("nodes")["step_time_s"].first()
    assert by_nodes.to_dict() == pytest.approx({1: 0.6, 2: 0.9})
    assert set(metrics["energy_is"]) == {"gpu, replayed"}
    assert set(metrics["hardware"]) == {"T4"}


def test_steps_are_two_windows_and_startup_belongs_to_the_run_alone(replayed):
    opened = replayed()
    (started,) = setting_of(opened.runs, gpus=4, nodes=2).to_dict("records")
    windows = opened.epochs[opened.epochs["run_id"] == started["run_id"]]
    assert windows["steps"].tolist() == [10, 100]
    assert windows["samples"].tolist() == [320, 3200]
    assert windows["warmup"].tolist() == [True, False]
    assert windows["duration_s"].tolist() == pytest.approx([9, 90])
    assert windows["start_ns"].diff().iloc[1] == pytest.approx(9e9)
    assert started["started_at"] == datetime(2020, 1, 1, tzinfo=UTC)
    assert started["finished_at"] - started["started_at"] == pd.Timedelta(seconds=35 + 99)
    assert windows["start_ns"].iloc[0] == started["started_at"].value + 35e9


def test_the_parts_of_a_step_are_those_of_the_table(replayed):
    opened = replayed(
        "gpus,step_time_s,communication_s,data_wait_s\n4,0.5,0.2,0\n4,0.5,,\n",
        sweeps=[{"gpus": [4], "local_batch": [8]}],
        repeats=2,
    )
    windows = opened.epochs.sort_values(["communication_s", "steps"])
    assert windows["communication_s"].dropna().tolist() == pytest.approx([2, 20])
    assert windows["data_wait_s"].dropna().tolist() == [0, 0]
    assert windows["rank_wait_s"].isna().all()
    assert opened.metrics["communication_share"].dropna().tolist() == pytest.approx([0.4])


@pytest.mark.parametrize(
    "sweep",
    [
        {"precision": ["bf16"]},
        {"clock_limit_mhz": [900]},
        {"dataset_fraction": [0.5]},
        {"local_batch": None, "global_batch": [32], "emulate": {"gpus": [4]}},
        {"local_batch": [16]},
        {"nodes": [2], "gpus": [2]},
    ],
)
def test_each_part_of_a_setting_must_be_in_the_table(replayed, sweep):
    table = "gpus,nodes,global_batch,precision,step_time_s\n1,1,8,fp32,0.08\n2,1,16,fp32,0.32"
    assert replayed(table, **ONE).runs["status"].tolist() == ["done"]
    sweeps = [ONE["sweeps"][0] | sweep]
    assert "skipped" in replayed(table, sweeps=sweeps).runs["status"].tolist()


@pytest.mark.parametrize(("column", "value"), [("step_time_s", 0.08), ("epoch_time_s", 10.0)])
def test_epochs_and_steps_follow_from_any_of_the_times(replayed, column, value):
    table = f"gpus,local_batch,{column},power_per_gpu_w\n1,8,{value},300\n"
    opened = replayed(table, **ONE, measure={"epochs": 3, "warmup_epochs": 1})
    assert opened.epochs["warmup"].tolist() == [True, False, False]
    assert opened.epochs["duration_s"].tolist() == pytest.approx([10.0] * 3)
    assert opened.epochs["samples"].tolist() == [1000] * 3
    assert opened.metrics["energy_per_sample_j"].tolist() == pytest.approx([3])
    metrics = replayed(table, **ONE).metrics  # of steps, in the same store
    assert metrics["step_time_s"].tolist() == pytest.approx([0.08] * 2)


def test_a_run_whose_time_is_unknown_or_too_long_is_skipped(replayed):
    unknown = ONE | {"workloads": [{"name": "bert"}]}
    epochs = unknown | {"measure": {"epochs": 2, "warmup_epochs": 1}}
    opened = replayed("gpus,step_time_s\n1,0.1\n", **epochs)
    assert opened.runs["status"].tolist() == ["skipped"]
    expected = "line 2: the time of one epoch does not follow from step_time_s"
    assert expected in opened.runs["reason"][0]
    opened = replayed("gpus,epoch_time_s\n1,7\n", **epochs)
    assert opened.metrics[["unit", "time_s"]].to_numpy().tolist() == [["epoch", 7.0]]
    table = "gpus,step_time_s,dataset_samples\n1,0.1,80\n"
    assert "done" in replayed(table, **epochs).runs["status"].tolist()
    for seconds, expected in (("0.3", "done"), ("1e9", "skipped")):
        measure = {"seconds": 4, "warmup_steps": int(seconds == "1e9")}
        opened = replayed(f"gpus,step_time_s\n1,{seconds}\n", **unknown, measure=measure)
        (row,) = opened.runs[opened.runs["measure_seconds"] == 4].tail(1).to_dict("records")
        assert row["status"] == expected
    assert row["reason"].endswith("the run takes 2e+09 s; allowed: up to 1e9 s")
    windows = opened.epochs[opened.epochs["phase"] == "steps"]
    assert windows["steps"].tolist() == [14]  # as many as 4 s take
    assert windows["duration_s"].tolist() == pytest.approx([4.2])


def test_repeats_beyond_the_rows_draw_from_them_always_in_the_same_way(replayed, tmp_path):
    many = ONE | {"repeats": 12}
    times = replayed(**many).metrics.sort_values("repeat")["step_time_s"].tolist()
    assert times[:2] == [0.5, 0.7]
    assert set(times[2:]) == {0.5, 0.7}
    (tmp_path / "store").rename(tmp_path / "first")
    assert replayed(**many).metrics.sort_values("repeat")["step_time_s"].tolist() == times


def test_the_table_of_the_command_line_replaces_that_of_the_study(write_study, tmp_path, capsys):
    launch = {"kind": "local", "table": "nowhere.csv"}
    study = write_study(**STUDY | {"launch": launch})
    other = tmp_path / "other.jsonl"
    other.write_text('{"gpus": 1, "step_time_s": 0.5, "nodes": 1}\n')
    line = ["run", str(study), "--store", str(tmp_path / "store"), "--launch", "replay"]
    assert main([*line, "--table", str(other)]) == 0
    assert "1 done, 0 failed, 5 skipped" in capsys.readouterr().out
    assert main(line) == 2
    assert f"{tmp_path / 'nowhere.csv'}: no such file" in capsys.readouterr().err
    assert main(["run", str(write_study(launch={"kind": "replay"}))]) == 2
    assert "launch.table (or --table) is required" in capsys.readouterr().err
    assert main(["run", str(study), "--launch", "local", "--table", str(other)]) == 2
    assert "--table requires the launcher replay" in capsys.readouterr().err


def test_commands_are_replayed_without_their_program(replayed):
    command = {"name": "bert", "command": ["nowhere", "{local_batch}"]}
    runs = replayed("workload,gpus,step_time_s\nbert,1,0.5\n", workloads=[command], **ONE).runs
    assert runs["status"].tolist() == ["done"]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("gpus,step_time_s,epoch_time_s\n1,1,1\n", "given both step_time_s and epoch_time_s"),
        ("gpus,step_time_s,power_w\n1,1,1\n", "line 2: a replay does not use gpu_energy_j"),
        ("gpus,step_time_s\n1,\n1,1\n", "line 2: step_time_s is missing"),
        ("gpus,step_time_s\n1,2\n,3\n", "line 3: gpus is missing"),
        ("gpus,step_time_s\n1,-2\n", "line 2: step_time_s is -2.0; allowed: a number > 0"),
        ("gpus,step_time_s\n", "no rows"),
        ("gpus,step_time_s,step_time_ms\n1,2,3\n", "step_time_s is given twice"),
        ("gpus,step_time_s,nonsense\n1,2,3\n", 'no field "nonsense"; allowed: gpus, epoch_time_s'),
        ("gpus,step_time_s,data_wait_s\n1,2,3\n", "line 2: data_wait_s, communication_s"),
        ("gpus,step_time_s\n1\n", "line 2: has 1 cells; the header has 2"),
        ("gpus,step_time_s,communication_s\n1,1,-5\n", "line 2: communication_s is -5"),
        ("gpus,step_time_s,global_batch\n4,1,6\n", "line 2: global_batch 6 cannot be divided by 4"),
        ("gpus,step_time_s,global_batch,local_batch\n4,1,8,3\n", "8 is not 4 gpus x local_batch 3"),
    ],
)
def test_a_bad_table_is_a_one_line_error(tmp_path, table, expected):
    path = tmp_path / "table.csv"
    path.write_text(table)
    with pytest.raises(BadInput) as raised:
        read_replay_table(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("gpus,step_time_s,workload\n1,1,gpt\n", "no rows of workload bert; the table has: gpt"),
        ("gpus,step_time_s,hardware\n1,1,T4\n1,1,V100\n", "launch.hardware: given nothing"),
    ],
)
def test_a_table_of_something_else_ends_before_a_store(
    write_study, tmp_path, capsys, table, expected
):
    (tmp_path / "table.csv").write_text(table)
    assert main(["run", str(write_study(**STUDY)), "--store", str(tmp_path / "store")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'table.csv'}" in line
    assert expected in line
    assert not (tmp_path / "store").exists()
