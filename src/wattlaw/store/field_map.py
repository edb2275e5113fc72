"""Which column, product or quotient of columns each field of a table takes.

``FIELD=COLUMN`` takes the unit that the field names (``step_time_ms``), or else that the column
names (``time [ms]``), or else that each cell names (``259.97 W``). Without a mapping, a column is
the field of its name: ``step_time_ms``.
"""

import csv
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.text import join_names, quote
from wattlaw.store.fields import (
    ENERGIES,
    FIELDS,
    MAX_TEXT,
    OPTION,
    OPTIONS,
    THROUGHPUT,
    TOKENS,
    Field,
    InvalidCell,
    finite_number,
)
from wattlaw.store.numbers import UnclearNumber
from wattlaw.store.units import (
    cells_text,
    factor,
    quantity,
    rate_in_name,
    unit_in_name,
    units_text,
)

#: At least one field of each is required.
REQUIRED = (("gpus",), ("epoch_time_s", "step_time_s", THROUGHPUT))
_NOT_OF_STEPS = ("epoch_time_s", "epochs", "samples", "steps", "loss", "metric", "eval_time_s")
_EXCLUSIVE = (
    *(("step_time_s", name) for name in _NOT_OF_STEPS),
    *((THROUGHPUT, name) for name in ("epoch_time_s", "step_time_s")),
    ("gpu_energy_j", "power_w"),
)
#: Fields with a unit, by their name without it: ``step_time``, ``power_limit``, ``sm_util``.
_WITH_UNIT = {
    re.sub("_(s|j|w|mhz)$", "", name): name for name, each in FIELDS.items() if each.dimension
}
#: Texts for a number that is missing.
_MISSING = frozenset({"-", "–", "—", "n/a", "na", "#n/a", "null", "none"})
_FACTORS = re.compile(r"\s*([*/])\s*")
Getter = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Target:
    """The left side of a pair: a field, and how its values are given."""

    name: str  # as the user writes it
    field: str
    of_field: Field
    scale: float | None = None  # of the unit in the name

    @property
    def dimension(self) -> str | None:
        return self.of_field.dimension

    @property
    def names_unit(self) -> bool:
        """Whether the user chose a unit: ``step_time_ms``, not the field's ``step_time_s``.

        A share is one even where it is mapped as ``sm_util_percent``, if its column says so.
        """
        return self.scale is not None and self.name != self.field and self.dimension != "share"

    def given(self, text: str) -> str:
        """Return the pair, for messages."""
        return f"column {quote(text)}" if text == self.name else f"--map {self.name}={text}"

    @property
    def with_units(self) -> str:
        base = next(name for name, field in _WITH_UNIT.items() if field == self.field)
        return units_text(base, self.dimension or "time")


@dataclass(frozen=True)
class Column:
    """A column of a table, as far as its unit and its numbers depend on it."""

    name: str
    label: str  # the name, with the unit of a row below the header
    first: Any = None  # the first cell that is not blank
    mark: str | None = None  # the decimal mark that its cells show


@dataclass(frozen=True)
class FieldMap:
    """The source of each field, and the fields that are the same in all rows."""

    columns: Mapping[str, str]  # field -> the text right of '='
    constants: Mapping[str, Any]
    targets: Mapping[str, Target]

    def has(self, name: str) -> bool:
        return name in self.targets

    @property
    def needed(self) -> set[str]:
        """The columns that a table may need: expressions and their parts."""
        parts = (part for text in self.columns.values() for part in _FACTORS.split(text))
        return {*self.columns.values(), *parts}

    @cached_property
    def time_field(self) -> str:
        """The field of the time, where a throughput stands for it the one it becomes."""
        if self.has(THROUGHPUT):
            is_of_epochs = self.rate[0] != "steps" and self.has("samples")
            return "epoch_time_s" if is_of_epochs else "step_time_s"
        return "step_time_s" if self.has("step_time_s") else "epoch_time_s"

    @cached_property
    def rate(self) -> tuple[str, bool, float]:
        """What the throughput counts, whether it is of one GPU, and in how many seconds."""
        target = self.targets[THROUGHPUT]
        known = rate_in_name(target.name) or rate_in_name(self.columns.get(THROUGHPUT, ""))
        if known is None:
            raise BadInput(
                f"{target.given(self.columns.get(THROUGHPUT, '@'))}: the unit of the "
                "throughput is unclear; name it samples_per_s, steps_per_s or tokens_per_s, each "
                "with _per_gpu if it is of one GPU"
            )
        return known

    def getters(self, available: Mapping[str, Column]) -> dict[str, Getter]:
        """Return a function for each field that has a column: it returns a row's value, or None.

        Raises ``BadInput`` if a column is missing, or the unit of one is unclear.
        """
        return {field: self._getter(field, text, available) for field, text in self.columns.items()}

    def conversions(self, available: Mapping[str, Column]) -> list[str]:
        """Return a line for each column in another unit than its field."""
        lines = []
        for field, text in self.columns.items():
            target, column = self.targets[field], available.get(text)
            unit = None if column is None else unit_in_name(column.label)
            if column is None or unit is None or target.name != target.field:
                continue
            if target.dimension and _scale_of(target, column, available) != target.scale:
                lines.append(f"{field}: column {quote(text)} is converted from {unit.text}")
        return lines

    def _getter(self, field: str, text: str, available: Mapping[str, Column]) -> Getter:
        target = self.targets[field]
        if text not in available and len(parts := _FACTORS.split(text)) > 1:
            return _product(target, text, parts, available)
        if text not in available:
            raise _missing(target.name, text, tuple(available))
        column, parse = available[text], target.of_field.parse_cell
        if target.dimension is None:
            no_value = is_blank if target.of_field.number is None else _is_missing
            return lambda cells: (
                None if no_value(cells.get(text)) else parse(field, cells[text], column.mark)
            )
        scale = _scale_of(target, column, available)
        return lambda cells: (
            None
            if _is_missing(cells.get(text))
            else parse(field, _converted(target, cells[text], scale, column.mark))
        )


def is_blank(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _is_missing(cell: Any) -> bool:
    return is_blank(cell) or (isinstance(cell, str) and cell.strip().lower() in _MISSING)


def _scale_of(target: Target, column: Column, available: Mapping[str, Column]) -> float | None:
    """Return the factor of a column's numbers; None where each cell names its unit.

    The column's unit counts, unless the user names another one for the field.
    """
    dimension, unit = target.dimension or "time", unit_in_name(column.label)
    given = target.given(column.name)
    if (dimension == "time" and rate_in_name(column.label)) or _is_per(target, column.label):
        raise BadInput(f"{given}: the column is {_what(target, column)}")
    if unit is not None and unit.text and not _is_least(column.name, dimension, available):
        scale = unit.factor(dimension)
        if scale is not None and math.isnan(scale) and target.scale in (1e-3, 3.6, 1e6, 3.6e9):
            scale = target.scale if target.names_unit else scale
        if scale is None or math.isnan(scale) or (target.names_unit and target.scale != scale):
            raise BadInput(
                f"{given}: the column's unit {unit.text} is unclear or another one; allowed: "
                f"{target.with_units}"
            )
        return scale
    if target.scale is None and not _is_missing(column.first):
        try:
            quantity(column.first, target.dimension, None, column.mark)
        except ValueError:
            raise BadInput(
                f"{given}: the unit of the column is unclear; allowed: {target.with_units}"
            ) from None
    return target.scale


def _is_least(column: str, dimension: str, available: Mapping[str, Column]) -> bool:
    """Say whether ``min`` at the end of a name is the least value, not minutes."""
    stem, _, last = column.rpartition("_")
    others = ("max", "mean", "avg", "median", "std")
    return last.lower() == "min" and (
        dimension != "time" or any(f"{stem}_{other}" in available for other in others)
    )


def _is_per(target: Target, label: str) -> bool:
    unit = unit_in_name(label)
    per = unit.per if unit is not None else frozenset()
    if target.dimension == "time":
        own = {"epoch_time_s": "epoch", "step_time_s": "step"}.get(target.field)
        return bool(per & {"epoch", "step", "sample", "image", "img", "token"} - {own})
    is_of_run = target.field in ("power_w", *ENERGIES)
    return is_of_run and bool(per - {"epoch", "step"})


def _what(target: Target, column: Column) -> str:
    unit = unit_in_name(column.label)
    if unit is None:
        return "a rate; map it to throughput"
    per = " and ".join(sorted(unit.per))
    return (
        f"per {per}, and {target.field} is a total; multiply it, such as "
        f"{target.name}={column.name}*COLUMN"
    )


def _converted(target: Target, cell: Any, scale: float | None, mark: str | None = None) -> float:
    try:
        return quantity(cell, target.dimension, scale, mark)
    except ValueError as error:
        why = f", which {error}" if isinstance(error, UnclearNumber) and str(error) else ""
        allowed = "a number" if scale is not None else cells_text(target.dimension or "time")
        raise InvalidCell(f"{target.field} is {quote(cell)}{why}; allowed: {allowed}") from None


def _product(
    target: Target, text: str, parts: list[str], available: Mapping[str, Column]
) -> Getter:
    """Return the value of ``power_w*gpus`` or ``total_ms/epochs``; units of names are converted."""
    factors: list[tuple[bool, str | float, float]] = []
    given, scale, in_units, constant = target.given(text), target.scale, 1.0, 1.0
    has_unit = False
    for index in range(0, len(parts), 2):
        part, is_divisor = parts[index], index > 0 and parts[index - 1] == "/"
        if part in available:
            unit = unit_in_name(available[part].label)
            factor = None if unit is None or unit.dimension is None else unit.factor(unit.dimension)
            if factor is not None and math.isnan(factor):
                raise BadInput(f"{given}: the unit of column {quote(part)} is unclear")
            has_unit |= factor is not None
            in_units *= (factor or 1.0) ** (-1 if is_divisor else 1)
            factors.append((is_divisor, part, 1.0 if factor is None else factor))
            continue
        try:
            number = finite_number(part)
        except ValueError:
            raise _missing(target.name, part, tuple(available)) from None
        constant *= (1 / number if is_divisor else number) if number else 1.0
        factors.append((is_divisor, number, 1.0))
    if target.dimension is not None and scale is None and not has_unit:
        raise BadInput(f"{given}: its unit is unclear; allowed: {target.with_units}")
    if has_unit and target.names_unit and scale != 1.0:
        raise BadInput(
            f"{given}: given a unit for the field and one for a column; allowed: one of them"
        )
    if in_units != 1.0 and math.isclose(constant, in_units, rel_tol=1e-6):
        raise BadInput(
            f"{given}: the unit of the column is converted already; leave out the number"
        )
    scale = 1.0 if scale is None or has_unit else scale
    parse = target.of_field.parse_cell

    def value(cells: Mapping[str, Any]) -> Any:
        result = scale
        for is_divisor, part, unit in factors:
            known: float
            if isinstance(part, str):
                if _is_missing(cells.get(part)):
                    return None
                try:
                    known = quantity(cells[part], None, unit, available[part].mark)
                except ValueError as error:
                    why = f", which {error}" if str(error) else ""
                    raise InvalidCell(
                        f"{part} is {quote(cells[part])}{why}; allowed: a number"
                    ) from None
            else:
                known = part
            if is_divisor and known == 0:
                raise InvalidCell(f"{target.name}: {part} is 0")
            result = result / known if is_divisor else result * known
        return parse(target.field, result)

    return value


def _missing(field: str, column: str, names: tuple[str, ...]) -> BadInput:
    is_one_column = len(names) == 1 and " " in names[0]
    hint = " (separate the cells with commas, semicolons or tabs)" if is_one_column else ""
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
    fields = _parse(_pairs(text or ""), options)
    for name, column in fields.columns.items():
        if name not in mapped:
            raise BadInput(f"--map {name}={column}: allowed for this format: {name}=@VALUE")
    return dict(fields.constants)


def columns_of(text: str | None) -> Mapping[str, str]:
    return {} if text is None else _parse(_pairs(text), {}).columns


def parse_map(text: str, options: Mapping[str, str | None] | None = None) -> FieldMap:
    """Return the mapping ``field=column,field=@value,...``; quotes keep a comma in a name.

    A field is one of ``fields.FIELDS``, with another unit (``step_time_ms``) or without one, a rate
    such as ``samples_per_s``, or ``options.NAME``. ``options`` has more constants by field; None is
    left out. Raises ``BadInput`` if a field is unknown, set twice, or missing, or a constant does
    not fit its field.
    """
    fields = _parse(_pairs(text), options or {})
    check_fields(fields, "--map")
    return fields


def map_of_columns(names: Iterable[str], others: Mapping[str, Field]) -> FieldMap:
    """Return the mapping of columns that are named as fields, or as ``others``.

    Raises ``BadInput`` if a column is none, or two columns are one field.
    """
    return _parse([(name, name) for name in names], {}, others)


def check_fields(
    fields: FieldMap, given: str, required: Iterable[Iterable[str]] = REQUIRED
) -> None:
    """Raise ``BadInput``, which begins with ``given``, if fields are missing or exclude others."""
    mapped = {*fields.targets}
    for names in map(tuple, required):
        if mapped.isdisjoint(names):
            all_required = ", ".join(" or ".join(each) for each in required)
            raise BadInput(f"{given}: {' or '.join(names)} is missing; required: {all_required}")
    if "metric" in mapped and "epochs" not in mapped:
        raise BadInput(
            f"{given}: metric needs epochs, the number of epochs after which it was measured, such "
            "as epochs=@90"
        )
    for first, second in _EXCLUSIVE:
        if {first, second} <= mapped:
            raise BadInput(f"{given}: given both {first} and {second}; allowed: one of them")
    if THROUGHPUT not in mapped:
        return
    kind = fields.rate[0]
    if kind == "tokens" and TOKENS not in mapped:
        raise BadInput(
            f"{given}: tokens per second need {TOKENS}, those of a sample, such as {TOKENS}=@1024"
        )
    if kind != "steps" and mapped.isdisjoint({"samples", "global_batch", "local_batch"}):
        raise BadInput(
            f"{given}: a throughput needs samples, those of an epoch, or global_batch or "
            "local_batch"
        )
    if fields.time_field == "step_time_s" and (of_epochs := mapped.intersection(_NOT_OF_STEPS)):
        raise BadInput(
            f"{given}: given {join_names(sorted(of_epochs))} with a throughput of steps; allowed: "
            "with samples, those of an epoch"
        )


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        (parts,) = csv.reader([text], skipinitialspace=True, strict=True) if text else ([],)
    except (csv.Error, ValueError):
        raise BadInput(f"--map {quote(text)}: allowed: field=column,field=@value,...") from None
    pairs = []
    for part in filter(str.strip, parts):
        name, equals, source = (each.strip() for each in part.partition("="))
        if not (name and equals and source):
            raise BadInput(f"--map {quote(part)}: allowed: field=column or field=@value")
        pairs.append((name, source))
    return pairs


def _parse(
    pairs: Sequence[tuple[str, str]],
    options: Mapping[str, str | None],
    others: Mapping[str, Field] | None = None,
) -> FieldMap:
    columns: dict[str, str] = {}
    constants: dict[str, Any] = {}
    targets: dict[str, Target] = {}
    given = "--map" if others is None else "columns"
    pairs = [*pairs, *((name, f"@{value}") for name, value in options.items() if value is not None)]
    for name, source in pairs:
        target = _target(name, others or {}, given)
        if target.field in targets:
            raise BadInput(f"{given}: {target.field} is given twice")
        targets[target.field] = target
        if others is not None or not source.startswith("@"):
            columns[target.field] = source
            continue
        try:
            value: Any = source[1:]
            if target.dimension is not None:
                value = _converted(target, value, target.scale)
            constants[target.field] = target.of_field.parse_cell(target.field, value)
        except InvalidCell as error:
            raise BadInput(f"--map: {error}") from None
    return FieldMap(columns, constants, targets)


def _target(name: str, others: Mapping[str, Field], given: str) -> Target:
    if name in FIELDS or name in others:
        of_field = others.get(name) or FIELDS[name]
        return Target(name, name, of_field, None if of_field.dimension is None else 1.0)
    for base, field in _WITH_UNIT.items():
        if name == base:
            return Target(name, field, FIELDS[field])
        scale = factor(name.removeprefix(f"{base}_"), FIELDS[field].dimension or "time")
        if name.startswith(f"{base}_") and scale is not None:
            return Target(name, field, FIELDS[field], scale)
    if (match := rate_in_name(name)) is not None:
        kind, is_per_gpu, _ = match
        if name == f"{kind}_per_s" + ("_per_gpu" if is_per_gpu else ""):
            return Target(name, THROUGHPUT, FIELDS[THROUGHPUT])
    if name.startswith(OPTIONS) and len(name) > len(OPTIONS):
        if len(name) > MAX_TEXT or not name.isprintable():
            raise BadInput(f"{given} {quote(name)}: allowed: a name of up to {MAX_TEXT} characters")
        return Target(name, name, OPTION)
    known = join_names([*FIELDS, *others, f"{OPTIONS}NAME"])
    raise BadInput(f"{given}: no field {quote(name)}; allowed: {known}")
