"""The identity of a run: a hash of what was asked, never of when or by whom."""

import hashlib
import json
import math
from functools import cache
from typing import Any

from pydantic import BaseModel

from wattlaw.study.model import RunSpec

ID_DIGITS = 16
_MAX_CACHED = 100_000  # values of one field
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
        self._frames: dict[tuple[object, ...], tuple[str, str]] = {}

    def canonical(self, spec: RunSpec) -> str:
        """Return what the function ``canonical`` returns."""
        before, after = self._frame(spec)
        setting = self._parts.get(id(spec.setting))
        if setting is None:
            setting = self._parts[id(spec.setting)] = _encoded(spec.setting)
        return before + setting + after

    def run_id(self, spec: RunSpec) -> str:
        """Return what the function ``run_id`` returns."""
        return hashlib.sha256(self.canonical(spec).encode()).hexdigest()[:ID_DIGITS]

    def _frame(self, spec: RunSpec) -> tuple[str, str]:
        """Return the JSON of a run before and after its setting, in which most runs differ."""
        key = (
            *(id(spec.workload), id(spec.measure), id(spec.train)),
            *(spec.launch_kind, spec.hardware, spec.nodes, spec.repeat),
        )
        frame = self._frames.get(key)
        if frame is None:
            pairs = [(name, _pair(name, default, spec)) for name, default, _ in _fields(RunSpec)]
            before = [pair for name, pair in pairs if pair and name < "setting"]
            after = [pair for name, pair in pairs if pair and name > "setting"]
            frame = ("{" + ",".join([*before, '"setting":']), ",".join(["", *after]) + "}")
            self._frames[key] = frame
        return frame


def _pair(name: str, default: object, model: BaseModel) -> str:
    value = getattr(model, name)
    return "" if value == default else f'"{name}":{_json(value)}'


def _encoded(model: BaseModel) -> str:
    """Return the canonical JSON of a part of a run."""
    values = model.__dict__
    pairs = []
    for name, default, cached in _fields(type(model)):
        value = values[name]
        try:
            pair = cached.get(value)
        except TypeError:  # a list or mapping of the user's
            pair = _pair(name, default, model)
        else:
            if pair is None:
                pair = cached[value] = _pair(name, default, model)
                if len(cached) > _MAX_CACHED:
                    cached.clear()
        if pair:
            pairs.append(pair)
    return f"{{{','.join(pairs)}}}"


def _json(value: object) -> str:
    return _encoded(value) if isinstance(value, BaseModel) else _encode(_plain(value))


@cache
def _fields(model: type[BaseModel]) -> list[tuple[str, object, dict[Any, str]]]:
    """Return the fields of a model in the order of canonical JSON.

    Of each the name, the default, and a cache of its JSON by value.
    """
    return [
        (
            name,
            _REQUIRED if field.is_required() else field.get_default(call_default_factory=True),
            {},
        )
        for name, field in sorted(model.model_fields.items())
    ]


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
