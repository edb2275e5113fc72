"""CSV logs of a command that prints the sensors of GPUs, one line for each GPU and time.

Units are in the header, ``power.draw [W]``, in the cells, ``259.97 W``, or those that the command
documents. Headers may be repeated where a log was appended to, and lines may be torn where the
command was killed. Other outputs of the command are named, with the command that logs.
"""

import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.importing.gpu_rows import checked
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MISSING, NO_TIME, Line, Source, headers_in, moment_ns, number
from wattlaw.importing.readings import SampleRows, describe
from wattlaw.importing.runs import HOST

_UNITS = {
    "": 1.0, "w": 1.0, "mw": 1e-3, "kw": 1e3, "%": 0.01, "mhz": 1.0, "ghz": 1e3, "c": 1.0,
    "j": 1.0, "mj": 1e-3, "kj": 1e3,
}  # fmt: skip
#: These commands write no separator of thousands, so that a comma is a decimal one.
_CELL = re.compile(r"([+-]?[0-9.,]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z%]*)")
_HEADER_CELL = re.compile(r"(.*?)\s*\[([^\]]*)\]")
_SHARES = ("sm_util", "mem_util")


class _Header:
    def __init__(self, cells: tuple[str, ...], layout: "SmiImporter") -> None:
        parts = [_HEADER_CELL.fullmatch(cell) for cell in cells]
        names = [match[1] if match else cell for match, cell in zip(parts, cells, strict=True)]
        self.cells = cells
        self.units = [match[2].lower() if match else "" for match in parts]
        self.time = names.index("timestamp")
        self.ids, self._instant = _places(names, layout.ids), _places(names, layout.instant)
        self.columns = {column: _places(names, each) for column, each in layout.fields.items()}
        for place in (place for column in _SHARES for place in self.columns[column]):
            self.units[place] = self.units[place] or "%"
        self.name, self.max_limit = (
            next(iter(_places(names, each)), None) for each in (layout.names, layout.max_limits)
        )

    def device(self, cells: list[str]) -> tuple[str, str]:
        """Return the name of the column that names a row's GPU, and its name; both may be empty."""
        known = (at for at in self.ids if cells[at].lower() not in MISSING)
        at = next(known, None)
        return ("", "") if at is None else (self.cells[at], cells[at])

    def facts(self, cells: list[str]) -> dict[str, Any]:
        used, _ = self._first(cells, self.columns["power_w"])
        facts: dict[str, Any] = {"power": "instant" if used in self._instant else "average"}
        if self.max_limit is not None:
            _, facts["max_power_limit_w"] = self._first(cells, [self.max_limit])
        return facts

    def values(self, cells: list[str]) -> dict[str, float | None]:
        return {column: self._first(cells, at)[1] for column, at in self.columns.items()}

    def _first(self, cells: list[str], places: list[int]) -> tuple[int | None, float | None]:
        """Return the first place with a value, and the value in the unit of a sample's column."""
        for place in places:
            match = _CELL.fullmatch(cells[place])  # none for [N/A] and its like
            value = number(match[1].replace(",", ".")) if match else None
            if match and value is not None:
                unit = (match[2] or self.units[place]).lower()
                if unit in _UNITS:
                    return place, value * _UNITS[unit]
        return None, None


def _places(names: list[str], fields: tuple[str, ...]) -> list[int]:
    return [names.index(field) for field in fields if field in names]


@dataclass
class SmiImporter:
    name: str
    description: str
    fields: Mapping[str, tuple[str, ...]]  # by column of a sample, the preferred ones first
    ids: tuple[str, ...]
    remedy: str  # how to log
    names: tuple[str, ...] = ()
    max_limits: tuple[str, ...] = ()
    instant: tuple[str, ...] = ()  # fields of power that the device does not average
    others: Mapping[str, str] = field(default_factory=dict)  # patterns by what else a file may be

    def _other(self, head: str) -> str | None:
        head = head.removeprefix("\ufeff").lstrip()
        known = (what for what, pattern in self.others.items() if re.match(pattern, head))
        return next(known, None)

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        fields = {field for fields in self.fields.values() for field in fields}
        headers = ({cell.split("[")[0].strip() for cell in cells} for cells in headers_in(head))
        named = {*self.ids, "timestamp"}
        is_log = any(names & named and names & fields for names in headers)
        return is_log or self._other(head.decode("utf-8", "replace")) is not None

    def lines(self, source: Source) -> Iterator[Line]:
        return source.table(lambda cells: "timestamp" in cells, only_complete=True)

    def read(self, source: Source, options: Options) -> Imported:
        path, account, rows = source.path, source.account, SampleRows(source.path)
        lines, header, id_column = array("q"), None, ""
        for row in self.lines(source):
            if header is None or row.header is not header.cells:
                header = _Header(row.header, self)
            line, cells = row.number, row.cells
            t_ns = moment_ns(cells[header.time].replace(",", "."), options.timezone)
            if t_ns is None:
                account.leave_out(NO_TIME, line)
                continue
            column, device = header.device(cells)
            values = header.values(cells)
            if len(device) > 100 or not device.isprintable():
                account.leave_out("no valid name of a GPU", line)
                continue
            if all(value is None for value in values.values()):
                account.leave_out("no value", line)
                continue
            if column and id_column and column != id_column:
                raise BadInput(
                    f"{path}: line {line}: its GPU is named by {column}, those before by "
                    f"{id_column}; import the lines from here on as a file of their own"
                )
            id_column = id_column or column
            account.read(line)
            rows.add(HOST, device, "gpu", t_ns, values)
            lines.append(line)
            if (HOST, device) not in rows.facts:
                rows.facts[HOST, device] = header.facts(cells)
            if header.name is not None and cells[header.name].lower() not in MISSING:
                rows.names.add(cells[header.name][:200])
        if not account.headers:
            what = self._other(source.head()) or "no header with timestamp"
            raise BadInput(f"{path}: {what}; {self.remedy}")
        if not id_column and len(rows.names) > 1:
            raise BadInput(f"{path}: rows of several GPUs; log the index or uuid of the GPU too")
        readings = rows.readings(account.texts())
        readings, notes = checked(source, readings, lines, options, self.remedy)
        text = describe(f"{self.name} log", readings, options)
        return Imported(text, readings=readings, notes=notes)
