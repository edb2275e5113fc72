"""Carbon intensity of grids and prices of electricity: annual averages with year and source.

They are good for orders of magnitude. An hour differs from the annual average, and a contract from
the average price: pass your own numbers where you have them.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

from wattlaw.errors import BadInput

Row = TypeVar("Row")


@dataclass(frozen=True)
class Intensity:
    """Carbon intensity of a region's electricity."""

    region: str
    name: str
    g_per_kwh: float  # CO2e
    year: int
    source: str
    note: str

    @property
    def cited(self) -> str:
        """Region, year and source."""
        return f"{self.name} {self.year}, {self.note}: {self.source}"


@dataclass(frozen=True)
class Price:
    """Price of a kWh in a region."""

    region: str
    name: str
    per_kwh: float
    currency: str
    year: int
    source: str
    note: str

    @property
    def cited(self) -> str:
        """Region, year and source."""
        return f"{self.name} {self.year}, {self.note}: {self.source}"


def grid_intensity(region: str) -> Intensity:
    """Return the carbon intensity of a region, such as ``DE`` or ``US-NEWE``.

    Raises
    ------
    BadInput
        The table does not have the region; the message lists its regions.
    """
    return _row_of(grid_intensities(), region, "grid intensity")


def electricity_price(region: str) -> Price:
    """Return the average price of electricity in a region, such as ``EU`` or ``US-MA``.

    Raises
    ------
    BadInput
        The table does not have the region; the message lists its regions.
    """
    return _row_of(electricity_prices(), region, "electricity price")


@cache
def grid_intensities() -> dict[str, Intensity]:
    """Return the table by region."""
    return {
        row["region"]: Intensity(
            row["region"], row["name"], float(row["g_per_kwh"]), int(row["year"]),
            row["source"], row["note"],
        )
        for row in _rows("grid_intensity.csv")
    }  # fmt: skip


@cache
def electricity_prices() -> dict[str, Price]:
    """Return the table by region."""
    return {
        row["region"]: Price(
            row["region"], row["name"], float(row["per_kwh"]), row["currency"], int(row["year"]),
            row["source"], row["note"],
        )
        for row in _rows("electricity_prices.csv")
    }  # fmt: skip


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("wattlaw.reference") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _row_of(rows: dict[str, Row], region: str, what: str) -> Row:
    if region.upper() not in rows:
        raise BadInput(f"no {what} of {region!r}; allowed: a number, or one of {', '.join(rows)}")
    return rows[region.upper()]
