"""The settings that a decision may be on: those that can run, or that runs emulate."""

import json

import pytest

from conftest import decide_table, records
from decide_studies import QUESTION, run_with, statuses
from launchers import ScriptedAttempt
from wattlaw.api import results
from wattlaw.api.studies import load_study, run
from wattlaw.running.launcher import Ended
from wattlaw.running.replay import ReplayLauncher


class OutOfMemory(ReplayLauncher):
    """Replays small batches; the others run out of memory, or fail for another reason."""

    reason = "out of memory: the local batch does not fit"
    gpus = 1  # settings on fewer do not fail

    def start(self, record, folder, allocation):
        setting = record.spec.setting
        if setting.local_batch < 32 or setting.gpus < self.gpus:
            return super().start(record, folder, allocation)
        return ScriptedAttempt(lambda: Ended(self.reason), allocation)


@pytest.mark.parametrize("reason", ["out of memory: does not fit", "RuntimeError: broken"])
def test_failed_settings_are_not_decided_for(write_decide, tmp_path, reason):
    sweeps = [{"gpus": [1], "local_batch": [8, 32, 64]}]
    question = QUESTION | {"tolerance": 1e-6}
    study = write_decide(question, decide_table((8, 32, 64)), sweeps=sweeps, repeats=1)
    launcher = OutOfMemory.open(load_study(study).plan.study.launch, tmp_path / "store")
    launcher.reason = reason
    outcome = run_with(study, tmp_path / "store", launcher)
    decision = results.open(tmp_path / "store").decision
    assert decision["setting"]["local_batch"] == 8
    failed = [item for item in records(tmp_path / "store").values() if item.status == "failed"]
    failed.sort(key=lambda record: record.started_at)
    batches = [record.spec.setting.local_batch for record in failed]
    is_memory = "memory" in reason  # larger batches are not tried after it
    assert batches in (([32], [64, 32]) if is_memory else ([32, 64], [64, 32]))
    assert (outcome.failed, outcome.out_of_memory)[is_memory] == len(batches)


def test_a_setting_that_ran_is_decided_for_though_its_batch_lacks_memory_elsewhere(
    write_decide, tmp_path
):
    sweeps = [{"gpus": [1, 2], "local_batch": [8, 32]}]
    study = write_decide(QUESTION | {"tolerance": 1e-6}, sweeps=sweeps, repeats=1)
    launcher = OutOfMemory.open(load_study(study).plan.study.launch, tmp_path / "store")
    launcher.gpus = 2
    assert run_with(study, tmp_path / "store", launcher).out_of_memory == 1
    setting = results.open(tmp_path / "store").decision["setting"]
    assert (setting["gpus"], setting["local_batch"]) == (1, 32)


def test_a_decision_of_emulated_runs_is_on_the_real_setting(write_study, tmp_path):
    study = write_study(
        workloads=[{"name": "resnet50"}],
        sweeps=[{"gpus": [1], "global_batch": [64], "emulate": {"gpus": [2, 8]}}],
        measure={"epochs": 2, "warmup_epochs": 1},
        launch={"kind": "simulated", "simulation": {"hardware": "kit-a100"}},
        decide={"minimize": "time", "max_global_batch": 64, "tolerance": "10%"},
    )
    outcome = run(study, tmp_path / "store")
    setting = json.loads((tmp_path / "store" / "decision.json").read_text())["setting"]
    assert outcome.done
    assert (setting["gpus"], setting["global_batch"]) == (8, 64)


def test_a_run_that_was_skipped_is_a_candidate_once_it_can_run(write_decide, tmp_path):
    store, question = tmp_path / "store", {"minimize": "time"}
    run(write_decide(question, decide_table(gpus=(1, 2)), repeats=1), store)
    assert any(status == "skipped" for status, _ in statuses(store))
    run(write_decide(question, repeats=1), store)
    assert json.loads((store / "decision.json").read_text())["setting"]["gpus"] == 8
