"""The interface to hardware that is read: a ``Meter`` lists devices and samples them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, Self

from wattlaw.store.streams import Kind, Sample

__all__ = ["GROUP", "NO_GPU", "Accelerator", "Device", "Facts", "Meter", "Sample", "Target"]

GROUP = "wattlaw.devices"

#: The features of a device as its meter detects them, in values that fit into JSON.
Facts = Mapping[str, str | float | bool | None]


@dataclass(frozen=True)
class Device:
    """One piece of hardware, with an id that stays the same between runs.

    These facts are read by other code; each is left out or None where the meter does not know it,
    but a GPU has ``scope`` and ``is_shared`` always. A meter may add others.

    - ``scope``: what is counted, as text for users.
    - ``energy_counter``, ``power``: the source of each, such as ``hwmon``.
    - ``resolution_s`` or ``counter_refresh_s``: how often the hardware updates its values.
    - ``power_limit_w``, ``min_power_limit_w``, ``max_power_limit_w``: the limit and its range in W;
      a power far above the greatest is implausible, and predictions of limits keep to the range.
    - ``is_shared``: others may use a part of it, so that its energy may include theirs.
    - ``complements``: it counts only where no other device of its kind has an energy.
    - ``failed``: why it cannot be read at all.
    """

    id: str
    kind: Kind
    name: str
    facts: Facts = field(default_factory=dict)
    #: Kinds of devices of the host whose energy is part of this one's, so that no sum has both.
    contains: tuple[Kind, ...] = ()
    has_energy: bool = True  # False: its samples have neither power nor energy


@dataclass(frozen=True, slots=True)
class Target:
    """What to meter, how often, and with which assumptions of the user."""

    root_pid: int
    period_s: float = 0.1
    assume_cpu_w: float | None = None


@dataclass(frozen=True)
class Accelerator:
    """The GPUs of one vendor: which of them a process may use, and how torch names them.

    A meter of GPUs that can train has one as ``Meter.accelerator``.
    """

    torch_kind: str  # of torch.device
    backend: str  # of torch.distributed
    #: How the ids of its GPUs begin, and of parts of them such as MIG instances.
    id_prefixes: tuple[str, ...]
    #: Return the ids of the GPUs and parts that this process may use, each with that of its GPU.
    #: Raises ``NotAvailable`` if there are none.
    visible: Callable[[], Mapping[str, str]]
    #: Return the variables that make exactly these devices visible to a child, in this order.
    environment: Callable[[Sequence[str]], Mapping[str, str]]
    #: Any of these files means that torch may have GPUs that the meter does not list.
    driver_files: tuple[str, ...] = ()
    order: int = 9  # where GPUs of several vendors are visible, those of the least are used


#: The processor, where no GPU is used.
NO_GPU = Accelerator("cpu", "gloo", (), dict, lambda _: {})


class Meter(Protocol):
    """Reads one kind of hardware. Registered under the entry point ``wattlaw.devices``."""

    #: What training on these devices needs; None: they are measured only.
    accelerator: ClassVar[Accelerator | None] = None
    #: The period at which to call ``read``, in seconds; at least ``Target.period_s``.
    period_s: float

    @classmethod
    def open(cls, target: Target) -> Self:
        """Raise ``NotAvailable`` if this machine or user has no such hardware; the message says why
        and what would help."""

    def devices(self) -> list[Device]:
        """Return the devices that are read; none if there are none to report."""

    def read(self, *, last: bool = False) -> list[Sample]:
        """Return the new samples; none of a device that does not answer.

        A driver that buffers timestamped samples gives several for one device. With ``last``,
        no sample is kept for a later reading.
        """

    def problems(self) -> list[str]:
        """Return why devices stopped having samples, one line each."""
        return []

    def close(self) -> None:
        """Release the hardware, if that takes anything."""
        return
