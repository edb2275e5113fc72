"""Energy, power and utilisation of the AMD GPUs that this process may use.

Power, utilisation and clocks are those of the driver's files. The energy counter of
most boards is in the library of AMD SMI only (``libamd_smi.so``), which is read by its Python
binding where both are installed.
"""

import contextlib
import importlib
import io
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

from wattlaw.common.errors import NotAvailable, one_line
from wattlaw.measure.devices import sysfs
from wattlaw.measure.devices.amd.gpus import AMD, AmdGpu, visible_gpus
from wattlaw.measure.devices.file_meter import MAX_W, WrappingCounter
from wattlaw.measure.devices.meter import Device, Meter, Sample, Target

#: The driver reads its sensors again after a millisecond; the firmware averages power over more.
_MIN_PERIOD_S = 0.05
#: The periods of the clock, and of values that change slowly.
_SECOND_NS, _SLOW_NS = 950_000_000, 4_950_000_000
#: After so many readings in a row without power and energy, a GPU is not read any more.
_MAX_FAILURES = 10
#: The greatest values that a GPU can have; greater values count as missing.
_MAX_PERCENT, _MAX_MHZ, _MAX_C = 100, 20_000, 200
#: What the driver's files of power are, in the order of preference.
_POWER = {"power1_average": "average", "power1_input": "instant"}
#: The library's values for "not available": the greatest of 16, 32 and 64 bits.
_SENTINELS = frozenset({2**16 - 1, 2**32 - 1, 2**64 - 1})


class AmdMeter(Meter):
    accelerator = AMD

    def __init__(
        self,
        readers: list["_Reader"],
        smi: "AmdSmi | None",
        period_s: float,
        notes: Collection[str],
    ) -> None:
        self._readers, self._smi, self._notes = readers, smi, notes
        self.period_s = max(period_s, _MIN_PERIOD_S)

    @classmethod
    def open(cls, target: Target) -> Self:
        selection = visible_gpus()
        smi, why = None, "AMD SMI does not list this GPU"
        try:
            smi = AmdSmi()
        except NotAvailable as error:
            why = str(error)
        own = {gpu.uuid for gpu in selection.gpus}
        readers = [_Reader(gpu, smi, own, why) for gpu in selection.gpus]
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
    def __init__(self, gpu: AmdGpu, smi: "AmdSmi | None", own: Collection[str], why: str) -> None:
        self._gpu = gpu
        self._smi = smi if smi is not None and gpu.bus_id in smi.handles else None
        self._hwmon = gpu.hwmon or gpu.folder / "hwmon"
        self.problem: str | None = None
        self._failures = self._second_ns = self._slow_ns = 0
        self._counter = WrappingCounter(2**32)
        is_reporter = gpu.reporter == gpu.uuid
        powers, counters = (_POWER, ("amdsmi", "energy1_input")) if is_reporter else ((), ())
        self._power_by = next((name for name in powers if self._watts(name)), None)
        self._energy_by = next((name for name in counters if self._energy(name)), None)
        self._is_measured = self._power_by is not None or self._energy_by is not None
        labels = {sysfs.optional_text(self._hwmon / f"temp{n}_label"): n for n in (1, 2, 3)}
        self._temperature = f"temp{labels.get('junction') or labels.get('edge') or 1}_input"
        facts = self._facts(own) | {"amdsmi": why if self._smi is None else "used"}
        self.device = Device(
            gpu.uuid, "gpu", gpu.name, facts, gpu.contains, has_energy=self._is_measured
        )

    def _facts(self, own: Collection[str]) -> dict[str, str | float | bool | None]:
        gpu, others = self._gpu, [uuid for uuid in self._gpu.board if uuid not in own]
        if gpu.reporter != gpu.uuid:
            reporter = f"GPU {gpu.reporter} reports the power of their board"
            failed = {"failed": f"{reporter}, and this process may not use it"}
            return {"scope": f"none: {reporter}", **(failed if others else {})}
        board = f"the board with GPUs {' and '.join(gpu.board)}" if gpu.board else "GPU and memory"
        facts: dict[str, str | float | bool | None] = {
            "bus_id": gpu.bus_id,
            "scope": "socket: processor, GPU and memory" if gpu.contains else board,
            "energy_counter": self._energy_by,
            "power": _POWER.get(self._power_by or ""),
            "default_power_limit_w": self._watts("power1_cap_default"),
            "min_power_limit_w": self._watts("power1_cap_min"),
            "max_power_limit_w": self._watts("power1_cap_max"),
            "power_limit_w": self._watts("power1_cap"),
            "is_shared": bool(others or gpu.partition),
        }
        if not self._is_measured:
            facts["failed"] = f"the driver reports no power ({self._reason()})"
        return facts

    def _reason(self) -> str:
        path = self._hwmon / "power1_average"
        try:
            return f"{path.name} is {path.read_text()[:20].strip()!a}"
        except (OSError, ValueError) as error:
            return f"{path.name}: {getattr(error, 'strerror', None) or error}"

    def read(self, now_ns: int, *, last: bool) -> dict[str, Any]:
        if self.problem is not None:
            return {}
        folder = self._gpu.folder
        values = {
            "sm_util": _share(folder / "gpu_busy_percent"),
            "mem_util": _share(folder / "mem_busy_percent"),
            "power_w": self._watts(self._power_by),
        }
        if reading := self._energy(self._energy_by):
            values["energy_j"] = self._counter.corrected(*reading)
        if last or now_ns - self._second_ns >= _SECOND_NS:
            self._second_ns = now_ns
            values["sm_clock_mhz"] = _clock(folder / "pp_dpm_sclk")
        if last or now_ns - self._slow_ns >= _SLOW_NS:
            self._slow_ns = now_ns
            values |= self._slow()
        known = {name: value for name, value in values.items() if value is not None}
        self._check(known)
        return known if self.problem is None else {}

    def _check(self, values: dict[str, Any]) -> None:
        has_answered = bool(
            {"power_w", "energy_j"} & values.keys() if self._is_measured else values
        )
        self._failures = 0 if has_answered else self._failures + 1
        if self._failures and sysfs.optional_text(self._gpu.folder / "vendor") is None:
            self.problem = f"{self._gpu.uuid}: lost: {self._gpu.folder} has been removed"
        elif self._failures >= _MAX_FAILURES:
            self.problem = f"{self._gpu.uuid}: no longer read: {self._reason()}"

    def _energy(self, source: str | None) -> tuple[int, float] | None:
        if source == "amdsmi":
            return None if self._smi is None else self._smi.energy_count(self._gpu.bus_id)
        count = sysfs.read_optional(self._hwmon / source) if source else None
        return None if count is None else (count, 1e-6)

    def _slow(self) -> dict[str, float | None]:
        folder, known_id = self._gpu.folder, self._gpu.unique_id
        unique_id = sysfs.optional_text(folder / "unique_id")
        if unique_id and known_id and unique_id.lower().zfill(16) != known_id:
            self.problem = f"{self._gpu.uuid}: lost: another board has replaced it"
        total = sysfs.read_optional(folder / "mem_info_vram_total") or 2**63
        celsius = _at_most(sysfs.read_optional(self._hwmon / self._temperature), _MAX_C * 1000)
        return {
            "power_limit_w": self._watts("power1_cap"),
            "mem_used_bytes": _at_most(sysfs.read_optional(folder / "mem_info_vram_used"), total),
            "mem_clock_mhz": _clock(folder / "pp_dpm_mclk"),
            "temperature_c": None if celsius is None else celsius * 1e-3,
        }

    def _watts(self, file: str | None) -> float | None:
        """Return the watts in a file of microwatts; 0 means that they are not available."""
        microwatts = sysfs.read_optional(self._hwmon / file) if file else None
        return (_at_most(microwatts, MAX_W * 1e6) or 0) * 1e-6 or None


def _at_most(value: int | None, maximum: float) -> int | None:
    return None if value is None or value > maximum else value


def _share(path: Path) -> float | None:
    percent = _at_most(sysfs.read_optional(path), _MAX_PERCENT)
    return None if percent is None else percent * 1e-2


def _clock(path: Path) -> int | None:
    """Return the present clock of a list such as ``1: 800Mhz *``."""
    for line in (sysfs.optional_text(path) or "").splitlines():
        if line.endswith("*"):
            digits = line.partition(":")[2].strip(" *").removesuffix("Mhz")
            return _at_most(int(digits), _MAX_MHZ) if digits.isdigit() else None
    return None


class AmdSmi:
    """The library of AMD SMI by its Python binding; GPUs by their bus ids."""

    def __init__(self) -> None:
        """Without its library the binding prints lines and raises errors of many kinds."""
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._binding = importlib.import_module("amdsmi")
        except ModuleNotFoundError:
            raise NotAvailable("the package amdsmi is not installed") from None
        except KeyError:
            raise NotAvailable("libamd_smi.so of AMD SMI cannot be loaded") from None
        except (Exception, SystemExit) as error:  # such as a library that lacks a function
            raise NotAvailable(f"AMD SMI cannot be loaded: {one_line(error)}") from None
        try:
            self._binding.amdsmi_init()
            self.handles = {
                self._binding.amdsmi_get_gpu_device_bdf(handle): handle
                for handle in self._binding.amdsmi_get_processor_handles()
            }
        except (Exception, SystemExit) as error:
            raise NotAvailable(f"AMD SMI does not answer: {one_line(error)}") from None

    def energy_count(self, bus_id: str) -> tuple[int, float] | None:
        try:
            counter = self._binding.amdsmi_get_energy_count(self.handles[bus_id])
            raw, unit_uj = int(counter["energy_accumulator"]), float(counter["counter_resolution"])
        except Exception:  # the binding also raises ValueError and others on odd data
            return None
        is_known = 0 < raw < 2**63 and raw not in _SENTINELS and 0 < unit_uj <= 1e6
        return (raw, unit_uj * 1e-6) if is_known else None

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._binding.amdsmi_shut_down()
