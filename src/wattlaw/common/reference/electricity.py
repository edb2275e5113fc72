"""Carbon intensity of grids and prices of electricity: annual averages with year and source.

They are good for orders of magnitude. An hour differs from the annual average, and a contract from
the average price: pass your own numbers where you have them.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from wattlaw.common.errors import BadInput


@dataclass(frozen=True)
class RegionalAverage:
    region: str
    name: str
    value: float  # grams CO2e per kWh, or the price of a kWh
    year: int
    source: str
    note: str
    currency: str | None = None  # of a price

    @property
    def cited(self) -> str:
        return f"{self.name} {self.year}, {self.note}: {self.source}"


def grid_intensity(region: str) -> RegionalAverage:
    return _row_of(grid_intensities(), region, "grid intensity")


def electricity_price(region: str) -> RegionalAverage:
    return _row_of(electricity_prices(), region, "electricity price")


def grid_intensities() -> dict[str, RegionalAverage]:
    return _read("grid_intensity.csv", "g_per_kwh")


def electricity_prices() -> dict[str, RegionalAverage]:
    return _read("electricity_prices.csv", "per_kwh")


@cache
def _read(file: str, column: str) -> dict[str, RegionalAverage]:
    text = (files("wattlaw.common.reference") / file).read_text(encoding="utf-8")
    return {
        row["region"]: RegionalAverage(
            row["region"], row["name"], float(row[column]), int(row["year"]), row["source"],
            row["note"], row.get("currency"),
        )
        for row in csv.DictReader(text.splitlines())
    }  # fmt: skip


def _row_of(rows: dict[str, RegionalAverage], region: str, what: str) -> RegionalAverage:
    if region.upper() not in rows:
        raise BadInput(f"no {what} of {region!r}; allowed: a number, or one of {', '.join(rows)}")
    return rows[region.upper()]
