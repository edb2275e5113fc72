"""The tables: what is in them, in the layout of the studies, and what is left out of them."""

from dataclasses import replace
from functools import cache

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_studies import MIT, Caps, kit, mit
from made_tables import frames, run_row, study, window_row
from wattlaw.analysis.advise.footprint import Footprint
from wattlaw.analysis.findings import Findings, analyse
from wattlaw.analysis.laws.caps.limits import LIMITS
from wattlaw.common import formatting
from wattlaw.report import tables
from wattlaw.report.methods import read_methods
from wattlaw.report.tables import MAX_ROWS, Column, Table
from wattlaw.report.topics import batch, caps, data_quality, energy, measured, scaling, verdict
from wattlaw_papers import published as reference
from wattlaw_papers import section as claims
from wattlaw_papers.claims import check_claims


@cache
def mit_findings() -> Findings:
    models = {name: MIT[name] for name in ("resnet50", "schnet", "dimenet")}
    made = mit(models=models, counts=(2, 4, 8, 16, 32), caps=Caps(), repeats=2)
    return analyse(made.runs, made.epochs, reference=2)


@cache
def kit_findings() -> Findings:
    made = kit(repeats=2, counts=(1, 2, 4))
    footprint = Footprint(pue=1.5, grid_g_per_kwh=400.0, price_per_kwh=0.2, currency="EUR")
    return analyse(made.runs, made.epochs, footprint=footprint, target=0.7)


def column(table: Table | None, heading: str) -> list[str]:
    """Return the cells of a column."""
    assert table is not None
    at = table.headings.index(heading)
    return [row[at].replace("\u00a0", " ") for row in table.rows]


def test_exponents_have_the_published_one_of_the_same_workload_and_limit():
    table = scaling.exponents(mit_findings())
    shown = dict(zip(column(table, "series"), column(table, "published β"), strict=True))
    for value in reference.published("mit-2022", "beta", "resnet50"):
        limits_ = [formatting.setting_label(name, getattr(value, name)) for name in LIMITS]
        series = ", ".join(filter(None, ["resnet50", "local batch 256", *limits_]))
        if series in shown:
            where = f"N unknown; Frey et al. 2022, {value.hardware}"
            assert shown[series] == f"{value.value:g} ({where})"
    assert sum("Frey" in cell for cell in shown.values()) > 6
    assert "published β" not in scaling.exponents(analyse(*study())).headings


def test_a_published_exponent_is_compared_over_its_own_range_of_counts():
    """DimeNet's fit ends at 416 GPUs; runs on 424 do not count."""
    made = mit(models={"dimenet": MIT["dimenet"]}, counts=(2, 16, 128, 256, 424), repeats=2)
    gpus = made.epochs["run_id"].map(made.runs.set_index("run_id")["gpus"])
    epochs = made.epochs.assign(duration_s=made.epochs["duration_s"].where(gpus < 424, 1e4))
    table = scaling.exponents(analyse(made.runs, epochs))
    free = column(table, "series").index("dimenet, local batch 128")
    assert column(table, "published β")[free].startswith("0.82 (N 2 to 416;")
    over_all, over_range = (float(column(table, name)[free])
                            for name in ("β", "β in the published range"))  # fmt: skip
    assert over_range == pytest.approx(MIT["dimenet"].beta, abs=0.03)
    assert over_all < over_range - 0.2


def test_energy_laws_of_different_caps_have_a_column_of_caps_and_say_if_proportional():
    findings = kit_findings()
    assert "power cap" not in energy.factors(findings).headings
    laws = findings.energy_laws
    capped = pd.concat(
        [laws, laws.assign(power_limit_w=200.0, exponent_low=1.1, exponent_high=1.2)]
    )
    table = energy.factors(replace(findings, energy_laws=capped))
    assert set(column(table, "power cap")) == {"uncapped", "200 W"}
    said = zip(column(table, "power cap"), column(table, "proportional"), strict=True)
    assert {answer for cap, answer in said if cap == "200 W"} == {"no"}


def test_the_table_of_several_workloads_has_savings_and_certainty():
    findings = mit_findings()
    table = verdict.table(findings)
    assert column(table, "workload") == [one.workload for one in findings.advice]
    for row, advice in zip(table.plain_rows, findings.advice, strict=True):
        option = advice.recommended
        assert row[table.headings.index("run on")] == advice.label(option)
        if option != advice.baseline:
            change = formatting.change(1 + advice.savings.energy.mean)
            assert row[table.headings.index("against the baseline")].startswith(change)
    assert set(column(table, "known by")) == {"2 runs"}


def test_windows_that_an_interruption_left_out_are_counted_in_the_note():
    runs = [run_row("a")]
    whole = [window_row("a", 1), window_row("a", 2)]
    assert "interrupted" not in measured.settings(analyse(*frames(runs, whole))).note
    cut = [
        window_row("a", 3, interrupted=True),
        window_row("a", 3, from_step=5, interrupted=True),
    ]
    note = measured.settings(analyse(*frames(runs, [*whole, *cut]))).note
    assert "Left out: 2 training windows" in note


def test_energy_factors_are_by_model_and_hardware():
    table = energy.factors(kit_findings())
    assert column(table, "hardware") == ["A100", "H100"]
    for cell, watts in zip(column(table, "factor (W per GPU)"), (300 + 80, 480 + 80), strict=True):
        assert float(cell.split(" (")[0]) == pytest.approx(watts, rel=0.05)
    assert energy.factors(analyse(*study(source="none"))) is None


def test_a_column_of_amounts_has_the_unit_of_its_median():
    units = (("h", 3600.0, 5400.0), ("min", 60.0, 120.0), ("s", 1.0, 0.0))
    assert formatting.choose_unit([1.0, 600.0, None, 9000.0], units) == (60.0, "min")
    assert formatting.choose_unit([], units) == (1.0, "s")
    headings = verdict.table(analyse(*study())).headings
    assert not any("GPU" in heading for heading in headings)
    assert "worker-hours of training" in headings


def test_the_effect_of_limits_has_the_test_of_equivalence():
    table = caps.comparisons(mit_findings())
    assert set(column(table, "verdict")) <= {"same beta", "different beta", "cannot tell"}
    assert len(table.rows) == 6
    assert "a difference that is not significant does not" in table.note
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
    assert len(free) == 15  # settings without limits are the last to be left out
    assert not table.is_open


def test_batches_have_verdicts_and_a_target_has_its_table():
    table = batch.means(kit_findings())
    assert {"worse", "holds"} <= set(column(table, "verdict"))
    reached = batch.targets(kit_findings())
    assert reached.title == "Time and energy to 0.7"
    assert batch.targets(mit_findings()) is None


def test_totals_are_energy_times_the_factors_given():
    findings = kit_findings()
    table = energy.totals(findings)
    assert {"kg CO2e", "cost (EUR)"} <= set(table.headings)
    first = findings.totals.iloc[0]
    kilograms = first["energy_j"] / 3.6e6 * 1.5 * 0.4
    assert float(column(table, "kg CO2e")[0].replace(",", "")) == pytest.approx(kilograms, rel=0.01)
    assert "lower bound" in energy.counted(findings)[0]
    assert "kg CO2e" not in energy.totals(mit_findings()).headings


def test_claims_have_their_evidence():
    found = check_claims(mit_findings().stored, mit_findings().epochs)
    table = claims.verdicts(found, "mit-2022")
    assert len(table.rows) == sum(one.study == "mit-2022" for one in found)
    assert all(column(table, "evidence"))
    assert claims.by_workload(found) is not None


def test_energies_are_counted_by_source_and_verdict():
    table = data_quality.verdicts(analyse(*study()))
    assert table.rows == (("board", "cpu", "estimated", "ok", "27", "100\u00a0%"),)
    assert data_quality.reasons(analyse(*study())) is None


def test_each_series_has_its_law_breakpoint_and_alternatives():
    findings = mit_findings()
    assert len(scaling.exponents(findings).rows) == len(findings.fits.laws)
    marked = sum(
        cell.endswith("*") for cell in column(scaling.exponents(findings), "95 % interval")
    )
    assert marked == sum(law.trusted.interval == "repeats" for _, law in findings.fits.laws)
    chosen = [row.selection.to_dict() for row in findings.fits.rows if row.law]
    assert column(scaling.exponents(findings), "selected law") == [row["law"] for row in chosen]
    errors = [row["holdout_error"] for row in chosen]
    signs = [cell[0] for cell in column(scaling.exponents(findings), "its holdout error")]
    assert signs == ["+" if error > 0 else "−" for error in errors]
    assert measured.facts(findings) is not None


def test_without_runs_there_are_no_tables():
    empty = analyse(study()[0].iloc[:0], study()[1].iloc[:0])
    makers = (
        scaling.exponents, scaling.speedups, measured.settings, energy.factors, caps.effects,
        caps.comparisons, batch.means, verdict.table, energy.totals,
        data_quality.verdicts, data_quality.reasons,
    )  # fmt: skip
    assert [one.__name__ for one in makers if one(empty) is not None] == []


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
        (formatting.number(0.0), "0"),
        (formatting.number(12345.6), "12,346"),
        (formatting.number(-0.0123), "−0.0123"),
        (formatting.number(2.5e10), "2.50e10"),
        (formatting.interval(1, None), "–"),
        (formatting.interval(0.5, float("inf")), "–"),
        (formatting.with_interval(2, 1, 3), "2 (1 to 3)"),
        (formatting.with_interval(2, None, None), "2"),
        (formatting.p_value(0.0004), "< 0.001"),
        (formatting.p_value(0.0234), "0.023"),
        (formatting.change(0.85), "−15 %"),
        (formatting.change(1.5), "+50 %"),
        (formatting.change(1.0), "±0 %"),
        (formatting.percent(0.5), "50 %"),
        (formatting.sentence("a word"), "A word."),
        (formatting.printable("x" * 10, 4), "xxx…"),
        (formatting.replace_invisible("a\x00b\ud800"), "a\ufffdb\ufffd"),
        (formatting.plural(1, "run"), "1 run"),
        (formatting.number(999.7), "1,000"),
        (formatting.duration_text(18720.0), "5.2 h"),
        (formatting.energy_text(3.6e6), "1 kWh"),
        (formatting.estimate_text(None), "–"),
        (formatting.limit_label("power_limit_w", 200.0), "200 W"),
        (formatting.limit_label("clock_limit_mhz", None), "free clock"),
        (formatting.setting_label("local_batch", 256.0), "local batch 256"),
        (formatting.setting_label("options", '{"width": 3}'), "width 3"),
        (formatting.setting_label("threads_per_worker", float("nan")), ""),
        (formatting.group_label({"workload": "mlp", "power_limit_w": None}), "mlp"),
        (formatting.choose_unit([5e6, 3e6, None], formatting.JOULE_UNITS)[1], "MJ"),
    ],
)
def test_numbers_as_text(text, expected):
    assert text == expected


def test_a_footprint_without_energy_has_no_cost():
    findings = replace(analyse(*study(source="none")), footprint=Footprint(pue=1.1))
    assert energy.totals(findings) is not None


def test_runs_that_are_done_and_in_no_result_are_counted_and_named():
    runs = [run_row("fine"), *(run_row(f"warm{i}") for i in range(4)),
            run_row("broken", status="failed", reason="no memory")]  # fmt: skip
    windows = [window_row("fine", 1), *(window_row(f"warm{i}", 0, warmup=True) for i in range(4))]
    table = data_quality.reasons(analyse(*frames(runs, windows)))
    assert table.rows == (
        ("done, not timed", "all training windows are warm-up", "4", "warm0, warm1, warm2, …"),
        ("failed", "no memory", "1", "broken"),
    )
    assert data_quality.reasons(analyse(*study())) is None


def test_methods_define_efficiency_where_the_data_set_grows():
    (method,) = [one for one in read_methods() if one.name.startswith("Speedup")]
    assert "grows with N" in method.formula
    assert "parallel efficiency is T(R)/T(N)" in method.text
