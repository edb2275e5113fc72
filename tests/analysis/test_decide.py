"""Studies with ``decide``: which runs are measured, when measuring ends, and what is decided."""

import json
import os
import re
import signal

import pytest

from conftest import decide_table, records
from decide_studies import QUESTION, statuses
from wattlaw.analysis.decide.evidence import UNKNOWN_QUALITY
from wattlaw.api import results
from wattlaw.api.studies import load_study, run
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput
from wattlaw.report.topics.decision_course import sentences as decision_sentences
from wattlaw.running.campaign import NOT_NEEDED


def check_lines(lines: list[str], done: int) -> None:
    # one line of the decision before the first run and after each
    assert sum(line.startswith("decision: ") for line in lines) == done + 1
    # and a line of what is measured next, which is what ends next
    choices = [line.rpartition("next: ")[2] for line in lines if "next: " in line]
    sizes = [re.search(r" on (\d+) x (\d+) ", line) for line in lines if line.startswith("done")]
    assert len(choices) == done
    for choice, size in zip(choices, sizes, strict=True):
        assert re.match(rf"{size[1]} \w+?s?\b.*, batch {size[2]}\b", choice)
    assert re.fullmatch(r"measuring stops after \S+ replayed GPU-\w+: certain", lines[-1])
    assert max(map(len, lines)) <= 110
    # not all runs are needed, so that neither their number nor their time is known
    assert any(line.endswith("(1 done, 0 failed, at most 15 left)") for line in lines)


def test_a_decision_needs_fewer_runs_than_the_grid(write_decide, tmp_path, capsys):
    store, lines = tmp_path / "store", []
    outcome = run(write_decide(QUESTION), store, progress=lines.append)
    decision = json.loads((store / "decision.json").read_text())
    assert 0 < outcome.done < 16 // 2
    assert (outcome.failed, outcome.left, outcome.done + outcome.not_needed) == (0, 0, 16)
    assert outcome.stopped_because == "certain"
    assert UNKNOWN_QUALITY.text in outcome.warnings
    assert UNKNOWN_QUALITY.to_dict() in decision["warnings"]
    done = [record for record in records(store).values() if record.status == "done"]
    measured = {record.spec.setting for record in done}
    assert len(decision["surprises"]) == len(measured) - 1  # the first one was not predicted
    for item in decision["surprises"]:
        assert item["low_s"] < item["predicted_s"] < item["high_s"]
        assert item["is_inside"] == (item["low_s"] <= item["measured_s"] <= item["high_s"])
    setting = decision["setting"]
    assert (setting["gpus"], setting["local_batch"]) == (1, 32)
    assert decision["probability"] >= 0.9
    assert decision["expected_regret"] <= decision["tolerance"] == 0.02
    assert decision["runs"] == outcome.done
    assert decision["stopped_because"] == "certain"
    spent = sum(
        record.spec.setting.gpus * (record.finished_at - record.started_at).total_seconds() / 3600
        for record in done
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
    check_lines(lines, outcome.done)
    assert results.open(store).decision == decision

    assert main(["advise", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decision"] == decision
    assert main(["status", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_needed"] == outcome.not_needed
    # a smaller tolerance needs more of the same runs
    budget = {"runs": outcome.done + 2}
    stricter = run(write_decide(QUESTION | {"tolerance": 0.002, "budget": budget}), store)
    assert outcome.done <= stricter.done <= outcome.done + 2
    # its course continues; that of another question begins
    continued = stricter.results.decision["course"]
    assert continued[: len(course) - 1] == course[:-1]
    assert [row["runs"] for row in continued] == [*range(1, stricter.done + 1)]
    other = run(write_decide(QUESTION | {"max_gpus": 1, "budget": budget}), store).results.decision
    assert [row["runs"] for row in other["course"]] == [*range(stricter.done, other["runs"] + 1)]
    assert records(store).keys() == {
        item.run_id for item in load_study(write_decide(None)).plan.runs
    }


def test_an_interrupted_decision_continues_to_the_same_one(write_decide, tmp_path):
    study, lines = write_decide(QUESTION), []

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


@pytest.mark.parametrize(("budget", "done"), [({"runs": 2}, 2), ({"gpu_hours": 0.0001}, 1)])
def test_measuring_ends_with_the_budget(write_decide, tmp_path, budget, done):
    outcome = run(write_decide(QUESTION | {"budget": budget}), tmp_path / "store")
    assert (outcome.done, outcome.stopped_because) == (done, "no run fits the budget")
    decision = outcome.results.decision
    assert decision["stopped_because"] == "no run fits the budget"
    assert decision["setting"] is not None
    # what the first run takes is not known before it
    is_exceeded = decision["gpu_hours_spent"] > budget.get("gpu_hours", float("inf"))
    codes = [item["code"] for item in decision["warnings"]]
    assert ("budget-exceeded" in codes) == is_exceeded == ("gpu_hours" in budget)


def test_an_energy_budget_is_not_checked_without_energy(write_decide, tmp_path):
    asked = {"minimize": "edp", "energy_budget": "1J", "epochs": 5, "budget": {"runs": 2}}
    without = re.sub(r"\d+(,20)$", r"\1", decide_table(), flags=re.MULTILINE)  # no power
    outcome = run(write_decide(asked, without), tmp_path / "store")
    decision = outcome.results.decision
    assert decision["meets"] is None
    assert "no-energy" in {item["code"] for item in decision["warnings"]}
    [sentence] = decision_sentences(outcome.results._findings())
    assert "GPU-hours replace energy" in sentence


def test_failed_runs_are_a_warning_where_the_decision_is_certain(write_study, tmp_path, capsys):
    def exit_code(store, gpus, **decide):
        study = write_study(
            workloads=[{"name": "resnet50"}],
            sweeps=[{"gpus": gpus, "local_batch": [64]}],
            repeats=3,
            measure={"epochs": 2, "warmup_epochs": 1},
            launch={"kind": "simulated", "simulation": {"hardware": "kit-a100", "fail_share": 0.5}},
            decide={"minimize": "time", **decide},
        )
        line = ["run", str(study), "--store", str(tmp_path / store)]
        code = main(line)
        assert any(record.status == "failed" for record in records(tmp_path / store).values())
        return code, results.open(tmp_path / store).decision["stopped_because"]

    assert exit_code("certain", [1, 2], tolerance="10%") == (0, "certain")
    assert "Warning: " in capsys.readouterr().out
    spent = exit_code("uncertain", [1, 2, 4], tolerance=1e-9, budget={"runs": 4})
    assert spent == (1, "no run fits the budget")
    # 2 and 4 GPUs failed, so that 1 GPU is the best of those that ran
    reason = "more than half of the settings cannot run"
    assert exit_code("skipped", [1, 2, 4], tolerance="10%") == (1, reason)


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


def test_measuring_ends_where_no_run_reached_the_target(write_study, tmp_path):
    study = write_study(
        workloads=[{"name": "resnet50"}],
        sweeps=[{"gpus": [1, 2], "global_batch": [64, 128]}],
        measure={"epochs": 2, "warmup_epochs": 1},
        launch={
            "kind": "simulated",
            "simulation": {"hardware": "kit-a100", "critical_batch": 256, "epochs_to_target": 50},
        },
        decide={"minimize": "gpu_hours", "target": 0.9},
    )
    outcome = run(study, tmp_path / "store")
    assert (outcome.done, outcome.stopped_because) == (2, "no run reached the target")


def test_a_study_does_not_replace_the_decision_of_another(write_decide, tmp_path):
    store, question = tmp_path / "store", QUESTION | {"budget": {"runs": 1}}
    run(write_decide(question), store)
    before = (store / "decision.json").read_bytes()
    with pytest.raises(BadInput, match='has the decision of the study "test"'):
        run(write_decide(question, name="other"), store)
    assert (store / "decision.json").read_bytes() == before
    assert {record.study for record in records(store).values()} == {"test"}


@pytest.mark.parametrize("content", [b"{", None])
def test_a_damaged_decision_is_kept_under_another_name(write_decide, tmp_path, capsys, content):
    study, store = write_decide(QUESTION | {"budget": {"runs": 1}}), tmp_path / "store"
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


def test_a_decision_for_workers_that_share_a_processor_is_for_a_setting_that_ran(
    write_decide, tmp_path
):
    """Two workers slow each other with the largest batch, which no other run shows."""
    times = {1: {64: 0.03, 128: 0.05, 512: 0.17}, 2: {64: 0.024, 128: 0.045, 512: 0.25}}
    rows = [
        f'bert,"EPYC, 2 cores",{count},1,{batch // count},{time},20'
        for count, by_batch in times.items()
        for batch, time in by_batch.items()
    ]
    content = "\n".join(
        ["workload,hardware,gpus,nodes,local_batch,step_time_s,startup_s", *rows, ""]
    )
    question = {"minimize": "time", "max_global_batch": 512, "tolerance": "10%", "epochs": 10}
    sweeps = [{"gpus": [1, 2], "global_batch": [64, 128, 512]}]
    store = tmp_path / "store"
    outcome = run(write_decide(question, content, sweeps=sweeps, repeats=1), store)
    setting = json.loads((store / "decision.json").read_text())["setting"]
    decided = setting["gpus"], setting["gpus"] * setting["local_batch"]
    done = [record.spec.setting for record in records(store).values() if record.status == "done"]
    assert outcome.stopped_because == "certain"
    assert decided in {(item.gpus, item.global_batch) for item in done}
    assert times[decided[0]][decided[1]] / decided[1] < 1.1 * 0.17 / 512
