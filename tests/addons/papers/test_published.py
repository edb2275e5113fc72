"""What the studies published ships with the package, each value with its source."""

from wattlaw_papers.published import QUANTITIES, SOURCES, published


def test_exponents_are_those_of_the_paper_with_their_ranges_of_gpu_counts():
    """Of the graph networks up to 416, and 256 under a cap or clock; of BERT up to 424."""
    rows = published("mit-2022", "beta")
    free = [row for row in rows if row.power_limit_w is None and row.clock_limit_mhz is None]
    assert {row.workload: (row.value, row.r2, row.se) for row in free} == {
        "dimenet": (0.82, 0.99, 0.03), "schnet": (0.42, 0.90, 0.05),
        "bert-base": (0.87, 0.97, 0.03), "resnet50": (0.52, 0.95, None),
        "vgg16": (0.64, 0.98, None), "inceptionv3": (0.44, 0.93, None),
    }  # fmt: skip
    capped = {
        (row.workload, row.power_limit_w): (row.value, row.r2) for row in rows if row.power_limit_w
    }
    assert len(capped) == 9
    assert capped["dimenet", 100] == (0.93, 0.99)
    assert capped["bert-base", 200] == (0.86, 0.99)
    assert capped["resnet50", 250] == (0.84, 0.99)
    ranges = {(row.workload, row not in free): (row.gpus_min, row.gpus_max) for row in rows}
    assert ranges == {
        ("dimenet", False): (2, 416), ("dimenet", True): (2, 256), ("schnet", False): (2, 416),
        ("bert-base", False): (2, 424), ("bert-base", True): (2, 424),
        ("resnet50", False): (None, None), ("resnet50", True): (None, None),
        ("vgg16", False): (None, None), ("inceptionv3", False): (None, None),
    }  # fmt: skip


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
