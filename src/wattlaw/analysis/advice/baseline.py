"""The setting that savings refer to."""

from collections.abc import Mapping, Sequence
from typing import Any

from wattlaw.analysis.advice.option import SETTING, Option
from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.errors import BadInput


def baseline_of(options: Sequence[Option], values: Mapping[str, Any]) -> Option:
    """Return the option of runs that has some settings.

    A limit that is not named means no limit, if settings with the same names differ in it.

    Raises
    ------
    BadInput
        A name is not one of ``SETTING``, or no option or several have these settings.
    """
    if unknown := set(values) - {*SETTING}:
        raise BadInput(f"baseline: unknown setting {min(unknown)!r}; allowed: {', '.join(SETTING)}")
    text = ",".join(f"{name}={value}" for name, value in values.items())
    matching = [item for item in options if all(item.setting[n] == v for n, v in values.items())]
    if not matching:
        ran = {n: sorted({str(item.setting[n]) for item in options}, key=_size) for n in values}
        listed = "; ".join(f"{name}={' | '.join(of[:12])}" for name, of in ran.items())
        raise BadInput(f"baseline: no run has {text}; allowed: a setting of the runs ({listed})")
    free = [i for i in matching if all(i.setting[n] is None for n in LIMITS if n not in values)]
    matching = free or matching
    if len(matching) > 1:
        differing = [
            f"{name}={matching[0].setting[name]} or {matching[1].setting[name]}"
            for name in SETTING
            if matching[0].setting[name] != matching[1].setting[name]
        ] or ["the energy or the job"]
        raise BadInput(
            f"baseline: {len(matching)} settings have {text}; allowed: one of them, such as by "
            f"{', '.join(differing)}"
        )
    return matching[0]


def _size(text: str) -> tuple[int, str]:
    return len(text), text
