"""What ``next``, ``advise`` and the report show of a decision."""

import json

from decide_studies import QUESTION
from made_tables import study as made_study
from wattlaw.analysis.decide.candidates import setting_of
from wattlaw.analysis.findings import analyse
from wattlaw.api import results
from wattlaw.api.studies import load_study, run
from wattlaw.cli.main import main
from wattlaw.report.core_sections import gallery
from wattlaw.report.topics.decision_course import expected
from wattlaw.report.topics.decision_course import sentences as decision_sentences
from wattlaw.store.run_folder import RunFolder, RunLock

SETTING = (
    "gpus", "nodes", "gpus_per_node", "local_batch", "global_batch", "gradient_accumulation",
    "precision", "power_limit_w", "clock_limit_mhz",
)  # fmt: skip


def test_next_shows_the_most_useful_measurements(write_decide, tmp_path, capsys):
    study, store = write_decide(QUESTION | {"budget": {"runs": 1}}), tmp_path / "store"
    line = ["next", str(store), str(study)]
    assert main([*line, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{store} is not a store")
    first = json.loads(captured.out)
    assert first[0]["gpus"] == 1
    assert {item["gpu_hours"] for item in first} == {None}
    run(study, store)
    study = write_decide(QUESTION)
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
        item
        for item in load_study(study).plan.runs
        if [getattr(setting_of(item), name) for name in names] == first
    )
    with RunLock(RunFolder(store / "runs" / busy.run_id)) as held:  # of a campaign
        assert held.acquire()
        assert main([*line, "--json", "--count", "2"]) == 0
    items = json.loads(capsys.readouterr().out)
    assert first not in [[item[name] for name in names] for item in items]
    assert main(line) == 0
    assert "GPU-hours" in capsys.readouterr().out
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
    (sentence,) = decision_sentences(opened._findings())
    assert "1 GPU on 1 node, batch 32 each: within" in sentence
    assert "(after 3 runs)" in sentence
    shown = expected(opened._findings())
    assert len(shown.rows) == 2  # of three settings, the first was not predicted
    assert {row[-1] for row in shown.rows} <= {"yes", "no"}
    opened.report(tmp_path / "report.html", figures=folder, kinds="svg")
    assert (folder / "decision.svg").exists()
    page = (tmp_path / "report.html").read_text()
    assert 'id="decision"' in page
    assert "3 runs" in page
    before_decision = page.split('id="decision"')[0]
    assert "Its setting is 1 GPU on 1 node, batch 32 each" in before_decision

    plain = analyse(*made_study(counts=(1, 2)))  # no decision
    assert not list(decision_sentences(plain))
    assert few[0].picture(plain) is None
    assert expected(plain) is None
