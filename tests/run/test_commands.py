"""A study of the user's own commands: real scripts, started once per rank, and measured."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import processes_of, records, setenv, started, study_in, wait_for, wattlaw
from fake_nvml import FakeGpus
from wattlaw.measure.limits.state_folder import VARIABLE
from wattlaw.running.training.agent import first_error
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store

BOARD_W = 140.0  # less than any limit here
SCRIPTS = {
    "tracked": """
        import sys, time, torch, torch.distributed as dist, wattlaw
        batch, epochs = map(int, sys.argv[1:])
        dist.init_process_group("gloo")
        with wattlaw.track() as run:
            for epoch in run.epochs(range(epochs)):
                ranks = torch.ones(1, requires_grad=True).detach()
                dist.all_reduce(ranks)
                time.sleep(0.2)
                run.log(samples=5 * batch * int(ranks), steps=5, loss=ranks / (epoch + 1))
                with run.evaluation():
                    time.sleep(0.1)
                    run.log(samples=7, metric=epoch / 4)
        print("rank", dist.get_rank(), "is done")
        dist.destroy_process_group()
    """,
    "whole": """
        import json, sys, time
        start_ns = time.time_ns()
        time.sleep(1)
        json.dump([start_ns, time.time_ns(), *sys.argv[2:]], open(sys.argv[1], "w"))
    """,
    "windowless": """
        import time, wattlaw
        with wattlaw.track("two words that are no name"):
            time.sleep(0.5)
    """,
    "fails": """
        import os, time
        print("Error rate: 0.3")
        if os.environ["RANK"] == "1":
            try:
                open("/no/such/file")
            except OSError as error:
                raise ValueError("sample 7 is broken") from error
        time.sleep(60)
    """,
}
VALUES = (
    "--batch={local_batch}/{global_batch}", "{gpus}", "{power_limit_w}", "{clock_limit_mhz}",
    "{precision}", "{dataset_fraction}", "{epochs}", "{warmup_epochs}", "{seed}", "{repeat}",
    '{{"lr": {{}}}}', "two words", "$HOME; *",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Run every kind of command in one study, beside a board of 140 W."""
    folder = tmp_path_factory.mktemp("commands")
    for name, body in SCRIPTS.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(body))
    values = {"tracked": ["{local_batch}", "{epochs}"], "whole": [f"{folder}/whole.json", *VALUES]}
    boards = FakeGpus.create(folder / "boards", high_w=BOARD_W)
    plain = ["windowless", "nowhere"]
    rest = {"power_limit_w": [150], "precision": ["bf16"], "dataset_fraction": ["gpus/3"]}
    study = {
        "name": "commands",
        "workloads": [
            *(
                {"command": [sys.executable, f"{folder}/{name}.py", *values.get(name, ())]}
                for name in SCRIPTS
            ),
            {"name": "nowhere", "command": ["sh", "-c", f"exec {sys.executable} nowhere.py"]},
        ],
        "sweeps": [
            {"gpus": [1, 2], "local_batch": [16], "workloads": ["tracked"]},
            {"gpus": [1], "local_batch": [16], "workloads": plain},
            {"gpus": [2], "global_batch": [16], "workloads": ["fails"]},
            {"gpus": [1], "local_batch": [16], "workloads": ["whole"], "epochs": 9, **rest},
        ],
        "measure": {"epochs": 3, "warmup_epochs": 1},
        "train": {"seed": 7},
        "launch": {"gpus_per_node": 4, "threads_per_worker": 1, "max_parallel": 2},
    }
    with pytest.MonkeyPatch.context() as patch:
        setenv(patch, {**boards.environment(), VARIABLE: str(folder / "limits")})
        found = wattlaw("run", study_in(folder, study), "--store", folder / "store", cwd=folder)
    assert found.returncode == 1, found.stderr
    assert "4 done, 2 failed, 0 skipped" in found.stdout
    return folder


@pytest.fixture(scope="module")
def runs(place):
    found = Store(place / "store").records()
    return {(one.spec.workload.name, one.spec.setting.gpus): one for one in found}


def windows(place: Path, run: RunRecord) -> list[dict[str, Any]]:
    epochs = Store(place / "store").pandas("epochs").sort_values("start_ns")
    return epochs[epochs.run_id == run.run_id].to_dict("records")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_command_that_tracks_has_the_windows_and_values_that_one_of_its_ranks_marks(
    ranks, place, runs
):
    found = windows(place, runs["tracked", ranks])
    assert [(w["phase"], w["epoch"], w["warmup"]) for w in found] == [
        (phase, epoch, epoch == 0) for epoch in range(3) for phase in ("train", "evaluate")
    ]
    training, evaluation = found[::2], found[1::2]
    assert all(window["duration_s"] >= 0.2 for window in training)
    assert all(window["duration_s"] >= 0.1 for window in evaluation)
    assert [w["samples"] for w in found] == [80 * ranks, 7] * 3
    assert [w["loss"] for w in training] == pytest.approx([ranks, ranks / 2, ranks / 3])
    assert [w["metric"] for w in evaluation] == [0, 0.25, 0.5]
    assert [w["steps"] for w in training] == [5, 5, 5]
    for window in evaluation:  # what was not told is missing, not 0
        assert window["loss"] != window["loss"]
        assert window["steps"] != window["steps"]
    for window in found:
        assert window["gpu_energy_j"] == pytest.approx(BOARD_W * window["duration_s"], rel=0.02)
        assert (window["energy_source"], window["energy_verdict"]) == ("counter", "ok")
    log = (place / "store" / "runs" / runs["tracked", ranks].run_id / "log.txt").read_text()
    assert all(f"rank {rank} is done" in log for rank in range(ranks))


@pytest.mark.parametrize("name", ["whole", "windowless"])
def test_a_command_that_marks_no_window_is_one_with_all_of_its_time(name, place, runs):
    (window,) = windows(place, runs[name, 1])
    assert (window["phase"], window["epoch"], window["warmup"]) == ("run", 0, False)
    assert window["gpu_energy_j"] == pytest.approx(BOARD_W * window["duration_s"], rel=0.01)
    assert (window["energy_source"], window["energy_verdict"]) == ("counter", "ok")
    assert window["samples"] != window["samples"]
    if name == "whole":
        first, last, *words = json.loads((place / "whole.json").read_text())
        assert words == [  # each value of the setting is an argument
            "--batch=16/16", "1", "150", "", "bf16", repr(1 / 3), "9", "1", "7", "0",
            '{"lr": {}}', "two words", "$HOME; *",
        ]  # fmt: skip
        assert window["start_ns"] < first
        assert window["start_ns"] + window["duration_s"] * 1e9 > last


def test_a_command_that_fails_has_its_first_error_as_the_reason(place, runs):
    record = runs["fails", 2]
    assert record.status == "failed"
    # The first in the traceback: what the second is a consequence of.
    assert record.reason == (
        "rank 1 ended with exit code 1: "
        "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'"
    )
    reason = runs["nowhere", 1].reason
    assert reason.startswith("rank 0 ended with exit code 2: ")
    assert "can't open file" in reason
    assert "nowhere.py" in reason


def test_the_record_names_command_boards_and_software(place, runs):
    table = Store(place / "store").pandas("runs").set_index("run_id")
    row = table.loc[runs["whole", 1].run_id]
    words = json.loads(row["options"])["command"]
    assert words[-len(VALUES) :] == list(VALUES)  # as written, so that settings share a series
    assert row["hardware"] == "NVIDIA A100-SXM4-40GB (fake)"
    assert list(row["device_ids"]) == [FakeGpus(place / "boards")[0].uuid.decode()]
    assert {"torch", "wattlaw"} <= json.loads(row["software"]).keys()
    assert (row["epochs"], row["seed"]) == (9, 7)
    assert row["threads_per_worker"] == 1  # that it was given: it has no steps to see it in
    assert table[["parameters", "gradient_bytes", "flops_per_sample"]].isna().all(axis=None)


def test_a_killed_run_leaves_no_rank_of_a_command_behind(write_study, tmp_path):
    code = "import os, sys, time; open(sys.argv[1] + os.environ['RANK'], 'w'); time.sleep(120)"
    study = write_study(
        workloads=[{"command": [sys.executable, "-c", code, str(tmp_path / "rank-")]}],
        sweeps=[{"gpus": [2], "local_batch": [8]}],
    )
    store = tmp_path / "store"

    def living() -> list[psutil.Process]:
        return processes_of(tmp_path, "")  # agent, sampler and ranks all name a path in here

    with started("run", study, "--store", store) as process:
        wait_for(lambda: len([*tmp_path.glob("rank-*")]) == 2, "both ranks")
        assert len(living()) >= 5
        process.kill()
        process.wait()
        wait_for(lambda: not living(), "the ranks to end", 20)
    (record,) = records(store).values()
    assert Store(store).folder(record.run_id).state(record) == "interrupted"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("[rank1]: ValueError: a\n", "ValueError: a"),
        ("KeyError: 'x'\n\nDuring ...\n\nRuntimeError: b\n", "KeyError: 'x'"),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\n",
         "train.py: error: unrecognized arguments: --x"),
        ("/my env/python: can't open file '/a b.py': [Errno 2] No\n",
         "/my env/python: can't open file '/a b.py': [Errno 2] No"),
        ("Error rate: 0.3\nErrors: none\nMeanError 0.2\nUserWarning: old\n", None),
        ("ValueError: " + "x" * 1000 + "\n", "ValueError: " + "x" * 288),
    ],
)  # fmt: skip
def test_only_error_messages_in_a_log_count_as_errors(said, expected, tmp_path):
    log = tmp_path / "log.txt"
    before = "== attempt 1, then\nOSError: of the attempt before\n"
    log.write_text(f"{before}== attempt 2, now\nepoch 1\n{said}")
    assert first_error(log, 2) == expected
    assert first_error(log, 1) == "OSError: of the attempt before"
    assert first_error(tmp_path / "missing.txt", 1) is None
