"""Times, energies and settings as people read them."""

from wattlaw.analysis.advice.option import Option, Quantity
from wattlaw.analysis.caps.limits import format_limit
from wattlaw.analysis.footprint import J_PER_KWH

#: Units with their size, and the least value that is told in them; the last takes the rest.
TIME_UNITS = (
    ("d", 86400.0, 172800.0),
    ("h", 3600.0, 5400.0),
    ("min", 60.0, 120.0),
    ("s", 1.0, 0.0),
)
ENERGY_UNITS = (
    ("MWh", 1e3 * J_PER_KWH, 1e3 * J_PER_KWH), ("kWh", J_PER_KWH, 0.1 * J_PER_KWH),
    ("kJ", 1e3, 1e3), ("J", 1.0, 0.0),
)  # fmt: skip
Units = tuple[tuple[str, float, float], ...]


def with_unit(quantity: Quantity | float, units: Units) -> str:
    """Return an amount with its unit, and its interval in the same: ``5.2 h (4.9 to 5.5)``."""
    if not isinstance(quantity, Quantity):
        quantity = Quantity(quantity)
    unit, size = next((name, size) for name, size, least in units if quantity.mean >= least)
    return format_quantity(quantity.times(1 / size), unit)


def format_quantity(quantity: Quantity, unit: str) -> str:
    """Return a number with its unit and interval."""
    text = f"{format_number(quantity.mean)} {unit}"
    if quantity.low is None or quantity.high is None or quantity.low == quantity.high:
        return text
    return f"{text} ({format_number(quantity.low)} to {format_number(quantity.high)})"


def format_number(value: float) -> str:
    """Return three significant digits, never as a power of ten where they are many."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def describe_setting(option: Option, worker: str) -> str:
    """Return GPUs, limits, batch and precision: ``16 GPUs, 200 W, free clock, ...``."""
    setting = option.setting
    text = [
        f"{option.gpus} {worker}{'s' * (option.gpus > 1)}",
        format_limit("power_limit_w", setting["power_limit_w"]),
        format_limit("clock_limit_mhz", setting["clock_limit_mhz"]),
    ]
    if setting["local_batch"] is not None:
        text.append(f"batch {setting['local_batch']} each ({setting['global_batch']} in all)")
    text += [str(setting[name]) for name in ("precision", "hardware") if setting[name]]
    return ", ".join(text)
