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
from wattlaw.common.text import nearest, quote
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
_COUNT = re.compile(r"0|[1-9][0-9]{0,17}")
_UNKNOWN = "extra_forbidden"  # pydantic's name for an unknown key
_TOO_MANY = f"more than {MAX_VALUES:,} values"
_TOO_DEEP = f"nested too deeply; allowed: {MAX_DEPTH} levels"


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
        except (ValueError, LookupError, AttributeError):
            kind = node.tag.rpartition(":")[2]
            raise _fault(node, f"{quote(text)} is not a valid {kind}") from None
        return value


class Dumper(yaml.SafeDumper):
    """Writes texts such as ``1e-3`` so that they are read as texts."""


for _kind in (_Loader, Dumper):
    _kind.add_implicit_resolver(
        _FLOAT, re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def read_document(
    path: Path, model: type[ModelT], prepare: Callable[[Mapping], Mapping] = lambda data: data
) -> ModelT:
    """Read a YAML file that contains one mapping, and validate it.

    The descriptions of the model's fields state what is allowed. ``prepare`` changes the plain data
    before validation; it may raise ``LocatedError``. Raises ``BadInput``, one line: ``file:line:
    key: given ...; allowed: ...``.
    """
    try:
        return _read(path, model, prepare)
    except BadInput as error:
        text = "".join(char if char.isprintable() else "?" for char in str(error))
        raise BadInput(text) from None


def _read(path: Path, model: type[ModelT], prepare: Callable[[Mapping], Mapping]) -> ModelT:
    try:
        text = read_input(path, MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 text (byte {error.start})") from None
    keys = f"a mapping with the keys {', '.join(model.model_fields)}"
    try:
        _refuse_large(text)
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            raise BadInput(f"{path}: empty; allowed: {keys}")
        _refuse_expansion(root)
        data = _Loader("").construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else f"{path}"
        problem = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        raise BadInput(f"{place}: not valid YAML: {problem}") from None
    try:
        if isinstance(data, dict):
            data = prepare(data)
        _refuse_unsupported(data)
        if not isinstance(data, dict):
            raise BadInput(f"{path}: given {quote(data)}; allowed: {keys}")
        return model.model_validate_json(json.dumps(data))
    except LocatedError as error:
        raise BadInput(f"{_place(path, root, error.location)}: {error}") from None
    except ValidationError as error:
        problems = error.errors(include_url=False)
        # A problem of a list or mapping may follow from that of one of its items.
        parents = {problem["loc"][:n] for problem in problems for n in range(len(problem["loc"]))}
        problems = [problem for problem in problems if problem["loc"] not in parents]
        # Others may follow from an unknown key, the most from one far up.
        problems.sort(key=lambda item: (item["type"] != _UNKNOWN, len(item["loc"])))
        location = _location(problems[0])
        first = _problem(problems[0], location, model)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BadInput(f"{_place(path, root, location)}: {first}{more}") from None


def with_values(text: str, values: dict[Location, Any]) -> str:
    """Return a valid YAML text with other values at some places; the rest keeps its form."""
    root = yaml.compose(text, Loader=_Loader)
    nodes = [(_node_at(root, location), value) for location, value in values.items() if root]
    for node, value in sorted(nodes, key=lambda item: -item[0].start_mark.index):
        start, end = node.start_mark.index, node.end_mark.index
        end = start + len(text[start:end].rstrip())
        text = f"{text[:start]}{json.dumps(value)}{text[end:]}"
    return text


def _node_at(root: yaml.Node, location: Location) -> yaml.Node:
    node = root
    for part in location:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            node = next((item for key, item in node.value if key.value == part), node)
    return node


def _fault(at: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, at.start_mark)


def _refuse_large(text: str) -> None:
    """Reject very many values and deep nesting while a file is parsed, before it is in memory."""
    values = depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            if depth > MAX_DEPTH:
                raise _fault(event, _TOO_DEEP)
            depth += isinstance(event, yaml.CollectionStartEvent)
        if values > MAX_VALUES:
            raise ValueError(_TOO_MANY)


def _refuse_expansion(root: yaml.Node) -> None:
    """Reject duplicate keys, and aliases that are recursive or expand to many or deep values."""
    measured: dict[int, tuple[int, int] | None] = {}

    def measure(node: yaml.Node, depth: int) -> tuple[int, int]:
        """Return the number of values in a node and their depth, with aliases expanded."""
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        known = measured.get(id(node), (0, 0))
        if known is None:
            raise _fault(node, "an alias contains itself")
        if depth + known[1] > MAX_DEPTH:
            raise _fault(node, _TOO_DEEP)
        if known[0]:
            return known
        measured[id(node)] = None
        children = node.value
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise _fault(key, "a key is not text")
                if key.value in seen:
                    raise _fault(key, f"the key {quote(key.value)} is given twice")
                seen.add(key.value)
            children = [part for pair in node.value for part in pair]
        inner = [measure(child, depth + 1) for child in children]
        values = 1 + sum(count for count, _ in inner)
        height = max((1 + deep for _, deep in inner), default=0)
        measured[id(node)] = values, height
        return values, height

    if measure(root, 0)[0] > MAX_VALUES:
        raise ValueError(_TOO_MANY)


def _refuse_unsupported(value: object, *at: int | str) -> None:
    """Raise ``LocatedError`` at a value that JSON lacks, such as a date, .nan or bytes."""
    allowed = None
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                allowed = f"keys that are text (quote the key {key})"
                break
            _refuse_unsupported(item, *at, key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_unsupported(item, *at, index)
    elif isinstance(value, float) and not math.isfinite(value):
        allowed = "a finite number"
    elif isinstance(value, int) and abs(value) > MAX_INT:
        allowed = "a number of at most 63 bits"
    elif value is not None and not isinstance(value, str | int | float):
        allowed = "text, a number, true, false or null (quote a date)"
    if allowed is not None:
        raise LocatedError(f"given {quote(value)}; allowed: {allowed}", *at)


def _location(details: ErrorDetails) -> Location:
    error = details.get("ctx", {}).get("error")
    inner = error.location if isinstance(error, LocatedError) else ()
    # "[key]" is what pydantic adds for the key of a mapping.
    return tuple(part for part in (*details["loc"], *inner) if part != "[key]")


def _problem(details: ErrorDetails, location: Location, root: type[BaseModel]) -> str:
    kind = details["type"]
    if kind == "value_error":
        return details["msg"].removeprefix("Value error, ")
    model, description = _schema(location, root)
    if kind == _UNKNOWN:
        near = nearest(str(location[-1])[:60], model.model_fields)
        return f"unknown key{near}; allowed: {', '.join(model.model_fields)}"
    given = "nothing" if kind == "missing" else quote(details["input"])
    if details["loc"] != location:
        given = f"the key {quote(location[-1])}"
    elif kind == "literal_error" and isinstance(details["input"], str):
        values = re.findall("'([^']*)'", str(details.get("ctx", {}).get("expected", "")))
        given += nearest(details["input"][:60], values)
    return f"given {given}; allowed: {description or details['msg']}"


def _schema(location: Location, root: type[BaseModel]) -> tuple[type[BaseModel], str]:
    """Return the model that contains a location, and the description of the nearest field."""
    model, description = root, ""
    inside: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, str) and inside is not None:
            model = inside
            field = model.model_fields.get(part)
            if field is None:
                break
            description = field.description or description
            inside = _model_in(field.annotation)
    return model, description


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _place(path: Path, root: yaml.Node, location: Location) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:60]}" for part in location)
    dotted, line = "".join(parts), _node_at(root, location).start_mark.line + 1
    return f"{path}:{line}: {dotted.removeprefix('.')}" if dotted else f"{path}:{line}"
