"""Numbers, intervals, units and settings as text, for the command line, messages and the report.

A missing value is a dash, never 0. Nothing here needs pandas, so that commands start fast.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from wattlaw.common.terminal import escape_invisible

MISSING = "–"
#: Numbers of at least this size are written as a power of ten.
_LEAST_AS_POWER = 1e9

#: Name and size of each unit, and the smallest value written in it; from large to small.
Units = tuple[tuple[str, float, float], ...]
TIME_UNITS: Units = (
    ("d", 86400.0, 172800.0), ("h", 3600.0, 5400.0), ("min", 60.0, 120.0), ("s", 1.0, 0.0),
)  # fmt: skip
ENERGY_UNITS: Units = (
    ("MWh", 3.6e9, 3.6e9), ("kWh", 3.6e6, 3.6e5), ("kJ", 1e3, 1e3), ("J", 1.0, 0.0),
)  # fmt: skip
JOULE_UNITS: Units = (("GJ", 1e9, 1e9), ("MJ", 1e6, 1e6), ("kJ", 1e3, 1e3), ("J", 1.0, 0.0))

LIMIT_UNITS = {"power_limit_w": "W", "clock_limit_mhz": "MHz"}
LIMIT_NAMES = {"power_limit_w": "power cap", "clock_limit_mhz": "SM clock"}
_NO_LIMIT = {"power_limit_w": "uncapped", "clock_limit_mhz": "free clock"}
MEASURED = "measured"
#: What runs of a launcher that does not measure are called, from the most to the least real.
_NOT_MEASURED = {"replay": "replayed", "simulated": "simulated"}
ORIGINS = (MEASURED, *_NOT_MEASURED.values())
_SETTING_UNITS = {**LIMIT_UNITS, "threads_per_worker": "threads"}
#: Settings whose value is clear without their name.
_SETTINGS_WITHOUT_NAME = (
    "workload", "hardware", "precision", "power_profile", "energy_is", "run_length", "placement",
)  # fmt: skip
#: Settings that are JSON objects.
_JSON_SETTINGS = ("options", "train")


class Estimate(Protocol):
    """A value with the bounds of its interval, if it has one."""

    @property
    def mean(self) -> float:
        """The value."""

    @property
    def low(self) -> float | None:
        """The lower bound."""

    @property
    def high(self) -> float | None:
        """The upper bound."""


def known(value: Any) -> bool:
    """Return whether there is a value: not None, NaN, NaT or NA."""
    try:
        return value is not None and bool(value == value)  # noqa: PLR0124
    except (TypeError, ValueError):  # pandas.NA is neither true nor false
        return False


def number(value: Any, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits; all digits before the point are shown."""
    if not known(value):
        return MISSING
    value = float(value)
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) >= _LEAST_AS_POWER:
        text = f"{value:.{digits - 1}e}".replace("e+", "e")
    elif value.is_integer() or abs(value) >= 10 ** (digits - 1):
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "−")


def power_limit_text(watts: Any) -> str:
    """Return a power limit, such as ``250 W``; ``none`` for 0 W, which no device applies.

    >>> power_limit_text(217.5), power_limit_text(0.0)
    ('217.5 W', 'none')
    """
    return "none" if watts == 0 else f"{number(watts, 9)} W"


def interval(low: Any, high: Any, digits: int = 3) -> str:
    """Return ``low to high``; a dash where either is missing or infinite."""
    if not (known(low) and known(high) and math.isfinite(low) and math.isfinite(high)):
        return MISSING
    return f"{number(low, digits)} to {number(high, digits)}"


def with_interval(value: Any, low: Any, high: Any, digits: int = 3) -> str:
    """Return ``value (low to high)``, or the value alone where there is no interval."""
    bounds = interval(low, high, digits)
    return number(value, digits) + ("" if bounds == MISSING else f" ({bounds})")


def estimate_text(value: Estimate | float | None, unit: str = "", size: float = 1.0) -> str:
    """Return ``5.2 h (4.9 to 5.5)``, or ``5.2 h`` where the interval is missing or has no width.

    The value is divided by ``size``, the size of the unit.
    """
    if value is None:
        return MISSING
    mean, low, high = (
        (value, None, None)
        if isinstance(value, int | float)
        else (value.mean, value.low, value.high)
    )
    text = f"{number(mean / size)} {unit}".rstrip()
    if low is None or high is None or low == high:
        return text
    return f"{text} ({interval(low / size, high / size)})"


def duration_text(value_s: Estimate | float | None) -> str:
    """Return a time in seconds as ``5.2 h (4.9 to 5.5)``, in the unit that suits it."""
    return _in_best_unit(value_s, TIME_UNITS)


def energy_text(value_j: Estimate | float | None) -> str:
    """Return an energy in joules as ``1.2 kWh (1.1 to 1.3)``, in the unit that suits it."""
    return _in_best_unit(value_j, ENERGY_UNITS)


def _in_best_unit(value: Estimate | float | None, units: Units) -> str:
    if value is None:
        return MISSING
    size, unit = choose_unit([value if isinstance(value, int | float) else value.mean], units)
    return estimate_text(value, unit, size)


def choose_unit(values: Iterable[Any], units: Units) -> tuple[float, str]:
    """Return size and name of the unit that suits a column: that of its median."""
    sizes = sorted(abs(float(value)) for value in values if known(value))
    median = sizes[len(sizes) // 2] if sizes else 0.0
    return next((size, name) for name, size, least in units if median >= least)


def p_value(value: Any) -> str:
    """Return a p value with two digits, or ``< 0.001``."""
    if not known(value):
        return MISSING
    return "< 0.001" if value < 0.001 else number(value, 2)


def percent(share: Any, digits: int = 3) -> str:
    """Return a share as a percentage."""
    return MISSING if not known(share) else f"{number(100 * float(share), digits)} %"


def change(ratio: Any, digits: int = 2) -> str:
    """Return a ratio as the change in percent, with its sign: 0.85 as ``−15 %``."""
    if not known(ratio):
        return MISSING
    percents = 100 * (float(ratio) - 1)
    if abs(percents) < 0.05:
        return "±0 %"
    return f"{'+' if percents > 0 else '−'}{number(abs(percents), digits)} %"


#: Names of GPUs, such as ``NVIDIA A100-SXM4-40GB`` or ``T4``.
_GPU_NAME = re.compile(
    r"\b(?:[LPT]4|[ABHKLMPV]\d{2,3}[A-Z]?|G[BH]\d00|MI\d{2,3}[A-Z]?|RTX\w*|GTX|TITAN|Tesla|GeForce|"
    r"Quadro|Radeon|GPUs?)\b"
)


def worker_noun(runs: Any) -> str:
    """Return what a "gpu" of runs is called: GPU if one was measured or is named, else worker.

    ``runs`` is a DataFrame with the columns of metrics.
    """
    is_measured = runs[["sm_util_mean", "gpu_energy_j"]].notna().any(axis=None)
    is_named = any(_GPU_NAME.search(str(name)) for name in runs["hardware"].unique())
    return "GPU" if is_measured or is_named else "worker"


def plural(count: int, noun: str) -> str:
    """Return ``1 run``, ``2 runs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def origin_of(launcher: Any) -> str:
    """Return what a launcher's runs are: ``measured``, ``replayed`` or ``simulated``."""
    return _NOT_MEASURED.get(launcher, MEASURED)


def source_of(launcher: Any) -> str:
    """Return where the values of a launcher's runs are from: its origin, or ``imported``."""
    return "imported" if launcher == "imported" else origin_of(launcher)


def origins_label(launchers: Iterable[Any]) -> str:
    """Return ``simulated`` or ``replayed`` (or both) if no run is measured, else ""."""
    origins = sorted({origin_of(launcher) for launcher in launchers})
    return "" if MEASURED in origins else " and ".join(origins)


def sources_label(launchers: Iterable[Any]) -> str:
    """Return the sources of runs, such as ``imported``, if none was measured here, else ""."""
    sources = sorted({source_of(launcher) for launcher in launchers})
    return "" if MEASURED in sources else " and ".join(sources)


#: The code of the warning ``uncooperative_text``.
UNCOOPERATIVE = "workers-do-not-cooperate"


def uncooperative_text(runs: int, workloads: Iterable[str]) -> str:
    """Return the warning about runs whose workers each trained a model of their own."""
    return (
        f"In {plural(runs, 'run')} of {', '.join(sorted(workloads))} the workers do not cooperate: "
        "each trained a model of its own on the same data, so there is no speedup. Train with "
        "DistributedDataParallel (torch.distributed.init_process_group), or set gpus: [1]."
    )


#: The code of the warnings ``batch_texts``.
OTHER_BATCH = "batch-not-as-declared"
#: The code of the warning that runs have no energy of the requested scope.
NO_SCOPE = "energy-scope-missing"


def batch_texts(runs: Iterable[Mapping[Any, Any]]) -> list[str]:
    """Return a warning for each workload with runs of another global batch than declared.

    ``runs`` have ``workload, launcher, gpus, global_batch`` and ``global_batch_declared``.
    """
    kinds: dict[str, Counter[tuple[int, float, float, bool]]] = {}
    for run in runs:
        if known(declared := run["global_batch_declared"]):
            is_tracked = run["launcher"] == "track"
            kind = (int(run["gpus"]), declared, run["global_batch"], is_tracked)
            kinds.setdefault(run["workload"], Counter())[kind] += 1
    texts = []
    for workload, counts in sorted(kinds.items()):
        shown = [
            f"{ran:g} instead of {declared:g} on {plural(gpus, 'GPU')}"
            for gpus, declared, ran, _ in sorted(counts)[:3]
        ]
        more = f" and {len(counts) - 3} more settings" if len(counts) > 3 else ""
        texts.append(
            f"{plural(counts.total(), 'run')} of {workload} trained with another global batch than "
            f"declared: {', '.join(shown)}{more}. Results use the batch that ran. "
            f"{_batch_remedy([*counts])}"
        )
    return texts


def _batch_remedy(kinds: Sequence[tuple[int, float, float, bool]]) -> str:
    """Return what makes the batch of a script that of its setting, by the kind of difference."""
    if all(is_tracked for *_, is_tracked in kinds):
        return "Set global_batch to the samples of an optimizer step on all GPUs."
    if all(gpus > 1 and ran == declared * gpus for gpus, declared, ran, _ in kinds):
        return (
            "Each GPU seems to train the global batch: pass {local_batch} to the script, or divide "
            "its batch by the number of GPUs."
        )
    if all(gpus > 1 and ran * gpus == declared for gpus, declared, ran, _ in kinds):
        return (
            "The batch seems to be divided by the number of GPUs twice: pass {global_batch} to the "
            "script, or do not divide its batch."
        )
    return (
        "Pass {local_batch} (of each GPU) or {global_batch} to the script; both include gradient "
        "accumulation."
    )


def limit_label(name: str, value: float | None) -> str:
    """Return ``200 W`` or ``735 MHz``; of a missing value ``uncapped`` or ``free clock``."""
    return f"{value:g} {LIMIT_UNITS[name]}" if known(value) else _NO_LIMIT[name]


def setting_label(name: str, value: Any) -> str:
    """Return a setting with its name or unit: ``200 W``, ``local batch 256``; empty if missing."""
    if not known(value):
        return ""
    if name in _SETTING_UNITS:
        return f"{value:g} {_SETTING_UNITS[name]}"
    if name == "unit":
        return f"per {value}"
    if name in _SETTINGS_WITHOUT_NAME:
        return str(value)
    if name in _JSON_SETTINGS:
        return _object_label(value)
    if isinstance(value, float):
        value = int(value) if value.is_integer() else f"{value:g}"
    return f"{name.replace('_', ' ')} {value}"


def group_label(group: Mapping[str, Any]) -> str:
    """Return a group of runs by its settings: ``resnet50, local batch 256, 200 W``."""
    return ", ".join(filter(None, (setting_label(*setting) for setting in group.items())))


def _object_label(text: Any) -> str:
    try:
        options = json.loads(text)
    except (TypeError, ValueError):
        options = None
    if not isinstance(options, dict):
        return str(text)
    if list(options) == ["command"] and isinstance(options["command"], list):
        return " ".join(map(str, options["command"]))
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())


def printable(value: Any, most: int = 1500) -> str:
    """Return any value as text without invisible characters, cut after ``most`` characters."""
    if not known(value):
        return MISSING
    text = replace_invisible(str(value))
    return text if len(text) <= most else text[: most - 1] + "…"


def replace_invisible(text: str) -> str:
    """Return text in which control characters and invisible ones are replaced by a sign."""
    return escape_invisible(text, "\ufffd")


def sentence(text: str) -> str:
    """Return text with a capital letter and a full stop."""
    text = full_stop(text)
    return text[:1].upper() + text[1:]


def full_stop(text: str) -> str:
    """Return text with a full stop, unless it ends a sentence already."""
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def no_breaks(cell: str) -> str:
    """Return numbers that break into lines only before a bracket, if at all."""
    return cell.replace(" ", "\u00a0").replace("\u00a0(", " (")


#: The columns of a run that its title has, as arguments of ``run_title``.
TITLE_COLUMNS = (
    "workload", "repeat", "gpus", "local_batch", "nodes", "emulated_gpus", "power_limit_w",
    "clock_limit_mhz", "power_profile",
)  # fmt: skip


def run_title(
    run_id: str,
    workload: str,
    repeat: int,
    gpus: int,
    local_batch: int | None,
    nodes: int,
    emulated_gpus: int | None,
    power_limit_w: float | None = None,
    clock_limit_mhz: float | None = None,
    power_profile: str | None = None,
) -> str:
    """Return the name of a run: workload, size, limits, repeat and id."""
    size = f" on {gpus} x {local_batch}" if local_batch else ""
    size += f", {nodes} nodes" if nodes > 1 else ""
    size += f", emulates {emulated_gpus} GPUs" if emulated_gpus else ""
    limits: dict[str, Any] = {
        "power_limit_w": power_limit_w, "clock_limit_mhz": clock_limit_mhz,
        "power_profile": power_profile,
    }  # fmt: skip
    size += f", {label}" if (label := group_label(limits)) else ""
    return f"{workload}{size} (repeat {repeat}, {run_id})"
