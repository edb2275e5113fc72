"""Every claim is supported where it is true, contradicted where not, and else undecided."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from claims_lab import Lab, capped, findings_of, law
from made_tables import frames, study
from wattlaw.analysis.findings import analyse
from wattlaw.common import registry
from wattlaw.report.core_sections import sections
from wattlaw.report.sections import Content, Layout
from wattlaw.study.footprint import Footprint
from wattlaw_papers.claims import CLAIMS, check_claims
from wattlaw_papers.claims.cases import matches_name
from wattlaw_papers.claims.scaling_claims import CNN_BETAS
from wattlaw_papers.claims.verdicts import CONTRADICTED, NOT_DECIDABLE, SIMULATED, SUPPORTED, Claim
from wattlaw_papers.published import SOURCES, published

GROWN = {"grows": True, "counts": (1, 2, 4, 8)}
WIDE = (2, 8, 32, 128, 424)
GRID = Footprint(pue=1.0, grid_g_per_kwh=1000.0)
FREE = {"counts": (1, 2, 4, 8, 16), "local_batch": None}
RMSE = {"metric_name": "rmse"}
TUNED = RMSE | {"options": '{"stage": "finetune"}'}


def qualities(workload: str, by_batch: dict[int, float], **more: object) -> Lab:
    lab = Lab()
    for batch, metric in by_batch.items():
        lab.run(workload, (1,), global_batch=batch, metric=metric, repeats=4, **more)
    return lab


def two(first: str, beta: float, second: str, other: float, **more: object) -> Lab:
    return Lab().run(first, time_s=law(beta), **more).run(second, time_s=law(other), **more)


def rated(samples: float, steps: float) -> Lab:
    """Return runs whose watts follow the two rates, at times that no law binds to the batch."""
    lab, counts = Lab(), (1, 2, 4, 8)
    for i, batch in enumerate((64, 256, 1024)):
        for n in counts:
            time_s = 900.0 * n**-0.7 * (1.0 + 0.3 * ((i + n) % 3))
            hours = n * time_s / 3600
            watts = 200 * (1e6 / hours / 1e6) ** samples * (1e6 / batch / hours / 1e4) ** steps
            lab.run(
                counts=(n,), time_s=lambda _, t=time_s: t, watts=watts, global_batch=batch,
                hardware="A100", noise=0.002,
            )  # fmt: skip
    return lab


def used(workload: str, falls: float) -> Lab:
    return Lab().run(workload, util=lambda n: 0.8 * n**falls)


def overtaking(at: int) -> Lab:
    """Return ResNet50 and VGG16, which take the same time on ``at`` GPUs."""
    lab = Lab().run("resnet50", time_s=law(0.52))
    return lab.run("vgg16", time_s=law(0.64, 1000.0 * at**0.12))


def falling(**first: float) -> Lab:
    """Return models whose quality falls from a batch on."""
    lab = Lab()
    for workload, worse in first.items():
        for batch in (16, 32, 64, 8192, 16384):
            metric = 0.76 if batch < worse else 0.6
            lab.run(workload, (1,), global_batch=batch, metric=metric, repeats=4)
    return lab


def knee(n: int) -> float:
    return 600.0 * min(n, 4) ** -0.97 * max(n / 4, 1.0) ** -0.3


def flat_beyond_64(n: int) -> float:
    return 600.0 * min(n, 64) ** -0.6


TRUE, FALSE, OPEN = SUPPORTED, CONTRADICTED, NOT_DECIDABLE
Made = Callable[[], Lab]
CASES: dict[str, dict[str, Made]] = {
    "power-law-describes": {
        TRUE: lambda: Lab().run(time_s=law(0.8)),
        FALSE: lambda: Lab().run(time_s=flat_beyond_64),
        OPEN: lambda: Lab().run(counts=(2, 4, 8, 16, 32), time_s=law(0.5), noise=0.3),
    },
    "beta-differs-between-models": {
        TRUE: lambda: two("resnet50", 0.5, "bert-base", 0.9),
        FALSE: lambda: two("resnet50", 0.8, "bert-base", 0.8),
        OPEN: lambda: two("resnet50", 0.8, "bert-base", 0.83, noise=0.15),
    },
    "schnet-leaves-the-law-beyond-64": {
        TRUE: lambda: Lab().run("schnet", time_s=flat_beyond_64),
        FALSE: lambda: Lab().run("SchNet", time_s=law(0.6)),
        OPEN: lambda: Lab().run("schnet", counts=(2, 4, 8, 16, 32, 64)),
    },
    "cnn-speedup-5-to-6": {
        TRUE: lambda: Lab().run("resnet50", time_s=law(0.52)).run("vgg16", time_s=law(0.64)),
        FALSE: lambda: Lab().run("resnet50", time_s=law(0.41)),  # 5.5 times, as the text says
    },
    "bert-scales-best": {
        TRUE: lambda: two("bert-base", 0.87, "dimenet", 0.82).run("vgg16", time_s=law(0.64)),
        FALSE: lambda: two("bert-base", 0.82, "dimenet", 0.87).run("vgg16", time_s=law(0.64)),
    },
    "dimenet-scales-better-than-schnet": {
        TRUE: lambda: two("dimenet", 0.82, "schnet", 0.42),
        FALSE: lambda: two("dimenet", 0.5, "schnet", 0.5),
    },
    "cnn-exponents-within-0.2": {
        TRUE: lambda: two("vgg16", 0.64, "resnet50", 0.52).run("inceptionv3", time_s=law(0.44)),
        FALSE: lambda: two("vgg16", 0.84, "resnet50", 0.52),
    },
    "vgg16-overtakes-resnet50-beyond-100": {
        TRUE: lambda: overtaking(100),
        FALSE: lambda: overtaking(1000),
    },
    "gnn-sm-utilisation-falls": {
        TRUE: lambda: used("dimenet", -0.1).run("schnet", util=lambda n: 0.5 * n**-0.2),
        FALSE: lambda: used("dimenet", -0.1).run("schnet", util=0.5),
    },
    "bert-sm-utilisation-stays": {
        TRUE: lambda: used("bert-base", 0.0),
        FALSE: lambda: used("bert-base", -0.1),
    },
    "schnet-insensitive-to-caps": {
        TRUE: lambda: capped({100: 1.01, 200: 1.0}, workload="schnet"),
        FALSE: lambda: capped({100: 1.2, 200: 1.0}, workload="schnet"),
    },
    "bert-fastest-at-200w": {
        TRUE: lambda: capped({100: 1.6, 200: 0.98}, workload="bert-base"),
        FALSE: lambda: capped({100: 1.6, 200: 1.02}, workload="bert-base"),
    },
    "fourcastnet-not-past-4x": {
        TRUE: lambda: Lab().run("fourcastnet", time_s=knee, global_batch=64, **FREE),
        FALSE: lambda: Lab().run("fourcastnet", time_s=law(0.98), global_batch=64, **FREE),
    },
    "caps-move-alpha-not-beta": {
        TRUE: lambda: capped({100: 1.6, 200: 1.0}),
        FALSE: lambda: capped({100: 1.6, 200: 1.0}, turns={100: 0.15}),
        OPEN: lambda: capped({100: 1.6}, noise=0.15, counts=(2, 4, 8)),
    },
    "clocks-move-alpha-not-beta": {
        TRUE: lambda: capped({135: 6.0, 735: 1.7}, limit="clock_limit_mhz"),
        FALSE: lambda: capped({135: 6.0}, turns={135: 0.15}, limit="clock_limit_mhz"),
    },
    "200w-costs-no-speed": {TRUE: lambda: capped({200: 1.0}), FALSE: lambda: capped({200: 1.2})},
    "200w-saves-energy": {
        TRUE: lambda: capped({200: 1.0}, {200: 160.0}),
        FALSE: lambda: capped({200: 1.0}, {200: 198.0}),
    },
    "100w-slows-clearly": {TRUE: lambda: capped({100: 1.6}), FALSE: lambda: capped({100: 1.02})},
    "slow-down-shrinks-at-128": {
        TRUE: lambda: capped({100: 1.6}, turns={100: 0.1}),
        FALSE: lambda: capped({100: 1.6}),
    },
    "memory-utilisation-falls": {
        TRUE: lambda: Lab().run(util=lambda n: 0.8 * n**-0.1),
        FALSE: lambda: Lab().run(util=0.8),
    },
    "sm-variation-rises": {
        TRUE: lambda: Lab().run(util=0.8, cv=lambda n: 0.1 * n**0.2),
        FALSE: lambda: Lab().run(util=0.8, cv=0.1),
    },
    "memory-variation-rises": {
        TRUE: lambda: Lab().run(util=0.8, cv=lambda n: 0.1 * n**0.2),
        FALSE: lambda: Lab().run(util=0.8, cv=lambda n: 0.1 * n**-0.1),
    },
    "128-v100-22-kg-co2-per-hour": {
        TRUE: lambda: Lab().run(watts=172.0),
        FALSE: lambda: Lab().run(watts=60.0),
    },
    "energy-near-linear-in-gpu-hours": {
        TRUE: lambda: Lab().run(watts=200.0, time_s=law(0.5)),
        FALSE: lambda: Lab().run(watts=lambda n: 200.0 * n**-0.2, time_s=law(0.5)),
        OPEN: lambda: Lab().run(watts=200.0, time_s=law(1.0)),
    },
    "factor-depends-on-hardware": {
        TRUE: lambda: Lab().run(watts=200.0).run(watts=300.0, hardware="H100"),
        FALSE: lambda: Lab().run(watts=200.0).run(watts=201.0, hardware="H100"),
        OPEN: lambda: Lab().run(watts=200.0).run(watts=300.0, hardware="H100", local_batch=32),
    },
    "factor-depends-on-model": {
        TRUE: lambda: Lab().run(watts=200.0).run("bert-base", watts=150.0),
        FALSE: lambda: Lab().run(watts=200.0).run("bert-base", watts=201.0),
    },
    "factor-moves-with-samples": {TRUE: lambda: rated(0.3, 0.0), FALSE: lambda: rated(0.0, 0.1)},
    "factor-moves-with-steps": {TRUE: lambda: rated(0.0, 0.2), FALSE: lambda: rated(0.3, 0.0)},
    "resnet50-quality-falls-beyond-8192": {
        TRUE: lambda: qualities("resnet50", {4096: 0.76, 8192: 0.76, 16384: 0.72, 32768: 0.65}),
        FALSE: lambda: qualities("resnet50", {4096: 0.76, 8192: 0.76, 16384: 0.76}),
        OPEN: lambda: qualities("resnet50", {1024: 0.76, 4096: 0.76, 8192: 0.76}),
    },
    "fourcastnet-pretrain-quality-falls-beyond-32": {
        TRUE: lambda: qualities("fourcastnet", {16: 0.5, 32: 0.5, 64: 0.6, 128: 0.8}, **RMSE),
        FALSE: lambda: qualities("fourcastnet", {8: 0.5, 16: 0.5, 32: 0.6, 64: 0.8}, **RMSE),
    },
    "fourcastnet-large-batch-effects-earlier": {
        TRUE: lambda: falling(fourcastnet=64, resnet50=16384),
        FALSE: lambda: falling(fourcastnet=math.inf, resnet50=64),
        OPEN: lambda: falling(fourcastnet=64, resnet50=64),
    },
    "fourcastnet-finetune-quality-falls-beyond-64": {
        TRUE: lambda: qualities("fourcastnet", {32: 0.5, 64: 0.5, 128: 0.8}, **TUNED),
        FALSE: lambda: qualities("fourcastnet", {32: 0.5, 64: 0.5, 128: 0.5}, **TUNED),
        OPEN: lambda: qualities("fourcastnet", {32: 0.5, 64: 0.5, 128: 0.8}, **RMSE),
    },
}
#: Claims on one law: workload, beta where the claim is true and where not, and more of the runs.
LAWS: dict[str, tuple[str, float, float, dict[str, object]]] = {
    "growing-data-constant-time": ("resnet50", 0.0, -0.3, GROWN),
    "growing-data-time-grows-slightly": ("resnet50", -0.08, 0.2, GROWN | {"global_batch": 64}),
    "dimenet-speedup-60": ("dimenet", 0.82, 0.5, {"counts": WIDE}),
    "bert-speedup-76": ("bert-base", 0.87, 0.5, {"counts": WIDE}),
    "bert-speedup-30-at-128": ("bert-base", 0.87, 0.7, {"counts": WIDE}),
    "resnet50-speedup-20-at-128": ("resnet50", 0.84, 0.52, {}),
    "dimenet-energy-rises-threefold": ("dimenet", 0.75, 0.9, {"counts": WIDE, "watts": 200.0}),
    "resnet50-near-linear": ("resnet50", 0.97, 0.6, FREE | {"global_batch": 256}),
    "energy-rises-with-gpus": ("resnet50", 0.8, 1.0, {"watts": 200.0}),
}
CASES |= {
    name: {
        verdict: lambda workload=workload, beta=beta, more=more: Lab().run(
            workload, time_s=law(beta), **more
        )
        for verdict, beta in ((TRUE, true), (FALSE, false))
    }
    for name, (workload, true, false, more) in LAWS.items()
}
EACH = [(name, verdict) for name, cases in CASES.items() for verdict in cases]
EMPTY = Lab().run("nothing-known", counts=(1,)).findings()
BY_NAME = {claim.name: claim for claim in CLAIMS}


def test_every_claim_has_a_case_of_both_verdicts():
    """One of each kind has a case that is not decided; without its values none is, see below."""
    assert set(CASES) == set(BY_NAME)
    assert all({TRUE, FALSE} <= set(cases) for cases in CASES.values())
    assert len(BY_NAME) == len(CLAIMS)


@pytest.fixture(scope="module")
def found():
    """Give what was measured in each case, by claim and verdict."""
    labs = {(name, verdict): CASES[name][verdict]() for name, verdict in EACH}
    return dict(zip(labs, findings_of([*labs.values()], GRID), strict=True))


@pytest.mark.parametrize(("name", "verdict"), EACH)
def test_a_claim_gets_the_verdict_of_the_truth_behind_the_data(name, verdict, found):
    claim = BY_NAME[name].evaluate(found[name, verdict])
    assert claim.verdict == verdict, claim.evidence


def test_a_store_without_the_needed_values_decides_no_claim():
    for claim in (claim.evaluate(EMPTY) for claim in CLAIMS):
        assert claim.verdict == NOT_DECIDABLE
        assert claim.evidence.startswith("Nothing"), claim.evidence


def test_one_model_against_it_contradicts_a_claim_on_all():
    lab = Lab().run(util=lambda n: 0.8 * n**-0.1).run("vgg16", util=0.8)
    claim = BY_NAME["memory-utilisation-falls"].evaluate(lab.findings())
    assert claim.verdict == CONTRADICTED
    verdicts = {part.label: part.verdict for part in claim.workloads}
    assert verdicts == {"resnet50": SUPPORTED, "vgg16": CONTRADICTED}
    assert claim.evidence.startswith("1 of 2 contradicted: vgg16")


def test_a_model_without_the_measurement_is_named_and_does_not_decide():
    lab = Lab().run(util=lambda n: 0.8 * n**-0.1).run("vgg16")
    claim = BY_NAME["memory-utilisation-falls"].evaluate(lab.findings())
    assert claim.verdict == SUPPORTED
    assert "1 more could not be tested" in claim.evidence
    assert claim.workloads[1].evidence == "no memory utilisation was measured"


def claims_of(lab: Lab, **options: object) -> dict[str, Claim]:
    return {claim.name: claim for claim in check_claims(*frames(lab.runs, lab.epochs), **options)}


def test_claims_count_what_their_study_counted():
    lab = capped({200: 1.0}, {200: 173.0}, host_watts=200.0)
    for window in lab.epochs:  # a node's meter that sees more than all devices
        devices_j = sum(window[f"{kind}_energy_j"] for kind in ("gpu", "cpu", "dram"))
        window |= {"node_energy_j": 2 * devices_j, "node_energy_source": "counter",
                   "node_energy_verdict": "ok", "energy_scope": "node"}  # fmt: skip
    claims = claims_of(lab)
    saves, linear = claims["200w-saves-energy"], claims["energy-near-linear-in-gpu-hours"]
    assert saves.verdict == SUPPORTED
    assert "energy of gpu, counter" in saves.evidence
    (numbers,) = linear.numbers.values()
    assert "energy of gpu+cpu+dram, counter" in linear.evidence
    assert numbers["factor_w"] == pytest.approx(400.0, rel=0.01)
    everything = claims_of(lab, energy_scope="all")
    assert everything["200w-saves-energy"].verdict == CONTRADICTED
    assert "energy of node, counter" in everything["200w-saves-energy"].evidence


def test_a_scope_that_was_not_measured_tests_no_claim_and_says_so():
    lab = capped({200: 1.0}, {200: 173.0})
    saves = claims_of(lab, energy_scope="node")["200w-saves-energy"]
    assert saves.verdict == NOT_DECIDABLE
    assert "no energy of scope node" in saves.evidence
    of_devices = claims_of(lab)["energy-near-linear-in-gpu-hours"]
    assert "energy of gpu, counter, where the study counted gpu+cpu+dram" in of_devices.evidence


def test_a_power_law_of_too_few_counts_to_see_a_bend_is_not_supported():
    claim = BY_NAME["power-law-describes"].evaluate(Lab().run(counts=(2, 4, 8, 16)).findings())
    assert claim.verdict == NOT_DECIDABLE
    assert "a test for a breakpoint needs" in claim.evidence


def test_a_schnet_that_bends_early_does_not_bend_at_64():
    lab = Lab().run("schnet", time_s=lambda n: 600.0 * min(n, 16) ** -0.6 * max(n / 16, 1) ** -0.1)
    claim = BY_NAME["schnet-leaves-the-law-beyond-64"].evaluate(lab.findings())
    assert claim.verdict == CONTRADICTED
    assert "breakpoint already at 16 GPUs" in claim.evidence


def test_verdicts_on_simulated_runs_say_simulated():
    claim = BY_NAME["power-law-describes"].evaluate(Lab().run(launcher="simulated").findings())
    assert claim.verdict == SIMULATED
    assert [part.verdict for part in claim.workloads] == [SIMULATED]
    assert "21 simulated runs" in claim.evidence
    both = Lab().run(launcher="simulated", time_s=knee).run(launcher="local").findings()
    claim = BY_NAME["power-law-describes"].evaluate(both)
    assert claim.verdict == SUPPORTED  # by the measured runs alone
    assert {part.verdict for part in claim.workloads} == {SIMULATED, SUPPORTED}


def test_the_report_has_no_claims_while_none_is_decided_but_in_a_layout_of_their_study():
    content = Content(analyse(*study((1, 2))), (), Layout(("claims",)))
    assert not sections(content)
    layout = replace(content.layout, name="mit-2022")
    (shown,) = sections(replace(content, layout=layout))
    assert len(shown.blocks[0].rows) == sum(one.study == "mit-2022" for one in CLAIMS)


def test_the_numbers_in_claims_are_the_published_ones():
    speedups = {row.workload: row.value for row in published("mit-2022", "speedup")}
    assert f"dimenet-speedup-{speedups['dimenet']:g}" in BY_NAME
    assert f"bert-speedup-{speedups['bert-base']:g}" in BY_NAME
    uncapped = [row for row in published("mit-2022", "beta") if row.power_limit_w is None]
    for name, beta in CNN_BETAS.items():
        assert [row.value for row in uncapped if matches_name(row.workload, name)] == [beta]
    limits = {row.model: row.value for row in published("kit-2025", "quality_to_global_batch")}
    assert limits == {
        "ResNet50": 8192, "FourCastNet pre-training": 32, "FourCastNet fine-tuning": 64
    }  # fmt: skip
    betas = {row.clock_limit_mhz: row.value for row in published("mit-2022", "beta", "dimenet")}
    clocks = {mhz: value for mhz, value in betas.items() if mhz}
    remark = BY_NAME["clocks-move-alpha-not-beta"].evaluate(EMPTY).evidence
    assert clocks == {135: 0.97, 735: 0.90, 1380: 0.82}
    assert all(f"{value:.2f}" in remark and f"{mhz:g}" in remark for mhz, value in clocks.items())


def test_every_value_has_a_study_a_known_quantity_a_place_and_hardware():
    for row in published():
        assert row.source.citation and row.source.url.startswith("https://arxiv.org/abs/")
        assert row.where and row.hardware and row.model
    assert {row.quantity for row in published()} == {
        "beta", "speedup", "energy_saving", "power_law_to_gpus", "co2_kg_per_h",
        "quality_to_global_batch", "near_linear_to_times_gpus",
    }  # fmt: skip
    assert {row.study for row in published()} == set(SOURCES)


def test_workloads_are_those_that_are_registered():
    names = {row.workload for row in published()} - {None}
    assert names <= set(registry.names("wattlaw.workloads"))
