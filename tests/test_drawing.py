"""Charts are drawn by a process of their own; what happens to it loses no figure."""

import itertools

import pytest

from wattlaw.report.pictures import to_svg
from wattlaw.report.figures.parts import linear_scale

CHART = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "data": {"values": [{"a": 1, "b": 2.123456}, {"a": 2, "b": 3}]},
    "mark": "point",
    "encoding": {
        "x": {"field": "a", "type": "quantitative"},
        "y": {"field": "b", "type": "quantitative", "title": "line\nbreak </script>"},
    },
}


def test_charts_drawn_in_parallel_keep_their_order():
    wide = {**CHART, "width": 500}
    with Drawing() as drawing:
        one, other = drawing.svg(CHART), drawing.svg(wide)
        assert (one.result(), other.result()) == (to_svg(CHART), to_svg(wide))


def test_a_drawing_process_that_was_killed_loses_no_figure():
    with Drawing() as drawing:
        drawing._child.kill()
        drawing._child.wait()
        assert drawing.svg(CHART).result() == to_svg(CHART)


def test_a_chart_that_cannot_be_drawn_is_an_error_and_the_next_is_drawn():
    with Drawing() as drawing:
        wrong, good = drawing.svg({"mark": 3}), drawing.svg(CHART)
        with pytest.raises(ValueError, match=r"\S"):
            wrong.result()
        assert good.result() == to_svg(CHART)


def test_a_scale_of_one_value_has_that_tick_and_no_error():
    nearly_one = [[300.0, 300.0 + 1e-10], [1.00001, 1.00002], [123456.0, 123457.0]]
    for values, zero in itertools.product(([0.0, 0.0], [5.0], *nearly_one), (True, False)):
        scale, _ = linear_scale(values, 5, zero=zero)
        low, high = scale.domain
        assert low <= min(values)
        assert max(values) <= high
        assert low < high
