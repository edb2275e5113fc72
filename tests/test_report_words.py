"""The summary: sentences that the data support, the most important first."""

import re
from dataclasses import replace
from functools import cache

import pandas as pd
import pytest

from made_studies import MIT, Caps, kit, mit
from made_tables import frames, run_row, study
from wattlaw.analysis.claims import check_claims
from wattlaw.analysis.findings import Findings, analyse
from wattlaw.report.narrative.running import shared
from wattlaw.report.narrative.summary import MOST, summary


@cache
def mit_findings() -> Findings:
    models = {name: MIT[name] for name in ("resnet50", "schnet")}
    made = mit(models=models, counts=(2, 4, 8, 16, 32, 64, 128), caps=Caps(), repeats=3)
    return analyse(made.runs, made.epochs, reference=2)


@cache
def kit_findings() -> Findings:
    made = kit(repeats=3)
    return analyse(made.runs, made.epochs)


def told(findings: Findings, topic: str, claims: tuple = ()) -> str:
    return " ".join(one.text for one in summary(findings, claims) if one.topic == topic)


def test_topics_come_in_the_order_of_their_importance():
    findings = mit_findings()
    topics = list(dict.fromkeys(one.topic for one in summary(findings, check_claims(findings))))
    assert topics == [
        "What to run", "Scaling", "Beyond the power law", "Caps and clocks", "Energy",
        "Published findings",
    ]  # fmt: skip


def test_the_recommendation_carries_its_interval_and_a_shared_reason_is_told_once():
    text = told(mit_findings(), "What to run")
    assert "resnet50: 128 GPUs, 200 W, free clock, batch 256 each (32768 in all): " in text
    assert re.search(r"\d s \(\d+\.?\d* to \d+\.?\d*\) and 0\.\d+ kWh", text)
    assert text.count("least energy-delay product") == 1


def test_a_law_is_told_with_interval_range_runs_and_speedup():
    findings = mit_findings()
    text = told(findings, "Scaling")
    found = re.search(
        r"resnet50, local batch 256: doubling the GPUs multiplies the epoch time by 0\.56 "
        r"\(β = (0\.\d+), 95 % interval (0\.\d+) to (0\.\d+); 2 to 128 GPUs, 21 runs\)",
        text,
    )
    assert found
    beta, low, high = map(float, found.groups())
    assert low < beta < high
    assert low < 0.83 < high  # what is true of the made study
    table = findings.speedups.query("gpus == 128 and series == 'resnet50, local batch 256'")
    assert f"The fastest, on 128 GPUs, is {table['speedup'].iloc[0]:.3g} (" in text


def test_a_law_is_never_quoted_beyond_its_range():
    assert "beyond the measured range a law is a guess" in told(mit_findings(), "Scaling")


def test_where_a_curve_leaves_its_power_law_is_said():
    text = told(mit_findings(), "Beyond the power law")
    assert "schnet, local batch 128: the curve flattens beyond 64" in text
    assert "resnet50" not in text


def test_what_caps_cost_and_save_is_told_over_all_workloads():
    text = told(mit_findings(), "Caps and clocks")
    assert "Exponent β under each power cap: the same within 0.05 in 2 of 2 series" in text
    found = re.search(r"100 W against uncapped: time \+(\d+) % to \+(\d+) %, energy −(\d+) %", text)
    assert all(58 <= int(value) <= 62 for value in found.groups()[:2])  # 1.6 in the made study
    assert 18 <= int(found[3]) <= 22  # 1.6 x 0.5
    assert "200 W in 14 of 14 settings" in text


def test_energy_says_what_is_counted_and_its_factor():
    text = told(mit_findings(), "Energy")
    assert text.startswith("Energies count: gpu, counter.")
    law = mit_findings().energy_laws.set_index("workload").loc["resnet50"]
    assert f"resnet50 on V100-32GB: {law['factor_w']:.3g} (" in text


def test_the_batch_beyond_which_quality_falls_is_said():
    text = told(kit_findings(), "Batch size")
    assert "resnet50, A100, dataset fraction 1: top1 falls beyond global batch 512" in text
    assert "No fall of quality is seen in" in text


def test_claims_are_tallied_and_those_contradicted_are_named():
    findings = mit_findings()
    claims = check_claims(findings)
    text = told(findings, "Published findings", claims)
    own = [claim for claim in claims if claim.study == "mit-2022"]
    supported = sum(claim.verdict == "supported" for claim in own)
    assert f"Of {len(own)} findings of Frey et al. 2022, {supported} are supported" in text
    for claim in claims:
        alike = [one for one in claims if (one.study, one.verdict) == (claim.study, claim.verdict)]
        named = {"contradicted": True, "supported": len(alike) <= 4}.get(claim.verdict, False)
        assert (claim.claim.rstrip(".") in text) == named


def test_nothing_is_told_that_was_not_measured():
    text = " ".join(one.text for one in summary(analyse(*study(source="none"))))
    assert "Energy was not measured" in text
    assert "kWh" not in text
    assert "energy −" not in text
    assert "nan" not in text.lower()


def test_a_gain_that_cannot_be_told_from_none_is_said_to_be_that():
    assert "a gain cannot be told from none" in told(analyse(*study(beta=0.0)), "Scaling")


def test_two_counts_of_workers_give_no_law():
    text = told(analyse(*study(counts=(1, 2))), "Scaling")
    assert "No scaling law is fitted: it needs at least three worker counts" in text


def test_no_done_run_means_that_nothing_is_concluded():
    (only,) = summary(analyse(*frames([run_row("a", status="planned")], [])))
    assert "nothing to conclude" in only.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "failed"}, "3 failed of 27 runs: not in any result."),
        ({"notes": ["the clock was locked"]}, "the clock was locked (3 runs)"),
        ({"launcher": "simulated"}, "Some runs are simulated"),
    ],
)
def test_what_is_to_be_doubted_is_said(change, words):
    runs, epochs = study()
    for name, value in change.items():
        runs[name] = [value if i < 3 else one for i, one in enumerate(runs[name])]
    assert words in told(analyse(runs, epochs), "To doubt")


def test_settings_that_were_run_once_and_energies_in_doubt_are_counted():
    runs, epochs = study()
    epochs.loc[epochs["run_id"] == runs["run_id"][0], "energy_verdict"] = "suspect"
    once = runs["repeat"] == 0
    text = told(
        analyse(runs[once], epochs[epochs["run_id"].isin(runs[once]["run_id"])]), "To doubt"
    )
    assert "The energy of 1 run is suspect" in text
    assert "9 of 9 settings were run once" in text
    assert "kept apart" in text


def test_the_stored_reasons_of_doubt_are_told_and_no_others():
    runs, epochs = study()
    of_run = epochs["run_id"] == runs["run_id"][0]
    epochs.loc[of_run, "energy_verdict"] = "suspect"
    epochs.loc[of_run, "energy_reason"] = "measured elsewhere, not checked here"
    text = told(analyse(runs, epochs), "To doubt")
    assert "The energy of 1 run is suspect: measured elsewhere, not checked here." in text
    assert "disagree" not in text


def test_at_most_three_laws_of_energy_are_told_each_with_its_cap_and_a_range_of_the_rest():
    findings = mit_findings()
    law = findings.energy_laws.iloc[:1]
    many = pd.concat([law.assign(power_limit_w=100.0 + i, factor_w=90.0 + i) for i in range(6)])
    text = told(replace(findings, energy_laws=many), "Energy")
    assert text.count("energy goes with") == 3
    assert "V100-32GB, 102 W: 92 (" in text
    assert "3 more (of other workloads, hardware, caps or clocks): between 93 W and 95 W" in text


def test_a_recommendation_names_whose_it_is_and_that_it_was_measured_once():
    runs, epochs = study()
    once = runs["repeat"] == 0
    findings = analyse(runs[once], epochs[epochs["run_id"].isin(runs[once]["run_id"])])
    text = told(findings, "What to run")
    assert "an epoch (measured once)." in text
    assert "This setting has the least" in text


def test_no_topic_has_more_than_it_can_hold():
    made = mit(
        models={f"model{i:02}": MIT["resnet50"] for i in range(MOST + 4)},
        counts=(2, 4, 8), caps=Caps({}, {}, {135.0: 6.0}, {135.0: 0.3}), clocks=False, repeats=2,
    )  # fmt: skip
    sentences = pd.Series([one.topic for one in summary(analyse(made.runs, made.epochs))])
    assert sentences.value_counts().max() == MOST + 1


def test_a_text_shared_by_all_stands_alone_and_one_of_some_names_them():
    assert shared([("a", "x"), ("b", "x"), ("b", "y")], 2) == ["x", "b: y"]
    assert shared([("a", "x")], 1) == ["x"]


def test_without_a_law_of_energy_there_is_no_factor():
    findings = mit_findings()
    none = replace(findings, energy_laws=findings.energy_laws.assign(reason="too few settings"))
    assert "W per GPU;" not in told(none, "Energy")
