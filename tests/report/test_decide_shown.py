"""What ``next``, ``advise`` and the report show of a decision."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from pytest import approx

from conftest import decide_in
from decide_studies import QUESTION
from wattlaw.analysis.advise.advice import advise
from wattlaw.analysis.decide.decision import Decision, sweep_text, with_next_step
from wattlaw.analysis.decide.evidence import read_evidence, setting_of
from wattlaw.analysis.decide.next_runs import BUDGET, NOT_MET, NOTHING_LEFT
from wattlaw.analysis.metrics.result import Caution
from wattlaw.api import results
from wattlaw.api.deciding import question_of_study
from wattlaw.api.store_tables import stored_decision
from wattlaw.api.studies import load_study, run
from wattlaw.cli.main import main
from wattlaw.common import progress
from wattlaw.report.core_sections import gallery
from wattlaw.report.topics.advice_text import what_changes
from wattlaw.report.topics.decision_course import choice_text, decision_text, expected
from wattlaw.report.topics.decision_course import sentences as decision_sentences
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store, read_stores
from wattlaw.study.not_as_declared import TOO_SHORT, TRAINING_ENDED
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting
from wattlaw_dashboard.dashboard_overview import RunRow, Total


def test_next_shows_the_most_useful_measurements(write_decide, tmp_path, capsys):
    study, store = write_decide(QUESTION | {"budget": {"runs": 1}}), tmp_path / "store"
    line = ["next", str(store), str(study)]
    assert main([*line, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{store} is not a store")
    first = json.loads(captured.out)["measurements"]
    assert first[0]["gpus"] == 1
    assert {item["gpu_hours"] for item in first} == {None}
    run(study, store)
    study = write_decide(QUESTION)
    assert main([*line, "--json", "--count", "2"]) == 0
    captured = capsys.readouterr()
    items = json.loads(captured.out)["measurements"]
    assert (len(items), captured.err) == (2, "")
    setting = "gpus nodes gpus_per_node local_batch global_batch gradient_accumulation precision"
    setting = [*setting.split(), "power_limit_w", "clock_limit_mhz"]
    for item in items:
        assert {*setting, "gpu_hours", "regret_now", "regret_after"} <= set(item)
        assert item["gpu_hours"] > 0
        assert item["regret_after"] <= 1.1 * item["regret_now"]
    names = ("gpus", "nodes", "local_batch")
    first = [items[0][name] for name in names]
    busy = next(
        item
        for item in load_study(study).plan.runs
        if [getattr(setting_of(item), name) for name in names] == first
    )
    with RunLock(RunFolder(store / "runs" / busy.run_id)) as held:  # of a campaign
        assert held.acquire()
        assert main([*line, "--json", "--count", "2"]) == 0
    items = json.loads(capsys.readouterr().out)["measurements"]
    assert first not in [[item[name] for name in names] for item in items]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "GPU-hours" in shown
    Store(store).keep_study("test", study.read_text())  # as ``wattlaw run`` does
    assert main([*line[:2], "--table", str(study.with_name("table.csv"))]) == 0
    assert capsys.readouterr().out == shown
    assert main(["next", str(tmp_path)]) == 2
    assert "STUDY.yaml" in capsys.readouterr().err
    assert main(["next", str(store), str(write_decide(None))]) == 2
    assert "decide" in capsys.readouterr().err
    study = str(write_decide(QUESTION))
    for line in (["next", study, study], ["run", study, "--dry-run", "--store", study]):
        assert main(line) == 2
        assert capsys.readouterr().err.startswith(f"wattlaw: {study}: a file")


def test_the_report_shows_the_decision_and_its_course(write_decide, tmp_path, monkeypatch):
    folder = tmp_path / "figures"
    few = tuple(figure for figure in gallery() if figure.name == "decision")
    monkeypatch.setattr("wattlaw.report.core_sections.gallery", lambda: few)
    run(write_decide(QUESTION | {"budget": {"runs": 3}}), tmp_path / "store")
    opened = results.open(tmp_path / "store")
    findings = opened._findings()
    (sentence,) = decision_sentences(findings)
    assert "(after 3 runs)" in sentence
    shown = expected(findings)
    assert len(shown.rows) == 2  # of three settings, the first was not predicted
    assert {row[-1] for row in shown.rows} <= {"yes", "no"}
    opened.report(tmp_path / "report.html", figures=folder)
    assert (folder / "decision.svg").exists()
    page = (tmp_path / "report.html").read_text()
    assert 'id="decision"' in page
    assert "3 runs; 13 more were not needed" in page
    assert "have no result" not in page

    plain = replace(findings, decisions=())
    assert not list(decision_sentences(plain))
    assert few[0].picture(plain) is None
    assert expected(plain) is None


@pytest.fixture(scope="module")
def decided(tmp_path_factory):
    """Give the folder of a store whose study asks for the least time."""
    folder = tmp_path_factory.mktemp("decided")
    seen, token = [], progress.observer.set(lambda what, *_: seen.append(what))
    present = {"gpus": 1, "global_batch": 8}
    asked = {"minimize": "time", "max_global_batch": 64, "baseline": present}
    run(decide_in(folder, asked), folder / "store")
    progress.observer.reset(token)
    assert not [what for what in seen if what.startswith("Fitting")]  # a campaign shows its own
    return folder / "store"


def test_what_nobody_asks_is_answered_as_the_study_asks(decided, tmp_path, monkeypatch):
    monkeypatch.setattr("wattlaw.report.core_sections.gallery", lambda: ())
    opened = results.open(decided)
    decision, found = opened.decision, opened.advise()
    assert (found.goal, found.decision.question["max_global_batch"]) == ("time", 64)
    best = found.recommended
    assert (best.gpus, best.global_batch) == (
        decision["setting"]["gpus"], decision["setting"]["global_batch"],
    )  # fmt: skip
    assert best.global_batch <= 64
    assert (found.probability, found.spread_from) == (decision["probability"], "decision")
    assert opened._findings().advice[0].recommended == best
    page = opened.report(tmp_path / "report.html").page.read_text()
    assert page.count('class="answer"') == 1
    assert "as the study asks" in page
    assert (found.baseline.gpus, found.baseline.global_batch) == (1, 8)
    saved = best.train_time_s.mean / found.baseline.train_time_s.mean - 1
    assert saved < -0.1 and found.savings.time.mean == approx(saved)
    ran = {found.recommended.source, found.baseline.source} == {"simulated"}
    assert decision["time_change_from"] == ("runs" if ran else "model")
    assert decision["time_change"] == approx(saved, rel=1e-6 if ran else 0.1)
    assert f"{-100 * saved:.0f} % less time" in page
    predicted = opened.predict()
    ((_, compared),) = predicted.baselines
    assert (compared.gpus, compared.global_batch, predicted.baseline_is) == (1, 8, "in use")
    assert "what you run" in str(predicted)
    ((_, compared),) = opened.predict(baseline="gpus=2,global_batch=16").baselines
    assert (compared.gpus, compared.global_batch) == (2, 16)

    # A bound is added to the study's question: its goal, largest batch and baseline stay.
    for bound in ({"max_slowdown": "500%"}, {"deadline": "1d"}, {"max_gpu_hours": 1}):
        bounded = opened.advise(**bound)
        assert (bounded.decision, bounded.goal, bounded.baseline_is) == (None, "time", "in use")
        assert bounded.recommended.global_batch <= 64
    assert opened.advise(minimize="time").decision == found.decision

    asked = opened.advise(minimize="gpu_hours")
    assert (asked.decision, asked.goal) == (None, "GPU-hours")
    priced = opened.advise(price_per_gpu_hour=2)
    assert (priced.decision, priced.recommended.setting) == (found.decision, best.setting)
    assert priced.recommended.cost.mean == approx(2 * best.gpu_hours.mean)
    longer = opened.advise(epochs=100)
    assert (longer.decision, longer.recommended.setting) == (found.decision, best.setting)
    assert longer.recommended.amount.mean == 100
    larger = opened.advise(any_batch=True)
    assert (larger.decision, larger.goal) == (None, "time")


def test_a_decision_that_the_runs_do_not_support_is_named_in_a_warning(decided):
    opened = results.open(decided)
    decision, question = opened._decision_of("bert"), Question("time", max_global_batch=64)
    for setting in (Setting(1, nodes=1, local_batch=8), Setting(8, nodes=1, local_batch=32)):
        other = replace(decision, setting=setting)
        found = advise(opened.metrics, opened.epochs, "bert", question, decision=other)
        assert found.recommended.gpus == 4  # the fastest that ran
        assert found.spread_from != "decision"
        assert "decision-differs" in {warning.code for warning in found.warnings}


@pytest.mark.parametrize(
    ("probability", "meets", "leads", "why"),
    [
        (0.896, None, "89 % sure", "90 % are needed"),
        (1.0, 0.4951, "the only setting to choose from, 49 %", "it may not meet the constraints"),
        (0.97, 0.4951, "49 % sure to meet the constraints", "it may not meet the constraints"),
    ],
)
def test_the_lines_of_a_choice_say_what_is_missing(probability, meets, leads, why):
    leading = Setting.packed(2, 4, local_batch=8)
    decision = Decision(
        "s", "w", "measured", {"minimize": "time"}, leading, 0.01, probability, meets, 0.02, 0.9,
        1.0, 4.0, 3, None,
    )  # fmt: skip
    first, second = choice_text(decision, [Setting.packed(4, 4, local_batch=8)]).splitlines()
    assert leads in first
    assert why in second


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"budget": {"runs": 2}}, "set budget: {runs: 4} under decide"),
        ({"deadline": 1, "epochs": 100}, "or loosen deadline under decide"),
    ],
)
def test_all_surfaces_say_the_same_to_do_next(asked, said, write_decide, tmp_path, capsys):
    study, store = write_decide(QUESTION | asked), tmp_path / "store"
    assert main(["run", str(study), "--store", str(store)]) == 0
    shown = capsys.readouterr()
    opened = results.open(store)
    found = opened.advise()
    step = found.decision.next_step
    assert (found.recommended is None) == ("deadline" in asked)
    assert said in step
    assert f"wattlaw run {study} --store {store}" in step
    assert ("(the budget is spent)" in step) == ("budget" in asked)
    assert f"measure next: {step}" in shown.out + shown.err
    assert "Next: wattlaw advise" not in shown.out
    table = ["--table", str(study.with_name("table.csv"))]
    assert main(["next", str(store), str(study)]) == 0
    assert f"measure next: {step}" in capsys.readouterr().out
    assert main(["next", str(store), *table, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["next_step"], shown["measurements"]) == (step, [])
    assert main(["advise", str(store)]) == int(found.recommended is None)
    assert f"- Measure next: {step}" in capsys.readouterr().out
    (sentence,) = decision_sentences(opened._findings())
    assert f"measure next: {step}" in sentence
    assert step in decision_text(stored_decision(store))  # as the dashboard shows it
    # While runs are left, the step is the command that makes them, on the store's copy.
    changes = {"origin": "measured", "stopped_because": None, "would_help": None}
    going_on = with_next_step(replace(opened.advise().decision, **changes), store)
    copy = store / "studies" / f"{going_on.study}.yaml"
    assert going_on.next_step.startswith(f"wattlaw run {copy} --store {store}")
    assert copy.exists()


@pytest.mark.parametrize(
    ("reason", "codes", "lines"),
    [
        (BUDGET, (), ["budget: {gpu_hours: 4.0}"]),
        (NOTHING_LEFT, (), ["set repeats: 4", "or set steps: 200 under measure", "start anew"]),
        (NOTHING_LEFT, ("short-run",), ["steps: 200 under measure", "all start anew"]),
        (NOTHING_LEFT, (TRAINING_ENDED,), ["set repeats: 4", "let the script train longer"]),
        (NOTHING_LEFT, ("short-run", TRAINING_ENDED), ["let the script train longer"]),
        (NOT_MET, (), ["gpus: [1, 2, 4, 8, 16]", "loosen max_slowdown"]),
    ],
)
def test_where_no_run_is_left_the_lines_to_change_are_named(reason, codes, lines, write_decide):
    question = QUESTION | {"budget": {"gpu_hours": 2}, "max_slowdown": 0.05}
    study = load_study(write_decide(question)).plan.study
    decision = Decision(
        study.name, "bert", "measured", {"max_slowdown": 0.05}, None, None, None, None, 0.02, 0.9,
        1.0, 4.0, 3, reason, warnings=tuple(Caution(code, "") for code in codes),
    )  # fmt: skip
    step = with_next_step(decision, Path("store"), study).next_step
    assert all(line in step for line in lines)
    assert ("repeats" in step) == ("set repeats: 4" in lines)
    assert ("steps: 200" in step) == (reason == NOTHING_LEFT and TRAINING_ENDED not in codes)
    # A training of 2 x 3,000 samples has 200 steps of 30, so not 200 after 10 of warm-up.
    command = {"command": ("python", "t.py"), "dataset_samples": 3000}
    short = study.model_copy(update={
        "workloads": (study.workloads[0].model_copy(update=command),),
        "decide": study.decide.model_copy(update={"epochs": 2}),
    })  # fmt: skip
    led = replace(decision, setting=Setting(1, local_batch=30))
    limited = with_next_step(led, Path("store"), short).next_step
    assert "steps: 200" not in limited
    assert ("train longer" in limited) == (reason == NOTHING_LEFT)
    simulated = with_next_step(replace(decision, origin="simulated"), Path("store"), study)
    assert "wattlaw run STUDY.yaml --store store --launch simulated (" in simulated.next_step


@pytest.mark.parametrize(
    "setting",
    [
        Setting(2, nodes=1, local_batch=8, power_limit_w=250.0),
        Setting(4, nodes=2, local_batch=16, precision="bf16", clock_limit_mhz=1380.0),
        Setting(8, nodes=1, local_batch=4, gradient_accumulation=2, tp=2, sharding="zero1"),
    ],
)
def test_the_line_of_a_setting_is_a_sweep_that_has_it(setting, write_decide, tmp_path):
    (sweep,) = yaml.safe_load(sweep_text(setting))["sweeps"]
    command = "python train.py --tp {tp} --sharding {sharding} --micro-batch {micro_batch}"
    layouts = {
        "workloads": [{"command": command.split()}],
        "launch": {"kind": "slurm", "gpus_per_node": 8},
    }
    changes = layouts if setting.layout else {}
    plan = load_study(write_decide(None, sweeps=[sweep], repeats=1, **changes)).plan
    (run_,) = plan.runs
    assert setting_of(run_) == setting


def test_without_a_decision_the_next_run_has_its_line(write_decide, tmp_path):
    sweeps = [{"gpus": [1, 2], "local_batch": [8]}]
    study = write_decide(None, sweeps=sweeps, repeats=1)
    run(study, tmp_path / "store")
    advice = results.open(tmp_path / "store").advise()
    (line,) = (line for line in what_changes(advice) if line.startswith("Measure next"))
    option = advice.next_measurement.option
    assert f"wattlaw run {study} --store {tmp_path / 'store'}" in line
    assert f"{sweep_text(option.setting)} and repeats: {option.repeats + 1}" in line


def test_runs_whose_training_ended_are_named_and_more_of_its_steps_are_not_asked_for(
    write_decide, decided
):
    study = load_study(write_decide(QUESTION))
    planned, question = study.plan.runs, question_of_study(study.plan.study)
    runs, epochs = read_stores([Store(decided)])

    def codes(note):
        noted = runs.assign(notes=[[note]] * len(runs))
        found = read_evidence(
            question, study.plan.study, planned, noted, epochs, epoch_samples=1000
        )
        return {warning.code: str(warning) for warning in found.warnings}

    assert TRAINING_ENDED not in codes("another note")
    assert f"In {len(runs)} runs" in codes(f"it ended; {TOO_SHORT}")[TRAINING_ENDED]


@pytest.mark.parametrize(("label", "noun"), [(None, "worker"), ("NVIDIA A100", "GPU")])
def test_gpus_are_called_alike_before_and_after_runs_that_failed(
    write_decide, decided, label, noun
):
    loaded = load_study(write_decide(QUESTION))
    launch = loaded.plan.study.launch.model_copy(update={"hardware": label})
    study, question = loaded.plan.study.model_copy(update={"launch": launch}), Question("time")
    runs, epochs = read_stores([Store(decided)])
    failed = runs.assign(status="failed", hardware=label)
    for shown in (failed, runs[:0]):
        found = read_evidence(
            question, study, loaded.plan.runs, shown, epochs[:0], epoch_samples=1000
        )
        assert found.worker == noun
    rows = [RunRow(0, "r", {}, {"hardware": label})]
    assert Total("measured", (), rows).worker() == noun
    assert Total("measured", (), rows).worker(gpu_energy_j=1.0) == "GPU"


def test_a_study_that_is_simulated_by_the_command_line_stays_so(
    write_decide, tmp_path, capsys, monkeypatch
):
    sweeps, store = [{"gpus": [1, 2], "local_batch": [4, 8]}], tmp_path / "store"
    launch = {"kind": "local", "gpus_per_node": 2, "simulation": {"hardware": "mit-v100"}}
    asked = QUESTION | {"budget": {"runs": 1}}
    job = {"workloads": [{"name": "digits-cnn"}], "sweeps": sweeps, "launch": launch}
    study = write_decide(asked, **job)
    monkeypatch.chdir(tmp_path)
    assert main(["run", study.name, "--store", str(store), "--launch", "simulated"]) == 0
    assert f"wattlaw run {study.name} --store {store}" in capsys.readouterr().out
    step = stored_decision(store).next_step
    assert f"wattlaw run {study.name} --store {store} --launch simulated" in step
    assert main(["next", str(store)]) == 0
    assert f"measure next: {step}" in capsys.readouterr().out
    (line,) = (line for line in what_changes(results.open(store).advise())
               if line.startswith("Measure next"))  # fmt: skip
    assert "on the hardware itself" in line
    assert f"wattlaw run {study.name} --store {store} --launch local, where" in line
    study.unlink()  # the file is not here any more, as in a store from elsewhere
    assert f"wattlaw run STUDY.yaml --store {store}" in stored_decision(store).next_step
