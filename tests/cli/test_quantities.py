"""Durations, shares and energies as people write them."""

import pytest

from wattlaw.common.errors import BadInput
from wattlaw.common.quantities import duration_s, energy_j, finite, share


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (duration_s, {"6h": 21600, "90min": 5400, "2d": 172800, "45s": 45, "1h30min": 5400,
                      "1.5 h": 5400, "1H 30 MIN": 5400, ".5d": 43200}),
        (share, {"5%": 0.05, "0.05": 0.05, "5 %": 0.05, "150%": 1.5, "0": 0, "0%": 0}),
        (energy_j, {"50kWh": 180e6, "3MJ": 3e6, "1.5 MWh": 5.4e9, "200 J": 200, "10kj": 1e4,
                    "2GJ": 2e9, "500 Wh": 1.8e6}),
    ],
)  # fmt: skip
def test_a_quantity_is_read_with_its_unit(read, values):
    assert {text: read("--option", text) for text in values} == pytest.approx(values)


@pytest.mark.parametrize(
    ("read", "example", "texts"),
    [
        (
            duration_s,
            "a time such as 45s, 90min",
            ["6", "h", "", "6 hours", "-6h", "6h?", "0h", "1h30", "x6h", "nan", "1e400h", "6m"],
        ),
        (share, "a share such as 5%", ["5", "1", "-5%", "", "%", "five", "0.05x", "nan", "5%%"]),
        (energy_j, "an energy such as", ["50", "kWh", "0kWh", "-1kWh", "5 W", "5kW", "", "1e3kWh"]),
    ],
)
def test_other_texts_are_rejected_with_an_example(read, example, texts):
    for text in texts:
        with pytest.raises(BadInput, match=rf"--option: given .*; allowed: {example}"):
            read("--option", text)


def test_nan_and_infinity_are_rejected():
    assert finite("--target", 0.7) == 0.7
    assert finite("--target", None) is None
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(BadInput, match="--target: given"):
            finite("--target", wrong)
