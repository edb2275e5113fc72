"""Reads a YAML file into a model; an error names the key, the given value and what is allowed."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from wattlaw.common.errors import BadInput
from wattlaw.common.files import read_input
from wattlaw.common.text import quote
from wattlaw.study.base_model import LocatedError

MAX_BYTES = 250_000
MAX_VALUES = 50_000
MAX_DEPTH = 50
MAX_INT = 2**63 - 1

Location = tuple[int | str, ...]
Mapping = dict[str, Any]
ModelT = TypeVar("ModelT", bound=BaseModel)

_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_MAX_DIGITS = 400
#: Where the mapping is of which the keys are numbers.
_KEYED_BY_NUMBER = ("decide", "epochs_by_batch")
_COUNT = re.compile(r"0|[1-9][0-9]{0,17}")


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Safe YAML in which ``1e-3`` is a number and values that JSON cannot hold are errors."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        text = node.value
        if node.tag == _INT and _COUNT.fullmatch(text):  # most values of a large file
            return int(text)
        # PyYAML raises any of these for a scalar that does not fit its tag (``!!bool x``).
        try:
            if node.tag in (_INT, _FLOAT) and not (text.isascii() and len(text) <= _MAX_DIGITS):
                raise ValueError("not ASCII digits, or too many of them")
            value = super().construct_object(node, deep)
            if isinstance(value, str | int):
                str(value).encode()  # raises for a lone surrogate and a number of too many digits
        except (ValueError, LookupError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"{quote(text)} is not a valid {kind}"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark) from error
        return value


_Loader.add_implicit_resolver(
    _FLOAT, re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_document(
    path: Path,
    model: type[ModelT],
    what: str,
    prepare: Callable[[Mapping], Mapping] = lambda data: data,
) -> ModelT:
    """Read a YAML file that contains one mapping, and validate it.

    The descriptions of the model's fields state what is allowed. ``what`` names such a file in
    messages. ``prepare`` changes the plain data before validation; it may raise ``LocatedError``.
    Raises ``BadInput``, one line: ``file:line: key: given ...; allowed: ...``.
    """
    try:
        return _read(path, model, what, prepare)
    except BadInput as error:
        text = "".join(char if char.isprintable() else "?" for char in str(error))
        raise BadInput(text) from None


def _read(
    path: Path, model: type[ModelT], what: str, prepare: Callable[[Mapping], Mapping]
) -> ModelT:
    try:
        text = read_input(path, MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 text (byte {error.start})") from None
    keys = f"a mapping with the keys {', '.join(model.model_fields)}"
    try:
        _refuse_large(path, text, what)
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            raise BadInput(f"{path}: empty; allowed: {keys}")
        _refuse_expansion(path, root, what)
        data = _Loader("").construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(_yaml_problem(path, error)) from None
    section, name = _KEYED_BY_NUMBER
    parent = data.get(section) if isinstance(data, dict) else None
    if isinstance(parent, dict) and isinstance(parent.get(name), dict):  # JSON needs texts
        items = parent[name].items()
        parent[name] = {str(key) if type(key) is int else key: value for key, value in items}
    unsupported = _unsupported_value(data)
    if unsupported is not None:
        location, allowed = unsupported
        given = _value_at(data, location)
        raise BadInput(f"{_place(path, root, location)}: given {quote(given)}; allowed: {allowed}")
    if not isinstance(data, dict):
        raise BadInput(f"{path}: given {quote(data)}; allowed: {keys}")
    try:
        data = prepare(data)
        return model.model_validate_json(json.dumps(data))
    except LocatedError as error:
        raise BadInput(f"{_place(path, root, error.location)}: {error}") from None
    except ValidationError as error:
        problems = error.errors(include_url=False)
        # A problem of a list or mapping may follow from that of one of its items.
        parents = {problem["loc"][:n] for problem in problems for n in range(len(problem["loc"]))}
        problems = [problem for problem in problems if problem["loc"] not in parents]
        first = _problem(problems[0], data, model)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BadInput(f"{_place(path, root, _location(problems[0]))}: {first}{more}") from None


def _yaml_problem(path: Path, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"{path}: nested too deeply"
    mark = getattr(error, "problem_mark", None)
    place = f"{path}:{mark.line + 1}" if mark else f"{path}"
    problem = getattr(error, "problem", None) or error
    return f"{place}: not valid YAML: {' '.join(str(problem).split())[:200]}"


def _refuse_large(path: Path, text: str, what: str) -> None:
    """Reject very many values and deep nesting while the file is parsed, before it is in memory."""
    values = depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            if depth > MAX_DEPTH:
                raise _too_deep(path, event.start_mark)
            depth += isinstance(event, yaml.CollectionStartEvent)
        if values > MAX_VALUES:
            raise _too_many(path, what)


def _refuse_expansion(path: Path, root: yaml.Node, what: str) -> None:
    """Reject duplicate keys, and aliases that are recursive or expand to many or deep values."""
    measured: dict[int, tuple[int, int] | None] = {}

    def measure(node: yaml.Node, depth: int) -> tuple[int, int]:
        """Return the number of values in a node and their depth, with aliases expanded."""
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        known = measured.get(id(node), (0, 0))
        if known is None:
            raise BadInput(f"{path}:{node.start_mark.line + 1}: an alias contains itself")
        if depth + known[1] > MAX_DEPTH:
            raise _too_deep(path, node.start_mark)
        if known[0]:
            return known
        measured[id(node)] = None
        children = node.value
        if isinstance(node, yaml.MappingNode):
            _refuse_duplicates(node)
            children = [part for pair in node.value for part in pair]
        inner = [measure(child, depth + 1) for child in children]
        values = 1 + sum(count for count, _ in inner)
        height = max((1 + deep for _, deep in inner), default=0)
        measured[id(node)] = values, height
        return values, height

    if measure(root, 0)[0] > MAX_VALUES:
        raise _too_many(path, what)


def _refuse_duplicates(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(None, None, "a key is not text", key.start_mark)
        if key.value in seen:
            problem = f"the key {quote(key.value)} is given twice"
            raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
        seen.add(key.value)


def _too_deep(path: Path, mark: Any) -> BadInput:
    place = f"{path}:{mark.line + 1}"
    return BadInput(f"{place}: nested too deeply; allowed: {MAX_DEPTH} levels")


def _too_many(path: Path, what: str) -> BadInput:
    return BadInput(f"{path}: more than {MAX_VALUES:,} values; this is not a valid {what}")


def _unsupported_value(value: object, at: Location = ()) -> tuple[Location, str] | None:
    """Return the location of a value that JSON lacks (a date, .nan, bytes), and what is allowed."""
    children: list[tuple[Any, object]] = []
    if isinstance(value, dict):
        children = list(value.items())
        for key, _ in children:
            if not isinstance(key, str):
                return at, f"keys that are text (quote the key {key})"
    elif isinstance(value, list):
        children = list(enumerate(value))
    elif isinstance(value, float) and not math.isfinite(value):
        return at, "a finite number"
    elif isinstance(value, int) and abs(value) > MAX_INT:
        return at, "a number of at most 63 bits"
    elif value is not None and not isinstance(value, str | int | float):
        return at, "text, a number, true, false or null (quote a date)"
    for key, item in children:
        if (unsupported := _unsupported_value(item, (*at, key))) is not None:
            return unsupported
    return None


def _location(details: ErrorDetails) -> Location:
    """Return the location of an error; a LocatedError adds the path within the validated value."""
    error = details.get("ctx", {}).get("error")
    inner = error.location if isinstance(error, LocatedError) else ()
    # "[key]" is what pydantic adds for the key of a mapping.
    return tuple(part for part in (*details["loc"], *inner) if part != "[key]")


def _problem(details: ErrorDetails, data: object, root: type[BaseModel]) -> str:
    location, kind = _location(details), details["type"]
    if kind == "value_error":
        return details["msg"].removeprefix("Value error, ")
    model, description = _schema(location, root)
    if kind == "extra_forbidden":
        return f"unknown key; allowed: {', '.join(model.model_fields) if model else 'none'}"
    given = "nothing" if kind == "missing" else quote(_value_at(data, location))
    if details["loc"] != location:
        given = f"the key {quote(location[-1])}"
    return f"given {given}; allowed: {description or details['msg']}"


def _schema(location: Location, root: type[BaseModel]) -> tuple[type[BaseModel] | None, str]:
    """Return the model that contains a location, and the description of the nearest field."""
    model: type[BaseModel] | None = root
    inside: type[BaseModel] | None = root
    description = ""
    for part in location:
        if isinstance(part, str) and inside is not None:
            model = inside
            field = model.model_fields.get(part)
            if field is None:
                return model, description
            description = field.description or description
            inside = _model_in(field.annotation)
    return model, description


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in get_args(annotation):
        if (model := _model_in(part)) is not None:
            return model
    return None


def _value_at(data: Any, location: Location) -> object:
    for part in location:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return data
    return data


def _place(path: Path, root: yaml.Node, location: Location) -> str:
    """Return ``file:line: dotted.key[3]`` for a location in the data."""
    node, dotted = root, ""
    for part in location:
        dotted += f"[{part}]" if isinstance(part, int) else f".{part[:60]}"
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            node = next((item for key, item in node.value if key.value == part), node)
    line = node.start_mark.line + 1
    return f"{path}:{line}: {dotted.removeprefix('.')}" if dotted else f"{path}:{line}"
