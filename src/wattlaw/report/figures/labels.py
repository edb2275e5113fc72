"""Names in pictures: on one line, short, and different from each other."""

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

import pandas as pd

from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics.groups import JSON_COLUMNS, differing_options
from wattlaw.common.formatting import known, limit_label, replace_invisible, setting_label
from wattlaw.common.text import collapse_whitespace
from wattlaw.report.theme import CHARACTER_WIDTH, PAGE_WIDTH

#: Characters of a name in a legend or in the title of a panel.
MAX_LENGTH = 44


def shorten_middle(text: str, most: int = MAX_LENGTH) -> str:
    """Return a name on one line without invisible characters, cut in the middle if it is long."""
    text = collapse_whitespace(replace_invisible(text))
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}\u2026{text[-end:]}"


def unique_labels(names: Iterable[str], most: int = MAX_LENGTH) -> dict[str, str]:
    """Return the short form of each name; equal short forms get a number."""
    labels: dict[str, str] = {}
    for name in dict.fromkeys(names):
        label, i = shorten_middle(name, most), 1
        while label in labels.values():
            i += 1
            label = shorten_middle(name, most - 5) + f" ({i})"
        labels[name] = label
    return labels


def row_labels(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Return the name of each row by its values of ``columns``, which are settings.

    ``rule`` and ``batch`` are one name; a missing limit is ``uncapped`` or ``free clock``.
    """
    shown = rows[list(columns)]
    for name in JSON_COLUMNS:
        if name in columns:
            shown = shown.assign(**{name: shown[name].map(differing_options(shown[name]))})
    labels = [
        ", ".join(filter(None, (_label(row, name) for name in columns)))
        for row in shown.to_dict("records")
    ]
    return pd.Series(labels, index=rows.index, dtype=object)


def _label(row: dict[Any, Any], name: str) -> str:
    value = row[name]
    if name == "rule":
        return ""
    if name == "batch":
        rule = row.get("rule")
        return setting_label(rule, value) if rule in ("global_batch", "local_batch") else ""
    if name in LIMITS:
        return limit_label(name, value)
    if name == "fraction_per_gpu":
        return "data grows with N" if known(value) else ""
    return setting_label(name, value)


def wrap_text(text: str, width: int = PAGE_WIDTH) -> list[str]:
    """Return text in lines that fit into a picture of this width in pixels."""
    return wrap(text, max(30, int(width / CHARACTER_WIDTH)))
