"""The question: what is minimized, under which bounds, at which prices, for how much training.

``KEYS`` says once how users state it. The options of the command line, the keys of ``decide`` in a
study file, and the arguments of the Python API are made from it.
"""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import Field, PlainValidator, create_model, model_validator
from pydantic_core import PydanticCustomError

from wattlaw.common.errors import BadInput
from wattlaw.common.quantities import duration_s, energy_j, finite, share
from wattlaw.common.text import join_names, nearest
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
from wattlaw.study.command import epochs_argument
from wattlaw.study.footprint import Footprint
from wattlaw.study.setting import Setting

Goal = Literal["energy", "time", "gpu_hours", "edp", "cost", "carbon"]
#: What can be minimized.
GOALS: tuple[str, ...] = get_args(Goal)
_OF_ENERGY = ("energy", "edp", "carbon")
#: Bounds, each with its least value, and whether that is allowed.
_LEAST = {
    "deadline_s": (0, False),
    "max_slowdown": (0, True),
    "energy_budget_j": (0, False),
    "max_gpu_hours": (0, False),
    "max_gpus": (1, True),
    "samples": (0, False),
}
Function = TypeVar("Function", bound=Callable[..., Any])
_LENGTHS = ("total_samples", "epochs", "epochs_by_batch", "target")


@dataclass(frozen=True)
class Question:
    """What a setting is chosen for; None is what is not asked.

    Without ``samples``, totals are of one sample, and the bounds of a training too.
    """

    minimize: str | None = None  # one of ``GOALS``; None for what suits the bounds
    deadline_s: float | None = None  # of a job, as the budgets
    max_slowdown: float | None = None  # share of the time on the fastest allowed setting
    slowest_s: float | None = None  # of a training: the same, where the fastest is known
    energy_budget_j: float | None = None
    max_gpu_hours: float | None = None
    max_gpus: int | None = None
    max_global_batch: float | None = None
    samples: float | None = None  # of a training
    epochs: int | None = None  # the same, as epochs
    epochs_by_batch: Mapping[float, float] = dataclasses.field(default_factory=dict)
    target: float | None = None  # the value of the metric at which a training ends
    #: By global batch, where the batch changes how many are needed; others are not allowed.
    samples_by_batch: Mapping[float, float] = dataclasses.field(default_factory=dict)
    #: The setting that is run today, as far as the study names it; savings are relative to it.
    in_use: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    footprint: Footprint | None = None  # prices, and the carbon of the grid
    tolerance: float = 0.02  # the regret that does not matter, as a share of the goal
    confidence: float = 0.9  # probability of a regret within the tolerance when measuring ends

    def __post_init__(self) -> None:
        if self.minimize is not None and self.minimize not in GOALS:
            given = f"{self.minimize!r}{nearest(str(self.minimize)[:60], GOALS)}"
            raise BadInput(f"minimize: given {given}; allowed: {', '.join(GOALS)}")
        for name, (least, is_allowed) in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < float("inf"):
                raise BadInput(f"{name}: given {value:g}; allowed: a number of at least {least:g}")
            if value == least and not is_allowed:
                raise BadInput(f"{name}: given {value:g}; allowed: above {least:g}")
        for name in ("tolerance", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise BadInput(f"{name}: given {getattr(self, name)!r}; allowed: above 0, below 1")
        if self.minimize == "cost" and not sum(self.prices) > 0:
            raise BadInput("minimize: given cost; allowed: together with a price above 0")

    @property
    def prices(self) -> tuple[float, float]:
        factors = self.footprint or Footprint()
        per_joule, per_hour = (factors.of(*of) for of in ((1.0, 0.0), (0.0, 1.0)))
        return per_joule.electricity_cost or 0.0, per_hour.gpu_hour_cost or 0.0

    @property
    def is_priced_twice(self) -> bool:
        """Whether the goal is a cost of electricity and of GPU-hours."""
        return self.minimize == "cost" and all(self.prices)

    def without_electricity(self) -> "Question":
        footprint = replace(self.footprint or Footprint(), price_per_kwh=None)
        return replace(self, footprint=footprint)

    @property
    def is_bounded(self) -> bool:
        bounds = self.deadline_s, self.energy_budget_j, self.max_gpu_hours
        return any(bound is not None for bound in bounds)

    def is_of_jobs(self, command: Sequence[str]) -> bool:
        """Whether settings are compared by whole jobs, with start-up, instead of by training alone.

        They are where the length of the training is stated, here or in its command, or bounded.
        Runs of another length, as studies measure, would have their own share of start-up.
        """
        stated = self.is_by_batch or self.epochs is not None or self.samples is not None
        return stated or self.is_bounded or epochs_argument(command) is not None

    @property
    def is_by_batch(self) -> bool:
        """Whether the length of a training is that of its batch, so that its quality is known."""
        return self.target is not None or bool(self.epochs_by_batch)

    @property
    def needs_energy(self) -> bool:
        is_price = self.minimize == "cost" and self.prices[0] > 0
        return self.minimize in (None, *_OF_ENERGY) or is_price or self.energy_budget_j is not None

    def allows(self, setting: Setting) -> bool:
        batch = setting.global_batch
        if self.samples_by_batch and batch not in self.samples_by_batch:
            return False
        too_large = self.max_global_batch is not None and (batch or 0) > self.max_global_batch
        return not too_large and setting.gpus <= (self.max_gpus or setting.gpus)


class Key(NamedTuple):
    name: str  # of the option, the argument, and the key of ``decide``
    in_study: Any  # the type in a study file
    allowed: str  # the same in words, which messages quote
    #: Reads a number, or a text with a unit; the first argument is the name.
    parse: Callable[[str, Any], Any] | None = None
    option: Any = None  # the type of the option; without one there is no option, and no argument
    metavar: str = ""
    help: str = ""
    field: str = ""  # of ``Question``, where that has another name
    default: Any = None  # in a study file
    bounds: Mapping[str, Any] = {}  # in a study file
    key: str = ""  # of ``decide``, where that has another name


def _inner_share(name: str, given: Any) -> float:
    value = share(name, given)
    if value is None or not 0 < value < 1:
        raise BadInput(f"{name}: given {given}; allowed: a share above 0 and below 1")
    return value


def _price(name: str, given: Any) -> Any:
    """Return a price or an intensity; a text may have a currency, or be a region."""
    if given == "" or (isinstance(given, int | float) and given < 0):
        raise BadInput(f"{name}: given {given}; allowed: a number >= 0, or a text")
    return given


_GOALS = "energy, time, gpu_hours, edp, cost or carbon"
KEYS = (
    Key("minimize", Goal, _GOALS, None, str, "GOAL", f"{_GOALS} instead of the default.",
        default="energy"),
    Key("deadline", Any, "a time such as 90min, 6h or 2d, or seconds (> 0), or null", duration_s,
        str, "TIME", "Maximum time of the job: 90min, 6h, 2d.", "deadline_s"),
    Key("max_slowdown", Any, "a share such as 10% or 0.1, or null", share,
        str, "SHARE", "Maximum slowdown relative to the fastest setting: 5% or 0.05."),
    Key("energy_budget", Any, "an energy such as 50kWh or 3MJ, or joules (> 0), or null", energy_j,
        str, "ENERGY", "Maximum energy of the job: 50kWh, 3MJ.", "energy_budget_j"),
    Key("max_gpu_hours", Positive | None, "GPU-hours of a training (> 0), or null", None,
        float, "HOURS", "Maximum GPU-hours of the job."),
    Key("max_gpus", Count | None, "a whole number >= 1, or null", None,
        int, "N", "Maximum number of GPUs."),
    Key("max_global_batch", Count | None, "a whole number >= 1, or null"),
    Key("total_samples", Positive | None, "samples of a training (> 0), or null", None,
        float, "N", "Samples to train: epochs times the samples of one.", "samples"),
    Key("epochs", Count | None, "epochs of a training, a whole number >= 1, or null", None,
        int, "E", "Epochs to train. Default: those of the runs."),
    Key("epochs_by_batch", dict[str, Positive],
        "a mapping of global batches to epochs (> 0) such as {256: 90}", default={}),
    Key("target", float | None, "a value of the metric, or null", finite,
        float, "Q", "Train until the metric reaches this value."),
    Key("pue", float | None, "a number >= 1, or null", None,
        float, "X", "Power usage effectiveness of the data centre, such as 1.2.", bounds={"ge": 1}),
    Key("grid", Any, "g CO2e per kWh (>= 0), or a region such as DE, or null", _price,
        str, "G|REGION", "Carbon intensity in g CO2e per kWh, or a region such as DE."),
    Key("price", Any, "a price such as 0.21 or '0.21 EUR', or a region, or null", _price,
        str, "MONEY|REGION", "Price per kWh: 0.21, '0.21 EUR', or a region.", key="price_per_kwh"),
    Key("price_per_gpu_hour", Any, "a price such as 2.5 or '2.5 EUR', or null", _price,
        str, "MONEY", "Price per GPU-hour: 2.5 or '2.5 EUR'."),
    Key("tolerance", Any, "a share above 0 and below 1, such as 2% or 0.02", _inner_share,
        default=Question.tolerance),
    Key("confidence", Any, "a probability above 0 and below 1, such as 0.9", _inner_share,
        default=Question.confidence),
)  # fmt: skip
#: The names of prices and of the carbon of the grid, which become a footprint.
PRICES = ("pue", "grid", "price", "price_per_gpu_hour")


def asks(
    names: Collection[str] = (), annotate: Callable[[Key], Any] = lambda key: key.option | None
) -> Callable[[Function], Function]:
    """Show the keys in the signature of a function that takes them as ``**asked``.

    ``names`` are those of the keys; none: all that have an option.
    """

    def declare(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        asked = [
            inspect.Parameter(
                key.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotate(key)
            )
            for key in KEYS
            if key.option is not None and (not names or key.name in names)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *asked])  # type: ignore[attr-defined]
        return function

    return declare


def check_names(method: Callable[..., Any], asked: Collection[str]) -> None:
    """Raise ``TypeError`` if a name is no argument of a method that ``asks``."""
    accepted = inspect.signature(method).parameters
    for name in sorted(set(asked) - accepted.keys()):
        text = f"unexpected argument {name!r}{nearest(name, accepted)}"
        raise TypeError(f"{method.__name__}: {text}; allowed: {', '.join(accepted)}")


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
