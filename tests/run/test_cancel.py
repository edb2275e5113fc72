"""``wattlaw cancel``: the end of what a store has under way. Jobs of Slurm: tests/slurm."""

import json
import sys

import pytest

from agents import record_of
from conftest import PLUGIN, processes_of, records, started, wait_for, wattlaw
from ranks import spec_of
from wattlaw.cli.main import main
from wattlaw.common import registry
from wattlaw.running.campaign import CANCELLED
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store


def test_a_campaign_ends_its_runs_and_itself(tmp_path, write_study):
    store = tmp_path / "store"
    code = "import sys, time; open(sys.argv[1], 'x'); time.sleep(1000)"
    words = [sys.executable, "-c", code, f"{store}.began{{repeat}}"]
    study = write_study(workloads=[{"command": words}], repeats=2)
    with started("run", study, "--store", store) as campaign:
        wait_for(lambda: [*tmp_path.glob("store.began*")], "the command")
        told = wattlaw("cancel", store)
        output, _ = campaign.communicate(timeout=30)
    assert told.returncode == 0, told.stderr
    assert "no job was in the queue" in told.stdout
    assert campaign.returncode == 1
    assert f"stopped by {CANCELLED}" in output
    assert not processes_of(store, "")
    begun = [record for record in records(store).values() if record.attempts]
    assert [(one.status, one.interrupted) for one in begun] == [("failed", True)]
    assert begun[0].reason == f"interrupted by {CANCELLED}"


def test_cancel_without_active_runs_changes_nothing(tmp_path, capsys):
    store = tmp_path / "store"
    Store(store).create()
    assert main(["cancel", str(store)]) == 0
    assert "0 run(s) marked as interrupted" in capsys.readouterr().out
    assert main(["cancel", str(tmp_path / "nowhere")]) == 2
    assert "not a store" in capsys.readouterr().err


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Give a store with a run that waits in the queue of another package's launcher."""
    monkeypatch.syspath_prepend(PLUGIN)
    registry._points.cache_clear()
    store = Store(tmp_path / "store")
    store.create()
    folder = RunFolder(store.path / "runs" / "0123456789abcdef")
    spec = spec_of("digits-cnn", {}).model_copy(update={"launch_kind": "boards"})
    record_of(spec, folder, 1)
    (folder.path / "given").touch()
    (store.path / "jobs").mkdir()
    (store.path / "jobs" / folder.run_id).write_text("WAITS")
    yield store
    registry._points.cache_clear()


def test_jobs_of_another_packages_scheduler_are_shown_and_ended(given, capsys):
    (job,) = (given.path / "jobs").iterdir()
    assert main(["status", str(given.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == {"queued": 1}
    assert told["not_done"][0]["reason"] == f"job {job}: WAITS (Nights)"
    assert main(["cancel", str(given.path)]) == 0
    assert "1 job(s) cancelled; 1 run(s) marked as interrupted" in capsys.readouterr().out
    assert not job.exists()
    (record,) = given.records()
    assert (record.status, record.interrupted) == ("failed", True)


def test_an_unreachable_scheduler_is_reported_and_its_runs_are_unchanged(given, capsys):
    (given.path / "taken-down").touch()
    assert main(["status", str(given.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scheduler"] == "the board was taken down"
    assert main(["cancel", str(given.path)]) == 3
    shown = capsys.readouterr()
    assert "no job was cancelled" in shown.out
    assert "cannot cancel the jobs of a queue: the board was taken down" in shown.err
    assert [record.status for record in given.records()] == ["running"]
    assert given.cancelled_at() is not None  # whoever submits for it stops all the same


def test_a_dry_run_shows_how_a_run_would_be_submitted(tmp_path, write_study):
    study = write_study(launch={"kind": "boards", "hardware": "cork"})
    shown = wattlaw("run", study, "--store", tmp_path / "store", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "Each run is a job, such as:\n  pin " in shown.stdout
    assert "to the board of cork" in shown.stdout
