"""How far beyond its runs a job is predicted: what has a warning, and what is refused."""

import math
from collections.abc import Iterator, Mapping, Sequence

from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics.result import Caution
from wattlaw.common.errors import BadInput, Refused
from wattlaw.study.labels import LIMIT_UNITS
from wattlaw.study.setting import Setting

#: The least and the greatest value of each limit that a board accepts, as far as they are known.
Ranges = Mapping[str, tuple[float, float]]
#: More GPUs than this multiple of the most that ran have a warning, or are refused.
WARNED, REFUSED = 2, 64
#: Where the range of the board is not known, limits outside of those of the runs by more than this
#: factor have a warning: the largest step between neighbours in public sweeps (100 to 125 W).
_STEP = 1.25
_UNKNOWN = (0.0, math.inf)


def check_gpus(name: str, gpus: int, measured: Sequence[Setting]) -> None:
    most = max(item.gpus for item in measured)
    if gpus > REFUSED * most:
        raise Refused(
            f"{name}: given {gpus} GPUs; allowed: at most {REFUSED * most}, {REFUSED} times the "
            f"{most} that ran; measure more GPUs, or add --far (in Python far=True)"
        )


def check_limits(setting: Setting, measured: Sequence[Setting], ranges: Ranges) -> None:
    for name in LIMITS:
        value, (low, high) = getattr(setting, name), ranges.get(name, _UNKNOWN)
        if value is not None and not low <= value <= high and value not in _ran(name, measured):
            text = f"{low:g} to {high:g} {LIMIT_UNITS[name]}, as the board accepts"
            raise BadInput(f"{name}: given {value:g}; allowed: {text}")


def cautions(setting: Setting, measured: Sequence[Setting], ranges: Ranges) -> Iterator[Caution]:
    most = WARNED * max(item.gpus for item in measured)
    if setting.gpus > most:
        text = f"Above {most} GPUs, twice the most that ran, predictions rest on what no run shows."
        yield Caution("far", f"{text} Measure more GPUs.")
    for name in LIMITS:
        value, ran, unit = getattr(setting, name), _ran(name, measured), LIMIT_UNITS[name]
        low, high = ranges.get(name, _UNKNOWN)
        below = [0.0] if low else [limit / _STEP for limit in ran]
        above = [math.inf] if high < math.inf else [limit * _STEP for limit in ran]
        if value is not None and ran and not min(below) <= value <= max(above):
            of_runs = f"the limits of the runs, {min(ran):g} to {max(ran):g} {unit}"
            text = f"{value:g} {unit} is far outside of {of_runs}. Name the board with --hardware."
            yield Caution("limit-far", text)


def _ran(name: str, measured: Sequence[Setting]) -> set[float]:
    return {value for item in measured if (value := getattr(item, name)) is not None}
