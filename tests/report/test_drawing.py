"""Scales of figures that contain every value."""

import itertools

from wattlaw.report.charts import x_axis


def test_a_scale_of_one_value_has_that_tick_and_no_error():
    nearly_one = [[300.0, 300.0 + 1e-10], [1.00001, 1.00002], [123456.0, 123457.0]]
    for values, zero in itertools.product(([0.0, 0.0], [5.0], *nearly_one), (True, False)):
        low, high = x_axis("x", "x (s)", values, zero=zero)["scale"]["domain"]
        assert low <= min(values)
        assert max(values) <= high
        assert low < high
