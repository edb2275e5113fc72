"""Durations, shares and energies as people write them."""

import pytest

from wattlaw.common.errors import BadInput
from wattlaw.common.quantities import duration_s, energy_j, finite, share


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6h", 21600), ("90min", 5400), ("2d", 172800), ("45s", 45), ("1h30min", 5400),
     ("1.5 h", 5400), ("1H 30 MIN", 5400), (".5d", 43200)],
)  # fmt: skip
def test_a_duration_is_formatted_with_its_unit(text, seconds):
    assert duration_s("--deadline", text) == seconds


@pytest.mark.parametrize(
    "text", ["6", "h", "", "6 hours", "-6h", "6h?", "0h", "1h30", "x6h", "nan", "1e400h", "6m"]
)
def test_an_invalid_duration_is_rejected(text):
    with pytest.raises(BadInput, match=r"--deadline: given .*; allowed: a time such as 45s, 90min"):
        duration_s("--deadline", text)


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("5 %", 0.05),
                                             ("150%", 1.5), ("0", 0), ("0%", 0)])  # fmt: skip
def test_a_share_is_per_cent_or_a_fraction(text, value):
    assert share("--max-slowdown", text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["5", "1", "-5%", "", "%", "five", "0.05x", "nan", "5%%"])
def test_a_share_that_may_lack_its_sign_is_refused(text):
    with pytest.raises(BadInput, match=r"--max-slowdown: given .*; allowed: a share such as 5%"):
        share("--max-slowdown", text)


@pytest.mark.parametrize(
    ("text", "joules"),
    [("50kWh", 180e6), ("3MJ", 3e6), ("1.5 MWh", 5.4e9), ("200 J", 200), ("10kj", 1e4),
     ("2GJ", 2e9), ("500 Wh", 1.8e6)],
)  # fmt: skip
def test_an_energy_is_formatted_with_its_unit(text, joules):
    assert energy_j("--energy-budget", text) == pytest.approx(joules)


@pytest.mark.parametrize("text", ["50", "kWh", "0kWh", "-1kWh", "5 W", "5kW", "", "1e3kWh"])
def test_an_invalid_energy_is_rejected(text):
    with pytest.raises(BadInput, match=r"--energy-budget: given .*; allowed: an energy such as"):
        energy_j("--energy-budget", text)


def test_nan_and_infinity_are_rejected():
    assert finite("--target", 0.7) == 0.7
    assert finite("--target", None) is None
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(BadInput, match="--target: given"):
            finite("--target", wrong)
