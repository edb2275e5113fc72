"""Power limits of AMD GPUs, by the driver's files."""

import os
from typing import Self

from wattlaw.common.errors import NotAvailable, NotPermitted
from wattlaw.measure.devices import sysfs
from wattlaw.measure.devices.amd.gpus import AmdGpu, all_gpus
from wattlaw.measure.devices.limiter import GpuLimiter, LimitState

_LEAST_W = 1.0
_NO_CLOCK = "wattlaw limits the power of AMD GPUs only"


class AmdSysfsLimiter(GpuLimiter[AmdGpu]):
    """Limits GPUs by the driver's files, for root and for users who may write them.

    The driver applies whole watts. Both GPUs of an MI250 board have the limit of the board.
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
        watts = self._watts(gpu, "power1_cap")
        return LimitState(
            device,
            gpu.name,
            watts,
            watts,
            self._watts(gpu, "power1_cap_default"),
            self._watts(gpu, "power1_cap_min"),
            self._watts(gpu, "power1_cap_max"),
            is_shared=gpu.partition is not None,
            limited_with=tuple(uuid for uuid in gpu.board if uuid != device),
            no_clock_limit_reason=_NO_CLOCK,
        )

    def set_power_limit(self, device: str, watts: float) -> None:
        gpu, state = self._gpu(device), self.read(device)
        # The driver takes 0 W for the limit that is in force.
        low, high = max(state.min_w or 0.0, _LEAST_W), state.max_w or 0.0
        if not low <= watts <= high:
            raise NotAvailable(f"{device}: {watts:g} W is outside {low:g} to {high:g} W")
        folder = self._gpu(gpu.reporter).hwmon
        if folder is None:
            raise NotAvailable(f"{device}: the driver amdgpu has no hwmon sensors")
        path = folder / "power1_cap"
        try:
            file = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # never a new file
            try:
                os.write(file, f"{round(watts) * 1_000_000}\n".encode())
            finally:
                os.close(file)
        except OSError as error:
            message = f"{device}: {path}: {error.strerror}"
            if isinstance(error, PermissionError):
                raise NotPermitted(f"{message}: setting limits requires root") from None
            raise NotAvailable(message) from None

    def permission_problem(self, device: str) -> str | None:
        folder = self._gpu(self._gpu(device).reporter).hwmon
        path = None if folder is None else folder / "power1_cap"
        if path is None or not path.exists() or os.access(path, os.W_OK):
            return None
        return f"{device}: {path}: setting limits requires root"

    def lock_clock(self, device: str, mhz: float) -> None:  # noqa: ARG002 - none is
        raise NotAvailable(f"{self._gpu(device).uuid} has no clock limit: {_NO_CLOCK}")

    def unlock_clock(self, device: str) -> None:
        self.lock_clock(device, 0)

    def _watts(self, gpu: AmdGpu, file: str) -> float | None:
        """Return a limit in watts; a limit of 0 W is none, but the lowest one may be 0 W."""
        hwmon = self._gpu(gpu.reporter).hwmon
        text = None if hwmon is None else sysfs.optional_text(hwmon / file)
        if text is None or not text.isdigit() or (text == "0" and file != "power1_cap_min"):
            return None
        return int(text) * 1e-6
