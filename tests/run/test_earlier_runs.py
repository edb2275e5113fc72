"""Changes of a study file: which keep the runs of its store, and what becomes of the others."""

import pytest

import wattlaw
from conftest import decide_table
from wattlaw.api.deciding import evidence_of
from wattlaw.api.studies import load_study, run
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput
from wattlaw.running.earlier_runs import _changes

UNKNOWN = {"workloads": [{"name": "bert"}], "repeats": 1}
TIME = {"minimize": "time"}


def test_the_length_of_a_training_is_stated_without_losing_a_run(write_decide, tmp_path):
    """What the warning on times of one sample asks for keeps every run."""
    store = tmp_path / "store"
    run(write_decide(TIME, **UNKNOWN), store)
    results = wattlaw.open(store)
    before = results.advise()
    (warning,) = [item for item in before.warnings if item.code == "per-sample"]
    assert "total_samples" in str(warning)
    stated = results.advise(total_samples=5000)
    assert stated.recommended.identity == before.recommended.identity
    assert stated.recommended.train_time_s.mean == pytest.approx(
        5000 * before.recommended.time_s.mean
    )
    assert "per-sample" not in {item.code for item in stated.warnings}
    with pytest.raises(BadInput, match="one of them"):
        results.advise(total_samples=5000, epochs=3)
    with pytest.raises(BadInput, match="above 0"):
        results.advise(total_samples=0)

    study = load_study(write_decide(TIME | {"total_samples": 5000, "deadline": "1h"}, **UNKNOWN))
    assert study.earlier_versions(store) == []
    assert run(study, store).stopped_because
    decided = wattlaw.open(store).advise()
    assert decided.recommended.train_time_s.mean == stated.recommended.train_time_s.mean
    assert decided.rests_on.runs == before.rests_on.runs


def test_runs_of_an_earlier_version_are_named_and_the_answer_is_of_the_present_one(
    write_decide, tmp_path, capsys
):
    store = tmp_path / "store"
    changes = {
        "workloads": [{"name": "bert", "dataset_samples": 1000}],
        "measure": {"steps": 200, "warmup_steps": 10},
    }
    said = "workload.dataset_samples null, now 1000, measure.steps 100, now 200"
    old = len(load_study(write_decide(None, **UNKNOWN)))
    run(write_decide(None, **UNKNOWN), store)
    # Fewer runs than before: the most runs would be those of the earlier version.
    few = {"sweeps": [{"gpus": [1, 2], "local_batch": [8]}]}
    path = write_decide(None, **(UNKNOWN | few | changes))
    assert main(["check", str(path), "--store", str(store)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {old} done runs of {store}: ")
    assert said in line
    assert wattlaw.open(store).advise().rests_on.runs == {"replayed": old}  # nothing else is done

    assert main(["run", str(path), "--store", str(store)]) == 0
    assert said in capsys.readouterr().err
    advice = wattlaw.open(store).advise(any_batch=True)
    assert advice.rests_on.runs == {"replayed": 2}
    assert {reason: count for reason, count in advice.left_out.items() if said in reason} == {
        f"of an earlier version of the study: {said}": old
    }
    # The planner, the report, the proposal, the dashboard and predictions use the same runs.
    decided = load_study(write_decide(TIME, **(UNKNOWN | few | changes)))
    evidence = evidence_of(decided.plan.study, decided.plan.runs, store)
    assert evidence.job is not None
    assert len(evidence.job.observations) == 2
    opened = wattlaw.open(store)
    findings = opened._findings()
    assert len(findings.runs) == 2
    for (found,) in (findings.advice, opened.advice_on_each()[0]):
        assert found.left_out == opened.advise().left_out
    assert [*opened.predict(gpus=4)]
    assert len(opened.metrics) == old + 2  # tables have all runs


def test_runs_of_settings_that_a_study_has_no_more_still_count(write_decide, tmp_path):
    store = tmp_path / "store"
    run(write_decide(None, **UNKNOWN), store)
    few = write_decide(None, **UNKNOWN, sweeps=[{"gpus": [1], "local_batch": [8]}])
    assert load_study(few).earlier_versions(store) == []
    run(few, store)
    assert wattlaw.open(store).advise(any_batch=True).rests_on.runs == {"replayed": 8}


def test_the_answer_is_of_the_workload_that_the_study_has_now(write_decide, tmp_path):
    store = tmp_path / "store"
    one = {"repeats": 1, "sweeps": [{"gpus": [1, 2], "local_batch": [8]}]}
    for name in ("resnet50", "bert"):
        table = decide_table().replace("bert", name)
        run(write_decide(None, table, workloads=[{"name": name}], **one), store)
    opened = wattlaw.open(store)
    assert (opened.workloads, opened.asked_workloads) == (("bert", "resnet50"), ("bert",))
    assert opened.advise().workload == "bert"
    for name in opened.workloads:  # runs of the other one are not left out, they are not asked for
        assert not [text for text in opened.advise(name).left_out if "earlier" in text]


def test_of_a_long_command_only_the_words_that_differ_are_named(write_decide, tmp_path):
    words = [f"--option-{number}={number}" for number in range(40)]
    old, new = ["python", "t.py", *words, "--epochs", "1"], ["python", "t.py", "-v", *words]
    spec = load_study(write_decide(None, **UNKNOWN)).plan.runs[0].spec
    before, after = (
        spec.model_copy(update={"workload": spec.workload.model_copy(update={"command": tuple(c)})})
        for c in (old, new)
    )
    assert _changes(before, after) == ['workload.command ["--epochs", "1"], now ["-v"]']
