"""The numbers of a hardware description as a list, each with its unit and its source."""

from typing import NamedTuple

from wattlaw.hardware.cluster import Described

_UNITS = {
    "tflops": "TFLOP/s", "gb_s": "GB/s", "gb": "GB", "mhz": "MHz", "w": "W", "us": "us", "ms": "ms",
}  # fmt: skip


class Entry(NamedTuple):
    key: str  # dotted, as in the file
    value: float
    unit: str  # empty for counts and ratios
    source: str


def describe(part: Described, prefix: str = "") -> list[Entry]:
    entries = []
    for key, value in part.numbers().items():
        unit = next((unit for end, unit in _UNITS.items() if key.endswith(f"_{end}")), "")
        items = value.items() if isinstance(value, dict) else [("", value)]
        entries += [
            Entry(f"{prefix}{key}" + (f".{name}" if name else ""), number, unit, part.sources[key])
            for name, number in items
        ]
    for key, value in part:
        if isinstance(value, Described):
            entries += describe(value, f"{prefix}{key}.")
    return entries
