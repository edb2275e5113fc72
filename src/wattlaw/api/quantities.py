"""Durations, shares, energies and prices: numbers, or texts such as ``6h``, ``5%``, ``50kWh``."""

import math
import re
from datetime import timedelta

from wattlaw.analysis.footprint import J_PER_KWH, Footprint
from wattlaw.errors import BadInput
from wattlaw.reference.footprint import electricity_price, grid_intensity
from wattlaw.text import quote

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_JOULES = {
    "j": 1.0, "kj": 1e3, "mj": 1e6, "gj": 1e9, "wh": J_PER_KWH / 1e3, "kwh": J_PER_KWH,
    "mwh": J_PER_KWH * 1e3,
}  # fmt: skip
#: The currency of a price without one.
_UNNAMED_CURRENCY = "currency units"
_NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"


def duration_s(name: str, value: str | float | timedelta | None) -> float | None:
    """Return a duration in seconds; None for None.

    Parameters
    ----------
    name
        The option or parameter, for the error.
    value
        A number of seconds, or a text such as ``45s``, ``90min``, ``6h``, ``2d``, ``1h30min``.

    Raises
    ------
    BadInput
        The value is not a duration above 0.

    Examples
    --------
    >>> duration_s("deadline", "1h30min")
    5400.0
    """
    if value is None:
        return None
    if isinstance(value, timedelta):
        seconds, is_read = value.total_seconds(), True
    elif isinstance(value, str):
        parts = re.findall(rf"{_NUMBER}\s*(s|min|h|d)\s*", value.lower())
        without_blanks = "".join(re.split(r"\s+", value.lower()))
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        is_read = "".join(number + unit for number, unit in parts) == without_blanks
    else:
        seconds, is_read = float(value), True
    if not is_read or not 0 < seconds < math.inf:
        raise _invalid(name, value, "a time such as 45s, 90min, 6h, 2d")
    return seconds


def share(name: str, value: str | float | None) -> float | None:
    """Return a share: ``"5%"`` and ``0.05`` are the same; None for None.

    Raises
    ------
    BadInput
        The value is not a share. A text of 1 or more needs a per cent sign, because the sign may
        have been forgotten.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        if 0 <= value < math.inf:
            return float(value)
    elif (match := re.fullmatch(rf"{_NUMBER}\s*(%?)", value.strip())) is not None:
        number = float(match[1])
        if match[2] or number < 1:
            return number / 100 if match[2] else number
    raise _invalid(name, value, "a share such as 5% or 0.05")


def energy_j(name: str, value: str | float | None) -> float | None:
    """Return an energy in joules; None for None.

    Parameters
    ----------
    name
        The option or parameter, for the error.
    value
        A number of joules, or a text such as ``50kWh``, ``3MJ``. Lower case means the same.

    Raises
    ------
    BadInput
        The value is not an energy above 0.
    """
    if value is None:
        return None
    if isinstance(value, str):
        match = re.fullmatch(rf"{_NUMBER}\s*([a-zA-Z]+)", value.strip())
        joules = float(match[1]) * _JOULES.get(match[2].lower(), 0.0) if match is not None else 0.0
    else:
        joules = float(value)
    if not 0 < joules < math.inf:
        raise _invalid(name, value, "an energy such as 50kWh, 1.5MWh, 3MJ")
    return joules


def finite(name: str, value: float | None) -> float | None:
    """Return a number, or None for None.

    Raises
    ------
    BadInput
        The number is infinite or not a number.
    """
    if value is not None and not math.isfinite(value):
        raise _invalid(name, value, "a number")
    return value


def _invalid(name: str, value: object, allowed: str) -> BadInput:
    shown = quote(value) if isinstance(value, str) else str(value)
    return BadInput(f"{name}: given {shown}; allowed: {allowed}")


def footprint_of(
    pue: float | None = None,
    grid: str | float | None = None,
    price: str | float | None = None,
    price_per_gpu_hour: str | float | None = None,
) -> Footprint | None:
    """Return the carbon and cost factors; None without any.

    Parameters
    ----------
    pue
        Power usage effectiveness of the data centre.
    grid
        g CO2e per kWh, or a region of the table in the package, such as ``DE``.
    price, price_per_gpu_hour
        Price of a kWh and of a GPU-hour: a number, or a text such as ``0.21 EUR``. The price of a
        kWh can also be a region of the table, such as ``US-MA``.

    Raises
    ------
    BadInput
        A text is neither a number nor a region, a factor is out of range, or the prices are in
        two currencies.
    """
    if pue is None and grid is None and price is None and price_per_gpu_hour is None:
        return None
    intensity, grid_source = (None, None) if grid is None else _intensity(str(grid))
    amount, currency, price_source = (None,) * 3 if price is None else _electricity(str(price))
    gpu_amount, gpu_currency = (
        (None, None)
        if price_per_gpu_hour is None
        else _money("price_per_gpu_hour", str(price_per_gpu_hour))
    )
    sources = {"grid_g_per_kwh": grid_source, "price_per_kwh": price_source}
    named = sorted({name for name in (currency, gpu_currency) if name is not None})
    if len(named) > 1:
        raise BadInput(f"prices in {' and '.join(named)}; allowed: one currency")
    return Footprint(
        pue=pue,
        grid_g_per_kwh=intensity,
        price_per_kwh=amount,
        price_per_gpu_hour=gpu_amount,
        currency=named[0] if named else _UNNAMED_CURRENCY,
        sources={name: source for name, source in sources.items() if source is not None},
    )


def _intensity(grid: str) -> tuple[float, str | None]:
    value = _number(grid)
    if value is not None:
        return value, None
    try:
        known = grid_intensity(grid)
    except BadInput as error:
        raise BadInput(f"grid: {error}") from None
    return known.value, known.cited


def _electricity(price: str) -> tuple[float, str | None, str | None]:
    if any(letter.isdigit() for letter in price):
        return *_money("price", price), None
    try:
        known = electricity_price(price)
    except BadInput as error:
        raise BadInput(f"price: {error}") from None
    return known.value, known.currency, known.cited


def _money(name: str, text: str) -> tuple[float, str | None]:
    """Return an amount and its currency, None without a currency."""
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
