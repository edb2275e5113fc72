"""Settings and groups of runs as text."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import known, plural
from wattlaw.study.setting import LAYOUT, Setting

LIMIT_UNITS = {"power_limit_w": "W", "clock_limit_mhz": "MHz"}
LIMIT_NAMES = {"power_limit_w": "power cap", "clock_limit_mhz": "SM clock"}
_NO_LIMIT = {"power_limit_w": "uncapped", "clock_limit_mhz": "free clock"}
_SETTING_UNITS = {**LIMIT_UNITS, "threads_per_worker": "threads"}
#: Settings whose value is clear without their name.
_SETTINGS_WITHOUT_NAME = (
    "workload", "hardware", "precision", "power_profile", "energy_is", "run_length", "placement",
)  # fmt: skip
#: Settings that are JSON objects.
_JSON_SETTINGS = ("options", "train", "layout")


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
        return _object_label(value) if isinstance(value, str) else str(value)
    if isinstance(value, float):
        value = int(value) if value.is_integer() else f"{value:g}"
    return f"{name.replace('_', ' ')} {value}"


def threads_label(threads: int | None) -> str:
    """Return how a command repeats with as many threads: `` with 1 thread (OMP_NUM_THREADS=1)``."""
    return f" with {plural(threads, 'thread')} (OMP_NUM_THREADS={threads})" if threads else ""


def layout_label(setting: Setting, *, among_others: bool = False) -> str:
    """Return ``tp 2, pp 4, zero1, micro-batch 1``; empty for a data-parallel job whose batch is
    processed at once, unless it stands ``among_others``."""
    layout = setting.layout
    layout.pop("gradient_accumulation", None)
    words = []
    for name, value in layout.items():
        if name == "checkpointing":
            words.append(f"{value} checkpointing")
        elif name in ("sharding", "sequence_parallel"):
            words.append(name.replace("_", " ") if value is True else str(value))
        else:
            words.append(f"{name.replace('_', ' ')} {value}")
    if among_others and not words:
        words.append("data parallel")
    if setting.micro_batch and (words or setting.gradient_accumulation > 1):
        words.append(f"micro-batch {setting.micro_batch:g}")
    return ", ".join(words)


def run_layout(values: Mapping[Any, Any]) -> str:
    """Return the label of the layout of a row of ``runs``."""
    setting = run_setting(values)
    return "" if setting is None else layout_label(setting)


def run_setting(values: Mapping[Any, Any]) -> Setting | None:
    """Return the setting of a row of ``runs``: what the study asks for, and else what was seen."""
    names = (*LAYOUT, "gradient_accumulation")
    seen = {name: values[name] for name in names if known(values.get(name))}
    with suppress(BadInput, TypeError, ValueError):
        asked = json.loads(values.get("layout") or "{}")
        return Setting(values["gpus"], local_batch=values["local_batch"], **(seen | asked))
    return None


def group_label(group: Mapping[str, Any]) -> str:
    """Return a group of runs by its settings: ``resnet50, local batch 256, 200 W``."""
    return ", ".join(filter(None, (setting_label(*setting) for setting in group.items())))


def _object_label(text: str) -> str:
    try:
        options = json.loads(text)
    except ValueError:
        return text
    if not isinstance(options, dict):
        return text
    if options.keys() <= {"command", "launch_with"} and isinstance(options.get("command"), list):
        return " ".join(map(str, options["command"]))
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items())
