"""The seam for hardware that can be read: a ``Meter`` lists devices and takes samples of them."""

from dataclasses import dataclass
from typing import Literal, Protocol, Self

GROUP = "wattlaw.devices"

Kind = Literal["gpu", "cpu", "dram", "node"]
PowerSource = Literal["measured", "estimated", "simulated"]


@dataclass(frozen=True, slots=True)
class Device:
    """One piece of hardware under a name that stays the same between runs."""

    id: str
    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Sample:
    """What one device said at one moment; None where it said nothing."""

    device: str
    kind: Kind
    t_ns: int
    power_w: float | None = None
    energy_j: float | None = None
    power_source: PowerSource | None = None
    sm_util: float | None = None
    mem_util: float | None = None
    cpu_cores: float | None = None
    mem_used_bytes: int | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttle: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be metered: the processes under one root, and what the user assumes of them."""

    root_pid: int
    assume_cpu_w: float | None = None


class Meter(Protocol):
    """Reads one kind of hardware. Registered under the entry point ``wattlaw.devices``."""

    @classmethod
    def open(cls, target: Target) -> Self:
        """Get ready to read.

        Raises
        ------
        wattlaw.errors.NotAvailable
            This machine or user has no such hardware; the text says why and what would help.
        """

    def devices(self) -> list[Device]:
        """Return the devices that are read."""

    def read(self) -> list[Sample]:
        """Return one sample per device that answers now; a device that is gone has none."""

    def close(self) -> None:
        """Let the hardware go."""
