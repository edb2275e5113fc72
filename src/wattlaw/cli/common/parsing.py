"""Lists and JSON objects as they are given on the command line."""

import json
import math
from typing import Any

from wattlaw.errors import BadInput


def counts(option: str, text: str, most: int) -> list[int]:
    """Return the whole numbers of ``1,2,4``, each once, as they are given.

    Raises
    ------
    BadInput
        One is no whole number from 1 to ``most``.
    """
    allowed = f"whole numbers from 1 to {most:,} with commas, such as 1,2,4"
    found = []
    for word in _words(option, text, allowed):
        # A number of very many digits is refused before it is read.
        value = int(word) if word.isascii() and word.isdigit() and len(word) < 20 else 0
        if not 1 <= value <= most:
            raise BadInput(f"{option}: given {word!r:.40}; allowed: {allowed}")
        found.append(value)
    return list(dict.fromkeys(found))


def limits(option: str, text: str | None) -> list[float | None]:
    """Return the numbers of ``100,150,none``, each once; None for no limit, as for no text.

    Raises
    ------
    BadInput
        One is neither ``none`` nor a number above 0.
    """
    if text is None:
        return [None]
    allowed = "numbers > 0 with commas, or none, such as 100,150,none"
    found: list[float | None] = []
    for word in _words(option, text, allowed):
        if word.lower() == "none":
            found.append(None)
            continue
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise BadInput(f"{option}: given {word!r:.40}; allowed: {allowed}")
        found.append(value)
    return list(dict.fromkeys(found))


def json_object(option: str, text: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises
    ------
    BadInput
        It is none.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        example = json.dumps({"image_size": 160})
        raise BadInput(f"{option}: given {text!r:.80}; allowed: a JSON object such as '{example}'")
    return found


def _words(option: str, text: str, allowed: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise BadInput(f"{option}: given {text!r:.80}; allowed: {allowed}")
    return words
