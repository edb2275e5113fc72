"""Which column each field of a table takes, in which unit.

``FIELD=COLUMN`` takes the unit that the field names (``step_time_ms``), or else that the column
names (``time [ms]``), or else that each cell names (``259.97 W``). Without a mapping, a column is
the field of its name: ``step_time_ms``.
"""

import csv
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.text import join_names, quote
from wattlaw.store.fields import (
    ENERGIES,
    FIELDS,
    MAX_TEXT,
    MODEL,
    MODEL_FIELDS,
    OPTION,
    OPTIONS,
    THROUGHPUT,
    TOKENS,
    Field,
    InvalidCell,
)
from wattlaw.store.units import (
    UnclearNumber,
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
    (THROUGHPUT, "epoch_time_s"),  # step_time_s is that of rows without a throughput
    ("gpu_energy_j", "power_w"),
)
#: Fields with a unit, by their name without it: ``step_time``, ``power_limit``, ``sm_util``.
_WITH_UNIT = {
    re.sub("_(s|j|w|mhz|bytes)$", "", name): name for name, each in FIELDS.items() if each.dimension
}
#: Usual names of fields in tables of measurements, as ``compare --reference`` takes them.
SYNONYMS = {
    "model": "workload", "source": "options.source", "vp": "virtual_stages",
    "grad_acc": "gradient_accumulation", "zero_or_fsdp": "sharding", "act_ckpt": "checkpointing",
    "memory_gib": "peak_memory_gib", "seq_len": TOKENS,
}  # fmt: skip
_MISSING = frozenset({"-", "–", "—", "n/a", "na", "#n/a", "null", "none"})
#: The units whose prefix m or M a name in lower case does not tell.
_MILLI_OR_MEGA = (1e-3, 3.6, 1e6, 3.6e9)


@dataclass(frozen=True)
class Column:
    name: str
    label: str  # the name, with the unit of a row below the header
    first: Any = None  # the first cell that is not blank


@dataclass(frozen=True)
class Target:
    name: str  # as the user writes it
    field: str
    of_field: Field
    scale: float | None = None  # of the unit in the name
    column: str | None = None
    value: Any = None  # of all rows, without a column

    @property
    def names_unit(self) -> bool:
        """Whether the user chose a unit: ``step_time_ms``, not the field's ``step_time_s``.

        A share is one even where it is mapped as ``sm_util_percent``, if its column says so.
        """
        is_other = self.scale is not None and self.name != self.field
        return is_other and self.of_field.dimension != "share"

    @property
    def given(self) -> str:
        if self.column == self.name:
            return f"column {quote(self.name)}"
        return f"--map {self.name}={self.column or '@'}"

    @property
    def allowed_units(self) -> str:
        base = next(base for base, field in _WITH_UNIT.items() if field == self.field)
        return units_text(base, self.of_field.dimension or "time")

    def converted(self, cell: Any, scale: float | None) -> float:
        try:
            return quantity(cell, self.of_field.dimension, scale)
        except ValueError as error:
            why = error if isinstance(error, UnclearNumber) else ""
            dimension = self.of_field.dimension or "time"
            allowed = "a number" if scale is not None else cells_text(dimension)
            raise InvalidCell(f"{self.field} is {quote(cell)}{why}; allowed: {allowed}") from None

    def reader(self, columns: Mapping[str, Column]) -> tuple[Callable[[Any], Any], str | None]:
        """Return what reads a cell, None of a missing one; and a note if it converts a unit. Raises
        ``BadInput`` if the column is missing, or its unit is unclear."""
        column = columns.get(self.column or "")
        if column is None:
            is_one = len(columns) == 1 and " " in next(iter(columns))
            hint = " (separate the cells with commas, semicolons or tabs)" if is_one else ""
            raise BadInput(
                f"--map {self.name}: no column {quote(str(self.column))}; the table has: "
                f"{join_names([*columns])}{hint}"
            )
        parse, note = self.of_field.parse_cell, None
        if self.of_field.dimension is None:
            has_no = is_blank if self.of_field.number is None else _is_missing
            return lambda cell: None if has_no(cell) else parse(self.field, cell), None
        scale, unit = _scale_of(self, column, columns), unit_in_name(column.label)
        if unit is not None and self.name == self.field and scale != self.scale:
            note = f"{self.field}: column {quote(column.name)} is converted from {unit.text}"

        def read(cell: Any) -> Any:
            if _is_missing(cell):
                return None
            return parse(self.field, self.converted(cell, scale))

        return read, note


@dataclass(frozen=True)
class FieldMap:
    targets: Mapping[str, Target] = field(default_factory=dict)  # by field

    @property
    def columns(self) -> dict[str, str]:
        return {name: each.column for name, each in self.targets.items() if each.column is not None}

    @property
    def constants(self) -> dict[str, Any]:
        return {name: each.value for name, each in self.targets.items() if each.column is None}

    @cached_property
    def time_field(self) -> str:
        """The field of the time, where a throughput stands for it the one it becomes."""
        if THROUGHPUT in self.targets:
            is_of_epochs = self.rate[0] != "steps" and "samples" in self.targets
            return "epoch_time_s" if is_of_epochs else "step_time_s"
        return "step_time_s" if "step_time_s" in self.targets else "epoch_time_s"

    @cached_property
    def rate(self) -> tuple[str, bool, float]:
        target = self.targets[THROUGHPUT]
        known = rate_in_name(target.name) or rate_in_name(target.column or "")
        if known is None:
            raise BadInput(
                f"{target.given}: the unit of the throughput is unclear; name it samples_per_s, "
                "steps_per_s or tokens_per_s, each with _per_gpu if it is of one GPU"
            )
        return known

    def check(self, given: str, required: Iterable[Iterable[str]] = REQUIRED) -> None:
        """Raise ``BadInput``, which begins with ``given``, if fields lack or exclude others."""
        mapped = {*self.targets}
        for names in map(tuple, required):
            if mapped.isdisjoint(names):
                all_required = ", ".join(" or ".join(each) for each in required)
                raise BadInput(
                    f"{given}: {' or '.join(names)} is missing; required: {all_required}"
                )
        if "metric" in mapped and "epochs" not in mapped:
            raise BadInput(
                f"{given}: metric needs epochs, the number of epochs after which it was measured, "
                "such as epochs=@90"
            )
        for first, second in _EXCLUSIVE:
            if {first, second} <= mapped:
                raise BadInput(f"{given}: given both {first} and {second}; allowed: one of them")
        if THROUGHPUT not in mapped:
            return
        kind = self.rate[0]
        if kind == "tokens" and TOKENS not in mapped:
            raise BadInput(
                f"{given}: tokens per second need {TOKENS}, those of a sample, such as "
                f"{TOKENS}=@1024"
            )
        if kind != "steps" and mapped.isdisjoint({"samples", "global_batch", "local_batch"}):
            raise BadInput(
                f"{given}: a throughput needs samples, those of an epoch, or global_batch or "
                "local_batch"
            )
        if self.time_field == "step_time_s" and (others := mapped.intersection(_NOT_OF_STEPS)):
            raise BadInput(
                f"{given}: given {join_names(sorted(others))} with a throughput of steps; allowed: "
                "with samples, those of an epoch"
            )


def is_blank(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _is_missing(cell: Any) -> bool:
    return is_blank(cell) or (isinstance(cell, str) and cell.strip().lower() in _MISSING)


def _scale_of(target: Target, column: Column, columns: Mapping[str, Column]) -> float | None:
    """None where each cell names its unit. A unit that the user names outranks the column's."""
    dimension, unit = target.of_field.dimension or "time", unit_in_name(column.label)
    if dimension == "time" and rate_in_name(column.label):
        raise BadInput(f"{target.given}: the column is a rate; map it to throughput")
    if unit is not None and (per := unit.per - _own_per(target)):
        raise BadInput(
            f"{target.given}: the column is per {' and '.join(sorted(per))}, and {target.field} is "
            "a total; add a column of totals"
        )
    if unit is not None and unit.text and not _is_least(column.name, dimension, columns):
        scale = unit.factor(dimension)
        if scale is not None and math.isnan(scale) and target.scale in _MILLI_OR_MEGA:
            scale = target.scale if target.names_unit else scale
        if scale is None or math.isnan(scale) or (target.names_unit and target.scale != scale):
            raise BadInput(
                f"{target.given}: the column's unit {unit.text} is unclear or another one; "
                f"allowed: {target.allowed_units}"
            )
        return scale
    if target.scale is None and not _is_missing(column.first):
        try:
            quantity(column.first, target.of_field.dimension, None)
        except ValueError:
            raise BadInput(
                f"{target.given}: the unit of the column is unclear; allowed: "
                f"{target.allowed_units}"
            ) from None
    return target.scale


def _own_per(target: Target) -> frozenset[str]:
    """Return what a column of a field may be counted for: its times, powers, energies."""
    every = frozenset({"gpu", "device", "rank", "node"})
    if target.of_field.dimension == "time":
        own = {"epoch_time_s": "epoch", "step_time_s": "step"}.get(target.field)
        return every | {own or ""}
    if target.field in ("power_w", *ENERGIES):
        return frozenset({"epoch", "step"})
    return every | {"epoch", "step", "sample", "image", "img", "token"}


def _is_least(column: str, dimension: str, columns: Mapping[str, Column]) -> bool:
    """Say whether ``min`` at the end of a name is the least value, not minutes."""
    stem, _, last = column.rpartition("_")
    others = ("max", "mean", "avg", "median", "std")
    return last.lower() == "min" and (
        dimension != "time" or any(f"{stem}_{other}" in columns for other in others)
    )


def parse_constants(
    text: str | None, options: Mapping[str, str | None], mapped: Collection[str] = ()
) -> dict[str, Any]:
    """Return ``field=@value,...``; only fields of ``mapped`` may have a column of the file."""
    fields = _parse(_pairs(text or ""), options)
    for name, column in fields.columns.items():
        if name not in mapped:
            raise BadInput(f"--map {name}={column}: allowed for this format: {name}=@VALUE")
    return fields.constants


def columns_of(text: str | None) -> dict[str, str]:
    return {} if text is None else _parse(_pairs(text), {}).columns


def parse_map(text: str, options: Mapping[str, str | None]) -> FieldMap:
    """Return the mapping ``field=column,field=@value,...``; quotes keep a comma in a name. A field
    is one of ``fields.FIELDS``, with another unit (``step_time_ms``) or without one, a rate such as
    ``samples_per_s``, or ``options.NAME``. ``options`` has more constants by field."""
    fields = _parse(_pairs(text), options)
    fields.check("--map")
    return fields


def map_of_columns(names: Iterable[str], others: Mapping[str, Field]) -> FieldMap:
    targets: dict[str, Target] = {}
    for name in names:
        target = _target(name, others, "columns")
        if target.field in targets:
            raise BadInput(f"columns: {target.field} is given twice")
        targets[target.field] = replace(target, column=name)
    return FieldMap(targets)


def map_by_names(columns: Sequence[str], options: Mapping[str, str | None]) -> FieldMap:
    """Return the mapping of the columns that are named as fields are, or as ``SYNONYMS``; of two
    that exclude each other, the first of ``_EXCLUSIVE``."""
    found: dict[str, tuple[str, str]] = {}
    for column in columns:
        name = SYNONYMS.get(column.lower(), column)
        with suppress(BadInput):
            found.setdefault(_target(name, {}, "").field, (name, column))
    for first, second in _EXCLUSIVE:
        if {first, second} <= found.keys():
            del found[second]
    given = {name for name, value in options.items() if value is not None}
    fields = _parse([pair for field, pair in found.items() if field not in given], options)
    shown = join_names([column[:40] for column in columns[:30]])
    fields.check(f"without --map FIELD=COLUMN,... (docs/formats.md), of the columns {shown}")
    return fields


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


def _parse(pairs: Sequence[tuple[str, str]], options: Mapping[str, str | None]) -> FieldMap:
    targets: dict[str, Target] = {}
    more = [(name, f"@{value}") for name, value in options.items() if value is not None]
    for name, source in [*pairs, *more]:
        target = _target(name, {}, "--map")
        if target.field in targets:
            raise BadInput(f"--map: {target.field} is given twice")
        if source.startswith("@"):
            value: Any = source[1:]
            try:
                if target.of_field.dimension is not None:
                    value = target.converted(value, target.scale)
                value = target.of_field.parse_cell(target.field, value)
            except InvalidCell as error:
                raise BadInput(f"--map: {error}") from None
            targets[target.field] = replace(target, value=value)
        else:
            targets[target.field] = replace(target, column=source)
    return FieldMap(targets)


def _target(name: str, others: Mapping[str, Field], given: str) -> Target:
    if (of_field := others.get(name) or FIELDS.get(name) or MODEL_FIELDS.get(name)) is not None:
        return Target(name, name, of_field, None if of_field.dimension is None else 1.0)
    for base, known in _WITH_UNIT.items():
        if name == base:
            return Target(name, known, FIELDS[known])
        scale = factor(name.removeprefix(f"{base}_"), FIELDS[known].dimension or "time")
        if name.startswith(f"{base}_") and scale is not None:
            return Target(name, known, FIELDS[known], scale)
    if (rate := rate_in_name(name)) is not None:
        kind, is_per_gpu, _ = rate
        if name == f"{kind}_per_s" + ("_per_gpu" if is_per_gpu else ""):
            return Target(name, THROUGHPUT, FIELDS[THROUGHPUT])
    if name.startswith(OPTIONS) and len(name) > len(OPTIONS):
        if len(name) > MAX_TEXT or not name.isprintable():
            raise BadInput(f"{given} {quote(name)}: allowed: a name of up to {MAX_TEXT} characters")
        return Target(name, name, OPTION)
    allowed = join_names([*FIELDS, *others, f"{MODEL}NAME", f"{OPTIONS}NAME"])
    raise BadInput(f"{given}: no field {quote(name)}; allowed: {allowed}")
