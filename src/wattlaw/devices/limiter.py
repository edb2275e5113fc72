"""The seam for hardware that can be limited: a ``Limiter`` reads and sets limits of devices."""

from dataclasses import dataclass
from typing import Protocol, Self

GROUP = "wattlaw.limiters"


@dataclass(frozen=True)
class LimitState:
    """What can be limited of a device, and how it stands; None where the device does not tell.

    There is no way to read a clock lock back.
    """

    device: str
    name: str
    power_limit_w: float | None = None  # as requested last
    enforced_w: float | None = None  # as the device keeps it
    default_w: float | None = None
    min_w: float | None = None
    max_w: float | None = None
    min_mhz: float | None = None
    max_mhz: float | None = None
    #: Whether others may use a part of it (MIG), whom a limit would limit too.
    is_shared: bool = False
    #: Whether limits stay when no process uses the driver (persistence mode).
    is_persistent: bool | None = None


class Limiter(Protocol):
    """Limits one kind of hardware, one way. Registered under ``wattlaw.limiters``.

    Where several can limit a device, the first that is permitted to does it, by order of name.
    """

    @classmethod
    def open(cls) -> Self:
        """Get ready.

        Raises
        ------
        wattlaw.errors.NotAvailable
            There is nothing that could be limited this way; the text says why.
        """

    def devices(self) -> list[str]:
        """Return the ids of the devices, those of the meter of the same hardware."""

    def read(self, device: str) -> LimitState:
        """Return how a device stands; raises ``NotAvailable`` when it does not answer."""

    def set_power_limit(self, device: str, watts: float) -> None:
        """Set the power limit of a device.

        Raises
        ------
        wattlaw.errors.NotPermitted
            This user may not, this way.
        wattlaw.errors.NotAvailable
            The device refused it or does not answer.
        """

    def lock_clock(self, device: str, mhz: float) -> None:
        """LimitLease the SM clock at a frequency; raises as ``set_power_limit`` does."""

    def unlock_clock(self, device: str) -> None:
        """Let the SM clock go again; raises as ``set_power_limit`` does."""

    def close(self) -> None:
        """Let the hardware go; limits stay as they are."""
