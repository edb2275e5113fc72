"""The request for limits in a Slurm job's comment: ``wattlaw:power_w=250,clock_mhz=1200``.

wattlaw reads only this word of the comment. The rest of the comment is for the user.
"""

import math
import re

from wattlaw.errors import BadInput
from wattlaw.limits.requests import Limits
from wattlaw.limits.site.job import PREFIX

_NUMBER = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
_KEYS = ("power_w", "clock_mhz")
_SYNTAX = f"{PREFIX}power_w=WATTS,clock_mhz=MHZ, either or both"
_MAX = 9999.999


def parse_limit_comment(comment: str) -> Limits:
    """Return the limits that a comment requests; none if no word of it begins with ``wattlaw:``.

    Raises ``BadInput`` if the word does not follow the syntax, or there is more than one.
    """
    words = [word for word in comment.split() if word.startswith(PREFIX)]
    if len(words) > 1:
        raise BadInput(f"the job's comment has {len(words)} words with {PREFIX}; allowed: one")
    values: dict[str, float] = {}
    for part in words[0].removeprefix(PREFIX).split(",") if words else ():
        key, _, number = part.partition("=")
        if key not in _KEYS or key in values or not _NUMBER.fullmatch(number):
            raise BadInput(f"{words[0][:80]!a} in the job's comment: allowed: {_SYNTAX}")
        values[key] = float(number)
    return Limits(values.get("power_w"), values.get("clock_mhz"))


def limit_comment(limits: Limits) -> str:
    """Return the word for ``sbatch --comment`` that requests limits; empty if there are none.

    Watts and megahertz have three decimals; drivers use milliwatts.

    Raises ``BadInput`` if a limit is out of range.
    """
    parts = []
    for key, value in zip(_KEYS, (limits.power_limit_w, limits.clock_limit_mhz), strict=True):
        if value is None:
            continue
        if not (math.isfinite(value) and 0 <= value <= _MAX):
            raise BadInput(f"{key}: {value} cannot be requested from Slurm; allowed: 0 to {_MAX}")
        parts.append(f"{key}={value:.3f}".rstrip("0").rstrip("."))
    return PREFIX + ",".join(parts) if parts else ""
