"""The sections of the page: their sentences, the most important first, and their tables."""

import itertools
import re
import sys
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_studies import MIT, kit, mit
from made_tables import frames, run_row, study, window_row
from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.findings import Findings, analyse
from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics.result import Caution
from wattlaw.common import formatting, registry
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.report import tables
from wattlaw.report.core_sections import all_sections, layout, sections
from wattlaw.report.sections import GROUP, BulletList, Content, Layout
from wattlaw.report.tables import MAX_ROWS, Column, Table
from wattlaw.report.topics import batch, caps, energy, measured, scaling, verdict
from wattlaw.report.topics.advice_text import answer
from wattlaw.report.topics.verdict import merge_warnings
from wattlaw.study.footprint import Footprint
from wattlaw.study.labels import group_label, limit_label, setting_label
from wattlaw_papers import published as reference

COUNTS = (2, 4, 8, 16, 32, 64, 128)


@cache
def mit_findings() -> Findings:
    models = {name: MIT[name] for name in ("resnet50", "schnet", "dimenet")}
    made = mit(models=models, counts=COUNTS, repeats=2)
    return analyse(made.runs, made.epochs, reference=2)


@cache
def kit_findings() -> Findings:
    made = kit(repeats=3, growing=False)
    footprint = Footprint(pue=1.5, grid_g_per_kwh=400.0, price_per_kwh=0.2, currency="EUR")
    return analyse(made.runs, made.epochs, footprint=footprint)


@cache
def small_findings() -> Findings:
    return analyse(*study())


def column(table: Table | None, heading: str) -> list[str]:
    assert table is not None
    at = table.headings.index(heading)
    return [row[at].replace("\u00a0", " ") for row in table.rows]


def test_exponents_have_the_published_one_of_the_same_workload_and_limit():
    table = scaling.exponents(mit_findings())
    shown = dict(zip(column(table, "series"), column(table, "published β"), strict=True))
    for value in reference.published("mit-2022", "beta", "resnet50"):
        limits_ = [setting_label(name, getattr(value, name)) for name in LIMITS]
        series = ", ".join(filter(None, ["resnet50", "local batch 256", *limits_]))
        if series in shown:
            where = f"N unknown; Frey et al. 2022, {value.hardware}"
            assert shown[series] == f"{value.value:g} ({where})"
    assert sum("Frey" in cell for cell in shown.values()) > 6
    assert "published β" not in scaling.exponents(small_findings()).headings


def test_a_published_exponent_is_compared_over_its_own_range_of_counts():
    """DimeNet's fit ends at 416 GPUs; runs on 424 do not count."""
    made = mit(models={"dimenet": MIT["dimenet"]}, counts=(2, 16, 128, 256, 424), repeats=2)
    gpus = made.epochs["run_id"].map(made.runs.set_index("run_id")["gpus"])
    epochs = made.epochs.assign(duration_s=made.epochs["duration_s"].where(gpus < 424, 1e4))
    table = scaling.exponents(analyse(made.runs, epochs))
    free = column(table, "series").index("dimenet, local batch 128")
    assert column(table, "published β")[free].startswith("0.82 (N 2 to 416;")
    over_range = float(column(table, "β in the published range")[free])
    assert over_range == pytest.approx(MIT["dimenet"].beta, abs=0.03)
    assert float(column(table, "β")[free]) < over_range - 0.2


def test_the_effect_of_limits_is_relative_to_none():
    effects = caps.effects(mit_findings())
    at = column(effects, "limit").index("100 W")
    assert column(effects, "time: median")[at] in ("+59 %", "+60 %", "+61 %")


def test_tables_of_settings_name_caps_and_batches_and_cut_rows_are_counted():
    table = measured.settings(mit_findings())
    total = len(mit_findings().settings)
    assert len(table.rows) == MAX_ROWS
    assert table.omitted == total - MAX_ROWS
    assert table.command.startswith("wattlaw export STORE")
    free = [row for row in table.rows if row[1] == row[2] == "none"]
    assert len(free) == 3 * len(COUNTS)  # settings without limits are the last to be left out
    assert not table.is_open


def test_batches_have_verdicts():
    assert {"worse", "holds"} <= set(column(batch.means(kit_findings()), "verdict"))


def test_totals_are_energy_times_the_factors_given():
    findings = kit_findings()
    table = energy.totals(findings)
    assert {"kg CO2e", "cost (EUR)"} <= set(table.headings)
    first = findings.totals.iloc[0]
    kilograms = first["energy_j"] / 3.6e6 * 1.5 * 0.4
    assert float(column(table, "kg CO2e")[0].replace(",", "")) == pytest.approx(kilograms, rel=0.01)
    parts = energy.build(Content(findings, (), layout(None)))
    (counted,) = [part for part in parts if isinstance(part, BulletList)]
    assert "lower bound" in counted.items[0]
    assert "kg CO2e" not in energy.totals(mit_findings()).headings


def test_without_runs_there_are_no_tables():
    empty = analyse(study()[0].iloc[:0], study()[1].iloc[:0])
    makers = (
        scaling.exponents, scaling.speedups, measured.settings, energy.factors, caps.effects,
        batch.means, energy.totals,
        measured.verdicts, measured.reasons,
    )  # fmt: skip
    assert [one.__name__ for one in makers if one(empty) is not None] == []
    assert verdict.table(empty.advice) is None


def test_a_long_table_keeps_the_rows_of_the_lowest_rank():
    columns = [Column("a", lambda row: str(row[0])), Column("b", lambda _: "–")]
    rows = [(i, i % 3) for i in range(10)]
    table = tables.build("t", "T", columns, rows, max_rows=4, rank=lambda row: row[1])
    assert table.rows == (("0",), ("3",), ("6",), ("9",))  # and column b, which has nothing, is not
    assert table.omitted == 6
    assert tables.build("t", "T", columns, []) is None


@given(st.floats(-1e300, 1e300), st.integers(2, 6))
def test_a_number_as_text_is_the_number_to_so_many_digits(value, digits):
    back = float(formatting.number(value, digits).replace("−", "-").replace(",", ""))
    assert back == pytest.approx(value, rel=0.51 * 10 ** (1 - digits), abs=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formatting.number(None), "–"),
        (formatting.number(12345.6), "12,346"),
        (formatting.number(-0.0123), "−0.0123"),
        (formatting.number(2.5e10), "2.50e10"),
        (formatting.interval(0.5, float("inf")), "–"),
        (tables.with_interval({"x": 2, "x_low": 1, "x_high": 3}, "x"), "2 (1 to 3)"),
        (formatting.p_value(0.0004), "< 0.001"),
        (formatting.change(0.85), "−15 %"),
        (formatting.change(1.0), "±0 %"),
        (formatting.printable("x" * 10, 4), "xxx…"),
        (formatting.replace_invisible("a\x00b\ud800"), "a\ufffdb\ufffd"),
        (formatting.number(999.7), "1,000"),
        (formatting.duration_text(18720.0), "5.2 h"),
        (formatting.energy_text(3.6e6), "1 kWh"),
        (limit_label("clock_limit_mhz", None), "free clock"),
        (setting_label("options", '{"width": 3}'), "width 3"),
        (setting_label("threads_per_worker", float("nan")), ""),
        (group_label({"workload": "mlp", "power_limit_w": None}), "mlp"),
        (formatting.choose_unit([5e6, 3e6, None], formatting.ENERGY_UNITS)[1], "kWh"),
        (formatting.work_text(0.000508, "worker"), "1.83 worker-seconds"),
        (formatting.work_text(0.6), "0.6 GPU-hours"),
    ],
)
def test_numbers_as_text(text, expected):
    assert text == expected


def test_runs_that_are_done_and_in_no_result_are_counted_and_named():
    names = ("fine", "warm", "zero", "unknown", "none", "cut")
    runs = [*map(run_row, names), run_row("broken", status="failed", reason="no memory")]
    windows = [
        window_row("fine", 1),
        window_row("warm", 0, warmup=True),
        window_row("zero", 1, duration_s=0.0),
        window_row("unknown", 1, duration_s=None),
        window_row("none", 1, phase="evaluate", duration_s=9.0),
        window_row("cut", 1, interrupted=True),
        window_row("broken", 0, warmup=True),
    ]
    table = measured.reasons(analyse(*frames(runs, windows)))
    why = "no training window of known duration after warm-up that was not interrupted"
    assert table.rows == (
        ("done, not timed", why, "5", "warm, zero, unknown, …"),
        ("failed", "no memory", "1", "broken"),
    )
    assert measured.reasons(small_findings()) is None


def test_a_single_workload_has_its_recommendation_and_several_a_row_each():
    single = small_findings()
    (screen,) = sections(Content(single, (), Layout(("advice",))))
    assert screen.blocks[0] == answer(single.advice[0])
    names = ["time of 3 epochs", "energy", "sure"]
    assert [figure.name for figure in screen.blocks[0].figures] == names
    (table,) = [block for block in screen.blocks if isinstance(block, Table)]
    assert table.rows[0][1].startswith("recommended")
    assert len(table.rows) <= verdict.MAX_ROWS
    (screen,) = sections(Content(mit_findings(), (), Layout(("advice",))))
    (table,) = [block for block in screen.blocks if isinstance(block, Table)]
    assert [row[0] for row in table.rows] == ["dimenet", "resnet50", "schnet"]

    def within(advice: Advice, tolerance: float) -> Advice:
        return replace(advice, question=replace(advice.question, tolerance=tolerance))

    near = [within(item, 0.1) for item in mit_findings().advice]
    mixed = verdict.table([within(near[0], 0.05), *near[1:]])
    at = mixed.headings.index("sure")
    assert "within 5 %" in mixed.plain_rows[0][at] and "within 10 %" in mixed.plain_rows[1][at]


def test_a_law_has_its_interval_range_runs_and_speedup():
    findings = mit_findings()
    (section,) = sections(Content(findings, (), Layout(("scaling",))))
    lists = [block.items for block in section.blocks if isinstance(block, BulletList)]
    text = " ".join(itertools.chain(section.sentences, *lists))
    found = re.search(
        r"resnet50, local batch 256: doubling the GPUs multiplies the time per epoch by 0\.56 "
        r"\(β = (0\.\d+), 95 % interval (0\.\d+) to (0\.\d+); 2 to 128 GPUs, 14 runs\)",
        text,
    )
    assert found
    beta, low, high = map(float, found.groups())
    assert low < beta < high
    assert low < 0.83 < high  # what is true of the made study
    table = findings.speedups.query("gpus == 128 and series == 'resnet50, local batch 256'")
    (shown,) = [block for block in section.blocks if getattr(block, "name", "") == "speedups"]
    assert f"{table['speedup'].iloc[0]:.3g}" in column(shown, "speedup")


def test_a_text_of_all_has_no_names_and_a_text_of_some_names_them():
    _, first, second = mit_findings().advice

    def merged(text: str) -> list[str]:
        of_first = (Caution("one", "x"), Caution("two", "y"), Caution("two", "z"))
        one, two = replace(first, warnings=of_first), (Caution("one", text),)
        return merge_warnings([one, replace(second, warnings=two)])

    assert merged("x") == ["x", "resnet50: y", "resnet50: z"]
    other = merged("w")[0]
    assert other.startswith("resnet50: x")
    assert "1 other workload" in other
    both = Caution("energy-simulated", "energies"), Caution("simulated", "all")
    assert merge_warnings([replace(first, warnings=both)]) == ["all"]  # which includes the other
    assert merge_warnings([replace(first, warnings=both[:1])]) == ["energies"]


@pytest.fixture
def add_on(tmp_path, monkeypatch):
    """Register a section of an add-on that is installed for the test, by its code."""

    def install(code: str) -> None:
        (tmp_path / "made_addon.py").write_text(code)
        info = tmp_path / "made-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\nmade = made_addon:SECTION\n")
        monkeypatch.syspath_prepend(tmp_path)
        registry._points.cache_clear()

    yield install
    sys.modules.pop("made_addon", None)
    registry._points.cache_clear()


_SECTION = (
    "from wattlaw.report.pictures import Figure\nfrom wattlaw.report.sections import Section\n"
    "SECTION = Section('Made', lambda _: ['It is shown.'], "
    "(Figure({name!r}, 'A', lambda _: None),))\n"
)


@pytest.mark.parametrize("module", ["wattlaw.report.tabels", "made_addon.tabels"])
def test_a_misspelt_import_of_an_add_on_is_an_error(module, add_on):
    add_on(f"import {module}\n")
    with pytest.raises(NotAvailable, match=re.escape(module)):
        all_sections()


def test_an_add_on_whose_library_is_not_installed_has_no_section(add_on):
    add_on("import a_library_that_is_not_installed\n")
    assert "made" not in all_sections()


def test_a_section_of_an_add_on_is_shown_before_the_last_of_the_core(add_on):
    add_on(_SECTION.format(name="made_figure"))
    names = [one.name for one in sections(Content(small_findings(), (), layout(None)))]
    assert "made" in names
    assert names.index("made") < names.index("methods")


def test_a_figure_of_an_add_on_cannot_have_the_name_of_another(add_on):
    add_on(_SECTION.format(name="speedup"))
    with pytest.raises(BadInput, match="speedup"):
        all_sections()
