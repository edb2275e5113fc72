"""A proposal: scaling to the nodes asked for, measured and predicted apart, and the campaign."""

import re
from dataclasses import replace
from functools import cache

import pytest

from made_stores import write_store
from made_studies import kit
from made_tables import study
from wattlaw.analysis.findings import Findings, analyse
from wattlaw.analysis.proposal import Campaign, Proposal, propose
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput, Refused
from wattlaw.report.proposal_pages import as_latex, campaign_table, scaling_table
from wattlaw.report.tables import Table

WORKLOAD = "digits-cnn"


@cache
def findings() -> Findings:
    runs, epochs = study(counts=(1, 2, 4, 8))
    return analyse(runs.assign(nodes=(runs["gpus"] + 1) // 2), epochs)


def proposal(nodes: int, **plan: int) -> Proposal:
    return propose(findings(), WORKLOAD, Campaign(nodes, **plan))


def test_counts_that_ran_are_means_of_runs_and_others_are_predictions():
    made = proposal(16)
    by_count = {point.setting.gpus: point for point in made.points}
    assert list(by_count) == [1, 2, 4, 8, 16, 32]
    assert [point.source for point in made.points] == ["measured"] * 4 + ["predicted"] * 2
    assert [point.runs for point in made.points] == [3] * 4 + [0] * 2
    cells = findings().settings
    batch = made.points[0].setting.global_batch
    for count in (1, 2, 4, 8):
        (row,) = cells[(cells["gpus"] == count) & (cells["global_batch"] == batch)].to_dict(
            "records"
        )
        assert by_count[count].time_s.mean == pytest.approx(row["time_s"] * made.amount.mean)
        energy_j = by_count[count].energy_j
        assert energy_j.mean == pytest.approx(row["energy_j"] * made.amount.mean)
        assert energy_j.low < energy_j.mean < energy_j.high
    assert by_count[32].time_s.low < by_count[32].time_s.mean < by_count[32].time_s.high


def test_the_quality_at_the_planned_batch_is_what_runs_show():
    assert proposal(16).quality.startswith("not known")
    made = kit(watts={"A100": 300.0}, growing=False)  # quality falls beyond 512
    of_resnet = analyse(made.runs.assign(nodes=(made.runs["gpus"] + 3) // 4), made.epochs)
    qualities = {}
    for nodes in (1, 4):
        plan = propose(of_resnet, "resnet50", Campaign(nodes))
        qualities[plan.planned.setting.global_batch] = plan.quality
    assert len(qualities) > 0
    for batch, quality in qualities.items():
        assert ("falls beyond" in quality) == (batch > 512), (batch, quality)


def test_efficiency_is_relative_to_the_smallest_count_that_ran():
    made = proposal(16)
    first, last = made.points[0], made.points[-1]
    assert first.efficiency.mean == 1
    assert first.efficiency.interval is None
    expected = first.time_s.mean / (32 * last.time_s.mean)
    assert last.efficiency.mean == pytest.approx(expected)
    assert last.efficiency.low < expected < last.efficiency.high


def test_a_campaign_has_the_hours_and_energy_of_all_its_trainings():
    table = dict(campaign_table(proposal(4, runs=10, epochs=50)).plain_rows)
    one = proposal(4, epochs=50).planned
    assert one.runs == 3
    assert float(table["worker-hours of all"].split()[0]) == pytest.approx(
        10 * one.time_s.mean * 8 / 3600, rel=0.01
    )
    assert table["trainings"] == "10, of 50 epochs each"
    assert proposal(4, epochs=50).planned.time_s.mean == pytest.approx(
        50 / proposal(4).amount.mean * proposal(4).planned.time_s.mean
    )


def test_simulated_runs_are_never_called_measured():
    runs, epochs = study(counts=(1, 2, 4))
    simulated = analyse(runs.assign(launcher="simulated"), epochs)
    made = propose(simulated, WORKLOAD, Campaign(1))
    assert {point.source for point in made.points} == {"simulated"}
    assert "measured" not in " ".join(map(str, scaling_table(made).rows))


def test_what_cannot_be_proposed_is_refused_with_the_reason():
    with pytest.raises(BadInput, match="nodes: given 0"):
        proposal(0)
    with pytest.raises(Refused):
        propose(findings(), "none", Campaign(1))
    without = replace(findings(), runs=findings().runs.assign(launcher="imported", nodes=1))
    without.runs["notes"] = [["not in the table and assumed: nodes 1"]] * len(without.runs)
    with pytest.raises(BadInput, match="do not name their nodes"):
        propose(without, WORKLOAD, Campaign(2))


def test_a_table_as_latex_has_no_character_that_latex_interprets():
    table = Table("t", "50 % of a_b & {c}", ("N", "x^y"), ("n", ""), (("1\u00a0s", "\\$#~"),))
    text = as_latex(table)
    assert r"\caption{50 \% of a\_b \& \{c\}}" in text
    assert r"1~s & \textbackslash{}\$\#\textasciitilde{} \\" in text
    assert r"\begin{tabular}{rl}" in text
    assert not re.search(r"(?<!\\)[%#]", text)


def test_the_command_writes_a_page_or_markdown_and_names_what_is_missing(tmp_path, capsys):
    runs, epochs = study(counts=(1, 2, 4))
    write_store(tmp_path / "store", runs, epochs)
    command = ["report", str(tmp_path / "store"), "--template", "proposal"]
    assert main([*command, "--nodes", "2", "-o", str(tmp_path / "a.html")]) == 0
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.count("<table") == 2
    assert page.count("<figure") == 1
    assert "<script" not in page
    assert main([*command, "--nodes", "2", "-o", str(tmp_path / "a.md")]) == 0
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert text.count(r"\begin{tabular}") == 2
    (picture,) = re.findall(r"\]\((\S+)\)", text)
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert main(command) == 2
    assert "--nodes" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "store"), "--runs", "2"]) == 2
    assert "--template proposal" in capsys.readouterr().err
