"""Logs of ``nvidia-smi --query-gpu=timestamp,... --format=csv -l 1``.

Units are in the header, ``power.draw [W]``, or in the cells, ``259.97 W``. Headers may be repeated
where a log was appended to, and lines may be torn where the program was killed. Times are local.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from wattlaw.errors import BadInput
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MISSING, csv_rows, moment_ns, number
from wattlaw.importing.runs import HOST
from wattlaw.importing.timeseries import SampleRows, describe

#: Fields of a query, by column of a sample, the preferred ones first. Names as of
#: ``nvidia-smi --help-query-gpu``.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "power_w": ("power.draw.instant", "power.draw", "power.draw.average"),
    "power_average_w": ("power.draw.average",),
    "power_limit_w": ("enforced.power.limit", "power.limit"),
    "sm_util": ("utilization.gpu",),
    "mem_util": ("utilization.memory",),
    "sm_clock_mhz": ("clocks.current.sm", "clocks.sm"),
    "mem_clock_mhz": ("clocks.current.memory", "clocks.mem"),
    "temperature_c": ("temperature.gpu",),
}
_IDS = ("uuid", "gpu_uuid", "index", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
_NAMES = ("name", "gpu_name")
_MAX_LIMIT = "power.max_limit"
#: Factors of the units that nvidia-smi writes; a number without one has the unit of its field.
_UNITS = {"": 1.0, "w": 1.0, "mw": 1e-3, "%": 0.01, "mhz": 1.0, "c": 1.0}
_DEFAULTS = {"sm_util": "%", "mem_util": "%"}
_CELL = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z%]*)")
_UNIT_OF_HEADER = re.compile(r"(.*?)\s*\[([^\]]*)\]")


class _Header:
    """The columns of a log from a header on."""

    def __init__(self, cells: list[str]) -> None:
        parts = [_UNIT_OF_HEADER.fullmatch(cell) for cell in cells]
        names = [m[1] if m else cell for m, cell in zip(parts, cells, strict=True)]
        self.units = [m[2].lower() if m else "" for m in parts]
        self.size = len(cells)
        self.time = names.index("timestamp")
        self.columns = {}
        for column, fields in _FIELDS.items():
            known = [field for field in fields if field in names]
            if known:
                self.columns[column] = (names.index(known[0]), known[0])
        self.id = next((names.index(name) for name in _IDS if name in names), None)
        self.name = next((names.index(name) for name in _NAMES if name in names), None)
        self.max_limit = names.index(_MAX_LIMIT) if _MAX_LIMIT in names else None


class NvidiaSmiImporter:
    """Power, utilisation and clocks of NVIDIA GPUs."""

    name = "nvidia-smi"
    description = "log of nvidia-smi --query-gpu=timestamp,... --format=csv"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether the header has a time and a field of nvidia-smi."""
        first = head.decode("utf-8", "replace").lstrip("\ufeff").split("\n", 1)[0]
        names = {cell.split("[")[0].strip() for cell in first.split(",")}
        return "timestamp" in names and any(
            field in names for fields in _FIELDS.values() for field in fields
        )

    def read(self, path: Path, options: Options) -> Imported:
        """Return the readings of each GPU."""
        rows, header, torn, undated = SampleRows(path), None, 0, 0
        seen: set[int] = set()
        for line, cells in csv_rows(path, skip="", only_complete=True):
            if "timestamp" in cells:
                header = _Header(cells)
                continue
            if header is None:
                raise BadInput(f"{path}: line {line}: no header with timestamp before it")
            if len(cells) != header.size:
                torn += 1
                continue
            t_ns = moment_ns(cells[header.time], options.timezone)
            if t_ns is None:
                undated += 1
                continue
            device = cells[header.id] if header.id is not None else "0"
            if header.id is None:
                if t_ns in seen:
                    raise BadInput(
                        f"{path}: line {line}: two readings of one time; log the index or uuid "
                        "of the GPU too"
                    )
                seen.add(t_ns)
            if not device or len(device) > 100 or not device.isprintable():
                torn += 1
                continue
            values = {
                column: _value(cells[place], header.units[place] or _DEFAULTS.get(column, ""))
                for column, (place, _) in header.columns.items()
            }
            if all(value is None for value in values.values()):
                continue
            rows.add(HOST, device, "gpu", t_ns, values)
            if (HOST, device) not in rows.facts:
                source = header.columns.get("power_w", (0, ""))[1]
                rows.facts[HOST, device] = {
                    "power": "instant" if source.endswith("instant") else "average"
                }
                if header.max_limit is not None:
                    limit = _value(cells[header.max_limit], header.units[header.max_limit])
                    rows.facts[HOST, device]["max_power_limit_w"] = limit
                if header.name is not None and cells[header.name].lower() not in MISSING:
                    rows.names.add(cells[header.name][:200])
        readings = rows.readings()
        skipped = {"torn lines": torn, "lines without a time": undated}
        notes = [f"{count:,} {what} left out" for what, count in skipped.items() if count]
        return Imported(
            describe("nvidia-smi log", readings, options), readings=readings, notes=tuple(notes)
        )


def _value(cell: str, header_unit: str) -> float | None:
    """Return a value in the unit of its column of a sample; None for ``[N/A]`` and its like."""
    match = _CELL.fullmatch(cell)
    if match is None:
        return None
    value, unit = number(match[1]), (match[2] or header_unit).lower()
    return value * _UNITS[unit] if value is not None and unit in _UNITS else None


IMPORTER = NvidiaSmiImporter()
