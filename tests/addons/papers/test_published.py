"""What the studies published ships with the package, each value with its source."""

from wattlaw_papers.published import SOURCES, published


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
    from wattlaw.common import registry

    names = {row.workload for row in published()} - {None}
    assert names <= set(registry.names("wattlaw.workloads"))
