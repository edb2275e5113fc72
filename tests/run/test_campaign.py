"""Real runs that are killed at bad moments, and their status in the store afterwards."""

import os
import signal
import subprocess
import sys

import pandas as pd
import psutil
import pytest

from agents import environment
from conftest import (
    LONG,
    in_training,
    parsed,
    processes_of,
    records,
    setenv,
    started,
    wait_for,
    wattlaw,
)
from launchers import ScriptedLauncher, execute
from wattlaw.cli.main import main
from wattlaw.common.errors import NotAvailable
from wattlaw.running.launcher import Ended
from wattlaw.running.training.environment import AGENT_PID
from wattlaw.store.store import Store


def command(code, *words):
    return {
        "name": "command",
        "command": [sys.executable, "-c", f"import sys, time\n{code}", *words],
    }


def statuses(store):
    return [record.status for record in records(store).values()]


def test_after_a_killed_launcher_no_process_remains_and_the_run_is_repeated(
    tmp_path, write_study, monkeypatch, capsys
):
    store, pause = tmp_path / "store", tmp_path / "pause"
    pause.write_text("0.05")
    setenv(monkeypatch, environment(TEST_PAUSE_FILE=str(pause)))
    study = write_study(
        workloads=[{"name": "digits-dropout", "options": {"width": 4}}],
        sweeps=[{"gpus": [2], "global_batch": [128]}],
        measure=LONG,
    )
    with started("run", study, "--store", store) as campaign:
        wait_for(lambda: in_training(store), "training")
        campaign.kill()
        campaign.wait()
        wait_for(lambda: not processes_of(store), "every process of the run to be gone", 15)
    assert statuses(store) == ["running"]
    assert main(["status", str(store)]) == 0
    assert "1 interrupted" in " ".join(capsys.readouterr().out.split())
    assert Store(store).arrow("epochs").num_rows == 0
    pause.write_text("0")
    again = wattlaw("run", study, "--store", store)
    assert again.returncode == 0, again.stderr
    (record,) = records(store).values()
    assert (record.status, record.attempts, record.reason) == ("done", 2, None)


#: Two epochs: the second one begins when the file of the argument exists.
TWO_EPOCHS = """
import pathlib, sys, time, wattlaw
with wattlaw.track() as run:
    for epoch in run.epochs(range(2), warmup=0):
        time.sleep(1.5)
        while epoch == 0 and not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.05)
"""


def test_a_killed_sampler_is_noted_and_only_telemetry_is_missing(tmp_path, write_study):
    go = tmp_path / "go"
    study = write_study(
        workloads=[command(TWO_EPOCHS, str(go))], measure=LONG | {"epochs": 1, "warmup_epochs": 0}
    )
    store = tmp_path / "store"

    def is_sampled():
        streams = [*store.glob("runs/*/live/1/telemetry.*.csv")]
        return streams and streams[0].read_text().count("\n") > 40  # of two seconds

    with started("run", study, "--store", store) as campaign:
        wait_for(is_sampled, "samples of the first epoch")
        (sampler,) = processes_of(store, "wattlaw.measure.telemetry.sampler")
        sampler.kill()
        go.touch()
        output, _ = campaign.communicate(timeout=120)
    assert campaign.returncode == 0, output
    (record,) = records(store).values()
    assert record.status == "done"
    assert any("sampler" in note and "without a report" in note for note in record.notes)
    first, last = Store(store).pandas("epochs").sort_values("epoch").itertuples()
    assert (first.cpu_energy_j > 0, pd.isna(last.cpu_energy_j)) == (True, True)
    assert last.energy_verdict == "unavailable"


def test_runs_that_exceed_the_time_limit_are_stopped_with_that_reason(tmp_path, write_study):
    study = write_study(
        workloads=[command("time.sleep(1000)", f"{tmp_path}/store")],
        repeats=2,
        launch={"timeout_s": 1, "max_parallel": 2},
    )
    store = tmp_path / "store"
    assert main(["run", str(study), "--store", str(store)]) == 1
    assert statuses(store) == ["failed", "failed"]
    for record in records(store).values():
        assert record.reason == "time limit of 1 s reached (launch.timeout_s)"
    assert not processes_of(store, "")


def test_two_campaigns_on_one_store_share_the_runs_and_repeat_none(tmp_path, write_study, capsys):
    study = write_study(workloads=[command("time.sleep(2)")], repeats=2)
    store = tmp_path / "store"
    with started("run", study, "--store", store) as other:
        wait_for(lambda: [*store.glob("runs/*/live")], "its first run")
        code = main(["run", str(study), "--store", str(store)])
        outputs = [capsys.readouterr().out, other.communicate(timeout=150)[0]]
    assert (code, other.returncode) == (0, 0), outputs
    assert statuses(store) == ["done"] * 2
    assert {record.attempts for record in records(store).values()} == {1}
    done = [output.count("\ndone: ") + output.startswith("done: ") for output in outputs]
    assert sum(done) == 2
    assert min(done) >= 1


def test_runs_that_fit_together_run_in_parallel_and_a_signal_stops_them(
    tmp_path, write_study, capsys
):
    study = write_study(
        workloads=[
            command(
                "open(sys.argv[1], 'x'); time.sleep(1000)",
                *(f"{tmp_path}/began{{repeat}}", f"{tmp_path}/store"),
            )
        ],
        repeats=2,
        launch={"gpus_per_node": 2, "max_parallel": 2, "threads_per_worker": 1},
    )
    store = tmp_path / "store"
    with started("run", study, "--store", store) as campaign:
        wait_for(lambda: len([*tmp_path.glob("began*")]) == 2, "two runs at once")
        agents = processes_of(store, "wattlaw.running.training.agent")
        assert len({psutil.Process(a.pid).ppid() for a in agents}) == 1
        campaign.send_signal(signal.SIGTERM)
        output, _ = campaign.communicate(timeout=30)
    assert campaign.returncode == 1
    assert "Traceback" not in output
    assert "0 failed, 0 skipped, 2 left (stopped by SIGTERM" in output
    found = {(record.state, record.reason) for record in records(store).values()}
    assert found == {("interrupted", "interrupted by SIGTERM")}
    assert main(["status", str(store)]) == 0
    assert "2 interrupted" in " ".join(capsys.readouterr().out.split())
    assert not processes_of(store, "")


@pytest.fixture
def study():
    return parsed(repeats=2, order="as_written")


def by_repeat(store):
    return {record.spec.repeat: record for record in records(store).values()}


def test_a_launcher_error_fails_that_run_and_the_others_continue(tmp_path, study):
    def breaks():
        raise NotAvailable("the queue is gone")

    launcher = ScriptedLauncher(tmp_path, repeat_0=breaks)
    outcome = execute(study, tmp_path / "store", launcher)
    assert (outcome.done, outcome.failed) == (1, 1)
    assert "the queue is gone" in by_repeat(tmp_path / "store")[0].reason
    assert launcher.attempts[0].stopped


def test_a_command_that_fails_in_every_setting_stops_the_campaign_until_it_is_repeated(tmp_path):
    def exits():
        return Ended("rank 0 ended with exit code 2: no such file")

    sweeps = [{"gpus": [1], "global_batch": [8, 16, 32]}]
    broken = parsed(workloads=[command("")], sweeps=sweeps, repeats=2)
    store = tmp_path / "store"
    counts = []
    for _ in range(2):
        outcome = execute(broken, store, ScriptedLauncher(tmp_path, repeat_0=exits, repeat_1=exits))
        counts.append((outcome.failed + outcome.left, outcome.all_fail, outcome.left > 0))
    assert counts == [(6, True, True), (6, False, False)]


def test_a_run_that_one_campaign_interrupted_is_run_by_another(tmp_path, study):
    store = tmp_path / "store"

    def interrupted_meanwhile():
        # While the second campaign runs its first run, the first campaign is stopped in the other.
        def stop():
            os.kill(os.getpid(), signal.SIGTERM)

        first = ScriptedLauncher(tmp_path / "elsewhere", repeat_1=stop)
        (tmp_path / "elsewhere").mkdir()
        assert execute(study, store, first).interrupted_by == "SIGTERM"
        assert by_repeat(store)[1].status == "failed"
        return Ended()

    outcome = execute(study, store, ScriptedLauncher(tmp_path, repeat_0=interrupted_meanwhile))
    assert outcome.failed == 0
    assert outcome.done == 2


def test_a_worker_whose_agent_has_ended_ends_itself(tmp_path):
    agent = subprocess.Popen([sys.executable, "-c", "pass"])
    agent.wait()
    line = [sys.executable, "-m", "wattlaw.running.training.worker", str(tmp_path), "1"]
    gone = os.environ | {AGENT_PID: str(agent.pid)}
    assert subprocess.run(line, env=gone, check=False).returncode == -signal.SIGKILL
