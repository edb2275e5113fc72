"""Numbers and units as people and programs write them: ``8192``, ``[ms]``, ``1-06:00:00``.

Both are read where they can mean one thing only, and never guessed. ``1,234`` is 1234 or 1.234,
and the ``m`` of ``mj`` is milli or mega.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: A number that every program reads alike.
PLAIN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
#: A number with separators, which may be of thousands or of a fraction.
_SEPARATED = re.compile(r"[+-]?[0-9][0-9.,  \u00a0\u2009\u202f'’_]*(?:[eE][+-]?[0-9]+)?")
_NO_NUMBERS = frozenset({"nan", "-nan", "inf", "+inf", "-inf", "infinity", "-infinity"})
_TIME = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
#: By dimension, the factor of each unit to the unit of wattlaw's fields.
UNITS: Mapping[str, Mapping[str, float]] = {
    "time": _TIME,
    "energy": {"mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9, "mWh": 3.6, "Wh": 3.6e3,
               "kWh": 3.6e6, "MWh": 3.6e9, "joule": 1.0, "joules": 1.0},
    "power": {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6, "watt": 1.0, "watts": 1.0},
    "frequency": {"Hz": 1e-6, "kHz": 1e-3, "MHz": 1.0, "GHz": 1e3},
    "memory": {"bytes": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20,
               "GiB": 2.0**30},
    "share": {"%": 0.01, "percent": 0.01, "pct": 0.01, "share": 1.0, "fraction": 1.0},
}  # fmt: skip
#: The units that messages name, and an example of a cell with one.
_NAMED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "time": (("ns", "us", "ms", "s", "min", "h", "d"), "250 ms, 01:30:00 (hh:mm:ss)"),
    "energy": (("mJ", "J", "kJ", "MJ", "Wh", "kWh", "MWh"), "3.2 kWh"),
    "power": (("mW", "W", "kW", "MW"), "260 W"),
    "frequency": (("Hz", "kHz", "MHz", "GHz"), "1.4 GHz"),
    "memory": (("bytes", "MB", "MiB", "GB", "GiB"), "61.5 GiB"),
    "share": (("share", "percent"), "97%"),
}
_LOWER = {
    dimension: {
        unit.lower(): factor
        for unit, factor in units.items()
        if len({f for name, f in units.items() if name.lower() == unit.lower()}) == 1
    }
    for dimension, units in UNITS.items()
}
_UNCLEAR = {"mw": "power", "mj": "energy", "mwh": "energy"}
#: A unit at the end of a name; ``elapsedMs`` and ``ms`` too, but a letter alone is a name.
_LAST_WORD = re.compile(r"[\s_.,\-(\[/]([A-Za-zµμ%]{1,14})[\])]?$")
_LAST_CAPITAL = re.compile(r"(?:^|[a-z0-9])(?!Min$|min$)([A-Z][a-z]+|[a-z]{2,}|kWh|kW|MHz|GHz)$")
#: What a unit is counted for: ``ms/step``, ``seconds_per_epoch``.
_PER = re.compile(
    r"[\s_]*(?:/|(?<![A-Za-z])per(?![A-Za-z]))[\s_]*"
    r"(step|iter|iteration|it|batch|epoch|sample|image|img|token|gpu|device|rank|node)e?s?"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
_STEPS = frozenset({"step", "iter", "iteration", "it", "batch"})
#: Words behind a unit: ``step_ms_mean``.
_AGGREGATE = re.compile(
    r"[\s_.\-(\[]+(?:mean|avg|average|median|p50|total|sum)[\])]?$", re.IGNORECASE
)
_CELL = re.compile(r"(.*[0-9.])\s*([A-Za-zµμ%]{1,14})", re.DOTALL)
_CLOCK = re.compile(
    r"(?:([0-9]{1,5})(?:-|\s+days?,?\s+))?([0-9]{1,6}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]{1,9})?)"
)
_RATE = re.compile(
    r"(samples?|images?|imgs?|examples?|sequences?|seqs?|tokens?|toks?|steps?|it|iters?|"
    r"iterations?|batches)\s*(?:/|[_ ]per[_ ])\s*(s|sec|second|min|minute|h|hr|hour)"
    r"(?:\s*(?:/|[_ ]per[_ ])\s*(gpu|device|rank))?$",
    re.IGNORECASE,
)


class UnclearNumber(ValueError):
    """A text that is ambiguous; the message says in which way, after a comma."""


def read_number(text: str) -> float:
    """Raise ``UnclearNumber`` for a number with separators, and ``ValueError`` for no number."""
    text = text.strip()
    if PLAIN.fullmatch(text) or text.lower() in _NO_NUMBERS:
        return float(text)
    if _SEPARATED.fullmatch(text):
        raise UnclearNumber(", with separators that are not read: write 1234.5 for 1,234.5")
    raise ValueError


def finite_number(value: Any) -> float:
    number = number_or_inf(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def number_or_inf(value: Any) -> float:
    if isinstance(value, str):
        if not value.isascii() or "_" in value:  # float() would take them
            raise ValueError
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    try:
        return float(value)
    except OverflowError:
        raise ValueError from None


@dataclass(frozen=True)
class Unit:
    text: str
    per: frozenset[str] = frozenset()

    @property
    def dimension(self) -> str | None:
        if self.text in _UNCLEAR:
            return _UNCLEAR[self.text]
        return next((name for name in UNITS if factor(self.text, name) is not None), None)

    def factor(self, dimension: str) -> float | None:
        """Return its factor; NaN for ``mw`` and ``mj``, milli or mega; None in another one."""
        return math.nan if _UNCLEAR.get(self.text) == dimension else factor(self.text, dimension)


def factor(unit: str, dimension: str) -> float | None:
    exact = UNITS[dimension].get(unit)
    return exact if exact is not None else _LOWER[dimension].get(unit.lower())


def unit_in_name(column: str) -> Unit | None:
    if rate_in_name(column) is not None:
        return None
    per = {match[1].lower() for match in _PER.finditer(column)}
    if per & _STEPS:
        per = (per - _STEPS) | {"step"}
    text = _PER.sub("", column).strip()
    while (shorter := _AGGREGATE.sub("", text)) != text:
        text = shorter
    for form in (_LAST_WORD, _LAST_CAPITAL):
        match = form.search(text)
        if match is not None and Unit(match[1]).dimension is not None:
            return Unit(match[1], frozenset(per))
    return Unit("", frozenset(per)) if per else None


def rate_in_name(name: str) -> tuple[str, bool, float] | None:
    """Return what a name counts (samples, steps, tokens), whether per GPU, and in which time."""
    match = _RATE.search(name.strip().strip("[]()"))
    if match is None:
        return None
    counted = match[1].lower()
    is_of_steps = counted.startswith(("step", "it", "batch"))
    kind = "tokens" if counted.startswith("tok") else "steps" if is_of_steps else "samples"
    return kind, match[3] is not None, _TIME[match[2].lower()]


def units_text(base: str, dimension: str) -> str:
    names, cells = _NAMED[dimension]
    # A share needs no unit.
    fields = [base if unit == "share" else f"{base}_{unit}" for unit in names]
    return f"{', '.join(fields)}, or a unit in the column's name or in each cell, such as {cells}"


def cells_text(dimension: str) -> str:
    names, cells = _NAMED[dimension]
    return f"a number with a unit ({', '.join(names)}), such as {cells}"


def is_unit(text: str) -> bool:
    """Say whether a text is a unit and nothing else, such as ``[ms]``."""
    text = text.strip().strip("[]()").strip()
    return any(factor(text, dimension) is not None for dimension in UNITS) or (
        text in _UNCLEAR or rate_in_name(text) is not None
    )


def quantity(cell: Any, dimension: str | None, scale: float | None) -> float:
    """Return a cell in the unit of its field: a number, a number with a unit, or a time as
    ``[days-]hh:mm:ss``. ``dimension`` is one of ``UNITS``, None for any; ``scale`` the factor of a
    number without a unit, None where unclear. Raises ``ValueError`` if it is not finite, or its
    unit is unclear or of another dimension."""
    if isinstance(cell, str):
        text = cell.strip()
        if dimension in (None, "time") and (seconds := _clock(text)) is not None:
            return seconds
        if len(text) < 100 and (match := _CELL.fullmatch(text)) is not None:
            known = [factor(match[2], each) for each in UNITS if dimension in (None, each)]
            factors = [value for value in known if value is not None]
            if factors:
                return finite_number(read_number(match[1])) * factors[0]
        cell = read_number(text)
    value = finite_number(cell)
    if scale is None:
        raise ValueError
    return value * scale


def _clock(text: str) -> float | None:
    """Return the seconds of ``1-06:00:00``."""
    match = _CLOCK.fullmatch(text) if len(text) <= 100 else None
    if match is None:
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(match[4])
