"""The state of a store's decision, in ``decision.json``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.files import read_text, write_text


def write_decision(store: Path, decision: Mapping[str, Any]) -> None:
    """Replace the decision of a store atomically."""
    write_text(_path(store), json.dumps(decision, indent=1, allow_nan=False) + "\n")


def read_decision(store: Path) -> dict[str, Any] | None:
    """Return the last decision of a store; None without one.

    Raises ``BadInput`` if the file cannot be read.
    """
    try:
        decision = json.loads(read_text(_path(store)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        decision = None
    if not isinstance(decision, dict):
        raise BadInput(f"{_path(store)}: not a decision; remove it, or run the study again")
    return decision


def _path(store: Path) -> Path:
    return store / "decision.json"
