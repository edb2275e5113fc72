"""The section ``decide`` of a study file: which question its runs are to answer."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, PlainValidator, create_model, model_validator
from pydantic_core import PydanticCustomError

from wattlaw.common.errors import BadInput
from wattlaw.common.text import join_names
from wattlaw.study.base_model import (
    MAX_COUNT,
    SHARDINGS,
    Count,
    LocatedError,
    Model,
    Positive,
    Sharding,
    field,
)
from wattlaw.study.question import KEYS, Key

_LENGTHS = ("total_samples", "epochs", "epochs_by_batch", "target")


def _parsed(parse: Callable[[str, Any], Any]) -> PlainValidator:
    def validate(given: Any) -> Any:
        try:
            if not isinstance(given, bool) and isinstance(given, str | int | float | None):
                return parse("", given)
        except BadInput:
            pass
        # The message quotes the description of the field.
        raise PydanticCustomError("quantity", "a number, or a text with a unit")

    return PlainValidator(validate)


def _field(key: Key) -> tuple[Any, Any]:
    kind = key.in_study
    if kind is Any and key.parse is not None:
        kind = Annotated[Any, _parsed(key.parse)]
    return kind, Field(default=key.default, description=key.allowed, **key.bounds)


class DecisionBudget(Model):
    gpu_hours: float | None = field(None, "GPU-hours (> 0), or null for no limit", gt=0)
    runs: int | None = field(None, "a whole number >= 1, or null for no limit", ge=1)


class Baseline(Model):
    """The setting that is run today; what is not named may have any value."""

    gpus: Count = field(..., "a whole number >= 1")
    nodes: Count | None = field(None, "a whole number >= 1, or null")
    global_batch: Count | None = field(None, "a whole number >= 1, or null")
    tp: Count | None = field(None, "a whole number >= 1, or null")
    pp: Count | None = field(None, "a whole number >= 1, or null")
    cp: Count | None = field(None, "a whole number >= 1, or null")
    ep: Count | None = field(None, "a whole number >= 1, or null")
    micro_batch: Count | None = field(None, "a whole number >= 1, or null")
    sharding: Sharding | None = field(None, f"one of: {', '.join(SHARDINGS)}, or null")
    power_limit_w: Positive | None = field(None, "watts (> 0), or null")
    clock_limit_mhz: Positive | None = field(None, "MHz (> 0), or null")


_FIELDS: dict[str, Any] = {key.key or key.name: _field(key) for key in KEYS}
_Asked = create_model("_Asked", __base__=Model, **_FIELDS)


class Decide(_Asked):
    """The question, and how its answer is found. The sweeps are the candidates."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the fields of ``KEYS``

    baseline: Baseline | None = field(
        None, "what is run today, such as {gpus: 1, global_batch: 32}, or null"
    )
    budget: DecisionBudget = field(DecisionBudget(), "a mapping {gpu_hours: ..., runs: ...}")
    at_once: int | None = field(
        None, "runs at once, 1 to 10,000, or null for 4 jobs of a queue and else 1", ge=1, le=10_000
    )
    seed: int = field(0, "a whole number >= 0 and <= 2^31", ge=0, le=2**31)

    @property
    def asked(self) -> dict[str, Any]:
        values = {key.name: getattr(self, key.key or key.name) for key in KEYS}
        by_batch = {float(batch): epochs for batch, epochs in self.epochs_by_batch.items()}
        return values | {"epochs_by_batch": by_batch}

    @property
    def in_use(self) -> dict[str, Any]:
        return {} if self.baseline is None else self.baseline.model_dump(exclude_none=True)

    @property
    def lengths(self) -> list[str]:
        return [name for name in _LENGTHS if getattr(self, name) not in (None, {})]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.lengths) > 1:
            first, second = self.lengths[:2]
            raise LocatedError(
                f"given with {first}; allowed: at most one of {join_names(_LENGTHS)}", second
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
