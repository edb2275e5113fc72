"""Energy, power and utilisation of the AMD GPUs that this process may use."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

from wattlaw.devices import sysfs
from wattlaw.devices.amd.gpus import AmdGpu, read_optional, usable_gpus, visible_gpus
from wattlaw.devices.amd.smi import AmdSmi, number
from wattlaw.devices.meter import Device, Facts, Sample, Target
from wattlaw.errors import NotAvailable

#: The driver reads its sensors again after a millisecond; the firmware averages power over more.
_MIN_PERIOD_S = 0.05
_SECOND_NS = 950_000_000
#: The period of values that change slowly.
_SLOW_NS = 4_950_000_000
#: After so many readings in a row without power and energy, a GPU is not read any more.
_MAX_FAILURES = 10
_MIN_INTERVAL_S = 0.1
#: The greatest values that a GPU can have; greater values count as missing.
_MAX_W, _MAX_PERCENT, _MAX_MHZ, _MAX_C = 5000.0, 100, 20_000, 200
_NO_MAXIMUM = 2.0**63
_POWER_FILES = {"power1_average": "average", "power1_input": "instant"}


class AmdMeter:
    """The GPUs that the environment makes visible, each once, by the id of the chip."""

    def __init__(self, readers: list["_Reader"], smi: AmdSmi | None, period_s: float) -> None:
        self._readers, self._smi = readers, smi
        self._notes: list[str] = []
        self.period_s = max(period_s, _MIN_PERIOD_S)

    @classmethod
    def open(cls, target: Target) -> Self:
        """Find the GPUs and what each supports; raises ``NotAvailable`` if there are none."""
        if target.gpus is None:
            selection = visible_gpus()
            gpus, notes = selection.gpus, selection.notes
        else:
            gpus, notes = tuple(gpu for gpu in usable_gpus() if gpu.uuid in target.gpus), ()
            if not gpus:
                raise NotAvailable("none of the requested GPUs is an AMD GPU of this machine")
        smi, why = None, None
        try:
            smi = AmdSmi.open()
        except NotAvailable as error:
            why = str(error)
        own = {gpu.uuid for gpu in gpus}
        meter = cls([_Reader(gpu, own, smi, why) for gpu in gpus], smi, target.period_s)
        meter._notes += notes
        return meter

    def devices(self) -> list[Device]:
        """Return the GPUs with what they support."""
        return [reader.device for reader in self._readers]

    def read(self, *, last: bool = False) -> list[Sample]:
        """Return one reading of each GPU that answers."""
        samples = []
        for reader in self._readers:
            t_ns = time.time_ns()
            if values := reader.read(t_ns, last=last):
                if {"power_w", "energy_j"} & values.keys():
                    values["power_source"] = "measured"
                samples.append(Sample(reader.device.id, "gpu", t_ns, **values))
        return samples

    def problems(self) -> list[str]:
        """Return why GPUs are not read any more."""
        return [*self._notes, *(r.problem for r in self._readers if r.problem is not None)]

    def close(self) -> None:
        """Release the library of AMD SMI."""
        if self._smi is not None:
            self._smi.close()


class _Reader:
    """Reads one GPU: what it supports at the start, and each value at its own period."""

    def __init__(
        self, gpu: AmdGpu, own: Collection[str], smi: AmdSmi | None, no_smi: str | None
    ) -> None:
        self._gpu, self._folder, self._hwmon = gpu, gpu.folder, gpu.hwmon
        self.problem: str | None = None
        self._failures = self._second_ns = self._slow_ns = 0
        self._smi = smi
        self._handle = None if smi is None else smi.handle(gpu.bus_id)
        self._counter = _Counter()
        self._residency: tuple[int, int, int] | None = None
        self._throttled_s = 0.0
        self._is_reporter = gpu.reporter == gpu.uuid
        self._power_by = self._find_power()
        self._energy_by = self._find_energy()
        self._temperature = self._find_temperature()
        self.device = Device(gpu.uuid, "gpu", gpu.name, self._facts(own, no_smi), gpu.contains)

    def _find_power(self) -> str | None:
        """Return the source of power: a file, whose unit is finer, else the library."""
        sources = [*_POWER_FILES, "amdsmi"] if self._is_reporter else []
        return next((source for source in sources if self._power(source) is not None), None)

    def _find_energy(self) -> str | None:
        sources = ("amdsmi", "energy1_input") if self._is_reporter else ()
        return next((source for source in sources if self._raw_energy(source) is not None), None)

    def _find_temperature(self) -> str | None:
        """Return the sensor of the hottest point (junction), else that of the edge."""
        labels = {self._text(f"temp{n}_label"): f"temp{n}_input" for n in (1, 2, 3)}
        return labels.get("junction") or labels.get("edge") or "temp1_input"

    def _facts(self, own: Collection[str], no_smi: str | None) -> Facts:
        gpu, others = self._gpu, [uuid for uuid in self._gpu.board if uuid not in own]
        facts: dict[str, str | float | bool | None] = {
            "bus_id": gpu.bus_id,
            "amdsmi": "used" if self._handle is not None else no_smi or "does not list this GPU",
        }
        if not self._is_reporter:
            facts["scope"] = f"nothing: GPU {gpu.reporter} reports the power of their board"
            if gpu.reporter in others:
                facts["failed"] = (
                    f"GPU {gpu.reporter} reports the power of their board, and this process may "
                    "not use it"
                )
            return facts
        board = f"the board with GPUs {' and '.join(gpu.board)}" if gpu.board else "GPU and memory"
        facts |= {
            "scope": "socket: processor, GPU and memory" if gpu.contains else board,
            "energy_counter": self._energy_by,
            "power": _POWER_FILES.get(self._power_by or "", self._power_by),
            "default_power_limit_w": self._microwatts("power1_cap_default"),
            "max_power_limit_w": self._microwatts("power1_cap_max"),
            "power_limit_w": self._microwatts("power1_cap"),
            "is_shared": bool(others or gpu.partition),
        }
        if self._power_by == "amdsmi":
            facts["power"] = "average" if self._power_key() == "average_socket_power" else "instant"
        if self._power_by is None and self._energy_by is None:
            facts["failed"] = f"it reports neither power nor energy ({self._reason()})"
        return facts

    def _reason(self) -> str:
        """Return why the power cannot be read."""
        if self._hwmon is None:
            return "the driver amdgpu shows no sensors"
        try:
            return f"power1_average is {sysfs.read_text(self._hwmon / 'power1_average')!a}"
        except (OSError, ValueError) as error:
            return f"power1_average: {getattr(error, 'strerror', None) or error}"

    def read(self, now_ns: int, *, last: bool) -> dict[str, Any]:
        """Return the values that can be read now; nothing ever again once the GPU is lost."""
        if self.problem is not None:
            return {}
        power_w = self._power(self._power_by)
        energy_j = self._counter.energy_j(self._raw_energy(self._energy_by), now_ns)
        values: dict[str, Any] = {"power_w": power_w, "energy_j": energy_j}
        values |= self._utilisation()
        if last or now_ns - self._second_ns >= _SECOND_NS:
            self._second_ns = now_ns
            values |= self._each_second(now_ns)
        if last or now_ns - self._slow_ns >= _SLOW_NS:
            self._slow_ns = now_ns
            values |= self._slow()
        values = {name: value for name, value in values.items() if value is not None}
        self._check(values)
        return {} if self.problem is not None else values

    def _check(self, values: dict[str, Any]) -> None:
        """Notice a GPU that was removed, or that answers no more."""
        is_measured = self._power_by is not None or self._energy_by is not None
        has_answered = bool({"power_w", "energy_j"} & values.keys() if is_measured else values)
        self._failures = 0 if has_answered else self._failures + 1
        if has_answered:
            return
        if read_optional(self._folder / "vendor") is None:
            self.problem = f"{self._gpu.uuid}: lost: {self._folder} has been removed"
        elif self._failures >= _MAX_FAILURES:
            self.problem = f"{self._gpu.uuid}: given up: {self._reason()}"

    def _power(self, source: str | None) -> float | None:
        """Return the power; 0 W means that it is not available."""
        if source == "amdsmi":
            info = self._call("amdsmi_get_power_info") or {}
            return number(info.get(self._power_key(info)), _MAX_W) or None
        watts = None if source is None else self._microwatts(source)
        return number(watts, _MAX_W) or None

    def _power_key(self, info: dict[str, Any] | None = None) -> str:
        info = info or self._call("amdsmi_get_power_info") or {}
        keys = ("average_socket_power", "current_socket_power")  # MI300 has the latter only
        return next((key for key in keys if number(info.get(key), _MAX_W)), keys[0])

    def _raw_energy(self, source: str | None) -> tuple[int, float] | None:
        """Return the counter and the joules of its unit."""
        if source == "energy1_input":
            microjoules = self._number("energy1_input")
            return None if microjoules is None else (microjoules, 1e-6)
        count = self._call("amdsmi_get_energy_count") if source == "amdsmi" else None
        raw = number(count and count["energy_accumulator"], _NO_MAXIMUM)
        unit_uj = number(count and count["counter_resolution"], 1e6)
        return (int(raw), unit_uj * 1e-6) if raw and unit_uj else None

    def _utilisation(self) -> dict[str, float | None]:
        activity = self._call("amdsmi_get_gpu_activity")
        if activity is None:
            activity = {
                "gfx_activity": self._device_number("gpu_busy_percent"),
                "umc_activity": self._device_number("mem_busy_percent"),
            }
        return {
            "sm_util": _scaled(number(activity["gfx_activity"], _MAX_PERCENT), 1e-2),
            "mem_util": _scaled(number(activity["umc_activity"], _MAX_PERCENT), 1e-2),
        }

    def _each_second(self, now_ns: int) -> dict[str, float | None]:
        clock = self._call("amdsmi_get_clock_info", "AmdSmiClkType.GFX")
        mhz = _clock(self._folder / "pp_dpm_sclk") if clock is None else clock["clk"]
        return {"sm_clock_mhz": number(mhz, _MAX_MHZ), "power_throttle_s": self._throttle(now_ns)}

    def _throttle(self, now_ns: int) -> float | None:
        """Return the time at the power limit: the share of the firmware's cycles at it."""
        if self._smi is None or self._handle is None or not self._is_reporter:
            return None
        cycles, limited = self._smi.power_limit_cycles(self._handle) or (None, None)
        if not cycles or limited is None:
            return None
        present = cycles, limited, now_ns
        last, self._residency = self._residency, present
        if last is not None and present[0] > last[0] and present[1] >= last[1]:
            share = min(1.0, (present[1] - last[1]) / (present[0] - last[0]))
            self._throttled_s += share * (present[2] - last[2]) * 1e-9
        return self._throttled_s

    def _slow(self) -> dict[str, float | None]:
        """Return the values that change slowly, and check that it is still the same GPU."""
        unique_id = read_optional(self._folder / "unique_id")
        if unique_id and self._gpu.unique_id and unique_id.zfill(16) != self._gpu.unique_id:
            self.problem = f"{self._gpu.uuid}: lost: it was replaced by another board"
        memory = self._device_number("mem_info_vram_used")
        total = self._device_number("mem_info_vram_total")
        celsius = _scaled(self._number(self._temperature), 1e-3)
        return {
            "power_limit_w": self._microwatts("power1_cap") if self._is_reporter else None,
            "mem_used_bytes": number(memory, total or _NO_MAXIMUM),
            "mem_clock_mhz": number(_clock(self._folder / "pp_dpm_mclk"), _MAX_MHZ),
            "temperature_c": number(celsius, _MAX_C),
        }

    def _call(self, function: str, argument: str | None = None) -> Any | None:
        """Call the library with a constant of the binding; None without it."""
        if self._smi is None or self._handle is None:
            return None
        arguments = []
        if argument is not None:
            name, _, member = argument.partition(".")
            arguments.append(getattr(getattr(self._smi.binding, name), member))
        return self._smi.read(function, self._handle, *arguments)

    def _text(self, file: str) -> str | None:
        return None if self._hwmon is None else read_optional(self._hwmon / file)

    def _number(self, file: str | None) -> int | None:
        text = self._text(file or "")
        return int(text) if text and text.isdigit() else None

    def _device_number(self, file: str) -> int | None:
        text = read_optional(self._folder / file)
        return int(text) if text and text.isdigit() else None

    def _microwatts(self, file: str) -> float | None:
        return _scaled(self._number(file), 1e-6) or None


class _Counter:
    """The energy of a counter, corrected where it starts again at 0 after 32 bits."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._wrapped = 0

    def energy_j(self, reading: tuple[int, float] | None, now_ns: int) -> float | None:
        """Return the energy since some start.

        A decrease that no power could explain is not corrected, and the energy of the window gets
        a fault.
        """
        if reading is None:
            return None
        raw, unit_j = reading
        if self._last is not None and raw < self._last[0] < 2**32:
            increase_j = (2**32 - self._last[0] + raw) * unit_j
            if increase_j <= _MAX_W * max((now_ns - self._last[1]) * 1e-9, _MIN_INTERVAL_S):
                self._wrapped += 2**32
        self._last = raw, now_ns
        return (raw + self._wrapped) * unit_j


def _clock(path: Path) -> float | None:
    """Return the present clock of a list such as ``1: 800Mhz *``."""
    for line in (read_optional(path) or "").splitlines():
        if line.endswith("*"):
            digits = line.partition(":")[2].strip(" *").removesuffix("Mhz")
            return int(digits) if digits.isdigit() else None
    return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
