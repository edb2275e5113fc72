"""Durations, shares and energies: numbers, or texts such as ``6h``, ``5%``, ``50kWh``."""

import math
import re
from collections.abc import Mapping
from datetime import timedelta

from wattlaw.common.errors import BadInput
from wattlaw.common.text import quote

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_JOULES = {"j": 1.0, "kj": 1e3, "mj": 1e6, "gj": 1e9, "wh": 3.6e3, "kwh": 3.6e6, "mwh": 3.6e9}
_NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"


def duration_s(name: str, value: str | float | timedelta | None) -> float | None:
    """Return a duration in seconds; None for None.

    The value is a number of seconds, or a text such as ``45s``, ``90min``, ``2d``, ``1h30min``.
    Raises ``BadInput``, with the ``name`` of the option or parameter, if it is not above 0.

    Examples
    --------
    >>> duration_s("deadline", "1h30min")
    5400.0
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return _sum(name, value, _SECONDS, "a time such as 45s, 90min, 6h, 2d")


def share(name: str, value: str | float | None) -> float | None:
    """Return a share: ``"5%"`` and ``0.05`` are the same; None for None.

    Raises ``BadInput`` if it is not a share, or 1 or more without the per cent sign.
    """
    if value is None:
        return None
    number, sign = value, ""
    if isinstance(value, str):
        match = re.fullmatch(rf"{_NUMBER}\s*(%?)", value.strip())
        number, sign = (float(match[1]), match[2]) if match is not None else (math.nan, "")
    if sign:
        return float(number) / 100
    if not 0 <= float(number) < 1:
        raise _invalid(name, value, "a share such as 5% or 0.05")
    return float(number)


def energy_j(name: str, value: str | float | None) -> float | None:
    """Return an energy in joules; None for None.

    The value is a number of joules, or a text such as ``50kWh``, ``3MJ``; case does not matter.
    Raises ``BadInput``, with the ``name`` of the option or parameter, if it is not above 0.
    """
    return _sum(name, value, _JOULES, "an energy such as 50kWh, 1.5MWh, 3MJ")


def _sum(
    name: str, value: str | float | None, units: Mapping[str, float], allowed: str
) -> float | None:
    """Return the sum of a text's parts, such as ``1h30min``, each of which has a unit."""
    if value is None:
        return None
    amount = float(value) if not isinstance(value, str) else 0.0
    if isinstance(value, str):
        parts = re.findall(rf"{_NUMBER}\s*([a-z]+)\s*", value.lower())
        if "".join(map("".join, parts)) == "".join(value.lower().split()):
            amount = sum(float(number) * units.get(unit, math.nan) for number, unit in parts)
    if not 0 < amount < math.inf:
        raise _invalid(name, value, allowed)
    return amount


def finite(name: str, value: float | None) -> float | None:
    if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
        raise _invalid(name, value, "a number")
    return value


def _invalid(name: str, value: object, allowed: str) -> BadInput:
    shown = quote(value) if isinstance(value, str) else str(value)
    return BadInput(f"{name}: given {shown}; allowed: {allowed}")
