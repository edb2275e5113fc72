"""Simulated devices whose power follows a model and a load, a package for the tests.

They exist only if ``WATTLAW_SIMULATED`` names a JSON file with a list of devices such as
``{"id": "SIM-0", "idle_w": 60, "max_w": 300, "load": {"kind": "square", "period_s": 1}}``.
Each of their samples is marked ``simulated``, or as ``source`` says.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from wattlaw.common.errors import BadInput, NotAvailable, NotPermitted
from wattlaw.common.files import write_text
from wattlaw.measure.devices.limiter import Limiter, LimitState
from wattlaw.measure.devices.meter import Device, Meter, Sample, Target
from wattlaw.store.streams import Kind, PowerSource

VARIABLE = "WATTLAW_SIMULATED"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Load(_Model):
    """The load of a device, between 0 and 1, as a function of time."""

    kind: Literal["constant", "square"] = "constant"
    low: float = Field(default=0.0, ge=0, le=1)
    high: float = Field(default=1.0, ge=0, le=1)
    period_s: float = Field(default=1.0, gt=0)

    def at(self, t_s: float, maximum: float = 1.0) -> float:
        is_low = self.kind == "square" and (t_s / self.period_s) % 1.0 >= 0.5
        return min(maximum, self.low if is_low else self.high)

    def integral_s(self, t_s: float, maximum: float = 1.0) -> float:
        """Return the integral of the load from 0 to a moment, in seconds."""
        low, high = min(maximum, self.low), min(maximum, self.high)
        if self.kind == "constant":
            return high * t_s
        periods, part = divmod(t_s / self.period_s, 1.0)
        rest = high * min(part, 0.5) + low * max(0.0, part - 0.5)
        return (periods * (low + high) / 2 + rest) * self.period_s


class SimulatedDevice(_Model):
    """A device with ``power = idle + (max - idle) * load``."""

    id: str = Field(min_length=1)
    kind: Kind = "gpu"
    contains: tuple[Kind, ...] = ()
    facts: dict[str, str | float | bool] = {}
    source: PowerSource = "simulated"
    idle_w: float = Field(ge=0)
    max_w: float = Field(gt=0)
    load: Load = Load()

    @property
    def description(self) -> str:
        return f"simulated, {self.idle_w:g} to {self.max_w:g} W"

    def max_load(self, limit_w: float | None) -> float:
        swing_w = self.max_w - self.idle_w
        if limit_w is None or swing_w <= 0:
            return 1.0
        return min(1.0, max(0.0, (limit_w - self.idle_w) / swing_w))


class SimulatedMeter(Meter):
    """Reads simulated devices. A limit applies from the first reading after it was set."""

    period_s: float

    def __init__(self, path: Path | None, period_s: float) -> None:
        self._devices = _read(path) if path else ()
        self._path, self.period_s = path, period_s
        self._start_ns = time.time_ns()
        self._energy_j = dict.fromkeys((device.id for device in self._devices), 0.0)
        self._last_s = 0.0

    @classmethod
    def open(cls, target: Target) -> Self:
        """Read the file of devices; without a file there are none."""
        return cls(_path(), target.period_s)

    def devices(self) -> list[Device]:
        return [Device(d.id, d.kind, d.description, d.facts, d.contains) for d in self._devices]

    def read(self, *, last: bool = False) -> list[Sample]:
        t_ns = time.time_ns()
        t_s = (t_ns - self._start_ns) * 1e-9
        limits = _limits(self._path) if self._path else {}
        samples = []
        for device in self._devices:
            limit_w = limits.get(device.id, device.max_w)
            maximum, swing_w = device.max_load(limit_w), device.max_w - device.idle_w
            end_s, begin_s = (device.load.integral_s(t, maximum) for t in (t_s, self._last_s))
            idle_j = device.idle_w * (t_s - self._last_s)
            self._energy_j[device.id] += idle_j + swing_w * (end_s - begin_s)
            load = device.load.at(t_s, maximum)
            samples.append(
                Sample(
                    device.id,
                    device.kind,
                    t_ns,
                    power_w=device.idle_w + swing_w * load,
                    energy_j=self._energy_j[device.id],
                    power_source=device.source,
                    power_limit_w=limit_w,
                    sm_util=load if device.kind == "gpu" else None,
                )
            )
        self._last_s = t_s
        return samples


class SimulatedLimiter(Limiter):
    """Limits the power of simulated devices, with a file of limits next to theirs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._devices = {device.id: device for device in _read(path)}

    @classmethod
    def open(cls) -> Self:
        path = _path()
        if path is None:
            raise NotAvailable(f"no simulated devices ({VARIABLE} is not set)")
        return cls(path)

    def devices(self) -> list[str]:
        return list(self._devices)

    def read(self, device: str) -> LimitState:
        model = self._device(device)
        limit_w = _limits(self._path).get(device, model.max_w)
        low_w, high_w = model.idle_w, model.max_w
        return LimitState(device, model.description, limit_w, limit_w, high_w, low_w, high_w)

    def set_power_limit(self, device: str, watts: float) -> None:
        model = self._device(device)
        if not model.idle_w <= watts <= model.max_w:
            raise NotAvailable(f"{device}: {watts:g} W is out of range")
        try:
            with self._path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # the limits of all devices are in one file
                limits = _limits(self._path) | {device: watts}
                write_text(_limits_path(self._path), json.dumps(limits))
        except PermissionError as error:
            raise NotPermitted(f"{device}: {error.filename}: {error.strerror}") from None

    def lock_clock(self, device: str, mhz: float) -> None:
        raise NotAvailable(f"{device}: has no clock to lock at {mhz:g} MHz")

    def unlock_clock(self, device: str) -> None:
        raise NotAvailable(f"{device}: has no clock")

    def _device(self, device: str) -> SimulatedDevice:
        if device not in self._devices:
            raise NotAvailable(f"{device}: is not in {self._path}")
        return self._devices[device]


def _path() -> Path | None:
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None


def _limits_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.limits")


def _limits(path: Path) -> dict[str, float]:
    try:
        limits: dict[str, float] = json.loads(_limits_path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return limits


def _read(path: Path) -> tuple[SimulatedDevice, ...]:
    reader = TypeAdapter(tuple[SimulatedDevice, ...])
    try:
        devices = reader.validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{VARIABLE}={path}: cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise BadInput(f"{VARIABLE}={path}: {field}: {first['msg']}") from None
    if len({device.id for device in devices}) < len(devices):
        raise BadInput(f"{VARIABLE}={path}: two devices have the same id")
    return devices
