"""CSV logs of a command that prints the sensors of GPUs, one line for each GPU and time.

Units are in the header, ``power.draw [W]``, in the cells, ``259.97 W``, or those that the command
documents. Headers may be repeated where a log was appended to, and lines may be torn where the
command was killed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MISSING, Source, headers_in, moment_ns, number
from wattlaw.importing.runs import HOST
from wattlaw.importing.timeseries import SampleRows, describe

#: Factors of the units that these commands write.
_UNITS = {"": 1.0, "w": 1.0, "mw": 1e-3, "%": 0.01, "mhz": 1.0, "c": 1.0, "j": 1.0}
_CELL = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z%]*)")
_HEADER_CELL = re.compile(r"(.*?)\s*\[([^\]]*)\]")
_SHARES = ("sm_util", "mem_util")


@dataclass(frozen=True)
class Layout:
    """The columns of a command's log."""

    title: str
    fields: Mapping[str, tuple[str, ...]]  # by column of a sample, the preferred ones first
    ids: tuple[str, ...]
    names: tuple[str, ...] = ()
    max_limits: tuple[str, ...] = ()
    instant: tuple[str, ...] = ()  # fields of power that the device does not average


class _Header:
    """The columns of a log from a header on."""

    def __init__(self, cells: list[str], layout: Layout) -> None:
        parts = [_HEADER_CELL.fullmatch(cell) for cell in cells]
        names = [match[1] if match else cell for match, cell in zip(parts, cells, strict=True)]
        self.units = [match[2].lower() if match else "" for match in parts]
        self.time = names.index("timestamp")
        self.columns: dict[str, int] = {}
        self.facts: dict[str, Any] = {}
        for column, fields in layout.fields.items():
            if (place := _place(names, fields)) is not None:
                self.columns[column] = place
                if column in _SHARES and not self.units[place]:
                    self.units[place] = "%"
        if "power_w" in self.columns:
            is_instant = names[self.columns["power_w"]] in layout.instant
            self.facts["power"] = "instant" if is_instant else "average"
        self.id, self.name, self.max_limit = (
            _place(names, fields) for fields in (layout.ids, layout.names, layout.max_limits)
        )

    def value(self, cells: list[str], place: int) -> float | None:
        """Return a value in the unit of a sample's column; None for ``[N/A]`` and its like."""
        match = _CELL.fullmatch(cells[place])
        if match is None:
            return None
        value, unit = number(match[1]), (match[2] or self.units[place]).lower()
        return value * _UNITS[unit] if value is not None and unit in _UNITS else None


def _place(names: list[str], fields: tuple[str, ...]) -> int | None:
    return next((names.index(field) for field in fields if field in names), None)


class SmiImporter:
    """Power, utilisation and clocks of GPUs."""

    def __init__(self, name: str, description: str, layout: Layout) -> None:
        self.name, self.description, self._layout = name, description, layout

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether the header has a time and a field of the command."""
        fields = {field for fields in self._layout.fields.values() for field in fields}
        headers = ({cell.split("[")[0].strip() for cell in cells} for cells in headers_in(head))
        named = {*self._layout.ids, "timestamp"}
        return any(names & named and names & fields for names in headers)

    def read(self, source: Source, options: Options) -> Imported:
        """Return the readings of each GPU."""
        path, account, rows = source.path, source.account, SampleRows(source.path)
        names: tuple[str, ...] = ()
        seen: set[int] = set()
        for row in source.table(lambda cells: "timestamp" in cells, only_complete=True):
            line, cells = row.number, row.cells
            if row.header is not names:
                names, header = row.header, _Header([*row.header], self._layout)
            t_ns = moment_ns(cells[header.time], options.timezone)
            if t_ns is None:
                account.leave_out("no time", line)
                continue
            device = cells[header.id] if header.id is not None else "0"
            if header.id is None and t_ns in seen:
                raise BadInput(
                    f"{path}: line {line}: two readings of one time; log the index or uuid of the "
                    "GPU too"
                )
            seen.add(t_ns)
            values = {name: header.value(cells, at) for name, at in header.columns.items()}
            if (
                not 0 < len(device) <= 100
                or not device.isprintable()
                or not any(value is not None for value in values.values())
            ):
                account.leave_out("no device or no value", line)
                continue
            account.read(line)
            rows.add(HOST, device, "gpu", t_ns, values)
            if (HOST, device) not in rows.facts:
                rows.facts[HOST, device] = dict(header.facts)
                if header.max_limit is not None:
                    limit = header.value(cells, header.max_limit)
                    rows.facts[HOST, device]["max_power_limit_w"] = limit
                if header.name is not None and cells[header.name].lower() not in MISSING:
                    rows.names.add(cells[header.name][:200])
        if not account.headers:
            raise BadInput(f"{path}: no header with timestamp; log the time too")
        readings = rows.readings()
        text = describe(self._layout.title, readings, options)
        return Imported(text, readings=readings)
