"""Studies with ``decide``: which runs are measured, when measuring ends, and what is decided."""

import json
import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from conftest import records, started, study_of
from launchers import Silent
from wattlaw.api import results
from wattlaw.api.deciding import Decider
from wattlaw.api.decision_inputs import UNKNOWN_QUALITY, read_inputs, setting_of
from wattlaw.api.studies import load_study, run
from wattlaw.cli.main import main
from wattlaw.errors import BadInput, Refused
from wattlaw.launch.campaign import Campaign
from wattlaw.launch.choosing import NOT_NEEDED, Selection
from wattlaw.launch.early_stop import STOPPED_EARLY, StepTime, step_time_so_far
from wattlaw.launch.launcher import Ended
from wattlaw.launch.replay.launcher import ReplayLauncher
from wattlaw.report.figures import GALLERY
from wattlaw.report.topics.decision import result as decision_result
from wattlaw.store.live import open_windows, write_window
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store

SETTING = (
    "gpus", "nodes", "gpus_per_node", "local_batch", "global_batch", "gradient_accumulation",
    "precision", "power_limit_w", "clock_limit_mhz",
)  # fmt: skip
FIELDS = (
    "setting", "expected_regret", "probability", "tolerance", "gpu_hours_spent", "gpu_hours_grid",
    "runs", "stopped_because",
)  # fmt: skip
QUESTION = {"minimize": "gpu_hours"}


def table(batches=(8, 32), gpus=(1, 2, 4, 8)) -> str:
    """Return measurements in which one GPU with the largest batch uses the fewest GPU-hours."""
    header = "workload,hardware,gpus,nodes,local_batch,step_time_s,power_per_gpu_w,startup_s"
    rows = [
        f"bert,T4,{count},1,{batch},{0.02 + 0.01 * batch + 0.004 * (count > 1)},{60 + batch},20"
        for count in gpus
        for batch in batches
    ]
    return "\n".join([header, *rows, ""])


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a study with ``decide`` on a table, and returns its path."""

    def write(decide: object, content: str | None = None, **changes: object) -> Path:
        (tmp_path / "table.csv").write_text(content or table())
        study = {
            "workloads": [{"name": "bert", "dataset_samples": 1000}],
            "sweeps": [{"gpus": [1, 2, 4, 8], "local_batch": [8, 32]}],
            "repeats": 2,
            "measure": {"steps": 100, "warmup_steps": 10},
            "launch": {"kind": "replay", "table": "table.csv", "gpus_per_node": 8},
        }
        values = study | ({} if decide is None else {"decide": decide}) | changes
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(study_of(**values)))
        return path

    return write


def statuses(store):
    """Return the status and the reason of each run."""
    return sorted((record.status, record.reason or "") for record in records(store).values())


def run_with(study, store, launcher):
    """Run a study with a launcher, at most one run at a time."""
    loaded = load_study(study)
    opened = Store(store)
    opened.create()
    decider = Decider(loaded.plan.study, loaded.plan.runs, store)
    observer = Silent()
    plan = loaded.plan
    selection = Selection(plan.runs, opened, decider, observer.decided)
    return Campaign(plan.study, plan.runs, opened, launcher, observer, None, selection).run()


def test_a_decision_needs_fewer_runs_than_the_grid(write, tmp_path, capsys):
    store, lines = tmp_path / "store", []
    outcome = run(write(QUESTION), store, progress=lines.append)
    decision = json.loads((store / "decision.json").read_text())
    assert 0 < outcome.done < 16 // 2
    assert (outcome.failed, outcome.left, outcome.done + outcome.not_needed) == (0, 0, 16)
    assert outcome.stopped_because == "certain"
    assert UNKNOWN_QUALITY.text in outcome.warnings
    assert UNKNOWN_QUALITY.to_dict() in decision["warnings"]
    assert set(FIELDS) <= set(decision)
    assert set(decision["setting"]) == set(SETTING)
    setting = decision["setting"]
    assert (setting["gpus"], setting["local_batch"]) == (1, 32)
    assert decision["probability"] >= 0.9
    assert decision["expected_regret"] <= decision["tolerance"] == 0.02
    assert decision["runs"] == outcome.done
    assert decision["stopped_because"] == "certain"
    spent = sum(
        record.spec.setting.gpus * (record.finished_at - record.started_at).total_seconds() / 3600
        for record in records(store).values()
        if record.status == "done"
    )
    assert decision["gpu_hours_spent"] == pytest.approx(spent)
    grid = 2 * sum(
        count * (20 + 110 * (0.02 + 0.01 * batch + 0.004 * (count > 1))) / 3600
        for count in (1, 2, 4, 8)
        for batch in (8, 32)
    )
    assert decision["gpu_hours_grid"] == pytest.approx(grid, rel=0.3)
    left = [reason for status, reason in statuses(store) if status == "planned"]
    assert left == [f"{NOT_NEEDED}certain"] * outcome.not_needed
    course = decision["course"]
    assert [row["runs"] for row in course] == [*range(1, outcome.done + 1)]
    hours = [row["gpu_hours_spent"] for row in course]
    assert hours[0] > 0 and hours == sorted(hours)
    assert course[-1] == {name: decision[name] for name in course[-1]}
    assert (decision["study"], decision["origin"]) == ("test", "replayed")
    assert decision["question"] == QUESTION
    # one line of the decision before the first run and after each
    assert sum(line.startswith("decision: ") for line in lines) == outcome.done + 1
    # not all runs are needed, so that neither their number nor their time is known
    assert lines[1].endswith("(1 done, 0 failed, at most 15 left)")
    assert results.open(store).decision == decision

    assert main(["advise", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decision"] == decision
    assert main(["status", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_needed"] == outcome.not_needed
    # a smaller tolerance needs more of the same runs
    budget = {"runs": outcome.done + 2}
    stricter = run(write(QUESTION | {"tolerance": 0.002, "budget": budget}), store)
    assert outcome.done < stricter.done <= outcome.done + 2
    # its course continues; that of another question begins
    continued = stricter.results.decision["course"]
    assert continued[: len(course) - 1] == course[:-1]
    assert [row["runs"] for row in continued] == [*range(1, stricter.done + 1)]
    other = run(write(QUESTION | {"max_gpus": 1, "budget": budget}), store).results.decision
    assert [row["runs"] for row in other["course"]] == [*range(stricter.done, other["runs"] + 1)]
    assert records(store).keys() == {item.run_id for item in load_study(write(None)).plan.runs}


def test_an_interrupted_decision_continues_to_the_same_one(write, tmp_path):
    study, lines = write(QUESTION), []

    def interrupt(line):
        lines.append(line)
        if sum(text.startswith("done") for text in lines) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    interrupted = run(study, tmp_path / "parts", progress=interrupt)
    assert (interrupted.done, interrupted.interrupted_by) == (2, "SIGINT")
    assert (interrupted.not_needed, interrupted.left) == (0, 14)
    assert [row["runs"] for row in interrupted.results.decision["course"]] == [1]
    continued = run(study, tmp_path / "parts")
    assert continued.stopped_because == "certain"
    at_once = run(study, tmp_path / "whole")
    assert continued.results.decision == at_once.results.decision
    assert {
        name for name, record in records(tmp_path / "parts").items() if record.status == "done"
    } == {name for name, record in records(tmp_path / "whole").items() if record.status == "done"}


@pytest.mark.parametrize(
    ("at", "interrupted_by", "left"), [("decision: ", "SIGINT", 16), ("stops: certain", None, 0)]
)
def test_a_signal_while_runs_are_chosen(write, tmp_path, at, interrupted_by, left):
    lines = []

    def interrupt(line):
        lines.append(line)
        if at in line:
            os.kill(os.getpid(), signal.SIGINT)

    outcome = run(write(QUESTION), tmp_path / "store", progress=interrupt)
    assert at in lines[-1]  # a campaign that ends does not wait
    assert (outcome.interrupted_by, outcome.left) == (interrupted_by, left)
    assert outcome.done + outcome.not_needed == 16 - left


@pytest.mark.parametrize(("budget", "done"), [({"runs": 2}, 2), ({"gpu_hours": 0.0001}, 1)])
def test_measuring_ends_with_the_budget(write, tmp_path, budget, done):
    outcome = run(write(QUESTION | {"budget": budget}), tmp_path / "store")
    assert (outcome.done, outcome.stopped_because) == (done, "budget spent")
    decision = outcome.results.decision
    assert decision["stopped_because"] == "budget spent"
    assert decision["setting"] is not None
    # what the first run takes is not known before it
    is_exceeded = decision["gpu_hours_spent"] > budget.get("gpu_hours", float("inf"))
    codes = [item["code"] for item in decision["warnings"]]
    assert ("budget-exceeded" in codes) == is_exceeded == ("gpu_hours" in budget)


@pytest.mark.parametrize(("deadline", "is_missed"), [("1s", True), ("9h", False)])
def test_a_deadline_that_no_setting_meets_is_said(write, tmp_path, capsys, deadline, is_missed):
    study = write(QUESTION | {"deadline": deadline, "epochs": 5, "budget": {"runs": 6}})
    assert main(["run", str(study), "--store", str(tmp_path / "store")]) == 0
    decision = json.loads((tmp_path / "store" / "decision.json").read_text())
    codes = [item["code"] for item in decision["warnings"]]
    assert ("constraints-missed" in codes, decision["meets"] < 0.5) == (is_missed, is_missed)
    assert ("meets the constraints" in "".join(capsys.readouterr())) == is_missed


def test_an_energy_budget_is_not_checked_without_energy(write, tmp_path):
    asked = {"minimize": "edp", "energy_budget": "1J", "epochs": 5, "budget": {"runs": 4}}
    header, *rows = [line.split(",") for line in table().splitlines()]
    power = header.index("power_per_gpu_w")
    for row in rows:
        row[power] = ""
    without = "\n".join(map(",".join, [header, *rows]))
    outcome = run(write(asked, without), tmp_path / "store")
    decision = outcome.results.decision
    assert decision["meets"] is None
    assert "no-energy" in {item["code"] for item in decision["warnings"]}
    [question] = decision_result(outcome.results._findings()).to_frame()["question"]
    assert "GPU-hours replace energy" in question


def test_a_setting_that_cannot_run_is_not_decided_for(write, tmp_path):
    # The table has no row of the batch that would be best.
    outcome = run(write(QUESTION, table(batches=(8,))), tmp_path / "store")
    assert outcome.skipped == 8
    assert outcome.results.decision["setting"]["local_batch"] == 8


class OutOfMemory(ReplayLauncher):
    """Replays small batches; the others run out of memory, or fail for another reason."""

    reason = "out of memory: the local batch does not fit"

    def start(self, record, folder, allocation):
        if record.spec.setting.local_batch < 32:
            return super().start(record, folder, allocation)
        allocation.release()
        return FailedAttempt(self.reason)


class FailedAttempt:
    """An attempt that fails at once."""

    def __init__(self, reason):
        self._reason = reason

    def poll(self):
        return Ended(self._reason)

    def stop(self):
        pass


@pytest.mark.parametrize("reason", ["out of memory: does not fit", "RuntimeError: broken"])
def test_failed_settings_are_not_decided_for(write, tmp_path, reason):
    sweeps = [{"gpus": [1], "local_batch": [8, 32, 64]}]
    question = QUESTION | {"tolerance": 1e-6}
    study = write(question, table((8, 32, 64)), sweeps=sweeps, repeats=1)
    launcher = OutOfMemory.open(load_study(study).plan.study.launch, tmp_path / "store")
    launcher.reason = reason
    outcome = run_with(study, tmp_path / "store", launcher)
    decision = results.open(tmp_path / "store").decision
    assert decision["setting"]["local_batch"] == 8
    failed = [item for item in records(tmp_path / "store").values() if item.status == "failed"]
    failed.sort(key=lambda record: record.started_at)
    batches = [record.spec.setting.local_batch for record in failed]
    if "memory" in reason:  # larger batches are not tried after it
        assert batches in ([32], [64, 32])
    else:
        assert sorted(batches) == [32, 64]
    assert outcome.failed == len(batches)


def test_emulated_runs_are_candidates_on_few_gpus_for_the_real_setting(write, tmp_path):
    sweeps = [{"gpus": [1, 2], "global_batch": [64], "emulate": {"gpus": [4, 8]}}]
    plan = load_study(write(QUESTION, sweeps=sweeps)).plan
    inputs = read_inputs(plan.study, plan.runs, tmp_path / "store")
    for item in plan.runs:
        candidate = inputs.candidates[item.run_id]
        assert candidate.setting == setting_of(item)
        assert candidate.setting.gpus in (1, 2)
        assert candidate.informs.gpus == item.setting.emulated_gpus
        assert candidate.informs.global_batch == 64
        assert candidate.steps == 110


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


def test_a_run_that_was_skipped_is_a_candidate_once_it_can_run(write, tmp_path):
    store, question = tmp_path / "store", {"minimize": "time"}
    run(write(question, table(gpus=(1, 2))), store)
    assert any(status == "skipped" for status, _ in statuses(store))
    run(write(question), store)
    assert json.loads((store / "decision.json").read_text())["setting"]["gpus"] == 8


def test_the_length_of_a_training_is_that_of_the_sweeps(write, tmp_path):
    sweeps = [{"gpus": [1], "local_batch": [8], "epochs": 10}]
    loaded = load_study(write(QUESTION, sweeps=sweeps, measure={"epochs": 3, "warmup_epochs": 1}))
    inputs = read_inputs(loaded.plan.study, loaded.plan.runs, tmp_path / "store")
    assert inputs.question.samples == 10 * 1000


def test_simulated_runs_are_decided_on(write_study, tmp_path):
    study = write_study(
        workloads=[{"name": "resnet50"}],
        sweeps=[{"gpus": [1, 2, 4], "local_batch": [64]}],
        measure={"epochs": 2, "warmup_epochs": 1},
        launch={"kind": "simulated", "simulation": {"hardware": "kit-a100"}},
        decide={"minimize": "time", "tolerance": "10%"},
    )
    outcome = run(study, tmp_path / "store")
    decision = outcome.results.decision
    assert outcome.done < 3
    assert decision["setting"]["gpus"] == 4
    assert 0 < decision["gpu_hours_spent"] < decision["gpu_hours_grid"]


def test_failed_runs_are_a_warning_where_the_decision_is_certain(write_study, tmp_path, capsys):
    def exit_code(store, **decide):
        study = write_study(
            workloads=[{"name": "resnet50"}],
            sweeps=[{"gpus": [1, 2, 4], "local_batch": [64]}],
            repeats=3,
            measure={"epochs": 2, "warmup_epochs": 1},
            launch={"kind": "simulated", "simulation": {"hardware": "kit-a100"}},
            decide={"minimize": "time", **decide},
        )
        line = ["run", str(study), "--store", str(tmp_path / store), "--fail-share", "0.5"]
        code = main(line)
        assert any(record.status == "failed" for record in records(tmp_path / store).values())
        return code, results.open(tmp_path / store).decision["stopped_because"]

    assert exit_code("certain", tolerance="10%") == (0, "certain")
    assert "Warning: " in capsys.readouterr().out
    assert exit_code("uncertain", tolerance=1e-9, budget={"runs": 4}) == (1, "budget spent")


def test_energy_counts_hosts_as_in_advise(write_study, tmp_path):
    """A node's processors and memory use the same energy for one GPU as for four."""
    study = {
        "workloads": [{"name": "resnet50"}],
        "sweeps": [{"gpus": [1, 2, 4], "local_batch": [64]}],
        "measure": {"epochs": 2, "warmup_epochs": 1},
        "launch": {"kind": "simulated", "simulation": {"hardware": "kit-a100"}},
    }
    run(write_study(**study), tmp_path / "store")
    decide = {"minimize": "energy", "tolerance": "1%"}
    outcome = run(write_study(**study, decide=decide), tmp_path / "store")
    assert outcome.stopped_because == "certain"
    decided = outcome.results.decision["setting"]
    advised = outcome.results.advise(minimize="energy", any_batch=True).recommended
    assert (decided["gpus"], advised.gpus) == (4, 4)
    means = outcome.results.metrics.groupby("gpus")[["gpu_energy_j", "energy_j"]].mean()
    assert means["gpu_energy_j"].idxmin() != 4
    assert means["energy_j"].idxmin() == 4


def test_next_shows_the_most_useful_measurements(write, tmp_path, capsys):
    study, store = write(QUESTION | {"budget": {"runs": 1}}), tmp_path / "store"
    line = ["next", str(store), str(study)]
    assert main([*line, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{store} is not a store")
    first = json.loads(captured.out)
    assert first[0]["gpus"] == 1
    assert {item["gpu_hours"] for item in first} == {None}
    run(study, store)
    study = write(QUESTION)
    assert main([*line, "--json", "--count", "2"]) == 0
    captured = capsys.readouterr()
    items = json.loads(captured.out)
    assert (len(items), captured.err) == (2, "")
    for item in items:
        assert set(SETTING) | {"gpu_hours", "regret_now", "regret_after"} <= set(item)
        assert item["gpu_hours"] > 0
        assert item["regret_after"] <= 1.1 * item["regret_now"]
    names = ("gpus", "nodes", "local_batch")
    first = [items[0][name] for name in names]
    busy = next(
        item for item in load_study(study).plan.runs
        if [getattr(setting_of(item), name) for name in names] == first
    )  # fmt: skip
    with RunLock(RunFolder(store / "runs" / busy.run_id)) as held:  # of a campaign
        assert held.acquire()
        assert main([*line, "--json", "--count", "2"]) == 0
    items = json.loads(capsys.readouterr().out)
    assert first not in [[item[name] for name in names] for item in items]
    assert main(line) == 0
    assert "GPU-hours" in capsys.readouterr().out
    assert main(["next", str(store), str(write(None))]) == 2
    assert "decide" in capsys.readouterr().err
    study = str(write(QUESTION))
    for line in (["next", study, study], ["run", study, "--dry-run", "--store", study]):
        assert main(line) == 2
        assert capsys.readouterr().err.startswith(f"wattlaw: {study}: a file")


def test_epochs_to_a_target_are_measured_for_each_global_batch(write_study, tmp_path):
    simulation = {
        "hardware": "kit-a100", "critical_batch": 256, "epochs_to_target": 2,
    }  # fmt: skip
    study = write_study(
        workloads=[{"name": "resnet50"}],
        sweeps=[{"gpus": [1, 2], "global_batch": [64, 128]}],
        measure={"epochs": 8, "warmup_epochs": 1},
        launch={"kind": "simulated", "simulation": simulation},
        decide={"minimize": "gpu_hours", "target": 0.5},
    )
    outcome = run(study, tmp_path / "store")
    done = outcome.results.metrics
    assert set(done["global_batch"]) == {64, 128}
    assert outcome.stopped_because == "certain"
    assert outcome.results.decision["setting"]["global_batch"] in (64, 128)


@pytest.mark.parametrize(
    ("runs", "reason"), [(1, "budget spent"), (9, "no run reached the target")]
)
def test_why_measuring_ends_without_a_run_that_reached_the_target(
    write_study, tmp_path, runs, reason
):
    study = write_study(
        workloads=[{"name": "resnet50"}],
        sweeps=[{"gpus": [1, 2], "global_batch": [64, 128]}],
        measure={"epochs": 2, "warmup_epochs": 1},
        launch={"kind": "simulated", "simulation": {
            "hardware": "kit-a100", "critical_batch": 256, "epochs_to_target": 50}},
        decide={"minimize": "gpu_hours", "target": 0.9, "budget": {"runs": runs}},
    )  # fmt: skip
    outcome = run(study, tmp_path / "store")
    assert (outcome.done, outcome.stopped_because) == (min(runs, 2), reason)


BAD = {
    "several workloads": (
        {}, {"workloads": [{"name": "a", "dataset_samples": 1}, {"name": "b"}]}, "decide"),
    "a target with precisions": (
        {"target": 0.7},
        {"sweeps": [{"gpus": [1], "local_batch": [8], "precision": ["fp32", "bf16"]}],
         "measure": {"epochs": 2, "warmup_epochs": 1, "evaluate": True}},
        "decide.target",
    ),
    "a target of steps": ({"target": 0.7}, {}, "decide.target"),
    "a deadline without a length": ({"deadline": "6h"}, {}, "decide.deadline"),
    "a duration": ({"deadline": "soon"}, {}, "decide.deadline"),
    "a share": ({"max_slowdown": "10"}, {}, "decide.max_slowdown"),
    "a slowdown of 1,000 %": ({"max_slowdown": 10}, {}, "decide.max_slowdown"),
    "an energy": ({"energy_budget": "50"}, {}, "decide.energy_budget"),
    "a tolerance of 0": ({"tolerance": 0}, {}, "decide.tolerance"),
    "a confidence of 1": ({"confidence": 1}, {}, "decide.confidence"),
    "two lengths": ({"epochs": 3, "total_samples": 5}, {}, "decide.epochs"),
    "a batch": ({"epochs_by_batch": {"many": 3}}, {}, "decide.epochs_by_batch.many"),
    "epochs of a batch": ({"epochs_by_batch": {256: 0}}, {}, "decide.epochs_by_batch.256"),
    "a goal": ({"minimize": "money"}, {}, "decide.minimize"),
    "cost without a price": ({"minimize": "cost"}, {}, "decide.minimize"),
    "a region": ({"grid": "Atlantis"}, {}, "decide.grid"),
    "a price that is none": ({"price_per_kwh": "Atlantis"}, {}, "decide.price_per_kwh"),
    "two currencies": (
        {"price_per_kwh": "1 EUR", "price_per_gpu_hour": "2 USD"}, {},
        "decide.price_per_kwh and price_per_gpu_hour"),
    "a negative price": ({"price_per_kwh": -1}, {}, "decide.price_per_kwh"),
    "a budget": ({"budget": {"runs": 0}}, {}, "decide.budget.runs"),
    "fewer GPUs than any setting": (
        {"max_gpus": 1}, {"sweeps": [{"gpus": [2, 4], "local_batch": [8]}]}, "decide.max_gpus"),
    "fewer GPUs than are emulated": (
        {"max_gpus": 2},
        {"sweeps": [{"gpus": [1, 2], "global_batch": [64], "emulate": {"gpus": [4]}}]},
        "decide.max_gpus"),
    "a smaller batch than any": ({"max_global_batch": 7}, {}, "decide.max_global_batch"),
    "epochs of other batches": ({"epochs_by_batch": {99: 3}}, {}, "decide.epochs_by_batch"),
    "bounds that no setting meets together": (
        {"max_gpus": 1, "epochs_by_batch": {256: 3}}, {}, "decide.max_gpus with epochs_by_batch"),
    "a key": ({"maximise": "time"}, {}, "decide.maximise"),
    "shares of the data": ({}, {"sweeps": [
        {"gpus": [1], "local_batch": [8], "dataset_fraction": [0.5, 1]}]}, "decide"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_named_with_what_is_allowed(write, name):
    decide, changes, key = BAD[name]
    with pytest.raises(BadInput, match=f"{key}: .*allowed: "):
        load_study(write(decide, **changes))


def test_check_states_the_question(write, capsys):
    decide = {"minimize": "time", "max_gpus": 4, "tolerance": "5%", "confidence": 0.8}
    assert main(["check", str(write(decide))]) == 0
    question = capsys.readouterr().out.splitlines()[1]
    for part in ("least time", "4 GPUs", "5 %", "0.8"):
        assert part in question


def test_samples_of_an_epoch_must_be_known_where_epochs_are(write):
    unknown = {"workloads": [{"name": "bert"}]}
    assert load_study(write({"total_samples": 1e6}, **unknown)).plan.study.decide.total_samples
    with pytest.raises(BadInput, match="dataset_samples"):
        load_study(write({"epochs": 3}, **unknown))


def test_quantities_and_batches_are_read_as_in_advise(write):
    decide = load_study(
        write({"deadline": "6h", "max_slowdown": "10%", "energy_budget": "1kWh",
               "epochs_by_batch": {256: 90}, "grid": "DE", "tolerance": "5%"})
    ).plan.study.decide  # fmt: skip
    assert (decide.deadline, decide.max_slowdown, decide.energy_budget) == (21600, 0.1, 3.6e6)
    assert (decide.batches, decide.tolerance) == ({256.0: 90.0}, 0.05)


def test_without_decide_every_run_is_made_in_the_order_of_the_plan(write, tmp_path):
    with_decide, plain = load_study(write(QUESTION)), load_study(write(None))
    assert [item.run_id for item in plain.plan.runs] == [
        item.run_id for item in with_decide.plan.runs
    ]
    outcome = run(plain, tmp_path / "store")
    assert (outcome.done, outcome.not_needed, outcome.stopped_because) == (16, 0, None)
    assert not (tmp_path / "store" / "decision.json").exists()
    assert outcome.results.decision is None
    with pytest.raises(Refused):
        plain.next_measurements(tmp_path / "store")


def test_advise_minimizes_the_goal(write, tmp_path, capsys):
    run(write(None), tmp_path / "store")
    opened = results.open(tmp_path / "store")
    gpus = {
        goal: opened.advise(minimize=goal, any_batch=True).recommended.gpus
        for goal in ("time", "gpu_hours")
    }
    assert gpus == {"time": 8, "gpu_hours": 1}
    rich = opened.advise(minimize="cost", price_per_gpu_hour=1)
    assert rich.recommended.gpus == 1
    assert opened.advise(minimize="carbon", grid="DE").recommended.gpus == 1
    assert opened.advise(minimize="edp").recommended == opened.advise().recommended
    for goal in ("cost", "carbon", "money"):
        assert main(["advise", str(tmp_path / "store"), "--minimize", goal]) == 2
        assert "minimize: given" in capsys.readouterr().err


def test_several_runs_are_chosen_together(write, tmp_path):
    lines: list[str] = []
    question = QUESTION | {"at_once": 3, "budget": {"runs": 3}}
    outcome = run(write(question), tmp_path / "store", progress=lines.append)
    assert outcome.done == 3
    kinds = [line.partition(":")[0] for line in lines]
    assert kinds == ["decision", "done", "done", "done", "decision"]
    settings = {
        (record.spec.setting.gpus, record.spec.setting.local_batch)
        for record in records(tmp_path / "store").values()
        if record.status == "done"
    }
    assert len(settings) == 3  # none twice


OLD = {"setting": None, "expected_regret": None, "probability": None, "tolerance": 0.02}


@pytest.mark.parametrize("content", [b"{", b"[]", json.dumps(OLD).encode(), b"\xff", None])
def test_a_damaged_decision_is_kept_under_another_name(write, tmp_path, capsys, content):
    study, store = write(QUESTION | {"budget": {"runs": 1}}), tmp_path / "store"
    run(study, store)
    path, kept = store / "decision.json", store / "decision.damaged-1.json"
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert main(["advise", str(store), "--json", "--strict"]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and len(error.splitlines()) == 1
    assert main(["advise", str(store), "--json"]) == 0
    shown = capsys.readouterr()
    assert str(path) in shown.err
    assert json.loads(shown.out)["decision"] is None
    outcome = run(study, store)
    assert sum(str(kept) in warning for warning in outcome.warnings) == 1
    decision = outcome.results.decision
    assert (decision["runs"], len(decision["course"])) == (1, 1)
    assert kept.is_dir() if content is None else kept.read_bytes() == content
    assert not any(str(kept) in warning for warning in run(study, store).warnings)


def test_two_campaigns_on_one_store_make_each_run_once(write, tmp_path):
    budget = {"budget": {"runs": 4}, "tolerance": 1e-6}
    study, store = write(QUESTION | budget), tmp_path / "store"
    alone = run(study, tmp_path / "alone")
    line = ("run", str(study), "--store", str(store))
    with started(*line) as first, started(*line) as second:
        for process in (first, second):
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
    decision, expected = results.open(store).decision, alone.results.decision
    course, rows = decision.pop("course"), expected.pop("course")
    assert decision == expected
    # Two runs that are active together end in any order, and have one row if they end together.
    for before, after in pairwise(course):
        assert before["runs"] < after["runs"]
        assert before["gpu_hours_spent"] < after["gpu_hours_spent"]
    for name in ("runs", "gpu_hours_spent"):
        assert course[-1][name] == rows[-1][name]
    done = [record for record in records(store).values() if record.status == "done"]
    assert [record.attempts for record in done] == [1] * alone.done


def test_the_report_shows_the_decision_and_its_course(write, tmp_path, monkeypatch):
    folder = tmp_path / "figures"
    few = tuple(figure for figure in GALLERY if figure.name == "decision")
    monkeypatch.setattr("wattlaw.report.figures.GALLERY", few)
    run(write(QUESTION | {"budget": {"runs": 3}}), tmp_path / "store")
    opened = results.open(tmp_path / "store")
    table = decision_result(opened._findings())
    frame = table.to_frame()
    assert list(frame["setting"]) == ["1 GPU on 1 node, batch 32 each"]
    assert list(frame["runs"]) == ["3"]
    opened.report(tmp_path / "report.html", figures=folder, kinds="svg")
    assert (folder / "decision.svg").exists()
    page = (tmp_path / "report.html").read_text()
    assert 'id="decision"' in page
    assert f"{table.title} (replayed)" in page
    before_decision = page.split('id="decision"')[0]
    assert "Its setting is 1 GPU on 1 node, batch 32 each" in before_decision

    run(write(None, sweeps=[{"gpus": [1], "local_batch": [8]}]), tmp_path / "plain")
    plain = results.open(tmp_path / "plain")._findings()
    assert decision_result(plain) is None
    assert few[0].chart(plain) is None


class Surprising(ReplayLauncher):
    """Replays, except for the batch that was expected to be the best: its steps take 1 s."""

    def __init__(self, table):
        super().__init__(table)
        self.attempts = []

    def start(self, record, folder, allocation):
        if record.spec.setting.local_batch != 64:
            return super().start(record, folder, allocation)
        allocation.release()
        row = {"start_ns": 1, "samples": 64 * 20, "steps": 20, "loss": 1.0}
        with open_windows(folder.live(record.attempts), "here") as windows:
            for begin, warmup in ((0, True), (20, False)):
                own = {"warmup": warmup, "duration_s": 20.0, "from_step": begin}
                write_window(windows, "here", phase="steps", epoch=None, **row, **own)
        self.attempts.append(EndlessAttempt())
        return self.attempts[-1]


class EndlessAttempt:
    """An attempt that ends only when it is stopped."""

    is_stopped = False

    def poll(self):
        return None

    def stop(self):
        self.is_stopped = True


@pytest.mark.timeout(60)
def test_a_hopeless_run_is_stopped_early_and_keeps_what_it_measured(write, tmp_path):
    store = tmp_path / "store"
    sweeps = [{"gpus": [1], "local_batch": [8, 32, 64]}]
    measure = {"steps": 100_000, "warmup_steps": 20}
    study = write(QUESTION, table((8, 32, 64)), sweeps=sweeps, repeats=2, measure=measure)
    launcher = Surprising.open(load_study(study).plan.study.launch, store)
    outcome = run_with(study, store, launcher)
    decision = results.open(store).decision
    assert decision["setting"]["local_batch"] == 32
    assert (outcome.failed, outcome.left) == (0, 0)
    stopped = [item for item in records(store).values() if item.spec.setting.local_batch == 64
               and item.status == "done"]  # fmt: skip
    assert [attempt.is_stopped for attempt in launcher.attempts] == [True] * len(stopped)
    assert len(stopped) >= 1
    assert all(any(STOPPED_EARLY in note for note in record.notes) for record in stopped)
    frame = results.open(store).metrics
    steps = frame[frame["local_batch"] == 64]["time_per_sample_s"]
    assert steps.tolist() == pytest.approx([1 / 64] * len(stopped))


@pytest.mark.parametrize(
    ("measure", "error", "is_enough"),
    [
        ({"steps": 1000}, 0.004, True), ({"steps": 1000}, 0.006, False),
        ({"steps": 1000}, None, False), ({"epochs": 3}, 0.004, False),
    ],
)  # fmt: skip
def test_a_run_is_long_enough_once_its_error_does_not_matter(
    write, tmp_path, measure, error, is_enough
):
    loaded = load_study(write(QUESTION | {"tolerance": "2%"}, measure=measure))
    Store(tmp_path / "store").create()
    decider = Decider(loaded.plan.study, loaded.plan.runs, tmp_path / "store")
    (first,) = decider.choose(loaded.plan.runs, []).runs
    reason = decider.stop_reason(first.run_id, StepTime(0.1, error))
    assert (reason is not None) == is_enough


@pytest.mark.parametrize(
    ("durations_s", "variation", "error"),
    [
        ([20.0], 0.1, None), ([2.0, 2.0, 2.0], 0.1, "too short"),
        ([10.0] * 4, 0.1, 0.1 / 80**0.5), ([9.0, 10.0, 11.0], 0.0, 0.1 / 3**0.5),
    ],
)  # fmt: skip
def test_the_error_of_a_step_time_is_that_of_steps_or_of_windows(
    write, tmp_path, durations_s, variation, error
):
    loaded = load_study(write(QUESTION))
    spec = next(item.spec for item in loaded.plan.runs if item.spec.nodes == 1)
    record = RunRecord(
        run_id="a", spec=spec, status="running", attempts=1, study="a", seed=0, order_seed=0
    )
    folder = Store(tmp_path / "store").folder("a")
    folder.write(record)
    folder.live(1).mkdir(parents=True)
    values = {"start_ns": 1, "samples": 640, "steps": 20, "loss": 1.0, "step_time_cv": variation}
    with open_windows(folder.live(1), "here") as windows:
        for index, duration_s in enumerate([99.0, *durations_s]):
            own = {"warmup": index == 0, "duration_s": duration_s, "from_step": 20 * index}
            write_window(windows, "here", phase="steps", epoch=None, **values, **own)
    measured = step_time_so_far(folder)
    if error == "too short":
        assert measured is None
        return
    assert measured.step_s == pytest.approx(sum(durations_s) / (20 * len(durations_s)))
    assert measured.error == (error and pytest.approx(error, rel=0.01))
