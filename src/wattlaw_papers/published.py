"""Results of the two published studies, with citations. They are never shown as measured here.

The values are in ``published.csv``. The column ``quantity`` is one of:

``beta``
    Exponent of t = alpha N^-beta, with ``se`` and ``r2`` where they are published. An empty cap or
    clock means that none was set.
``speedup``
    ``value`` to ``value_high``, at the largest GPU count relative to the smallest.
``energy_saving``
    Share of an epoch's energy that a cap saves, at least.
``power_law_to_gpus, near_linear_to_times_gpus, quality_to_global_batch``
    Largest count for which a law, a near-linear speedup (as a multiple of the smallest GPU count)
    or the quality is reported.
``co2_kg_per_h``
    Of all GPUs together.

An exponent depends on the range of N: ResNet50 has 0.52 in one table and 0.84 in another. Frey et
al. name 2, 4, 8, 16, 32, 64, 128, 256, 416 and 424 GPUs, not each for each model. Where the range
of a value is not published, ``gpus_min`` and ``gpus_max`` are None.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Source:
    name: str
    citation: str
    url: str
    hardware: str


SOURCES = {
    "mit-2022": Source(
        name="Frey et al. 2022",
        citation=(
            "N. C. Frey et al. 2022, Benchmarking Resource Usage for Efficient Distributed Deep "
            "Learning, IEEE High Performance Extreme Computing Conference (HPEC)"
        ),
        url="https://arxiv.org/abs/2201.12423",
        hardware="V100-32GB, 2 per node",
    ),
    "kit-2025": Source(
        name="Huber et al. 2025",
        citation="P. Huber et al. 2025, Energy Consumption in Parallel Neural Network Training",
        url="https://arxiv.org/abs/2508.07706",
        hardware="A100 and H100, 4 per node",
    ),
}


@dataclass(frozen=True)
class Published:
    """One published value; what was not published is None."""

    study: str
    quantity: str
    workload: str | None  # name in wattlaw; None: all workloads
    model: str
    power_limit_w: float | None
    clock_limit_mhz: float | None
    gpus_min: int | None
    gpus_max: int | None
    value: float
    value_high: float | None
    se: float | None
    r2: float | None
    hardware: str
    where: str  # table or finding

    @property
    def source(self) -> Source:
        return SOURCES[self.study]


_NUMBERS = ("power_limit_w", "clock_limit_mhz", "value", "value_high", "se", "r2")


@cache
def published(
    study: str | None = None, quantity: str | None = None, workload: str | None = None
) -> tuple[Published, ...]:
    text = resources.files("wattlaw_papers").joinpath("published.csv").read_text("utf-8")
    wanted, found = {"study": study, "quantity": quantity, "workload": workload}, []
    for row in csv.DictReader(text.splitlines()):
        values: dict[str, Any] = {name: cell or None for name, cell in row.items()}
        values |= {name: float(row[name]) for name in _NUMBERS if row[name]}
        values |= {name: int(row[name]) for name in ("gpus_min", "gpus_max") if row[name]}
        if all(each in (None, values[name]) for name, each in wanted.items()):
            found.append(Published(**values))
    return tuple(found)
