"""How far beyond its runs a job is predicted: what has a warning, and what is refused."""

import math
from collections.abc import Iterator, Mapping, Sequence

from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics.result import Caution
from wattlaw.common.errors import BadInput, Refused
from wattlaw.study.labels import LIMIT_UNITS
from wattlaw.study.setting import Setting

#: The least and the greatest value of each limit that a board accepts, 0 and inf if not known.
Ranges = Mapping[str, tuple[float, float]]
#: More GPUs than this multiple of the most that ran have a warning, or are refused.
WARNED, REFUSED = 2, 64
#: Where the range of the board is not known, limits outside of those of the runs by more than this
#: factor have a warning: the largest step between neighbours in public sweeps (100 to 125 W).
_STEP = 1.25


def check_gpus(name: str, gpus: int, measured: Sequence[Setting]) -> None:
    most = max(item.gpus for item in measured)
    if gpus > REFUSED * most:
        raise Refused(
            f"{name}: given {gpus} GPUs; allowed: at most {REFUSED * most}, {REFUSED} times the "
            f"{most} that ran; measure more GPUs, or add --far (in Python far=True)"
        )


def check_limits(setting: Setting, measured: Sequence[Setting], ranges: Ranges) -> None:
    for name in LIMITS:
        value, unit = getattr(setting, name), LIMIT_UNITS[name]
        low, high = ranges.get(name, (0.0, math.inf))
        if value is None or low <= value <= high or value in _ran(name, measured):
            continue
        raise BadInput(
            f"{name}: given {value:g}; allowed: {low:g} to {high:g} {unit}, as the board accepts"
        )


def cautions(
    setting: Setting, measured: Sequence[Setting], ranges: Ranges | None = None
) -> Iterator[Caution]:
    most = max(item.gpus for item in measured)
    if setting.gpus > WARNED * most:
        text = (
            f"Beyond {WARNED * most} GPUs, twice the most that ran, predictions rest on what no "
            "run has shown; measure more GPUs."
        )
        yield Caution("far", text)
    for name in LIMITS:
        value, ran, unit = getattr(setting, name), _ran(name, measured), LIMIT_UNITS[name]
        low, high = (ranges or {}).get(name, (0.0, math.inf))
        if value is None or not ran:
            continue
        is_low, is_high = value < min(ran) / _STEP, value > max(ran) * _STEP
        if (is_low and low == 0) or (is_high and high == math.inf):
            text = (
                f"{value:g} {unit} is far outside of the limits of the runs ({min(ran):g} to "
                f"{max(ran):g} {unit}), and the board's range is not known; set --hardware."
            )
            yield Caution("limit-far", text)


def _ran(name: str, measured: Sequence[Setting]) -> set[float]:
    return {value for item in measured if (value := getattr(item, name)) is not None}
