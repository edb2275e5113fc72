"""Power limits and clock limits of AMD GPUs, by the driver's files."""

import re
from typing import Self

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices import sysfs
from wattlaw.measure.devices.amd.gpus import AmdGpu, all_gpus
from wattlaw.measure.devices.limiter import GpuLimiter, LimitState, setting_problem, write_setting

_LEVEL, _RANGE = "power_dpm_force_performance_level", "pp_od_clk_voltage"
_AUTO = "auto"
_LEAST_W = 1.0


class AmdSysfsLimiter(GpuLimiter[AmdGpu]):
    """Limits GPUs by the driver's files, for root and for users who may write them.

    The driver applies whole watts. Both GPUs of an MI250 board have the limit of the board. A clock
    limit is the highest clock. It is removed by the performance level ``auto``, so it is refused
    where another level was set before, and on GPUs that keep a range in that level.
    """

    def __init__(self) -> None:
        super().__init__({gpu.uuid: gpu for gpu in all_gpus()})

    @classmethod
    def open(cls) -> Self:
        limiter = cls()
        if not limiter._gpus:
            raise NotAvailable("no AMD GPU on this machine")
        return limiter

    def read(self, device: str) -> LimitState:
        gpu = self._gpu(device)
        if sysfs.optional_text(gpu.folder / "vendor") is None:
            raise NotAvailable(f"{device}: lost: {gpu.folder} has been removed")
        watts, reason = self._watts(gpu, "power1_cap"), _no_clock_limit_reason(gpu)
        clocks = _clocks(gpu) if reason is None else []
        return LimitState(
            device,
            gpu.name,
            watts,
            watts,
            self._watts(gpu, "power1_cap_default"),
            self._watts(gpu, "power1_cap_min"),
            self._watts(gpu, "power1_cap_max"),
            min(clocks, default=None),
            max(clocks, default=None),
            is_shared=gpu.partition is not None,
            limited_with=tuple(uuid for uuid in gpu.board if uuid != device),
            no_clock_limit_reason=reason,
        )

    def set_power_limit(self, device: str, watts: float) -> None:
        gpu, state = self._gpu(device), self.read(device)
        # The driver takes 0 W for the limit that is in force.
        _check(device, watts, max(state.min_w or 0.0, _LEAST_W), state.max_w or 0.0, "W")
        folder = self._gpu(gpu.reporter).hwmon
        if folder is None:
            raise NotAvailable(f"{device}: the driver amdgpu has no hwmon sensors")
        write_setting(device, folder / "power1_cap", str(round(watts) * 1_000_000))

    def permission_problem(self, device: str) -> str | None:
        folder = self._gpu(self._gpu(device).reporter).hwmon
        return None if folder is None else setting_problem(device, folder / "power1_cap")

    def lock_clock(self, device: str, mhz: float) -> None:
        """The driver refuses a range of one clock. After an error the GPU is in the level ``auto``
        again: a caller that is not permitted restores nothing of this limiter."""
        state, folder = self.read(device), self._gpu(device).folder
        if state.min_mhz is None or state.max_mhz is None:
            raise NotAvailable(f"{device}: {state.no_clock_limit_reason}")
        _check(device, mhz, state.min_mhz, state.max_mhz, "MHz")
        write_setting(device, folder / _LEVEL, "manual")
        try:
            for command in (f"s 1 {round(mhz)}", "c"):
                write_setting(device, folder / _RANGE, command)
        except NotAvailable:
            write_setting(device, folder / _LEVEL, _AUTO)
            raise

    def unlock_clock(self, device: str) -> None:
        """Remove the range of the graphics clock; a GPU in another level than manual has none."""
        gpu = self._gpu(device)
        if not gpu.has_resettable_clocks:
            return
        level = sysfs.optional_text(gpu.folder / _LEVEL)
        if level is None:
            raise NotAvailable(f"{device}: its performance level cannot be read")
        if level == "manual":
            write_setting(device, gpu.folder / _LEVEL, _AUTO)

    def _watts(self, gpu: AmdGpu, file: str) -> float | None:
        """Return a limit in watts; a limit of 0 W is none, but the lowest one may be 0 W."""
        hwmon = self._gpu(gpu.reporter).hwmon
        text = None if hwmon is None else sysfs.optional_text(hwmon / file)
        if text is None or not text.isdigit() or (text == "0" and file != "power1_cap_min"):
            return None
        return int(text) * 1e-6


def _check(device: str, value: float, low: float, high: float, unit: str) -> None:
    if not low <= value <= high:
        raise NotAvailable(f"{device}: {value:g} {unit} is outside {low:g} to {high:g} {unit}")


def _clocks(gpu: AmdGpu) -> list[int]:
    text = sysfs.optional_text(gpu.folder / "pp_dpm_sclk") or ""
    return [int(digits) for digits in re.findall(r"^\d+: (\d+)Mhz", text, re.MULTILINE)]


def _no_clock_limit_reason(gpu: AmdGpu) -> str | None:
    if not gpu.has_resettable_clocks:
        return (
            "its driver keeps clock ranges in the level auto, so a clock limit could not be removed"
        )
    if not (gpu.folder / _RANGE).exists() or not _clocks(gpu):
        return f"its driver has no {_RANGE}"
    level = sysfs.optional_text(gpu.folder / _LEVEL)
    if level != _AUTO:
        return f"its performance level is {level!a} instead of auto, and could not be restored"
    return None
