"""Questions from what users give: numbers, or texts such as ``6h``, ``DE``, ``0.21 EUR``."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from wattlaw.analysis.decide.decision import Decision
from wattlaw.analysis.predict.grid import BASELINE
from wattlaw.common.errors import BadInput
from wattlaw.common.reference.electricity import RegionalAverage, electricity_price, grid_intensity
from wattlaw.common.text import quote
from wattlaw.study.footprint import Footprint
from wattlaw.study.question import KEYS, PRICES, Question
from wattlaw.study.setting import CHOICES

#: The currency of a price without one.
_UNNAMED_CURRENCY = "currency units"
#: Lengths of a training that are no question of their own.
_LENGTHS = {"epochs", "total_samples"}
_PRICES = ("price_per_kwh", "price_per_gpu_hour")


def read_question(asked: Mapping[str, Any]) -> Question:
    """Return the question of arguments, by the names of ``KEYS``.

    Raises ``BadInput`` if a value is out of range.
    """
    return question_of(_parsed(asked))


def _parsed(asked: Mapping[str, Any]) -> dict[str, Any]:
    parsers = {key.name: key.parse for key in KEYS}
    return {
        name: value if (parse := parsers[name]) is None else parse(name, value)
        for name, value in asked.items()
        if value is not None
    }


def question_or_decided(
    asked: Mapping[str, Any], decision: Decision | None, *, any_batch: bool = False
) -> tuple[Question, Decision | None]:
    """Return the question of a decision with what arguments replace, and the decision that answers.

    Prices, the carbon of the grid and the length leave the question as it is. With another goal or
    bound, batches of any quality, or another length where that matters, it is another one, which
    the decision does not answer. Without a decision, it is that of the arguments.
    """
    if decision is None:
        return read_question(asked), None
    read_question({name: value for name, value in asked.items() if name != "minimize"})
    given, decide = _parsed(asked), decision.decide
    values = decide.asked
    studied = question_of(values, price_name="price_per_kwh")
    replaced = {name for name, value in given.items() if value != values[name]}
    is_other = any_batch or bool(replaced - {*PRICES, *_LENGTHS})
    if given.keys() & _LENGTHS:
        is_other |= studied.is_bounded or studied.is_by_batch
    if given.keys() & {*_LENGTHS, "target"}:
        values |= dict.fromkeys(("total_samples", "epochs", "target", "epochs_by_batch"))
    name = "price" if "minimize" in given else "price_per_kwh"
    question = replace(question_of(values | given, price_name=name), in_use=decide.in_use)
    if any_batch:
        question = replace(question, max_global_batch=None)
    return question, None if is_other else decision


def question_of(values: Mapping[str, Any], price_name: str = "price") -> Question:
    """Return the question of values that were read, by the names of ``KEYS``.

    Raises ``BadInput`` if a value is out of range, or the goal needs a price or intensity that is
    not given.
    """
    given = {name: value for name, value in values.items() if value is not None}
    footprint = footprint_of(*(given.get(name) for name in PRICES), price_name=price_name)
    needed = {"cost": ("price", "price_per_gpu_hour"), "carbon": ("grid",)}
    names = needed.get(given.get("minimize", ""), ())
    if names and not given.keys() & names and price_name == "price":
        raise BadInput(
            f"minimize: given {given['minimize']}; allowed: together with {' or '.join(names)}"
        )
    fields = {key.field or key.name: given[key.name] for key in KEYS
              if key.name in given and key.name not in PRICES}  # fmt: skip
    return Question(**fields, footprint=footprint)


def read_baseline(value: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the settings of a baseline such as ``"gpus=4,global_batch=256"``.

    Raises
    ------
    BadInput
        The text is not a list of settings with numbers above 0 or a power profile.

    Examples
    --------
    >>> read_baseline("gpus=4, global_batch=256")
    {'gpus': 4, 'global_batch': 256}
    """
    if not isinstance(value, str):
        return value
    values: dict[str, Any] = {}
    for part in value.split(","):
        name, _, text_of_number = (word.strip() for word in part.partition("="))
        if name not in values and text_of_number in CHOICES.get(name, ()):
            values[name] = text_of_number
            continue
        try:
            read = float(text_of_number)
        except ValueError:
            read = float("nan")
        if name not in BASELINE or not 0 < read < float("inf") or name in values:
            raise BadInput(
                f"baseline: given {quote(part)}; allowed: such as gpus=4,global_batch=256, with "
                f"{', '.join(BASELINE)}"
            )
        values[name] = int(read) if read.is_integer() else read
    return values


def footprint_of(
    pue: float | None = None,
    grid: str | float | None = None,
    price: str | float | None = None,
    price_per_gpu_hour: str | float | None = None,
    *,
    price_name: str = "price",
) -> Footprint | None:
    """Return the carbon and cost factors; None without any.

    ``pue`` is the power usage effectiveness of the data centre. ``grid`` is g CO2e per kWh, or a
    region of the table in the package, such as ``DE``. Prices, of a kWh and of a GPU-hour, are
    numbers or texts such as ``0.21 EUR``; that of a kWh can also be a region of the table, such as
    ``US-MA``. Messages call the price of a kWh ``price_name``.

    Raises ``BadInput`` if a text is neither a number nor a region, a factor is out of range, or the
    prices are in two currencies.
    """
    if pue is None and grid is None and price is None and price_per_gpu_hour is None:
        return None
    values: dict[str, float] = {}
    currencies: set[str] = set()
    sources: dict[str, str] = {}
    if grid is not None and (intensity := _number(str(grid))) is not None:
        values["grid_g_per_kwh"] = intensity
    elif grid is not None:
        known = _of_region("grid", grid_intensity, str(grid))
        values["grid_g_per_kwh"], sources["grid_g_per_kwh"] = known.value, known.cited
    for name, given, field in (
        (price_name, price, _PRICES[0]),
        ("price_per_gpu_hour", price_per_gpu_hour, _PRICES[1]),
    ):
        if given is None:
            continue
        if field == _PRICES[0] and not any(letter.isdigit() for letter in str(given)):
            known = _of_region(name, electricity_price, str(given))
            values[field], currency, sources[field] = known.value, known.currency, known.cited
        else:
            values[field], currency = _money(name, str(given))
        currencies |= set() if currency is None else {currency}
    if len(currencies) > 1:
        raise BadInput(
            f"{price_name} and price_per_gpu_hour: prices in {' and '.join(sorted(currencies))}; "
            "allowed: one currency"
        )
    return Footprint(
        pue, values.get("grid_g_per_kwh"), values.get(_PRICES[0]), values.get(_PRICES[1]),
        currency=min(currencies, default=_UNNAMED_CURRENCY), sources=sources,
    )  # fmt: skip


def _of_region(name: str, find: Callable[[str], RegionalAverage], region: str) -> RegionalAverage:
    try:
        return find(region)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None


def _money(name: str, text: str) -> tuple[float, str | None]:
    words = text.split()
    amount = _number(words[0]) if words else None
    if amount is None or len(words) > 2 or (len(words) == 2 and not words[1].isalpha()):
        raise BadInput(f"{name}: given {quote(text)}; allowed: a price, such as 0.21 or '0.21 EUR'")
    return amount, words[1].upper() if len(words) == 2 else None


def _number(text: str) -> float | None:
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None
