"""Devices that are not there: their power follows a model and a load. For tests and rehearsals.

They appear only where ``WATTLAW_SIMULATED`` names a JSON file, a list of devices such as
``{"id": "SIM-0", "idle_w": 60, "max_w": 300, "load": {"kind": "square", "period_s": 1}}``.
Every sample of theirs says ``simulated``.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from wattlaw.devices.limiter import LimitState
from wattlaw.devices.meter import Device, Sample, Target
from wattlaw.errors import BadInput, NotAvailable, NotPermitted
from wattlaw.files import write_text

VARIABLE = "WATTLAW_SIMULATED"
_MODEL = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Load(BaseModel):
    """How busy a device is, between 0 and 1, as a function of time."""

    model_config = _MODEL

    kind: Literal["constant", "square"] = "constant"
    low: float = Field(default=0.0, ge=0, le=1)
    high: float = Field(default=1.0, ge=0, le=1)
    period_s: float = Field(default=1.0, gt=0)

    def at(self, t_s: float, most: float = 1.0) -> float:
        """Return the load at a moment, where no more than ``most`` is possible."""
        is_low = self.kind == "square" and (t_s / self.period_s) % 1.0 >= 0.5
        return min(most, self.low if is_low else self.high)

    def summed(self, t_s: float, most: float = 1.0) -> float:
        """Return the integral of that load from 0 to a moment, in seconds."""
        low, high = min(most, self.low), min(most, self.high)
        if self.kind == "constant":
            return high * t_s
        whole, part = divmod(t_s / self.period_s, 1.0)
        rest = high * min(part, 0.5) + low * max(0.0, part - 0.5)
        return (whole * (low + high) / 2 + rest) * self.period_s


class SimulatedDevice(BaseModel):
    """A device with ``power = idle + (max - idle) * load``."""

    model_config = _MODEL

    id: str = Field(min_length=1)
    kind: Literal["gpu", "cpu", "dram", "node"] = "gpu"
    idle_w: float = Field(ge=0)
    max_w: float = Field(gt=0)
    load: Load = Load()

    def most(self, limit_w: float | None) -> float:
        """Return the greatest load that a power limit leaves."""
        swing_w = self.max_w - self.idle_w
        if limit_w is None or swing_w <= 0:
            return 1.0
        return min(1.0, max(0.0, (limit_w - self.idle_w) / swing_w))


class SimulatedMeter:
    """Reads devices that are not there. A limit counts from the reading that first sees it."""

    period_s: float

    def __init__(self, path: Path | None, period_s: float) -> None:
        self._devices = _read(path) if path else ()
        self._path, self.period_s = path, period_s
        self._begun_ns = time.time_ns()
        self._energy_j = dict.fromkeys((one.id for one in self._devices), 0.0)
        self._last_s = 0.0

    @classmethod
    def open(cls, target: Target) -> Self:
        """Read the file of devices; without one there are none.

        Raises
        ------
        BadInput
            The file cannot be used.
        """
        return cls(_path(), target.period_s)

    def devices(self) -> list[Device]:
        """Return the devices of the file."""
        return [
            Device(one.id, one.kind, f"simulated, {one.idle_w:g} to {one.max_w:g} W")
            for one in self._devices
        ]

    def read(self, *, last: bool = False) -> list[Sample]:  # noqa: ARG002 - nothing is held back
        """Return what each would say now."""
        t_ns = time.time_ns()
        t_s = (t_ns - self._begun_ns) * 1e-9
        limits = _limits(self._path) if self._path else {}
        samples = []
        for one in self._devices:
            limit_w = limits.get(one.id, one.max_w)
            most, swing_w = one.most(limit_w), one.max_w - one.idle_w
            load_s = one.load.summed(t_s, most) - one.load.summed(self._last_s, most)
            self._energy_j[one.id] += one.idle_w * (t_s - self._last_s) + swing_w * load_s
            load = one.load.at(t_s, most)
            samples.append(
                Sample(
                    one.id,
                    one.kind,
                    t_ns,
                    power_w=one.idle_w + swing_w * load,
                    energy_j=self._energy_j[one.id],
                    power_source="simulated",
                    power_limit_w=limit_w,
                    sm_util=load if one.kind == "gpu" else None,
                )
            )
        self._last_s = t_s
        return samples

    def problems(self) -> list[str]:
        """Nothing goes wrong on paper."""
        return []

    def close(self) -> None:
        """Nothing is held open."""


class SimulatedLimiter:
    """Limits the power of simulated devices; the limits lie in a file beside theirs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._devices = {one.id: one for one in _read(path)}

    @classmethod
    def open(cls) -> Self:
        """Read the file of devices; raises ``NotAvailable`` where there is none."""
        path = _path()
        if path is None:
            raise NotAvailable(f"no simulated devices ({VARIABLE} is not set)")
        return cls(path)

    def devices(self) -> list[str]:
        """Return the ids of the devices."""
        return list(self._devices)

    def read(self, device: str) -> LimitState:
        """Return the limit of a device, by default its maximum."""
        one = self._device(device)
        limit_w = _limits(self._path).get(device, one.max_w)
        name = f"simulated, {one.idle_w:g} to {one.max_w:g} W"
        return LimitState(device, name, limit_w, limit_w, one.max_w, one.idle_w, one.max_w)

    def set_power_limit(self, device: str, watts: float) -> None:
        """Set the limit of a device."""
        one = self._device(device)
        if not one.idle_w <= watts <= one.max_w:
            raise NotAvailable(f"{device}: {watts:g} W is out of range")
        try:
            with self._path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # the limits of all devices are one file
                told = json.dumps(_limits(self._path) | {device: watts})
                write_text(_limits_path(self._path), told)
        except PermissionError as error:
            raise NotPermitted(f"{device}: {error.filename}: {error.strerror}") from None

    def lock_clock(self, device: str, mhz: float) -> None:
        """Refuse: these devices have no clock."""
        raise NotAvailable(f"{device}: has no clock to lock at {mhz:g} MHz")

    def unlock_clock(self, device: str) -> None:
        """Refuse: these devices have no clock."""
        raise NotAvailable(f"{device}: has no clock")

    def close(self) -> None:
        """Nothing is held open."""

    def _device(self, device: str) -> SimulatedDevice:
        if device not in self._devices:
            raise NotAvailable(f"{device}: is not in {self._path}")
        return self._devices[device]


def _path() -> Path | None:
    told = os.environ.get(VARIABLE)
    return Path(told) if told else None


def _limits_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.limits")


def _limits(path: Path) -> dict[str, float]:
    try:
        found: dict[str, float] = json.loads(_limits_path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def _read(path: Path) -> tuple[SimulatedDevice, ...]:
    reader = TypeAdapter(tuple[SimulatedDevice, ...])
    try:
        found = reader.validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{VARIABLE}={path}: cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BadInput(f"{VARIABLE}={path}: {place}: {first['msg']}") from None
    if len({one.id for one in found}) < len(found):
        raise BadInput(f"{VARIABLE}={path}: two devices have one id")
    return found
