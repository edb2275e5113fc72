"""The state of a store's decision, in ``decision.json``."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.files import locked, open_regular, read_text, write_text

_POLL_S = 0.05


def decision_path(store: Path) -> Path:
    return store / "decision.json"


@contextlib.contextmanager
def decision_lock(store: Path) -> Iterator[None]:
    with open_regular(store / "decision.lock", append=True) as file:
        while not locked(file):
            time.sleep(_POLL_S)
        yield


def write_decision(store: Path, decision: Mapping[str, Any]) -> None:
    write_text(decision_path(store), json.dumps(decision, indent=1, allow_nan=False) + "\n")


def read_decision(store: Path) -> object:
    try:
        return json.loads(read_text(decision_path(store)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or "it is not JSON"
        raise BadInput(f"cannot be read: {why}") from None


def set_aside_decision(store: Path) -> Path:
    path = decision_path(store)
    number = 1
    while (aside := path.with_name(f"decision.damaged-{number}.json")).exists():
        number += 1
    return path.rename(aside)
