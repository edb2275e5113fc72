"""Fields of a table of measurements: what each one means and which values it takes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from wattlaw.common.scopes import KINDS
from wattlaw.common.text import quote
from wattlaw.store.units import UnclearNumber, finite_number, number_or_inf, read_number
from wattlaw.study.base_model import (
    CHECKPOINTINGS,
    MAX_COUNT,
    PRECISION_ALIASES,
    SHARDING_ALIASES,
    SHARDINGS,
)
from wattlaw.study.network import Network
from wattlaw.study.setting import CHOICES, LAYOUT, MODEL_SIZES, RECORDED

#: Longer names are rejected, so that no table can make a report or a label unreadable.
MAX_TEXT = 200
_MAX_EPOCHS = 100_000
_MAX_INTEGER = 2**53  # a table that holds floats cannot hold every larger integer
#: Prefix of a setting that has no field of its own, such as ``options.optimizer``.
OPTIONS = "options."


def _number_or_nan(value: Any) -> float:
    """Return a number; NaN is the measured loss or metric of a run that diverged."""
    number = number_or_inf(value)
    return number if math.isnan(number) else finite_number(number)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    if not isinstance(value, str):
        finite_number(value)
    text = str(value).strip()
    text.encode()  # raises for a lone surrogate, which JSON can hold
    if not 0 < len(text) <= MAX_TEXT:
        raise ValueError
    return text


def _option(value: Any) -> str | int | float | bool:
    if isinstance(value, int):
        if abs(value) > _MAX_INTEGER:
            raise ValueError
        return value
    return finite_number(value) if isinstance(value, float) else _text(value)


@dataclass(frozen=True)
class Field:
    parse: Callable[[Any], Any]  # raises ValueError
    allowed: str
    number: type[int] | type[float] | None = None  # None: no number
    dimension: str | None = None  # of ``units.UNITS``; the name of the field ends with its unit

    def parse_cell(self, name: str, value: Any) -> Any:
        try:
            if isinstance(value, str) and self.number is not None:
                return self.parse(read_number(value))
            return self.parse(value)
        except ValueError as error:
            # A reason that is meant for people; those of ``parse`` are Python's.
            why = error if isinstance(error, UnclearNumber) else ""
            raise InvalidCell(f"{name} is {quote(value)}{why}; allowed: {self.allowed}") from None


def in_range(
    low: float,
    high: float,
    allowed: str,
    kind: type[int] | type[float] = float,
    *,
    above_low: bool = False,
    dimension: str | None = None,
) -> Field:
    def parse(value: Any) -> float:
        number = finite_number(value)
        if not low <= number <= high or (above_low and number == low) or kind(number) != number:
            raise ValueError
        return kind(number)

    return Field(parse, allowed, kind, dimension)


def _choice(*names: str, **aliases: str) -> Field:
    def parse(value: Any) -> str:
        name = _text(value).lower()
        name = aliases.get(name, name)
        if name not in names:
            raise ValueError
        return name

    return Field(parse, ", ".join(names))


def _truth(value: Any) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    text = str(value).strip().lower()
    if text not in known:
        raise ValueError
    return known[text]


_TEXT = Field(_text, f"a text of 1 to {MAX_TEXT} characters")
_TRUTH = Field(_truth, "true or false")
_COUNT = in_range(1, MAX_COUNT, f"a whole number from 1 to {MAX_COUNT:,}", int)
_AMOUNT = in_range(1, _MAX_INTEGER, "a whole number >= 1", int)
_POSITIVE = in_range(0, math.inf, "a number > 0", above_low=True)
_TIME, _ENERGY, _POWER, _FREQUENCY = (
    replace(_POSITIVE, dimension=name) for name in ("time", "energy", "power", "frequency")
)
_SHARE = in_range(0, 1, "a share from 0 to 1", dimension="share")

STEP_PARTS = ("data_wait_s", "communication_s", "rank_wait_s")
#: Micro-batches, beside the rest of the parallel layout.
MICRO_BATCHES = ("micro_batch", "gradient_accumulation")
#: What was run: fields of a run's specification, beside ``OPTIONS`` and ``MODEL``.
SETTING_FIELDS = frozenset({
    *RECORDED, *LAYOUT, *MICRO_BATCHES, "workload", "hardware", "nodes", "repeat", "epochs",
})  # fmt: skip
THROUGHPUT, TOKENS = "throughput", "tokens_per_sample"
ENERGIES = tuple(f"{kind}_energy_j" for kind in KINDS)
FIELDS: Mapping[str, Field] = {
    "gpus": _COUNT,
    "epoch_time_s": _TIME,
    "step_time_s": _TIME,
    THROUGHPUT: _POSITIVE,  # of all GPUs or of one: its name says what is counted
    TOKENS: _POSITIVE,
    "workload": _TEXT,
    "hardware": _TEXT,
    "global_batch": _COUNT,
    "local_batch": _COUNT,
    "power_limit_w": _POWER,
    "clock_limit_mhz": _FREQUENCY,
    "precision": _choice(*CHOICES["precision"], **PRECISION_ALIASES),
    **dict.fromkeys((*LAYOUT[:5], *MICRO_BATCHES), _COUNT),
    "sharding": _choice(*SHARDINGS, **SHARDING_ALIASES),
    "checkpointing": _choice(*CHECKPOINTINGS),
    "sequence_parallel": _TRUTH,
    "peak_memory_bytes": replace(_POSITIVE, dimension="memory"),  # of the fullest GPU
    "status": _TEXT,  # ok, oom or another reason of a failure
    "dataset_fraction": in_range(0, 1, "a number > 0 and <= 1", above_low=True, dimension="share"),
    "nodes": _COUNT,
    "repeat": in_range(0, MAX_COUNT, f"a whole number from 0 to {MAX_COUNT:,}", int),
    "epochs": in_range(1, _MAX_EPOCHS, f"a whole number from 1 to {_MAX_EPOCHS:,}", int),
    "samples": _AMOUNT,  # of an epoch
    "steps": _AMOUNT,
    **dict.fromkeys(ENERGIES, _ENERGY),
    "power_w": _POWER,  # of all GPUs together
    **dict.fromkeys(STEP_PARTS, in_range(0, math.inf, "a number >= 0", dimension="time")),
    "energy_source": _choice("counter", "integral", "estimated", "simulated", "replayed"),
    "energy_verdict": _choice("ok", "suspect"),
    "sm_util": _SHARE,
    "mem_util": _SHARE,
    "metric_name": _TEXT,
    "metric": Field(_number_or_nan, "a number (NaN if it diverged)", float),
    "loss": Field(_number_or_nan, "a number (NaN if it diverged)", float),
    "eval_time_s": _TIME,
}
#: Sizes of the transformer: ``model.layers`` and the other fields of a study's ``model``.
MODEL = "model."
MODEL_FIELDS: Mapping[str, Field] = {
    MODEL + name: _TRUTH
    if each.annotation is bool
    else in_range(0, MAX_COUNT, f"a whole number from 0 to {MAX_COUNT:,}", int)
    for name, each in Network.model_fields.items()
}
OPTION = Field(_option, f"a number or a text of 1 to {MAX_TEXT} characters")


class InvalidCell(ValueError):
    """A cell or row that does not fit its field; the text says why."""


def global_batch_of(values: Mapping[str, Any]) -> int | None:
    """Return the global batch of a row with ``gpus``, from any batch; None without one.
    ``InvalidCell`` if they contradict each other."""
    gpus, batch, local = (values.get(name) for name in ("gpus", "global_batch", "local_batch"))
    model_gpus = math.prod(values.get(name, 1) for name in MODEL_SIZES)
    copies, rest = divmod(gpus, model_gpus)
    if rest:
        raise InvalidCell(f"tp x pp x cp is {model_gpus}, which does not divide {gpus} gpus")
    micro = [values[name] for name in MICRO_BATCHES if name in values]
    of_micro = copies * math.prod(micro) if len(micro) == 2 else None
    if batch is None:
        batch = of_micro if local is None else gpus * local
    if batch is not None and batch % copies:
        what = f"{gpus} gpus" if copies == gpus else f"{copies} copies of the model"
        raise InvalidCell(f"global_batch {batch} cannot be divided by {what}")
    if batch is not None and local not in (None, batch / gpus):
        raise InvalidCell(f"global_batch {batch} is not {gpus} gpus x local_batch {local}")
    if of_micro not in (None, batch):
        text = f"global_batch {batch} is not {copies} copies x {' x '.join(MICRO_BATCHES)}"
        raise InvalidCell(f"{text}, {of_micro}")
    return batch
