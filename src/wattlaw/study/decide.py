"""The section ``decide`` of a study file: which question its runs are to answer."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from wattlaw.common.errors import BadInput
from wattlaw.common.quantities import duration_s, energy_j, share
from wattlaw.common.text import join_names
from wattlaw.study.base import MAX_COUNT, Count, LocatedError, Model, Positive, field

_DURATION = "a time such as 90min, 6h or 2d, or seconds (> 0), or null"
_ENERGY = "an energy such as 50kWh or 3MJ, or joules (> 0), or null"
_SLOWDOWN = "a share such as 10% or 0.1, or null"
_TOLERANCE = "a share above 0 and below 1, such as 2% or 0.02"
_PROBABILITY = "a probability above 0 and below 1, such as 0.9"
_LENGTHS = ("total_samples", "epochs", "epochs_by_batch", "target")


def _parsed(parse: Callable[[str, Any], Any]) -> PlainValidator:
    """Return a validator of a number, or of a text with a unit."""

    def validate(given: Any) -> Any:
        try:
            if isinstance(given, bool) or not isinstance(given, str | int | float | None):
                raise BadInput("neither a number nor a text")
            return parse("", given)
        except BadInput:
            # The message quotes the description of the field.
            raise PydanticCustomError("quantity", "a number, or a text with a unit") from None

    return PlainValidator(validate)


def _inner_share(name: str, given: Any) -> float:
    value = share(name, given)
    if value is None or not 0 < value < 1:
        raise BadInput(f"{name}: given {given}; allowed: {_TOLERANCE}")
    return value


def _price(name: str, given: Any) -> Any:
    """Return a price or an intensity; ``footprint_of`` reads a text with a currency or a region."""
    if given == "" or (isinstance(given, int | float) and given < 0):
        raise BadInput(f"{name}: given {given}; allowed: a number >= 0, or a text")
    return given


class DecisionBudget(Model):
    """The most that the measurements of a decision may use."""

    gpu_hours: float | None = field(None, "GPU-hours (> 0), or null for no limit", gt=0)
    runs: int | None = field(None, "a whole number >= 1, or null for no limit", ge=1)


class Decide(Model):
    """The question, and how certain its answer must be. The sweeps are the candidates."""

    minimize: Literal["energy", "time", "gpu_hours", "edp", "cost", "carbon"] = field(
        "energy", "energy, time, gpu_hours, edp, cost or carbon"
    )
    deadline: Annotated[Any, _parsed(duration_s)] = field(None, _DURATION)
    max_slowdown: Annotated[Any, _parsed(share)] = field(None, _SLOWDOWN)
    energy_budget: Annotated[Any, _parsed(energy_j)] = field(None, _ENERGY)
    max_gpus: Count | None = field(None, "a whole number >= 1, or null")
    max_global_batch: Count | None = field(None, "a whole number >= 1, or null")
    total_samples: Positive | None = field(None, "samples of a training (> 0), or null")
    epochs: Count | None = field(None, "epochs of a training, a whole number >= 1, or null")
    epochs_by_batch: dict[str, Positive] = Field(
        default_factory=dict,
        description="a mapping of global batches to epochs (> 0) such as {256: 90}",
    )
    target: float | None = field(None, "a value of the metric, or null")
    pue: float | None = field(None, "a number >= 1, or null", ge=1)
    grid: Annotated[Any, _parsed(_price)] = field(
        None, "g CO2e per kWh (>= 0), or a region such as DE, or null"
    )
    price_per_kwh: Annotated[Any, _parsed(_price)] = field(
        None, "a price such as 0.21 or '0.21 EUR', or a region, or null"
    )
    price_per_gpu_hour: Annotated[Any, _parsed(_price)] = field(
        None, "a price such as 2.5 or '2.5 EUR', or null"
    )
    tolerance: Annotated[Any, _parsed(_inner_share)] = field(0.02, _TOLERANCE)
    confidence: Annotated[Any, _parsed(_inner_share)] = field(0.9, _PROBABILITY)
    budget: DecisionBudget = field(DecisionBudget(), "a mapping {gpu_hours: ..., runs: ...}")
    at_once: int | None = field(
        None, "runs at once, 1 to 10,000, or null for 4 jobs of a queue and else 1",
        ge=1, le=10_000,
    )  # fmt: skip
    seed: int = field(0, "a whole number >= 0 and <= 2^31", ge=0, le=2**31)

    @property
    def batches(self) -> dict[float, float]:
        """Return the epochs by global batch."""
        return {float(batch): epochs for batch, epochs in self.epochs_by_batch.items()}

    @property
    def has_length(self) -> bool:
        """Say whether the length of a training is given."""
        return any(getattr(self, name) for name in _LENGTHS) or self.target is not None

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [name for name in _LENGTHS if getattr(self, name) not in (None, {})]
        if len(given) > 1:
            raise LocatedError(
                f"given with {given[0]}; allowed: at most one of {join_names(_LENGTHS)}", given[1]
            )
        for batch in self.epochs_by_batch:
            if not batch.isdecimal() or not 0 < int(batch) <= MAX_COUNT:
                raise LocatedError(
                    "allowed: a global batch, a whole number >= 1", "epochs_by_batch", batch
                )
        if self.minimize == "cost" and not (self.price_per_kwh or self.price_per_gpu_hour):
            raise LocatedError(
                "given cost without a price; allowed: with price_per_kwh or price_per_gpu_hour",
                "minimize",
            )
        return self
