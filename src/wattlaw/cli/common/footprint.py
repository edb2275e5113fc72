"""The footprint that options of the command line ask for."""

from wattlaw.analysis.footprint import Footprint
from wattlaw.errors import BadInput
from wattlaw.reference.footprint import electricity_price, grid_intensity
from wattlaw.text import quote

#: The name of money where no currency is told.
_UNNAMED = "currency units"


def footprint_of(
    pue: float | None,
    grid: str | None,
    price: str | None,
    price_per_gpu_hour: str | None,
) -> Footprint | None:
    """Return the factors given; None where none is.

    Parameters
    ----------
    pue
        Power usage effectiveness of the centre.
    grid
        g CO2e per kWh, or a region of the table that ships with the package, such as ``DE``.
    price, price_per_gpu_hour
        Of a kWh and of a GPU-hour: a number, with a currency or without: ``0.21``, ``0.21 EUR``;
        for the price of a kWh also a region of the table, such as ``US-MA``.

    Raises
    ------
    BadInput
        A text that is neither, a factor that is no sensible number, or two currencies.
    """
    if pue is None and grid is None and price is None and price_per_gpu_hour is None:
        return None
    intensity, grid_source = (None, None) if grid is None else _intensity(grid)
    amount, currency, price_source = (None,) * 3 if price is None else _electricity(price)
    gpu_amount, gpu_currency = (
        (None, None)
        if price_per_gpu_hour is None
        else _money("--price-per-gpu-hour", price_per_gpu_hour)
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
        currency=named[0] if named else _UNNAMED,
        sources={name: source for name, source in sources.items() if source is not None},
    )


def _intensity(grid: str) -> tuple[float, str | None]:
    value = _number(grid)
    if value is not None:
        return value, None
    try:
        found = grid_intensity(grid)
    except BadInput as error:
        raise BadInput(f"--grid: {error}") from None
    return found.g_per_kwh, found.cited


def _electricity(price: str) -> tuple[float, str | None, str | None]:
    if any(letter.isdigit() for letter in price):
        return *_money("--price", price), None
    try:
        found = electricity_price(price)
    except BadInput as error:
        raise BadInput(f"--price: {error}") from None
    return found.per_kwh, found.currency, found.cited


def _money(option: str, given: str) -> tuple[float, str | None]:
    """Return an amount and its currency, None where it has none."""
    words = given.split()
    amount = _number(words[0]) if words else None
    if amount is None or len(words) > 2 or (len(words) == 2 and not words[1].isalpha()):
        raise BadInput(
            f"{option}: given {quote(given)}; allowed: a price, such as 0.21 or '0.21 EUR'"
        )
    return amount, words[1].upper() if len(words) == 2 else None


def _number(text: str) -> float | None:
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None
