"""Units of columns and cells: ``step_time_ms``, ``power [W]``, ``259.97 W``, ``01:30:00``.

A unit is read where it is written, never guessed: one letter of the wrong case, such as the
``m`` of ``mj`` (milli or mega), makes it unclear.
"""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from wattlaw.scopes import KINDS
from wattlaw.store.fields import finite_number

_TIME = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0,
    "second": 1.0, "seconds": 1.0, "min": 60.0, "mins": 60.0, "minutes": 60.0, "h": 3600.0,
    "hr": 3600.0, "hrs": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "days": 86400.0,
    "milliseconds": 1e-3,
}  # fmt: skip
#: By dimension, the factor of each unit to the unit of wattlaw's fields.
UNITS: Mapping[str, Mapping[str, float]] = {
    "time": _TIME,
    "energy": {"mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3.6e3, "kWh": 3.6e6, "MWh": 3.6e9,
               "joule": 1.0, "joules": 1.0},
    "power": {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6, "watt": 1.0, "watts": 1.0},
    "frequency": {"Hz": 1e-6, "kHz": 1e-3, "MHz": 1.0, "GHz": 1e3},
    "share": {"%": 0.01, "percent": 0.01, "pct": 0.01, "share": 1.0, "fraction": 1.0},
}  # fmt: skip
_TIMES = ("epoch_time", "step_time", "eval_time", "data_wait", "communication", "rank_wait")
#: The fields with a unit, without it: dimension, and the field that takes the value.
FIELDS_WITH_UNIT: Mapping[str, tuple[str, str]] = {
    **{name: ("time", f"{name}_s") for name in _TIMES},
    **{f"{kind}_energy": ("energy", f"{kind}_energy_j") for kind in KINDS},
    **{name: ("power", f"{name}_w") for name in ("power", "power_limit")},
    "clock_limit": ("frequency", "clock_limit_mhz"),
    **{name: ("share", name) for name in ("sm_util", "mem_util")},
}
_LOWER = {
    dimension: {
        unit.lower(): factor
        for unit, factor in units.items()
        if len({f for name, f in units.items() if name.lower() == unit.lower()}) == 1
    }
    for dimension, units in UNITS.items()
}
_UNCLEAR = {"mw": "power", "mj": "energy"}
_LAST_WORD = re.compile(r"[\s_.\-(\[/]([A-Za-zµ%]{1,12})[\])]?$")
_CELL = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ%]{1,12})")
_CLOCK = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,6}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]{1,9})?)")
_RATE = re.compile(
    r"(samples?|images?|imgs?|examples?|sequences?|seqs?|tokens?|toks?|steps?|it|iters?|"
    r"iterations?|batches)(?:/|[_ ]per[_ ])s(?:ec|econd)?(?:(?:/|[_ ]per[_ ])(gpu|device|rank))?$",
    re.IGNORECASE,
)


def factor(unit: str, dimension: str) -> float | None:
    """Return the factor of a unit; None where it is unclear or of another dimension."""
    exact = UNITS[dimension].get(unit)
    return exact if exact is not None else _LOWER[dimension].get(unit.lower())


def unit_in_name(column: str) -> tuple[str, float] | None:
    """Return the dimension and the factor of the unit with which a column's name ends.

    The factor of ``mw`` and ``mj``, milli or mega, is NaN.
    """
    match = _LAST_WORD.search(column.strip())
    if match is None:
        return None
    if match[1] in _UNCLEAR:
        return _UNCLEAR[match[1]], math.nan
    known = ((dimension, factor(match[1], dimension)) for dimension in UNITS)
    return next(((dimension, value) for dimension, value in known if value is not None), None)


def rate_in_name(name: str) -> tuple[str, bool] | None:
    """Return what a name counts per second, samples, steps or tokens, and whether it is per GPU."""
    match = _RATE.search(name.strip().strip("[]()"))
    if match is None:
        return None
    counted = match[1].lower()
    is_of_steps = counted.startswith(("step", "it", "batch"))
    kind = "tokens" if counted.startswith("tok") else "steps" if is_of_steps else "samples"
    return kind, match[2] is not None


def quantity(cell: Any, dimension: str | None, scale: float | None) -> float:
    """Return a cell in the unit of its field.

    ``cell`` is a number, or a text: a number, a number with a unit, or a time as
    ``[days-]hh:mm:ss``. ``dimension`` is one of ``UNITS``, None for any. ``scale`` is the factor of
    a number without a unit, None where that is unclear.

    Raises ``ValueError`` if it is not finite, or its unit is unclear or of another dimension.
    """
    if isinstance(cell, str):
        text = cell.strip()
        if (match := _CELL.fullmatch(text)) is not None:
            known = [factor(match[2], each) for each in UNITS if dimension in (None, each)]
            factors = [value for value in known if value is not None]
            if not factors:
                raise ValueError
            return finite_number(match[1]) * factors[0]
        if dimension in (None, "time") and (match := _CLOCK.fullmatch(text)) is not None:
            days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
            return ((days * 24 + hours) * 60 + minutes) * 60 + float(match[4])
    elif isinstance(cell, Decimal):
        cell = float(cell)
    value = finite_number(cell)
    if scale is None:
        raise ValueError
    return value * scale
