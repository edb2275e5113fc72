"""A limit asked for in a Slurm job's comment: ``wattlaw:power_w=250,clock_mhz=1200``.

One word of the comment, and nothing else of what the user writes, is read; the rest of the comment
is the user's own.
"""

import math
import re

from wattlaw.errors import BadInput
from wattlaw.limits.requests import Limits
from wattlaw.limits.site.job import WORD

_NUMBER = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
_KEYS = ("power_w", "clock_mhz")
_ALLOWED = f"{WORD}power_w=WATTS,clock_mhz=MHZ, either or both"
_MOST = 9999.999


def requested(comment: str) -> Limits:
    """Return what a comment asks for; nothing where it has no word that begins ``wattlaw:``.

    Raises
    ------
    BadInput
        The word is not written as it must be, or there is more than one.
    """
    words = [word for word in comment.split() if word.startswith(WORD)]
    if len(words) > 1:
        raise BadInput(f"the job's comment has {len(words)} words with {WORD}; allowed: one")
    found: dict[str, float] = {}
    for part in words[0].removeprefix(WORD).split(",") if words else ():
        key, _, number = part.partition("=")
        if key not in _KEYS or key in found or not _NUMBER.fullmatch(number):
            told = f"{words[0][:80]!a} in the job's comment is no request"
            raise BadInput(f"{told}; allowed: {_ALLOWED}")
        found[key] = float(number)
    return Limits(found.get("power_w"), found.get("clock_mhz"))


def comment_of(limits: Limits) -> str:
    """Return the word for ``sbatch --comment`` that asks for limits; empty if they are none.

    Watts and megahertz are written to three decimals; drivers keep milliwatts.

    Raises
    ------
    BadInput
        A limit cannot be written so.
    """
    parts = []
    for key, value in zip(_KEYS, (limits.power_limit_w, limits.clock_limit_mhz), strict=True):
        if value is None:
            continue
        if not (math.isfinite(value) and 0 <= value <= _MOST):
            raise BadInput(f"{key}: {value} cannot be asked of Slurm; allowed: 0 to {_MOST}")
        parts.append(f"{key}={value:.3f}".rstrip("0").rstrip("."))
    return WORD + ",".join(parts) if parts else ""
