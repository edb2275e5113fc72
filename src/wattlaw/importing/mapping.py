"""The mapping of a table: which column, product or quotient of columns each field takes.

``FIELD=COLUMN`` takes the unit that the field names (``step_time_ms``), or else that the column
names (``time [ms]``), or else that each cell names (``259.97 W``).
"""

import csv
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.importing.units import (
    FIELDS_WITH_UNIT,
    UNITS,
    factor,
    quantity,
    rate_in_name,
    unit_in_name,
)
from wattlaw.store.fields import (
    FIELDS,
    MAX_TEXT,
    OPTION,
    OPTIONS,
    Field,
    InvalidCell,
    finite_number,
    in_range,
)
from wattlaw.text import join_names, quote

#: The field of a rate, in samples, steps or tokens per second, and of what a sample consists.
THROUGHPUT, TOKENS = "throughput", "tokens_per_sample"
_RATE = in_range(0, float("inf"), "a number > 0", above_low=True)
_OTHERS: Mapping[str, Field] = {THROUGHPUT: _RATE, TOKENS: _RATE}
#: At least one field of each is required.
REQUIRED = (("gpus",), ("epoch_time_s", "step_time_s", THROUGHPUT))
_EXCLUSIVE = (
    *(("step_time_s", name)
      for name in ("epoch_time_s", "epochs", "samples", "steps", "loss", "metric", "eval_time_s")),
    *((THROUGHPUT, name) for name in ("epoch_time_s", "step_time_s")),
    ("gpu_energy_j", "power_w"),
    ("sm_util", "sm_util_percent"),
    ("mem_util", "mem_util_percent"),
)  # fmt: skip
_FACTORS = re.compile(r"\s*([*/])\s*")
Getter = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Target:
    """The left side of a pair: a field, and how its values are given."""

    name: str  # as the user writes it
    field: str
    dimension: str | None = None
    scale: float | None = None  # of the unit in the name


@dataclass(frozen=True)
class FieldMap:
    """The source of each field, and the fields that are the same in all rows."""

    columns: Mapping[str, str]  # field -> the text right of '='
    constants: Mapping[str, Any]
    targets: Mapping[str, Target]

    def has(self, name: str) -> bool:
        """Say whether a field has a column or a constant."""
        return name in self.columns or name in self.constants

    @property
    def needed(self) -> set[str]:
        """Return the columns that a table may need: expressions and their parts."""
        parts = (part for text in self.columns.values() for part in _FACTORS.split(text))
        return {*self.columns.values(), *parts}

    @property
    def time_field(self) -> str:
        """Return the field of the time, where a throughput stands for it the one it becomes."""
        if self.has(THROUGHPUT):
            is_of_epochs = self.rate[0] != "steps" and self.has("samples")
            return "epoch_time_s" if is_of_epochs else "step_time_s"
        return "step_time_s" if self.has("step_time_s") else "epoch_time_s"

    @property
    def rate(self) -> tuple[str, bool]:
        """Return what the throughput counts, and whether it is of one GPU."""
        target = self.targets[THROUGHPUT]
        known = rate_in_name(target.name) or rate_in_name(self.columns.get(THROUGHPUT, ""))
        if known is None:
            raise BadInput(
                f"--map {target.name}={self.columns.get(THROUGHPUT, '@')}: the unit of the "
                "throughput is unclear; name it samples_per_s, steps_per_s or tokens_per_s, each "
                "with _per_gpu if it is of one GPU"
            )
        return known

    def getters(self, available: Iterable[str], first: Mapping[str, Any]) -> dict[str, Getter]:
        """Return a function for each field that has a column: it returns a row's value, or None.

        ``first`` has the first cell that is not blank of each column. Raises ``BadInput`` if a
        column is missing, or the unit of one is unclear.
        """
        names = tuple(available)
        return {
            field: self._getter(field, text, names, first) for field, text in self.columns.items()
        }

    def _getter(
        self, field: str, text: str, names: tuple[str, ...], first: Mapping[str, Any]
    ) -> Getter:
        target, known = self.targets[field], set(names)
        if text not in known and len(parts := _FACTORS.split(text)) > 1:
            return _product(target, text, parts, names)
        if text not in known:
            raise _missing(target.name, text, names)
        parse = _field(field).parse_cell
        if target.dimension is None:
            return lambda cells: None if is_blank(cells.get(text)) else parse(field, cells[text])
        scale = _scale_of(target, text, first.get(text))
        return lambda cells: (
            None
            if is_blank(cells.get(text))
            else parse(field, _converted(target, cells[text], scale))
        )


def is_blank(cell: Any) -> bool:
    """Say whether a cell is a missing value."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _scale_of(target: Target, column: str, cell: Any) -> float | None:
    """Return the factor of a column's numbers; None where each cell names its unit."""
    stated = unit_in_name(column)
    if stated is not None and target.dimension is not None:
        dimension, scale = stated
        if math.isnan(scale) and target.scale in (1e-3, 1e6):
            scale = target.scale
        if dimension != target.dimension or target.scale not in (None, scale) or math.isnan(scale):
            raise BadInput(
                f"--map {target.name}: the unit of column {quote(column)} is another one or "
                f"unclear; allowed: {_with_units(target)}"
            )
        return scale
    if target.scale is None and not is_blank(cell):
        try:
            quantity(cell, target.dimension, None)
        except ValueError:
            raise BadInput(
                f"--map {target.name}: the unit of column {quote(column)} is unclear; allowed: "
                f"{_with_units(target)}"
            ) from None
    return target.scale


def _with_units(target: Target) -> str:
    base = next(name for name, (_, field) in FIELDS_WITH_UNIT.items() if field == target.field)
    units = list(UNITS[target.dimension or "time"])[:8]
    return ", ".join(f"{base}_{unit}" for unit in units if unit not in ("%", "µs"))


def _converted(target: Target, cell: Any, scale: float | None) -> float:
    try:
        return quantity(cell, target.dimension, scale)
    except ValueError:
        units = ", ".join(list(UNITS[target.dimension or "time"])[:8])
        raise InvalidCell(
            f"{target.field} is {quote(cell)}; allowed: a number"
            + ("" if scale is not None else f" with a unit such as {units}")
        ) from None


def _product(target: Target, text: str, parts: list[str], names: tuple[str, ...]) -> Getter:
    """Return the value of ``power_w*gpus`` or ``total_ms/epochs``; units of names are converted."""
    factors: list[tuple[bool, str | float, float]] = []
    has_unit = False
    for index in range(0, len(parts), 2):
        part, is_divisor = parts[index], index > 0 and parts[index - 1] == "/"
        if part in names:
            stated = unit_in_name(part)
            if stated is not None and math.isnan(stated[1]):
                raise BadInput(f"--map {target.name}: the unit of column {quote(part)} is unclear")
            has_unit |= stated is not None
            factors.append((is_divisor, part, 1.0 if stated is None else stated[1]))
            continue
        try:
            factors.append((is_divisor, finite_number(part), 1.0))
        except ValueError:
            raise _missing(target.name, part, names) from None
    scale = target.scale
    if target.dimension is not None and scale is None and not has_unit:
        raise BadInput(
            f"--map {target.name}={text}: its unit is unclear; allowed: {_with_units(target)}"
        )
    if scale not in (None, 1.0) and has_unit:
        raise BadInput(
            f"--map {target.name}={text}: given a unit for the field and one for a column; "
            "allowed: one of them"
        )
    parse = _field(target.field).parse_cell

    def value(cells: Mapping[str, Any]) -> Any:
        result = 1.0 if scale is None else scale
        for is_divisor, part, unit in factors:
            known: float
            if isinstance(part, str):
                if is_blank(cells.get(part)):
                    return None
                try:
                    known = quantity(cells[part], None, unit)
                except ValueError:
                    raise InvalidCell(
                        f"{part} is {quote(cells[part])}; allowed: a number"
                    ) from None
            else:
                known = part
            if is_divisor and known == 0:
                raise InvalidCell(f"{target.name}: {part} is 0")
            result = result / known if is_divisor else result * known
        return parse(target.field, result)

    return value


def _missing(field: str, column: str, names: tuple[str, ...]) -> BadInput:
    is_one_column = len(names) == 1 and any(mark in names[0] for mark in ";\t")
    hint = " (separate the cells with commas)" if is_one_column else ""
    return BadInput(
        f"--map {field}: no column {quote(column)}; the table has: {join_names(names)}{hint}"
    )


def parse_constants(
    text: str | None, options: Mapping[str, str | None], mapped: Collection[str] = ()
) -> dict[str, Any]:
    """Return the constants ``field=@value,...`` of a file that names its own columns.

    Raises ``BadInput`` if a field is unknown, set twice, has a column and is none of ``mapped``, or
    a value does not fit.
    """
    fields = _parse(text or "", options)
    for name, column in fields.columns.items():
        if name not in mapped:
            raise BadInput(f"--map {name}={column}: allowed for this format: {name}=@VALUE")
    return dict(fields.constants)


def columns_of(text: str | None) -> Mapping[str, str]:
    """Return the columns that a mapping assigns to fields."""
    return {} if text is None else _parse(text, {}).columns


def parse_map(text: str, options: Mapping[str, str | None] | None = None) -> FieldMap:
    """Return the mapping ``field=column,field=@value,...``; quotes keep a comma in a name.

    A field is one of ``store.fields.FIELDS``, one of ``units.FIELDS_WITH_UNIT`` with or without a
    unit, a rate such as ``samples_per_s``, or ``options.NAME``. ``options`` has more constants by
    field; None is left out. Raises ``BadInput`` if a field is unknown, set twice, or missing, or a
    constant does not fit its field.
    """
    fields = _parse(text, options or {})
    mapped = {*fields.columns, *fields.constants}
    for names in REQUIRED:
        if mapped.isdisjoint(names):
            required = ", ".join(" or ".join(each) for each in REQUIRED)
            raise BadInput(f"--map: {' or '.join(names)} is missing; required: {required}")
    if "metric" in mapped and "epochs" not in mapped:
        raise BadInput(
            "--map: metric needs epochs, the number of epochs after which it was measured, such as "
            "epochs=@90"
        )
    for first, second in _EXCLUSIVE:
        if {first, second} <= mapped:
            raise BadInput(f"--map: given both {first} and {second}; allowed: one of them")
    if THROUGHPUT in mapped:
        _check_rate(fields, mapped)
    return fields


def _check_rate(fields: FieldMap, mapped: set[str]) -> None:
    kind, _ = fields.rate
    if kind == "tokens" and TOKENS not in mapped:
        raise BadInput(
            f"--map: tokens per second need {TOKENS}, those of a sample, such as {TOKENS}=@1024"
        )
    if kind != "steps" and mapped.isdisjoint({"samples", "global_batch", "local_batch"}):
        raise BadInput(
            "--map: a throughput needs samples, those of an epoch, or global_batch or local_batch"
        )
    if fields.time_field == "step_time_s":
        for first, second in _EXCLUSIVE:
            if first == "step_time_s" and second in mapped:
                raise BadInput(
                    f"--map: given {second} with a throughput of steps; allowed: with samples, "
                    "those of an epoch"
                )


def _parse(text: str, options: Mapping[str, str | None]) -> FieldMap:
    columns: dict[str, str] = {}
    constants: dict[str, Any] = {}
    targets: dict[str, Target] = {}
    pairs = [_pair(part) for part in _parts(text)]
    pairs += [(name, f"@{value}") for name, value in options.items() if value is not None]
    for name, source in pairs:
        target = _target(name)
        if target.field in targets:
            raise BadInput(f"--map: {target.field} is given twice")
        targets[target.field] = target
        if not source.startswith("@"):
            columns[target.field] = source
            continue
        try:
            constants[target.field] = _constant(target, source[1:])
        except InvalidCell as error:
            raise BadInput(f"--map: {error}") from None
    return FieldMap(columns, constants, targets)


def _constant(target: Target, text: str) -> Any:
    if target.dimension is None:
        return _field(target.field).parse_cell(target.field, text)
    return _field(target.field).parse_cell(target.field, _converted(target, text, target.scale))


def _target(name: str) -> Target:
    for base, (dimension, field) in FIELDS_WITH_UNIT.items():
        if name == field:
            return Target(name, field, dimension, 1.0)
        if name == base:
            return Target(name, field, dimension)
        if name.startswith(f"{base}_") and f"{base}_percent" not in FIELDS:
            scale = factor(name.removeprefix(f"{base}_"), dimension)
            if scale is not None:
                return Target(name, field, dimension, scale)
    if name not in _OTHERS and (match := rate_in_name(name)) is not None:
        kind, is_per_gpu = match
        if name == f"{kind}_per_s" + ("_per_gpu" if is_per_gpu else ""):
            return Target(name, THROUGHPUT)
    _field(name)
    return Target(name, name)


def _parts(text: str) -> list[str]:
    try:
        (parts,) = csv.reader([text], skipinitialspace=True, strict=True) if text else ([],)
    except (csv.Error, ValueError):
        raise BadInput(f"--map {quote(text)}: allowed: field=column,field=@value,...") from None
    return [part for part in parts if part.strip()]


def _pair(part: str) -> tuple[str, str]:
    field, equals, source = (text.strip() for text in part.partition("="))
    if not (field and equals and source):
        raise BadInput(f"--map {quote(part)}: allowed: field=column or field=@value")
    return field, source


def _field(name: str) -> Field:
    if name.startswith(OPTIONS) and len(name) > len(OPTIONS):
        if len(name) > MAX_TEXT or not name.isprintable():
            raise BadInput(f"--map {quote(name)}: allowed: a name of up to {MAX_TEXT} characters")
        return OPTION
    if name in _OTHERS:
        return _OTHERS[name]
    if name not in FIELDS:
        known = join_names([*FIELDS, THROUGHPUT, TOKENS, f"{OPTIONS}NAME"])
        raise BadInput(f"--map: no field {quote(name)}; allowed: {known}")
    return FIELDS[name]
