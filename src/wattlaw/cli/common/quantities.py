"""Durations, shares and energies as people write them."""

import math
import re

from wattlaw.analysis.footprint import J_PER_KWH
from wattlaw.errors import BadInput
from wattlaw.text import quote

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_JOULES = {
    "j": 1.0, "kj": 1e3, "mj": 1e6, "gj": 1e9, "wh": J_PER_KWH / 1e3, "kwh": J_PER_KWH,
    "mwh": J_PER_KWH * 1e3,
}  # fmt: skip
_NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"


def duration_s(name: str, text: str) -> float:
    """Return the seconds of ``90min``, ``6h``, ``2d``, ``1h30min``.

    Raises
    ------
    BadInput
        It is no duration above 0.
    """
    parts = re.findall(rf"{_NUMBER}\s*(s|min|h|d)\s*", text.lower())
    whole = "".join(re.split(r"\s+", text.lower()))
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != whole or not 0 < seconds < float("inf"):
        raise BadInput(f"{name}: given {quote(text)}; allowed: a time such as 45s, 90min, 6h, 2d")
    return seconds


def share(name: str, text: str) -> float:
    """Return the share of ``5%`` or ``0.05``.

    Raises
    ------
    BadInput
        It is none. A number from 1 on needs a per cent sign, which it may lack by mistake.
    """
    found = re.fullmatch(rf"{_NUMBER}\s*(%?)", text.strip())
    if found is not None:
        value = float(found[1])
        if found[2] or value < 1:
            return value / 100 if found[2] else value
    raise BadInput(f"{name}: given {quote(text)}; allowed: a share such as 5% or 0.05")


def energy_j(name: str, text: str) -> float:
    """Return the joules of ``50kWh``, ``3MJ``; small letters mean the same.

    Raises
    ------
    BadInput
        It is no energy above 0.
    """
    found = re.fullmatch(rf"{_NUMBER}\s*([a-zA-Z]+)", text.strip())
    joules = float(found[1]) * _JOULES.get(found[2].lower(), 0.0) if found is not None else 0.0
    if not 0 < joules < float("inf"):
        raise BadInput(
            f"{name}: given {quote(text)}; allowed: an energy such as 50kWh, 1.5MWh, 3MJ"
        )
    return joules


def finite(option: str, given: float | None) -> float | None:
    """Return a number that may be missing.

    Raises
    ------
    BadInput
        It is infinite or none.
    """
    if given is not None and not math.isfinite(given):
        raise BadInput(f"{option}: given {given}; allowed: a number")
    return given
