"""The interface to hardware with limits: a ``Limiter`` reads and sets limits of devices."""

from dataclasses import dataclass
from typing import Protocol, Self

GROUP = "wattlaw.limiters"


@dataclass(frozen=True)
class LimitState:
    """The limits of a device and their ranges; None if the device does not report a value.

    A clock lock cannot be read back.
    """

    device: str
    name: str
    power_limit_w: float | None = None  # the last requested one
    enforced_w: float | None = None  # the one that the device applies
    default_w: float | None = None
    min_w: float | None = None
    max_w: float | None = None
    min_mhz: float | None = None
    max_mhz: float | None = None
    #: Whether others may use a part of it (MIG, partitions). A limit applies to them, too.
    is_shared: bool = False
    #: Whether limits stay when no process uses the driver (persistence mode).
    is_persistent: bool | None = None
    #: Other devices that have the same power limit, because they share a board.
    limited_with: tuple[str, ...] = ()
    no_clock_limit_reason: str | None = None


class Limiter(Protocol):
    """Limits one kind of hardware in one way. Registered under ``wattlaw.limiters``.

    If several limiters have a device, the first one that is permitted, by name, limits it.
    """

    @classmethod
    def open(cls) -> Self:
        """Open the limiter.

        Raises
        ------
        wattlaw.errors.NotAvailable
            There is no device to limit in this way; the message says why.
        """

    def devices(self) -> list[str]:
        """Return the ids of the devices, the same as those of the meter."""

    def read(self, device: str) -> LimitState:
        """Return the state of a device; raises ``NotAvailable`` if it does not answer."""

    def set_power_limit(self, device: str, watts: float) -> None:
        """Set the power limit of a device.

        Raises
        ------
        wattlaw.errors.NotPermitted
            This user may not set limits in this way.
        wattlaw.errors.NotAvailable
            The device refuses it or does not answer.
        """

    def lock_clock(self, device: str, mhz: float) -> None:
        """Lock the SM clock at a frequency; raises as ``set_power_limit`` does."""

    def unlock_clock(self, device: str) -> None:
        """Unlock the SM clock; raises as ``set_power_limit`` does."""

    def close(self) -> None:
        """Release the hardware, if that takes anything; limits stay as they are."""
        return


#: Limiters by name, in the order in which to try them.
Limiters = dict[str, Limiter]
