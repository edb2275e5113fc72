"""Everything else works without the add-on."""

from made_stores import write_store
from made_tables import study
from without_addon import wattlaw_without


def test_the_core_works_without_the_add_on(tmp_path):
    store = str(tmp_path / "store")
    write_store(tmp_path / "store", *study(counts=(1, 2)))
    assert "throughput" not in wattlaw_without("wattlaw_throughput", "--help").stdout
    told = wattlaw_without("wattlaw_throughput", "compare", store, store)
    assert (told.returncode, "time" in told.stdout) == (0, True), told.stderr
