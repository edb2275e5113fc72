"""The sentences of the sections: those that the data support, the most important first."""

import re
from dataclasses import replace
from functools import cache

import pandas as pd
import pytest

from made_studies import MIT, Caps, kit, mit
from made_tables import frames, run_row, study
from wattlaw.analysis.decide.decision import Decision
from wattlaw.analysis.findings import Findings, analyse
from wattlaw.analysis.laws.batch_effects import NO_FALL
from wattlaw.analysis.metrics.result import Caution
from wattlaw.report.layouts import (
    MAX_CAVEATS,
    MAX_SENTENCES,
    layout,
    sections,
)
from wattlaw.report.sections import BulletList, Content, Layout
from wattlaw.report.tables import Table
from wattlaw.report.topics.advice import merge_warnings, summary
from wattlaw.report.topics.decision import sentences as decision_sentences
from wattlaw.report.topics.scaling import main_fits, scaling_sentences
from wattlaw.report.topics.utilisation import sentences as utilisation_sentences
from wattlaw.report.topics.verdict import MAX_ROWS, caveats
from wattlaw_papers.claims import check_claims
from wattlaw_papers.claims.verdicts import NOT_DECIDABLE


@cache
def mit_findings() -> Findings:
    models = {name: MIT[name] for name in ("resnet50", "schnet")}
    made = mit(models=models, counts=(2, 4, 8, 16, 32, 64, 128), caps=Caps(), repeats=3)
    return analyse(made.runs, made.epochs, reference=2)


@cache
def kit_findings() -> Findings:
    made = kit(repeats=3)
    return analyse(made.runs, made.epochs)


def text_of(findings: Findings, name: str) -> str:
    """Return the sentences of a section, and the items of its lists."""
    texts: list[str] = []
    for section in sections(Content(findings, (), Layout((name,)))):
        texts += section.sentences
        for block in section.blocks:
            texts += block.items if isinstance(block, BulletList) else ()
    return " ".join(texts)


def test_sections_come_in_the_order_of_their_importance():
    findings = mit_findings()
    shown = sections(Content(findings, (), layout(None)))
    expected = [name for name in layout(None).sections if name != "decision"]
    assert [section.name for section in shown] == expected
    assert shown[0].state == "screen"
    assert {section.state for section in shown[1:]} == {"folded"}


@pytest.mark.parametrize(("launcher", "label"), [("simulated", ""), ("local", " (simulated)")])
def test_the_title_of_decisions_does_not_repeat_the_source_that_the_page_adds(launcher, label):
    runs, epochs = study()
    decision = Decision("s", "digits-cnn", "simulated", {"minimize": "energy"}, None, None, None,
                        None, 0.02, 0.9, 0.0, None, 0, None)  # fmt: skip
    findings = analyse(runs.assign(launcher=launcher), epochs, decisions=[decision])
    (sentence,) = decision_sentences(findings)
    assert sentence.startswith(f"s{label}: least energy")


@pytest.mark.parametrize(
    ("shares", "text"), [((0.9991, 1.0), "100 %"), ((0.5, 0.75), "50 % to 75 %")]
)
def test_the_range_of_the_utilisation_is_one_number_if_its_ends_are_shown_alike(shares, text):
    settings = pd.DataFrame({"sm_util_mean": shares, "mem_util_mean": None})
    sentences = [*utilisation_sentences(replace(mit_findings(), settings=settings))]
    assert sentences == [f"SM utilisation is {text} (means of settings)."]


def test_claims_are_shown_if_one_is_decided_or_if_they_are_asked_for():
    findings = analyse(*study(counts=(1, 2)))
    claims = check_claims(findings.stored, findings.epochs)
    assert {claim.verdict for claim in claims} == {NOT_DECIDABLE}
    assert not sections(Content(findings, (), Layout(("claims",))))
    wanted = frozenset({"claims"})
    (shown,) = sections(Content(findings, (), Layout(("claims",)), wanted))
    assert len(shown.blocks[0].rows) == sum(one.study == "mit-2022" for one in claims)


def test_a_single_workload_has_its_recommendation_and_several_a_row_each():
    single = analyse(*study())
    (screen,) = sections(Content(single, (), Layout(("advice",))))
    said = summary(single.advice[0])
    assert screen.sentences[: len(said)] == said
    (table,) = [block for block in screen.blocks if isinstance(block, Table)]
    assert table.rows[0][1].startswith("recommended")
    assert len(table.rows) <= MAX_ROWS
    (screen,) = sections(Content(mit_findings(), (), Layout(("advice",))))
    assert isinstance(screen.blocks[0], Table)
    assert [row[0] for row in screen.blocks[0].rows] == ["resnet50", "schnet"]


def test_caveats_of_the_screen_and_of_the_data_are_different():
    many = replace(analyse(*study()), cautions=tuple(Caution("a", f"note {i}.") for i in range(9)))
    screen, data = (text_of(many, name) for name in ("advice", "data"))
    assert len(caveats(many)) > MAX_CAVEATS
    assert all(text in screen for text in caveats(many)[:MAX_CAVEATS])
    assert all(text in data for text in caveats(many)[MAX_CAVEATS : MAX_CAVEATS + 2])
    assert not any(text in screen for text in caveats(many)[MAX_CAVEATS:])


def test_a_recommendation_has_its_interval():
    text = " ".join(summary(mit_findings().advice[0]))
    assert "Run resnet50 on 2 GPUs, 200 W, free clock, batch 512 (256 each)" in text
    assert re.search(r"\d (min|h) \(\d+\.?\d* to \d+\.?\d*\), \d+\.?\d* kWh", text)


def test_a_law_has_its_interval_range_runs_and_speedup():
    findings = mit_findings()
    text = text_of(findings, "scaling")
    found = re.search(
        r"resnet50, local batch 256: doubling the GPUs multiplies the time per epoch by 0\.56 "
        r"\(β = (0\.\d+), 95 % interval (0\.\d+) to (0\.\d+); 2 to 128 GPUs, 21 runs\)",
        text,
    )
    assert found
    beta, low, high = map(float, found.groups())
    assert low < beta < high
    assert low < 0.83 < high  # what is true of the made study
    table = findings.speedups.query("gpus == 128 and series == 'resnet50, local batch 256'")
    assert f"The fastest, on 128 GPUs, is {table['speedup'].iloc[0]:.3g} (" in text


def test_a_breakpoint_is_in_the_summary():
    text = text_of(mit_findings(), "scaling")
    assert "schnet, local batch 128: the curve flattens beyond 64" in text
    headline = next(line for line in scaling_sentences(mit_findings()) if "schnet" in line)
    bend = next(fit.breakpoint for fit in main_fits(mit_findings()) if fit.breakpoint)
    for beta in (bend.beta_before, bend.beta_after):
        assert f"{2**-beta:.2f}" in headline
    assert f"up to {bend.at:g} GPUs" in headline
    assert "resnet50, local batch 256: the curve" not in text


def test_the_effect_of_caps_is_summarised_over_all_workloads():
    text = text_of(mit_findings(), "caps")
    assert "Exponent β under each power cap: the same within 0.05 in 2 of 2 series" in text
    found = re.search(
        r"100 W relative to uncapped: time \+(\d+) % to \+(\d+) %, energy −(\d+) %", text
    )
    assert all(58 <= int(value) <= 62 for value in found.groups()[:2])  # 1.6 in the made study
    assert 18 <= int(found[3]) <= 22  # 1.6 x 0.5


def test_energy_has_its_scope_and_its_factor():
    text = text_of(mit_findings(), "energy")
    assert text.startswith("Energies include: gpu, counter.")
    law = mit_findings().energy_laws.set_index("workload").loc["resnet50"]
    assert f"resnet50 on V100-32GB: {law['factor_w']:.3g} (" in text


def test_the_batch_beyond_which_quality_falls_is_in_the_summary():
    text = text_of(kit_findings(), "batch")
    assert "resnet50, A100, dataset fraction 1: top1 falls beyond global batch 512" in text
    rows = [row for row in kit_findings().quality if row.verdict == NO_FALL]
    assert rows
    assert all(row.sentence in text for row in rows[:2])


def test_claims_are_counted_and_contradicted_ones_are_named():
    findings = mit_findings()
    claims = check_claims(findings.stored, findings.epochs)
    text = text_of(findings, "claims")
    own = [claim for claim in claims if claim.study == "mit-2022"]
    supported = sum(claim.verdict == "supported" for claim in own)
    assert f"Of {len(own)} claims of Frey et al. 2022: {supported} supported" in text
    for claim in claims:
        alike = [one for one in claims if (one.study, one.verdict) == (claim.study, claim.verdict)]
        named = {"contradicted": True, "supported": len(alike) <= 4}.get(claim.verdict, False)
        assert (claim.claim.rstrip(".") in text) == named


def test_the_summary_has_no_value_that_was_not_measured():
    findings = analyse(*study(source="none"))
    text = " ".join(text_of(findings, name) for name in ("advice", "scaling", "energy", "caps"))
    assert "Energy is not known" in text
    assert "kWh" not in text
    assert "energy −" not in text
    assert "nan" not in text.lower()


def test_an_exponent_that_may_be_zero_shows_no_speedup():
    assert "no speedup is shown" in text_of(analyse(*study(beta=0.0)), "scaling")


def test_two_counts_of_workers_give_no_law():
    text = text_of(analyse(*study(counts=(1, 2))), "scaling")
    assert "a law needs three worker counts" in text


def test_without_a_done_run_there_is_no_result():
    findings = analyse(*frames([run_row("a", status="planned")], []))
    names = [section.name for section in sections(Content(findings, (), layout(None)))]
    assert names[0] == "advice"
    assert not {"scaling", "energy", "caps", "batch"} & set(names)
    assert "no result yet" in text_of(findings, "advice")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "failed"}, "3 failed of 27 runs: not in any result."),
        ({"notes": ["the clock was locked"]}, "the clock was locked (3 runs)"),
        ({"launcher": "simulated"}, "Some runs are simulated"),
    ],
)
def test_caveats_are_in_the_summary(change, words):
    runs, epochs = study()
    for name, value in change.items():
        runs[name] = [value if i < 3 else one for i, one in enumerate(runs[name])]
    assert words in text_of(analyse(runs, epochs), "advice")


def test_settings_that_were_run_once_and_suspect_energies_are_counted():
    runs, epochs = study()
    epochs.loc[epochs["run_id"] == runs["run_id"][0], "energy_verdict"] = "suspect"
    once = runs["repeat"] == 0
    findings = analyse(runs[once], epochs[epochs["run_id"].isin(runs[once]["run_id"])])
    text = " ".join(caveats(findings))
    assert "The energy of 1 run is suspect" in text
    assert "9 of 9 settings were run once" in text
    assert "count different things" in text


def test_the_summary_has_the_stored_reasons_for_suspect_energies_only():
    runs, epochs = study()
    of_run = epochs["run_id"] == runs["run_id"][0]
    epochs.loc[of_run, "energy_verdict"] = "suspect"
    epochs.loc[of_run, "energy_reason"] = "measured elsewhere, not checked here"
    text = text_of(analyse(runs, epochs), "advice")
    assert "The energy of 1 run is suspect: measured elsewhere, not checked here." in text
    assert "disagree" not in text


def test_energy_laws_are_quoted_with_their_cap():
    findings = mit_findings()
    law = findings.energy_laws.iloc[:1]
    many = pd.concat([law.assign(power_limit_w=100.0 + i, factor_w=90.0 + i) for i in range(6)])
    text = text_of(replace(findings, energy_laws=many), "energy")
    assert text.count("energy grows with") == 6
    assert "V100-32GB, 102 W: 92 (" in text


def test_the_drift_of_the_factor_is_summarised_by_verdict():
    findings = mit_findings()
    drift = findings.factor_drift.iloc[:3].assign(verdict=["falls", "cannot tell", "falls"])
    text = text_of(replace(findings, factor_drift=drift), "energy")
    assert "falls in 2, cannot tell in 1 of 3 series" in text


def test_a_section_has_a_limited_number_of_sentences():
    notes = tuple(f"note {i}" for i in range(MAX_CAVEATS + MAX_SENTENCES + 4))
    findings = replace(analyse(*study()), cautions=tuple(Caution("a", note) for note in notes))
    (data,) = sections(Content(findings, (), Layout(("data",))))
    assert len(data.sentences) == MAX_SENTENCES + 1


def test_a_text_of_all_has_no_names_and_a_text_of_some_names_them():
    first, second = mit_findings().advice

    def merged(*of_second: Caution) -> list[str]:
        of_first = (Caution("one", "x"), Caution("two", "y"), Caution("two", "z"))
        return merge_warnings(
            [replace(first, warnings=of_first), replace(second, warnings=of_second)]
        )

    assert merged(Caution("one", "x"))[0] == "x"
    assert merged(Caution("one", "x"))[1:] == ["resnet50: y", "resnet50: z"]
    other = merged(Caution("one", "w"))[0]
    assert other.startswith("resnet50: x")
    assert "1 other workload" in other


def test_a_warning_that_another_includes_is_not_a_caveat():
    advice = mit_findings().advice[0]
    both = Caution("energy-simulated", "energies"), Caution("simulated", "all")
    assert merge_warnings([replace(advice, warnings=both)]) == ["all"]
    assert merge_warnings([replace(advice, warnings=both[:1])]) == ["energies"]


def test_without_a_law_of_energy_there_is_no_factor():
    findings = mit_findings()
    none = replace(findings, energy_laws=findings.energy_laws.assign(reason="too few settings"))
    assert "W per GPU;" not in text_of(none, "energy")
