"""The identity of a run: a hash of what was asked, never of when or by whom."""

import hashlib
import json

from wattlaw.study.model import RunSpec

ID_DIGITS = 16


def canonical(spec: RunSpec) -> str:
    """Return the canonical JSON of a run: sorted keys, defaults left out, 200.0 as 200.

    Defaults are left out so that a setting added later, at its default, changes no old identity.
    """
    asked = spec.model_dump(mode="json", exclude_defaults=True)
    return json.dumps(_plain_numbers(asked), sort_keys=True, separators=(",", ":"), allow_nan=False)


def run_id(spec: RunSpec) -> str:
    """Return the first 16 hex digits of the SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:ID_DIGITS]


def _plain_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
