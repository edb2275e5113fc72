"""Carbon and money of an energy: kg CO2e and cost, with what was counted and what was not.

Source of the sums: the "operational" part of the Software Carbon Intensity of the Green Software
Foundation (E times I, ISO/IEC 21031:2024), with the power usage effectiveness (PUE) of ISO/IEC
30134-2 as the factor from the energy of the machines to that of the building.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from wattlaw.common.errors import BadInput
from wattlaw.common.scopes import KINDS

J_PER_KWH = 3.6e6
#: Parts that every machine has, as they are called in a scope such as ``gpu+cpu+dram``.
_HOST = ("cpu", "dram")


@dataclass(frozen=True)
class Cost:
    """The carbon and cost of an energy. A value is None if a number that it needs is missing.

    ``cost`` is the sum of the two costs as far as prices were given, and None if a part that has a
    price is unknown. ``counted`` says what is in the numbers.
    """

    co2_kg: float | None
    electricity_cost: float | None
    gpu_hour_cost: float | None
    cost: float | None
    counted: str


@dataclass(frozen=True)
class Footprint:
    """Factors from energy and GPU-hours to carbon and money; what is not given is None.

    A price of a rented GPU-hour mostly includes electricity: give one of the two prices then; where
    both are given they are added. ``BadInput`` if a factor is negative or no number, a PUE is below
    1, or a price has no currency.
    """

    #: Power usage effectiveness: energy of the building / energy of its machines, at least 1.
    #: Without it nothing is added for cooling and conversion.
    pue: float | None = None
    grid_g_per_kwh: float | None = None  # carbon intensity of the grid in g CO2e per kWh
    price_per_kwh: float | None = None  # in ``currency``
    price_per_gpu_hour: float | None = None
    currency: str | None = None  # such as ``EUR``; a label only: currencies are not converted
    #: Where a factor comes from, by its name: ``{"grid_g_per_kwh": "Ember, 2023, ..."}``.
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise BadInput(f"{name}: given {value:g}; allowed: a number of at least {least:g}")
        priced = self.price_per_kwh is not None or self.price_per_gpu_hour is not None
        if priced and not self.currency:
            raise BadInput("currency: not given; a price needs one, such as EUR")

    def of(
        self, energy_j: float | None, gpu_hours: float | None = None, energy_is: str | None = None
    ) -> Cost:
        """Return carbon and cost of an energy and of GPU-hours.

        With E the energy in kWh (1 kWh = 3.6e6 J): facility energy = PUE E; CO2e in kg = PUE E I /
        1000 with I in g per kWh; electricity = PUE E price. All are linear in E, so the bounds of
        an energy's interval give those of the results. What depends on a missing value (None or
        NaN) is None. ``BadInput`` if ``energy_j`` or ``gpu_hours`` is negative or infinite.
        """
        for name, value in (("energy_j", energy_j), ("gpu_hours", gpu_hours)):
            if value is not None and (value < 0 or math.isinf(value)):
                raise BadInput(f"{name}: given {value:g}; allowed: a finite number of at least 0")
        energy, hours, grid, per_kwh, per_hour = (
            math.nan if value is None else float(value)
            for value in (
                energy_j, gpu_hours, self.grid_g_per_kwh, self.price_per_kwh,
                self.price_per_gpu_hour,
            )
        )  # fmt: skip
        facility_kwh = energy * ((1.0 if self.pue is None else self.pue) / J_PER_KWH)
        electricity, gpu_hour = facility_kwh * per_kwh, hours * per_hour
        priced = [electricity] if self.price_per_kwh is not None else []
        priced += [gpu_hour] if self.price_per_gpu_hour is not None else []
        return Cost(
            co2_kg=_known(facility_kwh * grid / 1000),
            electricity_cost=_known(electricity),
            gpu_hour_cost=_known(gpu_hour),
            cost=_known(sum(priced)) if priced else None,
            counted=self.counted(energy_is),
        )

    def counted(self, energy_is: str | None = None) -> str:
        sources = {name: f" ({self.sources[name]})" for name in self.sources}
        parts_text = [_scope(energy_is)]
        if self.pue is None:
            parts_text.append("no PUE given, so without cooling and conversion of the building")
        else:
            parts_text.append(f"times PUE {self.pue:g}{sources.get('pue', '')}")
        if self.grid_g_per_kwh is not None:
            factor = f"{self.grid_g_per_kwh:g} g CO2e per kWh{sources.get('grid_g_per_kwh', '')}"
            parts_text.append(f"{factor}, manufacturing of the machines not included")
        for name, unit in (("price_per_kwh", "kWh"), ("price_per_gpu_hour", "GPU-hour")):
            price = getattr(self, name)
            if price is not None:
                parts_text.append(f"{price:g} {self.currency} per {unit}{sources.get(name, '')}")
        if self.price_per_kwh is not None and self.price_per_gpu_hour is not None:
            parts_text.append("electricity and GPU-hours are added")
        return "; ".join(parts_text)


_LEAST = {"pue": 1.0, "grid_g_per_kwh": 0.0, "price_per_kwh": 0.0, "price_per_gpu_hour": 0.0}


def _scope(energy_is: str | None) -> str:
    if energy_is is None:
        return "energy as given"
    counted_parts = energy_is.split(",")[0].split("+")
    if not set(counted_parts) & {*KINDS}:
        return f"energy of {energy_is}"
    is_all = not {"node", "module"}.isdisjoint(counted_parts)
    left_out = [part.upper() for part in _HOST if part not in counted_parts and not is_all]
    without = ", ".join([*left_out, "network", "storage"])
    return f"energy of {energy_is}; a lower bound: without {without}"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
