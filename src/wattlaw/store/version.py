"""The schema version of a store, in ``store.json``."""

import json
import os
import shlex
from pathlib import Path

from wattlaw.common.errors import BadInput, NotPermitted
from wattlaw.common.files import read_text, write_text
from wattlaw.common.text import quote

#: Increased by every change after which older records or tables cannot be read as they are.
SCHEMA_VERSION = 8
_KEY = "schema_version"
CONTENT = json.dumps({_KEY: SCHEMA_VERSION})


def version_path(store: Path) -> Path:
    return store / "store.json"


def write_version(store: Path) -> None:
    write_text(version_path(store), CONTENT + "\n")


def check_version(store: Path) -> None:
    """A folder without runs is a new store. Raises ``BadInput`` if the store has another schema
    version, or its ``store.json`` is damaged, and ``NotPermitted`` if this user may not read it."""
    path = version_path(store)
    try:
        content = json.loads(read_text(path))
        version = content.get(_KEY) if isinstance(content, dict) else None
        fault = f"{_KEY} is {quote(version)}; allowed: an integer >= 1"
    except (FileNotFoundError, NotADirectoryError):
        if not _has_runs(store):
            return
        version, fault = None, "missing, and the store has runs"
    except PermissionError:
        raise unreadable(path) from None
    except OSError as error:
        version, fault = None, f"cannot be read: {error.strerror}"
    except (ValueError, RecursionError):  # also UnicodeDecodeError
        version, fault = None, "not a JSON file in UTF-8"
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BadInput(f"{path}: {fault}; restore the file; this wattlaw writes {CONTENT}")
    if version == SCHEMA_VERSION:
        return
    from wattlaw import __version__  # read from the package's metadata, which takes a while

    if version > SCHEMA_VERSION:
        advice = "upgrade wattlaw"
    else:
        advice = "use the wattlaw version that wrote it, or run the study into a new store"
    raise BadInput(
        f"{store}: the store has schema version {version}; wattlaw {__version__} reads schema "
        f"version {SCHEMA_VERSION}; {advice}"
    )


def _has_runs(store: Path) -> bool:
    try:
        return any((store / "runs").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        raise unreadable(store / "runs") from None


def unreadable(path: Path) -> NotPermitted:
    path = next((each for each in reversed(path.parents) if not os.access(each, os.X_OK)), path)
    advice = f"its owner permits it with: chmod -R +rX {shlex.quote(str(path))}"
    return NotPermitted(f"{path}: no permission to read it; {advice}")
