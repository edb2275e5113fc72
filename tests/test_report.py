"""The report: complete in itself, inert to names, honest about energy; and its figures."""

import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from made_tables import frames, run_row, study, window_row
from wattlaw.analysis.findings import find
from wattlaw.report.figures import FIGURES
from wattlaw.report.page import write_figures, write_report
from wattlaw.report.words import summary

EVIL = "</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """Collects tags and what they would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{k}={v}" for k, v in attributes if k in ("src", "href", "srcset")]


@pytest.fixture
def page(tmp_path):
    """Give a function that writes a report of two tables and returns its text."""

    def write(runs: pd.DataFrame, epochs: pd.DataFrame) -> str:
        path = tmp_path / "new" / "report.html"
        write_report(find(runs, epochs), path)
        return path.read_text()

    return write


def markup(text: str) -> str:
    """Return the page without its scripts."""
    return re.sub(r"<script>.*?</script>", "", text, flags=re.S)


def test_it_is_one_file_that_loads_nothing(page):
    text = page(*study())
    parsed = Page(text)
    assert parsed.loads == []
    assert "link" not in parsed.tags
    assert "vegaEmbed" in text
    assert "default-src 'none'" in text
    assert len(text) < 5_000_000


def test_it_says_what_ran_the_exponents_the_speedups_and_the_failures(page):
    runs, epochs = study()
    broken = frames([run_row("bad", status="failed", reason="rank 1: out of luck")], [])[0]
    text = markup(page(pd.concat([runs, broken]), epochs))
    for words in ("Seconds per epoch", "95 % interval of β", "Speedup", "parallel efficiency",
                  "rank 1: out of luck", "board", "28 runs: 27 done, 1 failed"):  # fmt: skip
        assert words in text
    for figure in FIGURES:
        assert f'id="{figure}"' in text


def test_estimated_energy_is_called_estimated_in_words_tables_and_figures(page):
    runs, epochs = study()
    text = markup(page(runs, epochs))
    assert "Estimated means busy cores" in text
    assert text.count("cpu, estimated") > 9
    chart = FIGURES["energy"](find(runs, epochs))
    assert "estimated" in json.dumps(chart.to_dict()["title"])
    assert "estimated" in json.dumps(chart.to_dict()["layer"])


def test_settings_in_which_runs_differ_are_columns_and_unlike_energies_have_no_common_line(page):
    runs, epochs = study()
    other, others = study(source="counter")
    for table in (other, others):
        table["run_id"] = "x" + table["run_id"]
    other["hardware"] = "a better board"
    both, all_epochs = pd.concat([runs, other]), pd.concat([epochs, others])
    text = markup(page(both, all_epochs))
    assert "<th>hardware</th>" in text
    assert "<td>a better board</td>" in text
    findings = find(both, all_epochs)
    assert findings.energy == "cpu, counter; cpu, estimated"
    shown = json.dumps(FIGURES["energy"](findings).to_dict()["layer"])
    assert "a better board (cpu, counter)" in shown
    assert "board (cpu, estimated)" in shown
    assert "1 worker, a better board" in json.dumps(FIGURES["quality"](findings).to_dict()["layer"])


def test_simulated_energy_is_called_simulated(page):
    assert "Simulated means from a model" in markup(page(*study(source="simulated")))


def test_missing_energy_is_said_to_be_missing_and_draws_no_figure(page):
    runs, epochs = study(source="none")
    text = markup(page(runs, epochs))
    assert "Not available: no energy meter" in text
    assert FIGURES["energy"](find(runs, epochs)) is None
    assert 'id="energy"' not in text


def test_names_from_a_store_cannot_become_markup_or_script(page):
    runs, epochs = study()
    runs["workload"] = EVIL
    runs["hardware"] = EVIL
    runs["notes"] = [[EVIL]] * len(runs)
    runs.loc[0, ["status", "reason"]] = "failed", EVIL
    text = page(runs, epochs)
    assert "img" not in Page(text).tags
    assert Page(text).tags.count("script") == 2
    assert "</script><img" not in text
    assert "&lt;img" in text


def test_two_counts_of_workers_get_a_page_without_a_law(page):
    text = markup(page(*study(counts=(1, 2))))
    assert "No scaling law is fitted" in text
    assert "2 distinct worker counts" in text


@pytest.mark.parametrize(
    ("runs", "epochs"),
    [([], []), ([run_row("a", status="planned")], []), ([run_row("a")], [window_row("a", 1)])],
)
def test_a_store_with_little_in_it_still_gets_a_page(page, runs, epochs):
    text = page(*frames(runs, epochs))
    assert "How it was measured" in text


def test_a_sentence_on_a_law_carries_interval_and_range():
    text = " ".join(summary(find(*study(beta=0.7))))
    assert re.search(r"β = 0\.\d\d, 95 % interval 0\.\d\d to 0\.\d\d; 1 to 4 workers, 9 runs", text)
    flat = " ".join(summary(find(*study(beta=0.0))))
    assert "cannot be told from none" in flat


def test_every_figure_is_written_as_png_and_svg(tmp_path):
    written = write_figures(find(*study()), tmp_path / "figures")
    assert {path.name for path in written} == {f"{f}.{k}" for f in FIGURES for k in ("png", "svg")}
    for path in written:
        start = path.read_bytes()[:60]
        assert start.startswith(b"\x89PNG" if path.suffix == ".png" else b"<svg")
        assert path.stat().st_size > 3000


@pytest.mark.parametrize("name", FIGURES)
def test_every_axis_of_a_figure_has_a_title_with_its_unit(name):
    chart = json.dumps(FIGURES[name](find(*study())).to_dict())
    titles = re.findall(r'"title": "([^"]+)"', chart)
    named = [title for title in titles if title not in ("series",)]
    assert any("workers (" in t or "(samples per update)" in t for t in named)
    assert all("(" in title for title in named)


def test_a_page_of_many_runs_stays_small(tmp_path):
    runs, epochs = study(counts=tuple(range(1, 101)))
    assert len(runs) == 900
    path = tmp_path / "report.html"
    write_report(find(runs, epochs), path)
    assert path.stat().st_size < 5_000_000
