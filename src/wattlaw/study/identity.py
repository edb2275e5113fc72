"""The identity of a run: a hash of what was asked, never of when or by whom."""

import hashlib
import json
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from wattlaw.study.model import RunSpec

ID_DIGITS = 16
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical(spec: RunSpec) -> str:
    """Return the canonical JSON of a run: sorted keys, defaults left out, 200.0 as 200.

    Defaults are left out so that a setting added later, at its default, changes no old identity.
    """
    return Identifier().canonical(spec)


def run_id(spec: RunSpec) -> str:
    """Return the first 16 hex digits of the SHA-256 of the canonical form."""
    return Identifier().run_id(spec)


class _Field(NamedTuple):
    name: str
    default: object
    is_model: bool
    pairs: dict[object, str]  # JSON by value, or by ``id`` of a model; empty at the default


class Identifier:
    """Computes the identities of many runs, with a cache of the JSON of what they share.

    Models are cached by ``id``: the caller keeps the parts of its runs alive as long as this.
    """

    def __init__(self) -> None:
        self._fields: dict[type[BaseModel], list[_Field]] = {}

    def canonical(self, spec: RunSpec) -> str:
        """Return what the function ``canonical`` returns."""
        return self._object(spec)

    def run_id(self, spec: RunSpec) -> str:
        """Return what the function ``run_id`` returns."""
        return hashlib.sha256(self._object(spec).encode()).hexdigest()[:ID_DIGITS]

    def _object(self, model: Any) -> str:
        found = []
        values = model.__dict__
        for field in self._fields.get(type(model)) or self._learned(type(model)):
            name, _, is_model, pairs = field
            value = values[name]
            try:
                pair = pairs.get(id(value) if is_model else value)
            except TypeError:  # a list or mapping of the user's
                pair = self._pair(field, value)
            if pair is None:
                pair = pairs[id(value) if is_model else value] = self._pair(field, value)
            if pair:
                found.append(pair)
        return f"{{{','.join(found)}}}"

    def _learned(self, model: type[BaseModel]) -> list[_Field]:
        self._fields[model] = [
            _Field(name, field.get_default(call_default_factory=True), _is_model(field), {})
            for name, field in sorted(model.model_fields.items())
        ]
        return self._fields[model]

    def _pair(self, field: _Field, value: Any) -> str:
        if field.default is not PydanticUndefined and value == field.default:
            return ""
        text = self._object(value) if field.is_model else _encode(_plain(value))
        return f'"{field.name}":{text}'


def _is_model(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
