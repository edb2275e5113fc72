"""The identity of a run: a hash of what was asked, never of when or by whom."""

import hashlib
import json
import math
from functools import cache
from typing import Any

from pydantic import BaseModel

from wattlaw.study.model import RunSpec

ID_DIGITS = 16
_MOST_KNOWN = 100_000
_REQUIRED = math.nan  # equal to nothing
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical(spec: RunSpec) -> str:
    """Return the canonical JSON of a run: sorted keys, defaults left out, 200.0 as 200.

    Defaults are left out so that a setting added later, at its default, changes no old identity.
    """
    return Identifier().canonical(spec)


def run_id(spec: RunSpec) -> str:
    """Return the first 16 hex digits of the SHA-256 of the canonical form."""
    return Identifier().run_id(spec)


class Identifier:
    """Computes the identities of many runs, with a cache of the JSON of the parts that they share.

    Parts are known by ``id``: the caller keeps those of its runs alive as long as this.
    """

    def __init__(self) -> None:
        self._parts: dict[int, str] = {}

    def canonical(self, spec: RunSpec) -> str:
        """Return what the function ``canonical`` returns."""
        return self._object(spec)

    def run_id(self, spec: RunSpec) -> str:
        """Return what the function ``run_id`` returns."""
        return hashlib.sha256(self._object(spec).encode()).hexdigest()[:ID_DIGITS]

    def _object(self, model: BaseModel) -> str:
        found = []
        values = model.__dict__
        for name, default, pairs in _fields(type(model)):
            value = values[name]
            known, key = (self._parts, id(value)) if pairs is None else (pairs, value)
            try:
                pair = known.get(key)
            except TypeError:  # a list or mapping of the user's
                known, key, pair = {}, 0, None
            if pair is None:
                pair = known[key] = "" if value == default else f'"{name}":{self._json(value)}'
                if len(known) > _MOST_KNOWN and known is pairs:
                    known.clear()
            if pair:
                found.append(pair)
        return f"{{{','.join(found)}}}"

    def _json(self, value: object) -> str:
        return self._object(value) if isinstance(value, BaseModel) else _encode(_plain(value))


@cache
def _fields(model: type[BaseModel]) -> list[tuple[str, object, dict[Any, str] | None]]:
    """Return the fields of a model in the order of canonical JSON.

    Of each the name, the default, and a cache of its JSON by value; None for a part of the run.
    """
    return [
        (
            name,
            _REQUIRED if field.is_required() else field.get_default(call_default_factory=True),
            None if _is_model(field.annotation) else {},
        )
        for name, field in sorted(model.model_fields.items())
    ]


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
