"""Damage: of bytes, of text and of plain values, from a seeded source of chance."""

import math
import random
from copy import deepcopy
from typing import Any

#: What readers of text and numbers have stumbled over.
TOKENS = (
    "", " ", "0", "-0", "-1", "1e999", "-1e999", "nan", "NaN", "inf", "-Infinity", "1e-320", "0x10",
    "1_000", "1,5", "9" * 400, "-" + "9" * 400, "1." + "3" * 300, "9223372036854775808",
    "18446744073709551616", "9007199254740993", "4294967295", "true", "null", "~", "none", "N/A",
    "=1+1", "=cmd|' /C calc'!A0", "@SUM(1)", "+1", "-2+3", "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07", "\x9b31m", "\u202egnp.exe", "\u2066x\u2069", "\u200f", "a\rb", "a\nb",
    "\x00", "\x07", "\U0001f600", "\u0661\u0662", "١:٠٠",
    "ﬁ", "é", "日本", "x" * 5000, "x" * 100_000, "[" * 2000, "{" * 2000, "(" * 500, "&a [*a]",
    "!!python/object:x",
    "*x", "<<: *x", "- - - -", ": :", "'", '"', "`", "${HOME}", "{gpus}", "{__class__}", "%s%n",
    "../../etc/passwd", "/dev/zero", "/dev/stdin", "-", "--", "--help", "2020-02-30",
    "12000-01-01T00:00:00Z", "-0001-01-01", "9999-12-31T23:59:60", "1970-01-01",
    "<script>alert(1)</script>",
    "[bold]x[/bold]", "[/]", "[red", "\\", "\\N", "\ufeff", "\u2028", "a\tb", "NULL", "#", "%",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 3, 7, 64, 255, 2**31, 2**32 - 1, 2**53 + 1, 2**63, 2**64, 10**18, 10**400,
    -(2**63) - 1,
    0.5, -0.0, 1e-320, 1e300, 1e308, math.inf, -math.inf, math.nan, 1.5, 99999, 4294967.295,
)  # fmt: skip


def token(dice: random.Random) -> str:
    """Return a text that is hard to read; long ones are rarer."""
    found = dice.choice(TOKENS)
    return found if len(found) < 1000 or dice.random() < 0.2 else found[:20]


def value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.random()
    if kind < 0.35:
        return token(dice)
    if kind < 0.75:
        return dice.choice(NUMBERS)
    if kind < 0.85 or depth > 2:
        return dice.choice([None, True, False])
    if kind < 0.95:
        return [value(dice, depth + 1) for _ in range(dice.choice([0, 1, 2, 3]))]
    return {token(dice)[:50]: value(dice, depth + 1) for _ in range(dice.choice([0, 1, 2]))}


def data(dice: random.Random, tree: Any, times: int = 1) -> Any:
    """Return a copy of nested lists and mappings with some values or keys changed."""
    tree = deepcopy(tree)
    for _ in range(times):
        places = list(_places(tree))
        if not places:
            return value(dice)
        holder, key = dice.choice(places)
        how = dice.random()
        if how < 0.6:
            holder[key] = value(dice)
        elif how < 0.7 and isinstance(holder, dict):
            holder[token(dice)[:50]] = holder.pop(key)
        elif how < 0.8:
            del holder[key]
        elif how < 0.9 and isinstance(holder, list):
            holder.extend([deepcopy(holder[key])] * dice.choice([1, 2, 1000]))
        elif isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            factor = dice.choice([-1, 0, 1e-9, 1000, 1e9, 1e18])
            try:
                holder[key] = type(holder[key])(holder[key] * factor)
            except (OverflowError, ValueError):
                holder[key] = factor
        else:
            holder[key] = deepcopy(tree if dice.random() < 0.2 else holder[key])
    return tree


def text(dice: random.Random, given: str, times: int = 1) -> str:
    """Return text with characters, words or lines changed."""
    for _ in range(times):
        at = dice.randrange(len(given) + 1)
        end = min(len(given), at + dice.choice([0, 1, 1, 2, 5, 20]))
        how = dice.random()
        if how < 0.5:
            given = given[:at] + token(dice) + given[end:]
        elif how < 0.7:
            given = given[:at] + given[end:]
        elif how < 0.8:
            given = given[:at] + chr(dice.choice([*range(32), 127, 133, 160, 0x2028])) + given[at:]
        else:
            lines = given.splitlines(keepends=True) or [""]
            one = dice.randrange(len(lines))
            if how < 0.87:
                lines.insert(one, dice.choice(lines))
            elif how < 0.94:
                lines.pop(one)
            else:
                dice.shuffle(lines)
            given = "".join(lines)
    return given


def raw(dice: random.Random, given: bytes) -> bytes:  # noqa: PLR0911 - a kind of damage each
    """Return damaged bytes: flipped bits, a torn tail, a part twice, zeros, or something else."""
    how = dice.random()
    if not given or how < 0.03:
        return dice.choice(
            [b"", b"\0", b"\xff\xfe", b"PAR1", b"{}", b"[]", b"null", dice.randbytes(64)]
        )
    if how < 0.45:
        found = bytearray(given)
        for _ in range(dice.choice([1, 1, 2, 8, 64])):
            found[dice.randrange(len(found))] ^= 1 << dice.randrange(8)
        return bytes(found)
    at = dice.randrange(len(given))
    if how < 0.65:
        return given[:at]
    if how < 0.72:
        return given[at:]
    size = min(len(given) - at, dice.choice([1, 4, 16, 4096]))
    if how < 0.8:
        return given[:at] + bytes(size) + given[at + size :]
    if how < 0.9:
        return given[:at] + given[at : at + size] * 2 + given[at + size :]
    return given[:at] + dice.randbytes(size) + given[at + size :]


def _places(tree: Any) -> Any:
    found = []
    if isinstance(tree, dict | list):
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        for key in keys:
            found.append((tree, key))
            found += _places(tree[key])
    return found
