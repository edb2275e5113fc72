"""``wattlaw run --notify``: which events a command receives, and commands that do not work."""

import json
import shlex
import sys
from pathlib import Path

import psutil
import pytest

from conftest import records, wait_for
from conftest import wattlaw as command
from made_runs import made_record, made_spec
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput
from wattlaw.measure.limits.guard import RESTORE_HINT
from wattlaw.running import notify
from wattlaw.running.campaign import Outcome
from wattlaw.running.notify import Notifications, command_words
from wattlaw.study.setting import Setting

STUDY = {
    "name": "events",
    "workloads": [{"name": "bert-base"}],
    "sweeps": [{"gpus": [1, 2], "local_batch": [32]}],
    "measure": {"epochs": 2},
    "launch": {"kind": "simulated", "simulation": {"hardware": "mit-v100", "fail_share": 0.999}},
}
#: Appends its standard input to a file.
APPEND = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


def appending(path: Path) -> str:
    return shlex.join([sys.executable, "-c", APPEND, str(path)])


def events(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_failed_run_and_the_end_of_a_study_are_events(write_study, tmp_path):
    store, file = tmp_path / "store", tmp_path / "events"
    ran = command("run", write_study(**STUDY), "--store", store, "--notify", appending(file))
    assert ran.returncode == 1
    *failures, last = events(file)
    assert {item["event"] for item in failures} == {"run failed"}
    assert {item["run_id"] for item in failures} == records(store).keys()
    for item in failures:
        assert item["reason"] == records(store)[item["run_id"]].reason
    assert (last["event"], last["run_id"]) == ("study ended", None)
    assert "2 failed" in last["reason"]
    assert {item["store"] for item in (*failures, last)} == {str(store)}
    assert all(set(item) == {"event", "store", "run_id", "reason", "time"} for item in failures)


@pytest.mark.parametrize("text", ["  ", "'unclosed", "no-such-program --option"])
def test_a_command_that_cannot_be_run_is_refused_before_anything_is_written(
    text, write_study, tmp_path, capsys
):
    with pytest.raises(BadInput, match="--notify"):
        command_words(text)
    study, store = str(write_study(**STUDY)), str(tmp_path / "store")
    assert main(["run", study, "--store", store, "--notify", text]) == 2
    assert "notify" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_limits_that_were_not_restored_and_a_decision_are_events(tmp_path):
    store, file = tmp_path / "store", tmp_path / "events"
    record = made_record("0" * 16, made_spec(Setting(gpus=1, local_batch=8)), status="done")
    note = f"GPU-1: does not answer; {RESTORE_HINT}"
    with Notifications(command_words(appending(file)), store) as notifications:
        notifications.ended(record, is_new=True)
        notifications.ended(record.model_copy(update={"notes": (note,)}), is_new=True)
        notifications.ended(record.model_copy(update={"notes": (note,)}), is_new=False)
        notifications.over(Outcome(2, 0, 0, 0, not_needed=3, stopped_because="certain"))
    found = [(item["event"], item["run_id"]) for item in events(file)]
    assert found == [("limits not restored", record.run_id), ("study decided", None)]
    assert notifications.warnings == ()


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(monkeypatch, tmp_path):
    monkeypatch.setattr(notify, "_TIMEOUT_S", 1.0)
    store, file = tmp_path / "store", tmp_path / "pid"
    sleeping = command_words(f"sh -c 'sleep 300 & echo $! > {shlex.quote(str(file))}; wait'")
    with Notifications(sleeping, store) as notifications:
        notifications.over(Outcome(2, 0, 0, 0))
    assert "timed out" in notifications.warnings[0]
    pid = int(file.read_text())
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "end")
