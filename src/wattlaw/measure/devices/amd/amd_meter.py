"""Energy, power and utilisation of the AMD GPUs that this process may use."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices import sysfs
from wattlaw.measure.devices.amd.gpus import AMD, AmdGpu, usable_gpus, visible_gpus
from wattlaw.measure.devices.amd.smi import AmdSmi, SmiGpu, number
from wattlaw.measure.devices.file_meter import MAX_W, WrappingCounter
from wattlaw.measure.devices.meter import Device, Meter, Sample, Target
from wattlaw.measure.devices.visible import GpuSelection

#: The driver reads its sensors again after a millisecond; the firmware averages power over more.
_MIN_PERIOD_S = 0.05
_SECOND_NS = 950_000_000
#: The period of values that change slowly.
_SLOW_NS = 4_950_000_000
#: After so many readings in a row without power and energy, a GPU is not read any more.
_MAX_FAILURES = 10
#: The greatest values that a GPU can have; greater values count as missing.
_MAX_PERCENT, _MAX_MHZ, _MAX_C, _NO_MAXIMUM = 100, 20_000, 200, 2.0**63
#: Sources of power in the order of preference: files in microwatts, the library in whole watts.
_POWER = {
    "power1_average": "average",
    "power1_input": "instant",
    "average_socket_power": "average",
    "current_socket_power": "instant",
}


class AmdMeter(Meter):
    accelerator = AMD

    def __init__(
        self, readers: list["_Reader"], smi: AmdSmi | None, period_s: float, notes: Collection[str]
    ) -> None:
        self._readers, self._smi, self._notes = readers, smi, notes
        self.period_s = max(period_s, _MIN_PERIOD_S)

    @classmethod
    def open(cls, target: Target) -> Self:
        if target.gpus is None:
            selection = visible_gpus()
        else:
            requested = (gpu for gpu in usable_gpus() if gpu.uuid in target.gpus)
            selection = GpuSelection(tuple(requested))
            if not selection.gpus:
                raise NotAvailable("none of the requested GPUs is an AMD GPU of this machine")
        smi, why = None, "AMD SMI does not list this GPU"
        try:
            smi = AmdSmi.open()
        except NotAvailable as error:
            why = str(error)
        own = {gpu.uuid for gpu in selection.gpus}
        readers = [
            _Reader(gpu, None if smi is None else smi.gpu(gpu.bus_id), own, why)
            for gpu in selection.gpus
        ]
        return cls(readers, smi, target.period_s, selection.notes)

    def devices(self) -> list[Device]:
        return [reader.device for reader in self._readers]

    def read(self, *, last: bool = False) -> list[Sample]:
        samples = []
        for reader in self._readers:
            t_ns = time.time_ns()
            if values := reader.read(t_ns, last=last):
                if {"power_w", "energy_j"} & values.keys():
                    values["power_source"] = "measured"
                samples.append(Sample(reader.device.id, "gpu", t_ns, **values))
        return samples

    def problems(self) -> list[str]:
        return [*self._notes, *(r.problem for r in self._readers if r.problem is not None)]

    def close(self) -> None:
        if self._smi is not None:
            self._smi.close()


class _Reader:
    """Reads one GPU: what it supports at the start, and each value at its own period."""

    def __init__(self, gpu: AmdGpu, smi: SmiGpu | None, own: Collection[str], why: str) -> None:
        self._gpu, self._smi = gpu, smi
        self._hwmon = gpu.hwmon or gpu.folder / "hwmon"
        self.problem: str | None = None
        self._failures = self._second_ns = self._slow_ns = 0
        self._counter = WrappingCounter(2**32)
        self._cycles: tuple[int, int, int] | None = None
        self._throttled_s = 0.0
        is_reporter = gpu.reporter == gpu.uuid
        powers, counters = (_POWER, ("amdsmi", "energy1_input")) if is_reporter else ((), ())
        self._power_by = next((name for name in powers if self._power(name)), None)
        self._energy_by = next((name for name in counters if self._energy(name)), None)
        labels = {sysfs.optional_text(self._hwmon / f"temp{n}_label"): n for n in (1, 2, 3)}
        self._temperature = f"temp{labels.get('junction') or labels.get('edge') or 1}_input"
        facts = self._facts(own) | {"amdsmi": why if smi is None else "used"}
        self.device = Device(
            gpu.uuid,
            "gpu",
            gpu.name,
            facts,
            gpu.contains,
            has_energy=bool(self._power_by or self._energy_by),
        )

    def _facts(self, own: Collection[str]) -> dict[str, str | float | bool | None]:
        gpu, others = self._gpu, [uuid for uuid in self._gpu.board if uuid not in own]
        reporter = f"GPU {gpu.reporter} reports the power of their board"
        if gpu.reporter != gpu.uuid:
            failed = {"failed": f"{reporter}, and this process may not use it"}
            return {"scope": f"none: {reporter}", **(failed if others else {})}
        is_measured = self._power_by is not None or self._energy_by is not None
        board = f"the board with GPUs {' and '.join(gpu.board)}" if gpu.board else "GPU and memory"
        return {
            "bus_id": gpu.bus_id,
            "scope": "socket: processor, GPU and memory" if gpu.contains else board,
            "energy_counter": self._energy_by,
            "power": _POWER.get(self._power_by or ""),
            "default_power_limit_w": self._watts("power1_cap_default"),
            "max_power_limit_w": self._watts("power1_cap_max"),
            "power_limit_w": self._watts("power1_cap"),
            "is_shared": bool(others or gpu.partition),
        } | ({} if is_measured else {"failed": f"the driver reports no power ({self._reason()})"})

    def _reason(self) -> str:
        path = self._hwmon / "power1_average"
        try:
            return f"{path.name} is {path.read_text()[:20].strip()!a}"
        except (OSError, ValueError) as error:
            return f"{path.name}: {getattr(error, 'strerror', None) or error}"

    def read(self, now_ns: int, *, last: bool) -> dict[str, Any]:
        if self.problem is not None:
            return {}
        values = self._utilisation()
        values["power_w"] = self._power(self._power_by)
        if reading := self._energy(self._energy_by):
            values["energy_j"] = self._counter.corrected(*reading)
        if last or now_ns - self._second_ns >= _SECOND_NS:
            self._second_ns = now_ns
            clock = self._smi.clock_mhz() if self._smi else _clock(self._gpu.folder / "pp_dpm_sclk")
            values["sm_clock_mhz"] = number(clock, _MAX_MHZ)
            values["power_throttle_s"] = self._throttle(now_ns)
        if last or now_ns - self._slow_ns >= _SLOW_NS:
            self._slow_ns = now_ns
            values |= self._slow()
        known = {name: value for name, value in values.items() if value is not None}
        self._check(known)
        return known if self.problem is None else {}

    def _check(self, values: dict[str, Any]) -> None:
        """Notice a GPU that was removed, or that answers no more."""
        is_measured = self._power_by is not None or self._energy_by is not None
        has_answered = bool({"power_w", "energy_j"} & values.keys() if is_measured else values)
        self._failures = 0 if has_answered else self._failures + 1
        if self._failures and sysfs.optional_text(self._gpu.folder / "vendor") is None:
            self.problem = f"{self._gpu.uuid}: lost: {self._gpu.folder} has been removed"
        elif self._failures >= _MAX_FAILURES:
            self.problem = f"{self._gpu.uuid}: no longer read: {self._reason()}"

    def _power(self, source: str | None) -> float | None:
        """Return the power; 0 W means that it is not available."""
        if source is None or source.startswith("power1"):
            return self._watts(source)
        info = self._smi and self._smi.read("amdsmi_get_power_info")
        return number(info and info.get(source), MAX_W) or None

    def _energy(self, source: str | None) -> tuple[int, float] | None:
        """Return the counter and the joules of its unit."""
        if source != "amdsmi":
            count = sysfs.read_optional(self._hwmon / source) if source else None
            return None if count is None else (count, 1e-6)
        counter = (self._smi and self._smi.read("amdsmi_get_energy_count")) or {}
        raw = number(counter.get("energy_accumulator"), _NO_MAXIMUM)
        unit_uj = number(counter.get("counter_resolution"), 1e6)
        return (int(raw), unit_uj * 1e-6) if raw and unit_uj else None

    def _utilisation(self) -> dict[str, float | None]:
        activity = self._smi and self._smi.read("amdsmi_get_gpu_activity")
        if not activity:
            files = {"gfx_activity": "gpu_busy_percent", "umc_activity": "mem_busy_percent"}
            activity = {
                key: sysfs.read_optional(self._gpu.folder / file) for key, file in files.items()
            }
        sm, memory = (
            number(activity.get(f"{part}_activity"), _MAX_PERCENT) for part in ("gfx", "umc")
        )
        return {
            "sm_util": None if sm is None else sm * 1e-2,
            "mem_util": None if memory is None else memory * 1e-2,
        }

    def _throttle(self, now_ns: int) -> float | None:
        """Return the time at the power limit: the share of the firmware's cycles at it."""
        cycles = self._smi.power_limit_cycles() if self._smi and self._energy_by else None
        if cycles is None:
            return None
        last, self._cycles = self._cycles, (*cycles, now_ns)
        if last is not None and cycles[0] > last[0] and cycles[1] >= last[1]:
            share = min(1.0, (cycles[1] - last[1]) / (cycles[0] - last[0]))
            self._throttled_s += share * (now_ns - last[2]) * 1e-9
        return self._throttled_s

    def _slow(self) -> dict[str, float | None]:
        """Return the values that change slowly, and check that it is still the same GPU."""
        folder, known_id = self._gpu.folder, self._gpu.unique_id
        unique_id = sysfs.optional_text(folder / "unique_id")
        if unique_id and known_id and unique_id.lower().zfill(16) != known_id:
            self.problem = f"{self._gpu.uuid}: lost: another board has replaced it"
        total = sysfs.read_optional(folder / "mem_info_vram_total") or _NO_MAXIMUM
        celsius = number(sysfs.read_optional(self._hwmon / self._temperature), _MAX_C * 1000)
        return {
            "power_limit_w": self._watts("power1_cap"),
            "mem_used_bytes": number(sysfs.read_optional(folder / "mem_info_vram_used"), total),
            "mem_clock_mhz": number(_clock(folder / "pp_dpm_mclk"), _MAX_MHZ),
            "temperature_c": None if celsius is None else celsius * 1e-3,
        }

    def _watts(self, file: str | None) -> float | None:
        """Return the watts in a file of microwatts; 0 means that they are not available."""
        microwatts = number(sysfs.read_optional(self._hwmon / file) if file else None, MAX_W * 1e6)
        return microwatts * 1e-6 if microwatts else None


def _clock(path: Path) -> int | None:
    """Return the present clock of a list such as ``1: 800Mhz *``."""
    for line in (sysfs.optional_text(path) or "").splitlines():
        if line.endswith("*"):
            digits = line.partition(":")[2].strip(" *").removesuffix("Mhz")
            return int(digits) if digits.isdigit() else None
    return None
