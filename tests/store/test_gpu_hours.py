"""GPU-hours of a plan: measured where the store has a repeat, else not known."""

import datetime
import re

import pytest

from conftest import parsed
from made_runs import made_record
from wattlaw.cli.main import main
from wattlaw.running.planning import GpuHours, gpu_hours
from wattlaw.store.record import RunRecord
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.store import Store
from wattlaw.study.plan import PlannedRun, expand

BEGUN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def plan(**changes: object) -> list[PlannedRun]:
    return expand(parsed(order="as_written", **changes))


def record(run: PlannedRun, hours: float, status: str = "done") -> RunRecord:
    ended = BEGUN + datetime.timedelta(hours=hours)
    return made_record(run.run_id, run.spec, status=status, started_at=BEGUN, finished_at=ended)


def test_a_run_takes_as_long_as_its_repeats_did_times_its_gpus():
    runs = plan(sweeps=[{"gpus": [4], "local_batch": [8]}], repeats=5)
    done = [record(runs[0], hours=1), record(runs[1], hours=2)]
    assert gpu_hours(runs[2:], done) == GpuHours(pytest.approx(3 * 4 * 1.5), 3, 0)


def test_only_done_repeats_of_the_same_setting_predict_a_time():
    runs = plan(sweeps=[{"gpus": [1, 2], "local_batch": [8]}], repeats=2)
    (longer,) = plan(sweeps=[{"gpus": [1], "local_batch": [8], "epochs": 9}])
    first, *others = runs
    told = [record(first, 1), record(longer, 5), record(others[0], 7, status="failed")]
    found = gpu_hours(others, told)
    assert (found.measured, found.measured_runs) == (1, 1)  # the other repeat of the first
    assert found.unknown_runs == 2


def test_a_dry_run_prints_remaining_gpu_hours_by_source(write_study, tmp_path, capsys):
    narrow = {"name": "digits-cnn", "options": {"width": 8}}
    path = write_study(
        workloads=[narrow, {"name": "resnet50"}],
        sweeps=[
            {"gpus": [1, 2], "local_batch": [8], "workloads": ["digits-cnn"]},
            {"gpus": [8], "local_batch": [32], "workloads": ["resnet50"], "epochs": 90},
        ],
        repeats=2,
    )
    store = Store(tmp_path / "store")
    store.create()
    (run,) = plan(workloads=[narrow], sweeps=[{"gpus": [2], "local_batch": [8]}])
    known = record(run, hours=0.5)
    folder = store.folder(known.run_id)
    folder.write(known)
    folder.write_tables(EPOCHS.empty_table(), TELEMETRY.empty_table())
    assert main(["run", str(path), "--store", str(store.path), "--dry-run"]) == 0
    told = re.findall(r"GPU-hours left: (\S+) for (\d) runs?", capsys.readouterr().out)
    assert told == [("1", "1"), ("unknown", "4")]
