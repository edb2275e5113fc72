"""How a job requests limits from its site's Slurm prolog: by a word in its comment.

It imports only Python's own modules, because a prolog runs for every job, and most request none.
"""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from wattlaw.common.errors import BadInput

if TYPE_CHECKING:
    from wattlaw.measure.limits.requests import Limits

#: Where a prolog writes its reports to jobs, as JOB.NODE.json, unless the site has another folder.
REPORTS = Path("/run/wattlaw")
#: The prefix of the word in a job's comment that requests limits, such as
#: ``wattlaw:power_w=250,clock_mhz=1200,power_profile=max-q``. The rest is for the user.
PREFIX = "wattlaw:"
_NUMBER = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
_KEYS = ("power_w", "clock_mhz")
_PROFILE = "power_profile"
_PROFILE_NAME = re.compile(r"[a-z0-9-]{1,40}")
_SYNTAX = f"{PREFIX}power_w=WATTS,clock_mhz=MHZ,{_PROFILE}=NAME, one or more of them"
_MAX = 9999.999


def requests_limit(comment: str) -> bool:
    return any(word.startswith(PREFIX) for word in comment.split())


def parse_limit_comment(comment: str) -> "Limits":
    """``BadInput`` if the word in ``wattlaw:`` breaks the syntax, or there are several."""
    from wattlaw.measure.limits.requests import Limits

    words = [word for word in comment.split() if word.startswith(PREFIX)]
    if len(words) > 1:
        raise BadInput(f"the job's comment has {len(words)} words with {PREFIX}; allowed: one")
    values: dict[str, str] = {}
    for part in words[0].removeprefix(PREFIX).split(",") if words else ():
        key, _, value = part.partition("=")
        pattern = _PROFILE_NAME if key == _PROFILE else _NUMBER
        if key not in (*_KEYS, _PROFILE) or key in values or not pattern.fullmatch(value):
            raise BadInput(f"{words[0][:80]!a} in the job's comment: allowed: {_SYNTAX}")
        values[key] = value
    power_w, clock_mhz = (float(values[key]) if key in values else None for key in _KEYS)
    return Limits(power_w, clock_mhz, values.get(_PROFILE))


def limit_comment(limits: "Limits") -> str:
    """Return the word for ``sbatch --comment``; empty without limits. Watts and megahertz have
    three decimals: drivers use milliwatts. Raises ``BadInput`` if a limit is out of range."""
    parts = []
    for key, value in zip(_KEYS, (limits.power_limit_w, limits.clock_limit_mhz), strict=True):
        if value is None:
            continue
        if not (math.isfinite(value) and 0 <= value <= _MAX):
            raise BadInput(f"{key}: {value} cannot be requested from Slurm; allowed: 0 to {_MAX}")
        parts.append(f"{key}={value:.3f}".rstrip("0").rstrip("."))
    parts += [f"{_PROFILE}={limits.power_profile}"] if limits.power_profile is not None else []
    return PREFIX + ",".join(parts) if parts else ""
