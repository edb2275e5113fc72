"""Numbers as people and programs write them: ``8192``, ``8,192``, ``8 192``, ``0.85``, ``0,85``.

A number is read where it can mean one thing only: ``1,234`` is 1234 or 1.234, unless it is a whole
number or other cells show what the comma is.
"""

import re
from collections.abc import Iterable
from typing import Any

#: A number that every program reads alike.
PLAIN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+(?:[eE][+-]?[0-9]{1,4})?")
#: Groups of three digits after a mark, and a fraction after another one.
_SPACED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:([ \u00a0\u2009\u202f'’_])[0-9]{3})(?:\1[0-9]{3})*"
                     r"(?:[.,][0-9]+)?")  # fmt: skip
_WITH_COMMAS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]*)?")
_WITH_POINTS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+(?:,[0-9]*)?")
_UNIT = re.compile(r"\s*[A-Za-zµμ%]+$")
_DIGITS = re.compile(r"[+-]?[0-9][0-9.,  \u00a0\u2009\u202f'’_]*(?:[eE][+-]?[0-9]+)?")
_NO_NUMBERS = frozenset({"nan", "-nan", "inf", "+inf", "-inf", "infinity", "-infinity"})
#: Why texts that look like numbers are none.
_REASONS = tuple(
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (r"[~≈∼]|^(?:about|approx|ca|circa)\b", "is approximate"),
        (r"^[<>≤≥]", "is a bound"),
        (r"±|\+/-|\+-", "has an error; keep the mean"),
        (r"[$€£¥]|\b(?:usd|eur)\b", "is an amount of money"),
        (
            r"[0-9]\s*(?-i:[kKMgGbB])$",
            "may be rounded, or in units of 1000 or 1024; write all digits",
        ),
        (r"^[x×*]\s*[0-9]|[0-9]\s*[x×]$", "is a factor; write the number"),
        (r"[0-9]\s*%$", "is a percentage; write the number"),
        (r"[0-9]\s*(?:[-–]|to|\.\.)\s*[0-9]", "is a range"),
        (r"^[0-9]+:[0-9]+$", "may be minutes or hours; write hh:mm:ss"),
    )
)


class UnclearNumber(ValueError):
    """A text that is not a number, or is ambiguous; the message continues "which ..."."""


def read_number(text: str, mark: str | None = None, *, whole: bool = False) -> float:
    """Return the number that a text means.

    ``mark`` is the decimal mark that the column shows, see ``decimal_marks``. ``whole`` says that
    only a whole number can be meant. Raises ``UnclearNumber`` where the text is none or is unclear.
    """
    text = text.strip()
    if PLAIN.fullmatch(text) and not (mark == "," and _WITH_POINTS.fullmatch(text)):
        return float(text)
    meanings = {text.replace(mark, "").replace(",", ".") for mark in _groupings(text)}
    if _DECIMAL_COMMA.fullmatch(text):
        meanings.add(text.replace(",", "."))
    if len(meanings) > 1 and whole:
        meanings = {each for each in meanings if "." not in each}
    elif len(meanings) > 1 and mark is not None:
        meanings = {each for each in meanings if ("." in each) == (mark in text)}
    if len(meanings) == 1:
        return float(meanings.pop())
    if meanings:
        raise UnclearNumber(f"may be {' or '.join(sorted(meanings))}; write it without separators")
    if text.lower() in _NO_NUMBERS:
        return float(text)
    raise UnclearNumber(next((why for form, why in _REASONS if form.search(text[:100])), ""))


def decimal_marks(cells: Iterable[Any], *, whole: bool = False) -> set[str]:
    """Return the decimal marks, ``.`` or ``,``, that the cells of a column show.

    Numbers may have a unit behind them. ``whole`` says that they are whole numbers.
    """
    marks = set()
    for cell in cells:
        if not isinstance(cell, str) or len(cell) > 100:
            continue
        text = _UNIT.sub("", cell.strip())
        if not _DIGITS.fullmatch(text):
            continue
        comma, point = text.rfind(","), text.rfind(".")
        if min(comma, point) >= 0:
            marks.add("," if comma > point else ".")
        elif max(comma, point) >= 0:
            mark, other = (",", ".") if comma >= 0 else (".", ",")
            if text.count(mark) > 1 or (whole and _WITH_COMMAS.fullmatch(text)):
                marks.add(other)
            elif not (_WITH_COMMAS.fullmatch(text) or _WITH_POINTS.fullmatch(text)):
                marks.add(mark)
    return marks


def _groupings(text: str) -> list[str]:
    if match := _SPACED.fullmatch(text):
        return [match[1]]
    forms = ((",", _WITH_COMMAS), (".", _WITH_POINTS))
    return [mark for mark, form in forms if form.fullmatch(text)]
