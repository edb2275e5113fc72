"""Without the add-on of the studies, the report works and has the core's layouts only."""

import re

import pytest

from made_stores import write_store
from made_tables import study
from without_addon import wattlaw_without


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("without") / "store", *study(counts=(1, 2))).path


def test_the_report_has_all_sections_but_the_claims_and_cites_no_study(store, tmp_path):
    page = tmp_path / "page.html"
    written = wattlaw_without("wattlaw_papers", "report", store, "-o", page)
    assert (written.returncode, written.stderr) == (0, "")
    text = page.read_text(encoding="utf-8")
    sections = re.findall(r'(?:class="section"|class="line") id="(\w+)"', text)
    assert {"scaling", "energy", "data", "methods"} <= {*sections}
    assert "claims" not in sections
    assert 'id="figure-speedup"' in text
    assert "published β</th>" not in text
    assert "arxiv.org/abs/2201.12423." not in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("report", "--template", "mit-2022"), "allowed: those of add-ons"),
        (("claims",), "claims"),
    ],
)
def test_what_the_add_on_has_is_refused_with_what_is_there(store, tmp_path, line, words):
    command, *options = line
    refused = wattlaw_without("wattlaw_papers", command, store, *options, cwd=tmp_path)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert not list(tmp_path.iterdir())
