"""A proposal: scaling to the nodes asked for, measured and predicted apart, and the campaign."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

import pandas as pd
import pytest

from made_stores import write_store
from made_studies import kit
from made_tables import frames, run_row, study, window_row
from wattlaw.analysis.findings import Findings, analyse
from wattlaw.analysis.planned_campaign import Campaign, Proposal, Scaling, propose
from wattlaw.api import results
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.formatting import work_text
from wattlaw.report.proposal_pages import as_markdown, campaign_table, scaling_table, text
from wattlaw.report.tables import Table

WORKLOAD = "digits-cnn"


@cache
def findings() -> Findings:
    runs, epochs = study(counts=(1, 2, 4, 8))
    return analyse(runs.assign(nodes=(runs["gpus"] + 1) // 2), epochs)


def proposal(nodes: int, **plan: float) -> Proposal:
    return propose(findings(), WORKLOAD, Campaign(nodes, **plan))


def kinds(made: Proposal) -> dict[str, Scaling]:
    return {scaling.kind: scaling for scaling in made.scalings}


def test_counts_that_ran_are_means_of_runs_and_others_are_predictions():
    made = proposal(16)
    by_count = {point.setting.gpus: point for point in made.points}
    assert list(by_count) == [1, 2, 4, 8, 16, 32]
    assert [point.source for point in made.points] == ["measured"] * 4 + ["predicted"] * 2
    assert [point.runs for point in made.points] == [3] * 4 + [0] * 2
    cells = findings().settings
    batch = made.points[0].setting.global_batch
    for count in (1, 2, 4, 8):
        is_of = (cells["gpus"] == count) & (cells["global_batch"] == batch)
        (row,) = cells[is_of].to_dict("records")
        epochs = int(made.training.split()[0])
        assert by_count[count].time_s.mean == pytest.approx(row["time_s"] * epochs)
        energy_j = by_count[count].energy_j
        assert energy_j.mean == pytest.approx(row["energy_j"] * epochs)
        assert energy_j.low < energy_j.mean < energy_j.high
    assert by_count[32].time_s.low < by_count[32].time_s.mean < by_count[32].time_s.high


def test_the_recommended_setting_is_planned_and_on_other_nodes_its_batch_and_limits():
    runs, epochs = study(counts=(1, 2, 4))
    # Most runs have no limit; those with one need half the energy, at the same time.
    capped = runs[runs["global_batch"] == 32]
    ids = {run_id: f"c{run_id[1:]}" for run_id in capped["run_id"]}
    own = epochs[epochs["run_id"].isin(ids)].replace({"run_id": ids})
    own = own.assign(cpu_energy_j=own["cpu_energy_j"] / 2)
    capped = capped.replace({"run_id": ids}).assign(power_limit_w=150.0)
    made = analyse(pd.concat([runs, capped]), pd.concat([epochs, own]))
    [advice] = made.advice
    best = advice.recommended
    assert best.setting.power_limit_w == 150.0
    plan = propose(made, WORKLOAD, Campaign())
    assert best.is_at(plan.planned.setting)
    assert plan.planned.time_s.mean == pytest.approx(best.train_time_s.mean)
    assert best.label not in text(plan, "lead")
    far = propose(made, WORKLOAD, Campaign(2))
    assert far.nodes == 2 and far.planned.setting.gpus == 8
    for setting in (point.setting for scaling in far.scalings for point in scaling.points):
        assert setting.power_limit_w == 150.0
    assert best.label in text(far, "lead")


def test_fewer_workers_than_a_node_has_are_planned_where_they_are_recommended():
    runs, epochs = study(counts=(1, 2), source="none", beta=-0.5)  # two are slower than one
    made = analyse(runs, epochs)
    best = made.advice[0].recommended
    plan = propose(made, WORKLOAD, Campaign(1))
    assert (best.gpus, plan.planned.setting.gpus, plan.nodes) == (1, 1, 1)
    assert [point.setting.gpus for point in plan.points] == [1, 2]  # both ran
    assert plan.planned.efficiency.mean == 1
    assert plan.points[1].efficiency.mean < 1


def test_efficiency_is_relative_to_the_smallest_count_that_ran_at_the_batch():
    runs, epochs = study(counts=(1, 2, 4))
    kept = runs[(runs["gpus"] > 1) | (runs["global_batch"] == 128)]
    slow = kept.loc[kept["gpus"] == 1, "run_id"]  # one worker ran at a batch of its own, badly
    epochs.loc[epochs["run_id"].isin(slow), "duration_s"] *= 3
    plan = propose(analyse(kept, epochs), WORKLOAD, Campaign(1))
    assert plan.planned.setting.global_batch != 128
    for scaling in plan.scalings:
        base = scaling.base
        assert base.runs and base.efficiency.mean == 1
        assert base.setting.gpus == min(point.setting.gpus for point in scaling.points)
        assert scaling.curve[0].efficiency.mean == 1
        assert f"{base.setting.gpus} workers (measured)" in text(plan, "scaling_note")


def test_the_quality_at_the_planned_batch_is_what_runs_show():
    assert proposal(16).quality.startswith("not known")
    made = kit(watts={"A100": 300.0}, growing=False, repeats=3)  # quality falls beyond 512
    of_resnet = analyse(made.runs.assign(nodes=(made.runs["gpus"] + 3) // 4), made.epochs)
    for nodes in (1, 4):
        plan = propose(of_resnet, "resnet50", Campaign(nodes))
        is_large = plan.planned.setting.global_batch > 512
        assert ("falls beyond" in plan.quality) == is_large, plan.quality


def test_strong_and_weak_scaling_stand_side_by_side():
    made = kinds(proposal(16))
    assert {*made} == {"strong", "weak"}
    assert len({point.setting.global_batch for point in made["strong"].points}) == 1
    assert len({point.setting.local_batch for point in made["weak"].points}) == 1
    headings = scaling_table(proposal(16)).headings
    assert {"strong: speedup", "weak: speedup"} < {*headings}


def test_speedup_per_doubling_is_judged_by_the_stated_rule():
    points = kinds(proposal(16))["strong"].points
    times_s = {point.setting.gpus: point.time_s.mean for point in points}
    ratios = {n: times_s[n // 2] / times_s[n] for n in times_s if n // 2 in times_s}
    doublings = {point.setting.gpus: point.doubling for point in points}
    assert doublings.pop(1) is None
    assert {n: value.mean for n, value in doublings.items()} == pytest.approx(ratios)
    rule = sorted(ratios.values())[len(ratios) // 2]
    made = proposal(16, rule=rule)
    last = kinds(made)["strong"].keeps(rule).setting.gpus
    assert all(ratio >= rule for n, ratio in ratios.items() if n <= last)
    assert ratios.get(2 * last, 0) < rule
    assert any("below" in cell for row in scaling_table(made).rows for cell in row)


def test_a_training_is_given_in_epochs_steps_samples_or_tokens():
    samples = float(findings().runs["samples_per_epoch"].iloc[0])
    batch = proposal(2).planned.setting.global_batch
    times_s = [
        proposal(2, **budget).planned.time_s.mean
        for budget in (
            {"epochs": 8}, {"total_samples": 8 * samples}, {"steps": 8 * samples / batch},
            {"tokens": 8 * samples * 512, "sequence_length": 512},
        )
    ]  # fmt: skip
    assert times_s == pytest.approx([times_s[0]] * 4)
    for budget in ({"epochs": 2, "steps": 5}, {"tokens": 5e9}, {"total_samples": 0}):
        with pytest.raises(BadInput):
            proposal(2, **budget)


def test_a_campaign_has_the_hours_and_energy_of_all_its_trainings():
    made = proposal(4, runs=10, epochs=50)
    table = dict(campaign_table(made).plain_rows)
    one = proposal(4, epochs=50).planned
    assert one.runs == 3
    hours = one.gpu_hours.times(10)
    assert hours.mean == pytest.approx(10 * one.time_s.mean * 8 / 3600)
    assert table["worker time of all"] == work_text(hours, "worker")
    assert table["trainings"] == "10, of 50 epochs each"
    epochs = int(proposal(4).training.split()[0])
    assert one.time_s.mean == pytest.approx(50 / epochs * proposal(4).planned.time_s.mean)


def test_what_cannot_be_proposed_is_refused_with_the_reason():
    with pytest.raises(BadInput, match="nodes: given 0"):
        proposal(0)
    with pytest.raises(Refused):
        propose(findings(), "none", Campaign(1))
    without = replace(findings(), runs=findings().runs.assign(launcher="imported", nodes=1))
    without.runs["notes"] = [["not in the table and assumed: nodes 1"]] * len(without.runs)
    with pytest.raises(BadInput, match="do not name their nodes"):
        propose(without, WORKLOAD, Campaign(2))


def test_a_table_in_markdown_has_no_text_that_is_interpreted():
    table = Table("t", "a_b <c>", ("N", "x|y"), ("n", ""), (("1\u00a0s", "*#`"),), "note")
    title, rows, note = as_markdown(table).split("\n\n")
    assert title == r"**a\_b \<c\>**"
    assert rows.splitlines() == [r"| N | x\|y |", "| --: | :-- |", r"| 1 s | \*\#\` |"]
    assert note == "note"


def test_the_command_writes_a_page_or_markdown_of_what_is_recommended(tmp_path):
    runs, epochs = study(counts=(1, 2))
    write_store(tmp_path / "store", runs, epochs)
    command = ["proposal", str(tmp_path / "store")]
    assert main([*command, "--nodes", "2", "-o", str(tmp_path / "a.html")]) == 0
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.count("<table") == 2
    assert page.count("<figure") == 1
    assert "<script" not in page
    assert main([*command, "--nodes", "2", "--rule", "1.5", "-o", str(tmp_path / "a.md")]) == 0
    written = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| :?-", written, re.M)) == 2
    (picture,) = re.findall(r"\]\((\S+)\)", written)
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert main([*command, "-o", str(tmp_path / "b.md")]) == 0  # all runs were on one node
    assert " on 1 node" in (tmp_path / "b.md").read_text(encoding="utf-8")
    store = write_store(tmp_path / "several", runs.assign(nodes=runs["gpus"]), epochs)
    nodes = results.open(store.path).advise().recommended.setting.nodes
    assert main(["proposal", str(store.path), "-o", str(tmp_path / "b.md")]) == 0
    assert f" on {nodes} nodes" in (tmp_path / "b.md").read_text(encoding="utf-8")


def test_without_a_recommendation_the_nodes_must_be_named():
    several = replace(findings(), asked_workloads=())
    assert not several.advice
    with pytest.raises(BadInput, match="--nodes"):
        propose(several, WORKLOAD, Campaign())


def test_what_is_planned_is_recommended_for_trainings_of_the_campaigns_length(tmp_path):
    """Two workers train faster, and start so late that only long trainings gain."""
    runs, windows, began = [], [], datetime(2026, 1, 1, tzinfo=UTC)
    for gpus, startup_s, epoch_s in ((1, 5, 10), (2, 100, 6)):
        for repeat in range(3):
            run_id, ended_s = f"{gpus:08}{repeat:08}", startup_s + 3 * epoch_s
            runs.append(run_row(run_id, gpus=gpus, local_batch=64 // gpus, repeat=repeat,
                                started_at=began,
                                finished_at=began + timedelta(seconds=ended_s)))  # fmt: skip
            for epoch in range(3):
                start_ns = int((began.timestamp() + startup_s + epoch * epoch_s) * 1e9)
                time_s = epoch_s * (1 - repeat / 1000)
                windows.append(window_row(run_id, epoch, start_ns=start_ns, duration_s=time_s,
                                          warmup=epoch == 0))  # fmt: skip
    opened = results.open(write_store(tmp_path / "store", *frames(runs, windows)).path)
    for length, best in (({"epochs": 3}, 1), ({"total_samples": 5e4}, 2)):
        assert opened.advise(**length).recommended.gpus == best
        page = opened.proposal(tmp_path / "a.md", **length).page.read_text(encoding="utf-8")
        assert f"on 1 node ({best} worker" in page
