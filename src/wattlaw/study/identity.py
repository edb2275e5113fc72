"""The identity of a run: a hash of its specification."""

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
_encode_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical(spec: RunSpec) -> str:
    """Return the canonical JSON of a run: sorted keys, defaults left out, 200.0 as 200.

    Defaults are left out so that a field that is added later does not change existing identities.
    """
    before, after = around_setting(spec)
    return before + encode(spec.setting) + after


def run_id(spec: RunSpec) -> str:
    """Return the first 16 hex digits of the SHA-256 of the canonical form."""
    return digest(canonical(spec))


def digest(text: str) -> str:
    """Return the run id of a canonical form."""
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def around_setting(spec: RunSpec) -> tuple[str, str]:
    """Return the canonical JSON of a run before and after its setting.

    Runs of one workload, sweep and repeat differ in their settings alone.
    """
    pairs = [(pairs.name, pairs.of(spec)) for pairs in _fields(RunSpec)]
    before = [pair for name, pair in pairs if pair and name < "setting"]
    after = [pair for name, pair in pairs if pair and name > "setting"]
    return "{" + ",".join([*before, '"setting":']), ",".join(["", *after]) + "}"


def encode(model: BaseModel) -> str:
    """Return the canonical JSON of a part of a run."""
    values = model.__dict__
    try:
        pairs = [pair for field in _fields(type(model)) if (pair := field[values[field.name]])]
    except TypeError:  # a list or mapping is not hashable
        pairs = [pair for field in _fields(type(model)) if (pair := field.of(model))]
    return f"{{{','.join(pairs)}}}"


class _Pairs(dict[Any, str]):
    """The canonical JSON of a field, ``"name":value``, by value; empty for the default."""

    def __init__(self, name: str, default: object) -> None:
        super().__init__()
        self.name, self._default = name, default

    def __missing__(self, value: object) -> str:
        if len(self) >= _MAX_CACHED:
            self.clear()
        pair = self[value] = self._encoded(value)
        return pair

    def of(self, model: BaseModel) -> str:
        """Return the JSON of a model's value, which need not be hashable."""
        return self._encoded(getattr(model, self.name))

    def _encoded(self, value: object) -> str:
        if value == self._default:
            return ""
        text = encode(value) if isinstance(value, BaseModel) else _encode_json(_plain(value))
        return f'"{self.name}":{text}'


@cache
def _fields(model: type[BaseModel]) -> tuple[_Pairs, ...]:
    """Return the fields of a model in the order of canonical JSON."""
    return tuple(
        _Pairs(
            name,
            _REQUIRED if field.is_required() else field.get_default(call_default_factory=True),
        )
        for name, field in sorted(model.model_fields.items())
    )


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
