"""The report: complete in itself, inert to names, readable by all; and its figures as files."""

import base64
import hashlib
import json
import re
import tempfile
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pandas as pd
import pytest
import vl_convert
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from made_stores import write_store
from made_studies import MIT, kit, mit
from made_tables import frames, run_row, study, window_row
from wattlaw import __version__
from wattlaw.analysis.findings import Findings, analyse
from wattlaw.cli.main import main
from wattlaw.report.core_sections import gallery, layout
from wattlaw.report.page import write_page, write_report
from wattlaw.report.pictures import Figure, explorable
from wattlaw.report.sections import Answer, PageSection
from wattlaw.report.tables import build, text
from wattlaw.study.footprint import Footprint

CHROMIUM = "/usr/bin/chromium"
EVIL = "</script></style><img src=x onerror=alert(1)>'\"--><svg/onload=alert(2)>\x00\x1b"
FEW = {"schnet": MIT["schnet"]}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def of(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


@cache
def mit_findings() -> Findings:
    made = mit(models=FEW, counts=(2, 4, 8, 16, 32), repeats=2)
    return analyse(made.runs, made.epochs, joint=made.joint, reference=2)


def written(findings: Findings, template: str | None = None, **options: bool) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / "report.html"
        write_report(findings, path, layout(template), **options)
        return path.read_text(encoding="utf-8")


@cache
def mit_page() -> str:
    return written(mit_findings())


def test_it_is_one_file_that_loads_nothing_and_runs_nothing():
    text = mit_page()
    parsed = Page(text)
    assert not {"script", "link", "base"} & {tag for tag, _ in parsed.tags}
    for _, attributes in parsed.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    assert all(one["src"].startswith("data:image/") for one in parsed.of("img"))
    assert all(one["href"].startswith("#") for one in parsed.of("a"))
    (policy,) = (one["content"] for one in parsed.of("meta") if "http-equiv" in one)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    assert "url(" not in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"sha256-{digest}" in policy
    assert re.search(rf"written \d{{4}}-\d\d-\d\d \d\d:\d\d UTC by wattlaw {__version__}", text)
    assert "50 runs; V100-32GB" in text
    for word in ("Figure", "Table"):
        numbers = [int(n) for n in re.findall(rf"<b>{word} (\d+)\.</b>", text)]
        assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))


def test_the_first_screen_is_open_and_all_else_is_folded():
    parsed = Page(mit_page())
    assert [one["aria-labelledby"] for one in parsed.of("section")] == ["advice"]
    folded = [one for one in parsed.of("details") if one.get("class") == "section"]
    names = ["scaling", "energy", "caps", "prediction", "utilisation"]
    assert [one["id"] for one in folded[:5]] == names
    assert not any("open" in one for one in folded)
    lines = [one["id"] for one in parsed.of("p") if one.get("class") == "line"]
    assert lines == ["batch"]  # the made runs were not evaluated
    ids = [attributes["id"] for _, attributes in parsed.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))


def test_a_screen_reader_can_read_it():
    parsed = Page(mit_page())
    assert parsed.of("html") == [{"lang": "en"}]
    assert all(one.get("scope") in ("col", "row") for one in parsed.of("th"))
    assert all(one["alt"] for one in parsed.of("img"))
    assert len(parsed.of("figure")) == len(parsed.of("figcaption")) == len(parsed.of("img"))
    scrolling = [one for one in parsed.of("div") if one.get("class") == "scroll"]
    assert all(one["tabindex"] == "0" and one["aria-label"] for one in scrolling)
    assert len(parsed.of("table")) == len(parsed.of("caption"))
    assert len(parsed.of("h1")) == 1


@pytest.mark.usefixtures("some")
def test_an_interactive_page_runs_its_own_scripts_only_and_has_its_figures_as_data():
    text = written(hostile(), interactive=True)
    parsed = Page(text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert len(scripts) == 2
    (policy,) = (one["content"] for one in parsed.of("meta") if "http-equiv" in one)
    allowed = policy.split("script-src ")[1].split(";")[0].split()
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    assert allowed == [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    assert "unsafe" not in policy
    assert not parsed.of("img")
    (data,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    charts = [one["data-figure"] for one in parsed.of("div") if one.get("class") == "chart"]
    assert set(json.loads(data)) == set(charts)
    assert {"pareto", "speedup"} <= set(charts)
    assert not re.search(r"https?://(?!\w*\.?w3\.org|vega\.github\.io|github\.com)", data)


def test_the_panels_of_an_interactive_figure_zoom_and_its_legend_selects():
    (figure,) = (one for one in gallery() if one.name == "speedup")
    chart = figure.picture(analyse(*study()))
    spec = explorable(chart.spec)
    params = [part for panel in spec["concat"] for layer in panel["layer"]
              for part in layer.get("params", ())]  # fmt: skip
    assert Counter(part["bind"] for part in params) == {"scales": len(spec["concat"]), "legend": 1}
    lines = [layer for panel in spec["concat"] for layer in panel["layer"]
             if layer["encoding"].get("color", {}).get("field") == "line"]  # fmt: skip
    assert lines
    assert all(one["encoding"]["opacity"]["condition"]["param"] == "pick" for one in lines)
    assert "params" not in json.dumps(chart.spec)  # the chart itself is as it was
    assert vl_convert.vegalite_to_vega(spec)["signals"]


#: Every column of text that a store takes from outside.
TEXTS = ("study", "workload", "hardware", "metric_name", "launcher", "git_commit")
OBJECTS = ("options", "train", "software")


@cache
def hostile() -> Findings:
    """Return findings of a study in which every text is hostile, and says which column it is of."""
    runs, epochs = study(counts=(1, 2, 4, 8))
    for column in TEXTS:
        runs[column] = f"{column}{EVIL}"
    for column in OBJECTS:
        runs[column] = [json.dumps({f"{column}{EVIL}": f"{EVIL}{i % 2}"}) for i in range(len(runs))]
    runs["notes"] = [[f"notes{EVIL}"]] * len(runs)
    for table in (runs, epochs):
        table["run_id"] = f"run_id{EVIL}" + table["run_id"]
    epochs["host"] = f"host{EVIL}"
    epochs["energy_source"] = f"energy_source{EVIL}"
    runs.loc[0, ["status", "reason"]] = "failed", f"reason{EVIL}"
    return analyse(runs, epochs)


def test_no_text_of_a_store_becomes_markup():
    text = written(hostile())
    parsed = Page(text)
    assert not parsed.of("script")
    assert len(parsed.of("style")) == 1
    inline = ElementTree.fromstring(re.search("<svg.*?</svg>", text, re.S)[0])  # noqa: S314
    elements = [*inline.iter()]
    shapes = {one.tag.split("}")[1] for one in elements}
    assert shapes <= {"svg", "g", "rect", "path", "line", "text", "title"}
    titles = [one.text for one in elements if one.tag.endswith("}title")]
    assert any("batch" in title for title in titles)
    assert text.count('<span class="hover">') == 1  # only where a pointer shows something
    assert not {"style", "id", "href"} & {name for one in elements for name in one.attrib}
    names = {name for _, attributes in parsed.tags for name in attributes}
    assert not any(name.startswith("on") for name in names)
    assert not {"\x00", "\x1b"} & set(text)
    shown = (*TEXTS, "software", "options", "notes", "reason", "run_id", "energy_source")
    for column in set(shown) - {"metric_name"}:
        assert f"{column}&lt;/script&gt;" in text.lower(), column
    pictures = [one["src"] for one in parsed.of("img")]
    assert len(pictures) > 3
    for address in pictures:
        kind, drawn = address.split(",", 1)
        assert kind == "data:image/svg+xml;charset=utf-8"
        root = ElementTree.fromstring(unquote(drawn))  # noqa: S314 - our own picture
        tags = {element.tag.split("}")[1] for element in root.iter()}
        assert not tags & {"script", "img", "image", "foreignObject", "a", "use", "style"}
    assert any("&lt;/script" in unquote(address) for address in pictures)


@pytest.mark.parametrize(
    ("runs", "epochs"),
    [([], []), ([run_row("a", status="planned")], []), ([run_row("a")], [window_row("a", 1)])],
)
def test_a_store_with_little_in_it_still_gets_a_page(runs, epochs):
    text = written(analyse(*frames(runs, epochs)))
    assert "Methods" in text
    assert "How to cite" in text


@pytest.mark.usefixtures("some")
def test_estimates_failures_and_costs_are_stated_and_a_missing_energy_is_not_zero():
    runs, epochs = study()
    bad = [run_row(f"bad{i}", status="failed", reason="rank 1: out of luck") for i in range(200)]
    footprint = Footprint(pue=1.2, grid_g_per_kwh=300.0, price_per_kwh=0.2, currency="EUR")
    runs = pd.concat([runs, frames(bad, [])[0]])
    text = written(analyse(runs, epochs, footprint=footprint))
    assert "Estimated means busy cores" in text
    assert text.count("cpu, estimated") > 9
    for words in ("200 failed", "rank 1: out of luck", "bad0, bad1, bad10, …"):
        assert words in text
    for words in ("kg CO2e", "cost (EUR)", "times PUE 1.2", "a lower bound"):
        assert words in text
    assert 'id="table-totals"' not in mit_page()
    without = written(analyse(*study(counts=(1, 2), source="none")))
    assert "no meter was available" in without
    assert 'id="figure-energy"' not in without


@pytest.mark.parametrize(("study_", "other"), [("mit-2022", "Huber"), ("kit-2025", "Frey")])
def test_the_template_of_a_study_keeps_to_its_sections_figures_and_claims(some, study_, other):
    made = kit(repeats=2, counts=(1, 2, 4), watts={"A100": 300.0}, growing=False)
    known = mit_findings() if study_ == "mit-2022" else analyse(made.runs, made.epochs)
    text = written(known, study_)
    shown = set(re.findall(r'id="figure-(\w+)"', text))
    assert shown == {figure.name for figure in some} & {*layout(study_).figures}
    assert "Claims of" in text
    assert f"Claims of {other}" not in text
    assert "layout, figures and claims of" in text
    assert 'id="advice"' not in text
    sections = [one for one in Page(text).of("details") if one.get("class") == "section"]
    assert all("open" in one for one in sections)


def test_the_command_writes_page_and_figures_of_a_store_with_telemetry(
    tmp_path, capsys, monkeypatch
):
    calls: Counter[str] = Counter()

    def counting(figure: Figure, findings: Findings) -> Any:
        calls[figure.name] += 1
        return figure.draw(findings)

    few = [figure for figure in gallery() if figure.name in ("joint", "epoch_time", "energy")]
    counted = [replace(figure, draw=partial(counting, figure)) for figure in few]
    monkeypatch.setattr("wattlaw.report.core_sections.gallery", lambda: counted)
    made = mit(models={"resnet50": MIT["resnet50"]}, counts=(2, 4), repeats=1, clocks=False)
    write_store(tmp_path / "store", made.runs, made.epochs, samples=20)
    command = ["report", str(tmp_path / "store"), "-o", str(tmp_path / "page.html")]
    code = main(
        [*command, "--template", "mit-2022", "--grid", "300", "--pue", "1.1",
         "--figures", str(tmp_path / "figures")]
    )  # fmt: skip
    assert code == 0
    assert 'id="figure-joint"' in (tmp_path / "page.html").read_text()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".svg"}
    assert [*calls.values()] == [1, 1, 1], "a figure is made once for the page and its file"
    assert main([*command, "--template", "nature"]) == 2
    assert "mit-2022, kit-2025" in capsys.readouterr().err


def test_a_phone_shows_a_command_by_words_and_a_small_table_as_a_list(tmp_path):
    if not Path(CHROMIUM).exists():
        pytest.skip("Debian's chromium is not installed")
    command = "torchrun --standalone --nproc-per-node 1 train.py --batch-size 128 --epochs 100"
    shown = Answer("Run it", "for the lowest time.", (), "", command)
    columns = [text(f"heading {at}", lambda row, at=at: row[at]) for at in range(6)]
    table = build("few", "A table", columns, [[f"a value {at} of it" for at in range(6)]] * 3)
    section = PageSection("advice", "What to run", (), (shown, table), "screen")
    write_page(tmp_path / "page.html", "Page", [section])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for width in (390, 1300):
                view = browser.new_page(
                    viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
                )
                view.goto((tmp_path / "page.html").as_uri())
                sizes = "e => e.map(one => [one.scrollWidth, one.clientWidth])"
                for wide, room in view.eval_on_selector_all("html, .scroll", sizes):
                    assert wide <= room
                assert view.inner_text("code").split() == command.split()
                lines = "e => e.map(one => one.getClientRects().length)"
                assert set(view.eval_on_selector_all(".word", lines)) == {1}
                heights = "e => e.map(one => one.getBoundingClientRect().height)"
                assert max(view.eval_on_selector_all(".word", heights)) < 40  # one line each
                assert view.locator("thead").is_visible() == (width == 1300)
                options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"]}
                assert not Axe().run(view, options=options).response["violations"]
                view.close()
        browser.close()
