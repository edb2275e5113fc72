"""What "the best limit" means: rules that say which limits are allowed and what one costs."""

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from wattlaw.errors import BadInput

Against = Literal["fastest", "highest"]


class Rule:
    """A rule of choice: of the limits that it allows, the least cost.

    ``slowdown`` is the share by which a limit may be slower than ``against``: the fastest limit,
    or no limit (else the highest). None: that does not matter.
    """

    power: int = 0
    slowdown: float | None = None
    against: Against = "fastest"

    @property
    def description(self) -> str:
        """Return the rule in words."""
        return "least energy"

    def cost(self, time_s: pd.Series, energy_j: pd.Series) -> pd.Series:
        """Return ``E T^power`` of each row: J, J s or J s²."""
        cost: pd.Series = energy_j * time_s**self.power
        return cost


@dataclass(frozen=True)
class LeastEnergy(Rule):
    """The limit of least energy, however slow."""


@dataclass(frozen=True)
class LeastEnergyWithin(Rule):
    """The limit of least energy that is at most so much slower.

    Against the fastest is the stricter promise: by noise a capped run may be the fastest, and then
    the uncapped one is slower.
    """

    slowdown: float = 0.10
    against: Against = "fastest"

    def __post_init__(self) -> None:
        if not self.slowdown >= 0:
            raise BadInput(f"slow-down {self.slowdown:g}; allowed: 0 or more")

    @property
    def description(self) -> str:
        """Return the rule in words."""
        return f"least energy at no more than {100 * self.slowdown:g} % slow-down"


@dataclass(frozen=True)
class LeastEnergyDelay(Rule):
    """The limit of least ``E T^power``.

    Source: Gonzalez & Horowitz 1996, IEEE Journal of Solid-State Circuits 31(9), for power 1.
    """

    power: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise BadInput(f"energy-delay power {self.power}; allowed: 1, 2")

    @property
    def description(self) -> str:
        """Return the rule in words."""
        return "least energy-delay product" if self.power == 1 else "least energy-delay² product"
