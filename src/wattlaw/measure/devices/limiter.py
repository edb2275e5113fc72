"""The interface to hardware with limits: a ``Limiter`` reads and sets limits of devices."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from wattlaw.common.errors import NotAvailable

GROUP = "wattlaw.limiters"
G = TypeVar("G")


@dataclass(frozen=True)
class LimitState:
    """The limits of a device and their ranges; None if the device does not report a value.

    A limit without a range is refused, and so is a power limit without a present one, which could
    not be restored. A clock lock cannot be read back.
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
    #: Workload power profiles: those that it offers, that are requested, that it enforces.
    power_profiles: tuple[str, ...] = ()
    requested_profiles: tuple[str, ...] = ()
    enforced_profiles: tuple[str, ...] = ()


class Limiter(Protocol):
    """Limits one kind of hardware in one way. Registered under ``wattlaw.limiters``.

    If several limiters have a device, the first one that is permitted, by name, limits it.
    """

    @classmethod
    def open(cls) -> Self:
        """Raise ``NotAvailable``, which says why, if there is no device to limit in this way."""

    def devices(self) -> list[str]:
        """Return the ids of the devices, the same as those of the meter."""

    def read(self, device: str) -> LimitState:
        """Return the state of a device; raises ``NotAvailable`` if it does not answer."""

    def set_power_limit(self, device: str, watts: float) -> None:
        """Raise ``NotPermitted`` if this user may not set limits in this way, and ``NotAvailable``
        if the device refuses it or does not answer. The message has the device's id, and says
        "lost" of a device that is gone."""

    def lock_clock(self, device: str, mhz: float) -> None:
        """Lock the SM clock at a frequency; raises as ``set_power_limit`` does."""

    def unlock_clock(self, device: str) -> None:
        """Unlock the SM clock; raises as ``set_power_limit`` does."""

    def request_profiles(self, device: str, profiles: Collection[str]) -> None:
        """Request these power profiles and no others; raises as ``set_power_limit`` does. Devices
        that offer none need not have it."""

    def permission_problem(self, device: str) -> str | None:  # noqa: ARG002 - unknown
        """Return why this user may not set limits in this way, None if that is not known."""
        return None

    def close(self) -> None:
        """Release the hardware, if that takes anything; limits stay as they are."""
        return


class GpuLimiter(Limiter, Generic[G]):
    """A limiter of GPUs, by their ids."""

    def __init__(self, gpus: Mapping[str, G]) -> None:
        self._gpus = gpus

    def devices(self) -> list[str]:
        return list(self._gpus)

    def _gpu(self, device: str) -> G:
        gpu = self._gpus.get(device)
        if gpu is None:
            raise NotAvailable(f"GPU {device} is not on this machine")
        return gpu


#: Limiters by name, in the order in which to try them.
Limiters = dict[str, Limiter]
