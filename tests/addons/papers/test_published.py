"""What the studies published ships with the package, each value with its source."""

from wattlaw_papers.published import QUANTITIES, SOURCES, published


def test_every_value_has_a_study_a_known_quantity_a_place_and_hardware():
    for row in published():
        assert row.source.citation and row.source.url.startswith("https://arxiv.org/abs/")
        assert row.quantity in QUANTITIES
        assert row.where and row.hardware and row.model
    assert {row.quantity for row in published()} == set(QUANTITIES)
    assert {row.study for row in published()} == set(SOURCES)


def test_workloads_are_those_that_are_registered():
    from wattlaw.common import registry

    names = {row.workload for row in published()} - {None}
    assert names <= set(registry.names("wattlaw.workloads"))
