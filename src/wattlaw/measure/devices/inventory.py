"""What this machine can measure and limit, by which meter and limiter, and why not."""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from wattlaw.common import registry, scopes
from wattlaw.common.errors import NotAvailable, WattlawError, one_line
from wattlaw.common.scopes import KINDS, Candidate, KindEnergy
from wattlaw.measure.devices import limiter as limiters
from wattlaw.measure.devices import meter as meters
from wattlaw.measure.devices import sysfs
from wattlaw.measure.devices.limiter import LimitState
from wattlaw.measure.devices.meter import Accelerator, Device, Target

T = TypeVar("T")

_DRIVER_TIMEOUT_S = 15.0


@dataclass
class Availability(Generic[T]):
    """A registered meter or limiter: what it reports of its devices, or why there are none."""

    name: str
    devices: list[T] = field(default_factory=list)
    reason: str | None = None
    problems: list[str] = field(default_factory=list)


def list_meters() -> list[Availability[Device]]:
    available = []
    for name, meter, reason in _open_all(meters.GROUP, Target(os.getpid())):
        available.append(entry := Availability[Device](name, reason=reason))
        if meter is not None:
            entry.devices, entry.problems = meter.devices(), meter.problems()
            meter.close()
    return available


def counted(devices: Sequence[Device]) -> tuple[tuple[str, ...], list[Device]]:
    """The rules are those of the energies of windows, for devices that are all measured."""
    candidates = [
        Candidate(d, d.kind, d.facts, d.contains, has_energy=not d.facts.get("failed"))
        for d in devices
        if d.has_energy
    ]
    by_kind = {k: scopes.select(k, [c for c in candidates if c.kind == k]) for k in KINDS}
    known = {k: KindEnergy(own) for k, own in by_kind.items() if any(c.has_energy for c in own)}
    kinds = scopes.total(known)
    return kinds, [c.device for kind in kinds for c in by_kind[kind] if c.has_energy]


def list_limiters() -> list[Availability[LimitState]]:
    """Open every registered limiter for a moment; this changes nothing."""
    available = []
    for name, limiter, reason in _open_all(limiters.GROUP):
        available.append(entry := Availability[LimitState](name, reason=reason))
        for device in limiter.devices() if limiter is not None else ():
            try:
                entry.devices.append(limiter.read(device))
            except WattlawError as error:
                entry.reason = str(error)
        if limiter is not None:
            limiter.close()
    return available


def accelerators() -> list[Accelerator]:
    found: list[Accelerator] = []
    for name in registry.names(meters.GROUP):
        with contextlib.suppress(WattlawError):  # a broken meter does not hide the others
            accelerator = getattr(registry.load(meters.GROUP, name), "accelerator", None)
            found += [] if accelerator is None else [accelerator]
    return sorted(found, key=lambda accelerator: accelerator.order)


def visible_gpu_ids() -> list[str]:
    return list(dict.fromkeys(visible_devices().values()))


def visible_devices() -> dict[str, str]:
    """Return the visible GPUs and MIG instances, each with the id of its GPU. They are of one
    vendor, as those that torch uses. A driver that does not answer for some seconds counts as
    none."""
    sysfs.check_root()
    ids: dict[str, str] = {}

    def find() -> None:
        for accelerator in accelerators():
            with contextlib.suppress(NotAvailable):
                ids.update({} if ids else accelerator.visible())

    thread = threading.Thread(target=find, daemon=True)
    thread.start()
    thread.join(_DRIVER_TIMEOUT_S)
    return {} if thread.is_alive() else ids


def gpu_environment(ids: Sequence[str]) -> dict[str, str]:
    for accelerator in accelerators():
        if all(device.startswith(accelerator.id_prefixes) for device in ids):
            return dict(accelerator.environment(ids))
    raise NotAvailable(f"no vendor has all of the GPUs {', '.join(ids)}")


def _open_all(group: str, *arguments: Any) -> Iterator[tuple[str, Any, str | None]]:
    sysfs.check_root()
    for name in registry.names(group):
        try:
            opened = registry.load(group, name).open(*arguments)
        except WattlawError as error:
            yield name, None, str(error)
        except Exception as error:  # a broken plug-in does not hide the others
            yield name, None, f"cannot be opened: {one_line(error)}"
        else:
            yield name, opened, None
