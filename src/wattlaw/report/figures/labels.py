"""Names in pictures: what tells lines apart, on one line, and short enough to be read."""

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

import pandas as pd

from wattlaw.analysis.caps.limits import FREE
from wattlaw.analysis.groups import JSON_COLUMNS, differing_options, format_setting
from wattlaw.formatting import clean
from wattlaw.report.theme import CHARACTER, PAGE

#: Characters of a name in a legend or a panel's title.
MOST = 44
_RULES = {"global_batch": "global batch", "local_batch": "local batch"}


def short(words: str, most: int = MOST) -> str:
    """Return a name without line breaks and control characters, cut in the middle if long."""
    words = " ".join(clean(str(words)).split())
    if len(words) <= most:
        return words
    end = (most - 1) // 3
    return f"{words[: most - 1 - end]}\u2026{words[-end:]}"


def short_all(names: Iterable[str], most: int = MOST) -> dict[str, str]:
    """Return each name's short form; those that would be alike get a number."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        label, i = short(name, most), 1
        while label in taken:
            i += 1
            label = short(name, most - 5) + f" ({i})"
        taken.add(label)
        found[name] = label
    return found


def labels(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Return each row's values of ``columns`` in words, the workload in front.

    ``rule`` and ``batch`` are told together; a missing limit is ``uncapped`` or ``free clock``.
    """
    shown = rows[list(columns)]
    for name in JSON_COLUMNS:
        if name in columns:
            shown = shown.assign(**{name: shown[name].map(differing_options(shown[name]))})
    words = [
        ", ".join(word for word in (_word(row, name) for name in columns) if word)
        for row in shown.to_dict("records")
    ]
    return pd.Series(words, index=rows.index, dtype=object)


def _word(row: dict[Any, Any], name: str) -> str:
    value = row[name]
    if name == "rule":
        return ""
    if name == "batch":
        rule = _RULES.get(str(row.get("rule")))
        return f"{rule} {value:g}" if rule and not pd.isna(value) else ""
    if name in FREE and pd.isna(value):
        return FREE[name]
    if name == "fraction_per_gpu":
        return "" if pd.isna(value) else "data grows with N"
    return format_setting(name, value)


def lines_of(text: str, width: int = PAGE) -> list[str]:
    """Return words in lines that a picture of this width holds."""
    return wrap(text, max(30, int(width / CHARACTER)))
