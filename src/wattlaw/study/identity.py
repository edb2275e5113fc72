"""The identity of a run: a hash of its specification."""

import hashlib
import json
import math
from functools import cache

from pydantic import BaseModel

from wattlaw.study.model import RunSpec
from wattlaw.study.setting import Setting

ID_DIGITS = 16
_REQUIRED = math.nan  # equal to nothing
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def run_id(spec: RunSpec) -> str:
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:ID_DIGITS]


def canonical(model: BaseModel) -> str:
    """Return the canonical JSON of a run: sorted keys, defaults left out, 200.0 as 200.

    Defaults are left out so that a field that is added later does not change existing identities.
    """
    values = model.__dict__
    fields = _fields(type(model))
    pairs = [f'"{k}":{_json(values[k])}' for k, default in fields if values[k] != default]
    return f"{{{','.join(pairs)}}}"


@cache
def _fields(model: type[BaseModel]) -> list[tuple[str, object]]:
    return [
        (name, _REQUIRED if field.is_required() else field.get_default(call_default_factory=True))
        for name, field in sorted(model.model_fields.items())
    ]


def _json(value: object) -> str:
    if type(value) is int:  # most values of a large plan
        return str(value)
    if isinstance(value, Setting):
        batch = value.global_batch
        value = value.changed() | ({"global_batch": batch} if batch else {})
    return canonical(value) if isinstance(value, BaseModel) else _encode(_plain(value))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
