"""The gallery: every figure is drawn, and nothing in it overlaps, is cut off or has no unit.

The pictures are kept in tests/output/figures, to be looked at.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import altair as alt
import pandas as pd
import pytest
import vl_convert

import made_studies
import paths
from drawn import size, texts
from made_tables import frames, layouts, run_row, study, window_row
from wattlaw.analysis.decide.decision import CourseRow, Decision
from wattlaw.analysis.findings import Findings, analyse
from wattlaw.report.charts import x_axis
from wattlaw.report.core_sections import gallery, layout
from wattlaw.report.facets import MAX_LENGTH, MAX_PANELS, shorten_middle, unique_labels
from wattlaw.report.pictures import Figure
from wattlaw.report.topics import caps, verdict
from wattlaw.study.setting import Setting

OUTPUT = paths.OUTPUT / "figures"
EVIL = "</script><img src=x onerror=alert(1)>"
LONG = "a-workload-whose-name-says-everything-that-its-author-ever-wanted-to-say-about-it " * 3
#: The figures of the two published studies.
MIT = {
    "joint", "utilisation", "variation_by_cap", "energy_speed", "effects_by_cap",
    "effects_by_clock", "epoch_time", "epoch_time_by_cap", "epoch_time_by_clock",
}  # fmt: skip
KIT = {"gpu_hours", "factor", "strong_scaling", "constant_local_batch", "quality", "growing_data"}


@cache
def findings(kind: str) -> Findings:
    """Return the findings of a synthetic store: small, large, or like one of the two studies."""
    if kind == "small":
        return analyse(*study(counts=(1, 2), source="none"), decisions=[decision("small", 3)])
    if kind == "hostile":
        runs, epochs = study(counts=(1, 2, 4, 8))
        runs["workload"] = [EVIL if i % 2 else LONG for i in range(len(runs))]
        runs["hardware"] = "a\nboard\x00 with\ttabs " + "W" * 90
        runs["metric_name"] = EVIL
        runs.loc[0, ["status", "reason"]] = "failed", EVIL
        return analyse(runs, epochs, decisions=[decision(EVIL, 8, minimize=EVIL)])
    if kind == "crowded":
        return analyse(*_crowd(), decisions=[decision(f"{LONG}{i}", 60) for i in range(5)])
    if kind == "layouts":
        return analyse(*layouts())
    if kind == "mit":
        models = {name: made_studies.MIT[name] for name in ("resnet50", "schnet")}
        tables = made_studies.mit(models=models, counts=(2, 16, 128), repeats=2)
    else:
        tables = made_studies.kit(counts=(1, 2, 4, 8), repeats=2)
    return analyse(tables.runs, tables.epochs, joint=tables.joint)


def decision(name: str, runs: int, minimize: str = "energy") -> Decision:
    """Return a decision, with another leading setting after every fifth run."""
    course = tuple(
        CourseRow(
            run, 0.01 * run**2, Setting(2 ** (run // 5 % 12), local_batch=32.0),
            1 - 0.8 / run, 0.3 / run,
        )
        for run in range(1, runs + 1)
    )  # fmt: skip
    last = course[-1]
    return Decision(
        name, name, "simulated", {"minimize": minimize, "deadline": 3600}, last.setting,
        last.expected_regret, last.probability, 1.0, 0.02, 0.9, last.gpu_hours_spent, 100.0, runs,
        "certain", course=course,
    )  # fmt: skip


def _crowd() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return 11 workloads of different batches, four of them on 14 worker counts."""
    runs, epochs = [], []
    for i, gpus in itertools.product(range(11), range(1, 15)):
        if i > 3 and gpus not in (1, 4, 14):
            continue
        run_id = f"{i:08}{gpus:08}"
        runs.append(run_row(run_id, workload=f"model-{i}", gpus=gpus, global_batch=64 * (i + 1),
                            local_batch=None))  # fmt: skip
        energy = {"gpu_energy_j": 9e5 * (i + 1) * gpus**0.1, "energy_source": "counter",
                  "energy_verdict": "ok", "sm_util_mean": 0.8, "sm_util_cv": 0.1,
                  "mem_util_mean": 0.5, "mem_util_cv": 0.2}  # fmt: skip
        epochs.append(window_row(run_id, 1, duration_s=(900.0 + i) / gpus**0.9, **energy))
    return frames(runs, epochs)


KINDS = ("small", "hostile", "crowded", "layouts", "mit", "kit")


@cache
def spec(kind: str, figure: Figure) -> dict[str, Any] | None:
    picture = figure.picture(findings(kind))
    chart = None if picture is None else picture.spec
    # Charts of other kinds and further rows differ in their data, which take long to validate.
    if chart is not None and kind == ("mit" if figure.name in MIT else "kit"):
        one_row = json.loads(json.dumps(chart), object_hook=with_one_row)
        alt.ConcatChart.from_dict(one_row, validate=True)
    return chart


def with_one_row(part: dict[str, Any]) -> dict[str, Any]:
    values = part.get("data", {}).get("values")
    return part | {"data": {"values": values[:1]}} if values else part


@cache
def svg(kind: str, figure: Figure) -> str:
    return str(vl_convert.vegalite_to_svg(spec(kind, figure)))


def drawn(kind: str) -> list[Figure]:
    return [figure for figure in gallery() if spec(kind, figure) is not None]


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for name, inner in value.items():
            if name != "datasets":
                yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def test_the_made_studies_show_every_figure_of_the_gallery():
    shown = {kind: {figure.name for figure in drawn(kind)} for kind in KINDS}
    assert set().union(*shown.values()) == {figure.name for figure in gallery()}
    assert shown["mit"] >= MIT
    assert shown["kit"] >= KIT
    assert {*layout("mit-2022").figures} >= MIT
    assert {*layout("kit-2025").figures} >= KIT


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_readable(kind):
    """Texts neither overlap nor are cut off; axes have units, legends all names."""
    folder = OUTPUT / kind
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for figure in drawn(kind):
        name, chart, picture = figure.name, spec(kind, figure), svg(kind, figure)
        (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
        shown, (width, height) = texts(picture), size(picture)
        assert width < 1150, name
        assert len(json.dumps(chart)) < 150_000, name
        pairs = itertools.combinations(shown, 2)
        assert [(name, a.words, b.words) for a, b in pairs if a.overlaps(b)] == []
        assert [(name, text) for text in shown if text.outside(width, height)] == []
        words = {text.words for text in shown}
        for panel in chart["concat"]:
            encodings = [part["encoding"] for part in walk(panel) if "encoding" in part]
            for channel in ("x", "y"):
                axes = [each[channel] for each in encodings if channel in each]
                numbers = [axis for axis in axes if axis.get("type") == "quantitative"]
                titles = [axis["title"] for axis in numbers if axis.get("title")]
                assert titles or not numbers, name
                assert all(re.search(r"\([^()]+\)$", title) for title in titles), (name, titles)
            for color in (each.get("color", {}) for each in encodings):
                if color.get("legend") and color.get("type") == "nominal":
                    assert {*color["scale"]["domain"]} <= words, name
        assert figure.title and figure.caption.endswith(".")
        without_energy = {"pareto": "Settings by time"} if kind in ("small", "layouts") else {}
        assert chart["title"]["text"] == without_energy.get(figure.name, figure.title)
        notes = " ".join(chart["title"]["subtitle"])
        assert notes == "" or re.fullmatch(r"[A-Z0-9].*[.…]", notes), (name, notes)


def test_names_are_inert_and_cut_in_the_middle_and_panels_that_do_not_fit_are_counted():
    for figure in drawn("hostile"):
        assert "<img" not in svg("hostile", figure)
        for text in texts(svg("hostile", figure)):
            assert "\n" not in text.words
            assert len(text.words) <= 160
    (crowded,) = (spec("crowded", one) for one in gallery() if one.name == "epoch_time")
    assert len(crowded["concat"]) == MAX_PANELS
    assert "2 more panels" in " ".join(crowded["title"]["subtitle"])
    whole = svg("hostile", next(one for one in gallery() if one.name == "epoch_time"))
    assert "a-workload-whose-name" in whole and "\u2026" in whole


def test_names_that_are_shortened_to_the_same_text_stay_distinct():
    names = [f"{'x' * 60}{i}{'y' * 60}" for i in range(12)]
    cut = unique_labels(names)
    assert len(set(cut.values())) == 12
    assert all(len(name) <= MAX_LENGTH for name in cut.values())
    assert shorten_middle("a\n b\x00") == "a b\ufffd"


def test_a_store_with_nothing_done_has_no_figure():
    empty = analyse(*frames([run_row("a", status="failed", reason="no")], []))
    assert [figure.name for figure in gallery() if figure.picture(empty) is not None] == []


def test_energies_that_count_different_things_are_different_lines():
    runs, epochs = study()
    other, others = study(source="counter")
    for table in (other, others):
        table["run_id"] = "x" + table["run_id"]
    both = analyse(pd.concat([runs, other]), pd.concat([epochs, others]))
    figure = next(one for one in gallery() if one.name == "energy")
    text = json.dumps(figure.picture(both).spec["concat"])
    assert "cpu, counter" in text and "cpu, estimated" in text


def test_the_first_figure_has_settings_the_front_the_baseline_and_the_recommendation():
    known = analyse(*study())
    (found,) = known.advice
    points = [layer for panel in verdict.pareto(known)["concat"] for layer in panel["layer"]
              if layer["mark"]["type"] == "point"]  # fmt: skip
    drawn = Counter(row["line"] for layer in points for row in layer["data"]["values"])
    assert (found.baseline, found.baseline_is) == (found.recommended, "fastest")
    assert (drawn["recommended"], drawn["baseline"]) == (1, 0)
    assert drawn["tie"] == len(found.ties)
    assert drawn["Pareto front"] + drawn["predicted"] == len(found.pareto)
    assert drawn["predicted"] == sum(option.is_predicted for option in found.pareto)
    left_out = known.settings["global_batch"].isin(found.batches_left_out).sum()
    assert 0 < left_out == drawn["a batch left out"]
    assert drawn["a setting"] == len(known.settings) - left_out


def test_every_line_of_the_effects_of_limits_is_in_the_legend():
    known = findings("mit")
    rows = known.limit_effects
    rows = rows[(rows["limit_kind"] == "power_limit_w") & (rows["workload"] == "resnet50")]
    many = pd.concat([rows.assign(workload=f"net{i}", gpus=rows["gpus"] * i) for i in range(1, 10)])
    chart = caps.effects_figure(replace(known, limit_effects=many), "power_limit_w")
    tables = [part["data"]["values"] for part in walk(chart) if "data" in part]
    shown = {row["line"] for table in tables for row in table if "line" in row}
    domains = [part["color"]["scale"]["domain"] for part in walk(chart) if "color" in part
               and "scale" in part["color"]]  # fmt: skip
    assert domains
    assert all(set(domain) == shown for domain in domains)


def test_a_scale_of_one_value_has_that_tick_and_no_error():
    nearly_one = [[300.0, 300.0 + 1e-10], [1.00001, 1.00002], [123456.0, 123457.0]]
    for values, zero in itertools.product(([0.0, 0.0], [5.0], *nearly_one), (True, False)):
        low, high = x_axis("x", "x (s)", values, zero=zero)["scale"]["domain"]
        assert low <= min(values)
        assert max(values) <= high
        assert low < high
