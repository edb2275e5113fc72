"""What a user's table may tell of a run: fields, what each may say, and which column has which."""

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.study.base import MAX_COUNT
from wattlaw.text import join_names, quote

#: Longer names are refused, so that no table can make a report or a label unreadable.
MAX_TEXT = 200
_MAX_EPOCHS = 100_000
_MAX_WHOLE = 2**53  # beyond it a number in a table need not be the one that was meant
#: A setting of the run that has no field of its own, such as ``options.optimizer``.
OPTIONS = "options."


@dataclass(frozen=True)
class Field:
    """One thing that a table may tell."""

    read: Callable[[Any], Any]  # raises ValueError
    allowed: str


def _number(value: Any) -> float:
    if isinstance(value, str):
        if not value.isascii() or "_" in value:  # float() would take them
            raise ValueError
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError
    try:
        return float(value)
    except OverflowError:
        raise ValueError from None


def finite_number(value: Any) -> float:
    """Return a cell as a number; raise ValueError where it is none, or infinite."""
    number = _number(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _outcome(value: Any) -> float:
    """Return a number; a loss that diverged was measured, and is none."""
    number = _number(value)
    return number if math.isnan(number) else finite_number(number)


def _between(low: float, high: float = math.inf, *, open_: bool) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        number = finite_number(value)
        if not low <= number <= high or (open_ and number == low):
            raise ValueError
        return number

    return read


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = finite_number(value)
        if not number.is_integer() or not low <= number <= high:
            raise ValueError
        return int(number)

    return read


def _percent(value: Any) -> float:
    return _between(0, 100, open_=False)(value) / 100


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    if not isinstance(value, str):
        finite_number(value)
    text = str(value).strip()
    text.encode()  # a lone surrogate, which JSON can hold, is no text
    if not 0 < len(text) <= MAX_TEXT:
        raise ValueError
    return text


def _option(value: Any) -> str | int | float | bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        _between(-_MAX_WHOLE, _MAX_WHOLE, open_=False)(value)
        return value
    return finite_number(value) if isinstance(value, float | Decimal) else _text(value)


def _one_of(*words: str) -> Field:
    def read(value: Any) -> str:
        word = _text(value).lower()
        if word not in words:
            raise ValueError
        return word

    return Field(read, ", ".join(words))


_TEXT = Field(_text, f"a text of 1 to {MAX_TEXT} characters")
_COUNT = Field(_whole(1, MAX_COUNT), f"a whole number from 1 to {MAX_COUNT:,}")
_AMOUNT = Field(_whole(1, _MAX_WHOLE), "a whole number >= 1")
_POSITIVE = Field(_between(0, open_=True), "a number > 0")
_SHARE = Field(_between(0, 1, open_=False), "a share from 0 to 1")
_PERCENT = Field(_percent, "a number from 0 to 100")

FIELDS: Mapping[str, Field] = {
    "gpus": _COUNT,
    "epoch_time_s": _POSITIVE,
    "workload": _TEXT,
    "hardware": _TEXT,
    "global_batch": _COUNT,
    "local_batch": _COUNT,
    "power_limit_w": _POSITIVE,
    "clock_limit_mhz": _POSITIVE,
    "precision": _one_of("fp32", "tf32", "bf16", "fp16"),
    "dataset_fraction": Field(_between(0, 1, open_=True), "a number > 0 and <= 1"),
    "nodes": _COUNT,
    "repeat": Field(_whole(0, MAX_COUNT), f"a whole number from 0 to {MAX_COUNT:,}"),
    "epochs": Field(_whole(1, _MAX_EPOCHS), f"a whole number from 1 to {_MAX_EPOCHS:,}"),
    "samples": _AMOUNT,
    "steps": _AMOUNT,
    "gpu_energy_j": _POSITIVE,
    "cpu_energy_j": _POSITIVE,
    "dram_energy_j": _POSITIVE,
    "power_w": _POSITIVE,
    "energy_source": _one_of("counter", "integral", "estimated", "simulated"),
    "energy_verdict": _one_of("ok", "suspect"),
    "sm_util": _SHARE,
    "mem_util": _SHARE,
    "sm_util_percent": _PERCENT,
    "mem_util_percent": _PERCENT,
    "metric_name": _TEXT,
    "metric": Field(_outcome, "a number (NaN if it diverged)"),
    "loss": Field(_outcome, "a number (NaN if it diverged)"),
    "eval_time_s": _POSITIVE,
}
_OPTION = Field(_option, f"a number or a text of 1 to {MAX_TEXT} characters")
REQUIRED = ("gpus", "epoch_time_s")
_ONE_OF_BOTH = (
    ("gpu_energy_j", "power_w"),
    ("sm_util", "sm_util_percent"),
    ("mem_util", "mem_util_percent"),
)


class Misread(ValueError):
    """A cell that cannot be what it is mapped to; the text says why."""


@dataclass(frozen=True)
class FieldMap:
    """Which column tells which field, and what is the same in all rows."""

    columns: Mapping[str, str]
    constants: Mapping[str, Any]

    def checked(self, there: Iterable[str]) -> "FieldMap":
        """Return itself, if a table has all columns.

        Raises
        ------
        BadInput
            One is not there; the text lists those that are.
        """
        names = tuple(there)
        known = set(names)
        for field, column in self.columns.items():
            if column not in known:
                alone = len(names) == 1 and any(mark in names[0] for mark in ";\t")
                hint = " (cells have to be divided by commas)" if alone else ""
                raise BadInput(
                    f"--map {field}: no column {quote(column)}; "
                    f"there are: {join_names(names)}{hint}"
                )
        return self

    def fields(self, cells: Mapping[str, Any], of: Callable[[str], bool]) -> dict[str, Any]:
        """Return what a row tells of some fields; what it does not tell is left out.

        Raises
        ------
        Misread
            A cell is not what its field may be.
        """
        told = {name: value for name, value in self.constants.items() if of(name)}
        for name, column in self.columns.items():
            value = cells.get(column)
            is_blank = value is None or (isinstance(value, str) and not value.strip())
            if of(name) and not is_blank:
                told[name] = _read(name, value)
        return told


def parse_map(text: str, options: Mapping[str, str | None] | None = None) -> FieldMap:
    """Return what ``field=column,field=@value,...`` says; quotes keep a comma in a name.

    Parameters
    ----------
    text
        The mapping. A field is one of ``FIELDS``, or ``options.NAME``.
    options
        Constants given beside it, by field; None for one that was not given.

    Raises
    ------
    BadInput
        A field is unknown (the text lists all), given twice, or missing; a constant is not what
        its field may be.
    """
    columns: dict[str, str] = {}
    constants: dict[str, Any] = {}
    pairs = [_pair(part) for part in _parts(text)]
    pairs += [(name, f"@{value}") for name, value in (options or {}).items() if value is not None]
    for field, source in pairs:
        if field in columns or field in constants:
            raise BadInput(f"--map: {field} is given twice")
        _field(field)
        if not source.startswith("@"):
            columns[field] = source
            continue
        try:
            constants[field] = _read(field, source[1:])
        except Misread as error:
            raise BadInput(f"--map: {error}") from None
    given = {*columns, *constants}
    for field in REQUIRED:
        if field not in given:
            raise BadInput(f"--map: {field} is missing; needed: {', '.join(REQUIRED)}")
    if "metric" in given and "epochs" not in given:
        raise BadInput(
            "--map: metric needs epochs: after how many epochs of training it was measured, such "
            "as epochs=@90"
        )
    for one, other in _ONE_OF_BOTH:
        if {one, other} <= given:
            raise BadInput(f"--map: given both {one} and {other}; allowed: one of them")
    return FieldMap(columns, constants)


def _parts(text: str) -> list[str]:
    try:
        (parts,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        raise BadInput(f"--map {quote(text)}: allowed: field=column,field=@value,...") from None
    return [part for part in parts if part.strip()]


def _pair(part: str) -> tuple[str, str]:
    field, equals, source = (word.strip() for word in part.partition("="))
    if not (field and equals and source):
        raise BadInput(f"--map {quote(part)}: allowed: field=column or field=@value")
    return field, source


def _field(name: str) -> Field:
    if name.startswith(OPTIONS) and len(name) > len(OPTIONS):
        if len(name) > MAX_TEXT or not name.isprintable():
            raise BadInput(f"--map {quote(name)}: allowed: a name of up to {MAX_TEXT} characters")
        return _OPTION
    if name not in FIELDS:
        known = join_names([*FIELDS, f"{OPTIONS}NAME"])
        raise BadInput(f"--map: no field {quote(name)}; there are: {known}")
    return FIELDS[name]


def _read(name: str, value: Any) -> Any:
    field = _field(name)
    try:
        return field.read(value)
    except ValueError:
        raise Misread(f"{name} is {quote(value)}; allowed: {field.allowed}") from None
