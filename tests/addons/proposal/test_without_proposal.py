"""Everything else works without the add-on."""

from made_stores import write_store
from made_tables import study
from without_addon import wattlaw_without


def test_the_core_works_without_the_add_on(tmp_path):
    write_store(tmp_path / "store", *study(counts=(1, 2)))
    assert "proposal" not in wattlaw_without("wattlaw_proposal", "--help").stdout
    page = tmp_path / "report.html"
    told = wattlaw_without("wattlaw_proposal", "report", str(tmp_path / "store"), "-o", str(page))
    assert (told.returncode, page.is_file()) == (0, True), told.stderr
