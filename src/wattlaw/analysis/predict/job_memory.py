"""Whether settings of a job fit into the memory of its GPUs, by what its runs needed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from wattlaw.analysis.predict.observation import Floats
from wattlaw.analysis.predict.peak_memory import GIB, MemoryModel, Peak, learn
from wattlaw.analysis.predict.run_settings import setting_of_row
from wattlaw.common.machine import cores_of
from wattlaw.hardware.library import find_gpu
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting

#: A setting that fits with a lower probability is not proposed to run; one below the second may
#: well be out of memory.
LEAST_FIT, SURE_FIT = 0.05, 0.9
#: The device of runs without GPUs.
_HOST = ["host"]
#: With more runs, every so manieth counts: inference takes time.
_MOST = 200
#: GiB that a program can use of a board that its vendor names by so many GB: torch reports 31.7 of
#: a V100 of 32 GB, 39.4 of an A100 of 40 GB, 79.1 of an H100 of 80 GB and 139.8 of an H200 of
#: 141 GB (``total_memory`` in public logs).
_USABLE = 0.988


def usable_gib(hardware: str) -> float | None:
    """Return the memory of a board by its name: as in ``80GB``, or of the library."""
    named, gpu = re.search(r"\b(\d{1,3}) ?GB\b", hardware), find_gpu(hardware)
    size = float(named[1]) if named else None if gpu is None else gpu.memory_gb
    return None if size is None else size * _USABLE


@dataclass(frozen=True)
class Memory:
    """What is known of the memory that settings of a job need on a GPU.

    A peak is what torch has allocated on the fullest GPU. Runs on CPUs have none: the resident
    memory of their processes is mostly that of libraries.
    """

    network: Network
    memory_gib: float | None  # that a program can use; None if the board is not known
    peaks: tuple[Peak, ...] = ()  # of runs: measured, out of memory, or known to have fitted

    @cached_property
    def ran(self) -> dict[Setting, bool]:
        """Return whether each setting that ran fitted."""
        return {item.setting: item.fitted for item in self.peaks}

    def peaks_bytes(self, settings: Sequence[Setting], seed: int = 0) -> Floats:
        """Return draws of the peak of each setting, shape (draws, settings)."""
        model = _learned(self.peaks, seed)
        return model.peaks_gib(settings, [self.network] * len(settings)) * GIB

    def fits(self, settings: Sequence[Setting], seed: int = 0) -> npt.NDArray[np.bool_] | None:
        """Return whether each setting fits, in draws: shape (draws, settings); None if the board is
        not known. What ran is known."""
        if self.memory_gib is None:
            return None
        fits = self.peaks_bytes(settings, seed) < self.memory_gib * GIB
        for index, setting in enumerate(settings):
            if setting in self.ran:
                fits[:, index] = self.ran[setting]
        return np.asarray(fits)


def memory_of(runs: pd.DataFrame) -> Memory | None:
    """Return the memory of a job; None without the sizes of its network, or on CPUs.

    ``runs`` are those of one job on one kind of hardware in a store, whatever their status. Done
    runs fitted, and those out of memory did not; simulated ones show neither.
    """
    networks, labels = runs["network"].dropna().unique(), runs["hardware"].dropna().unique()
    on_host = any(ids is not None and list(ids) == _HOST for ids in runs["device_ids"])
    on_host |= any(cores_of(str(label)) is not None for label in labels)
    sizes = runs["gpu_memory_bytes"].dropna()
    if len(networks) != 1 or (on_host and sizes.empty):
        return None
    network = Network.model_validate_json(str(networks[0]))
    rooms = [size for label in labels if (size := usable_gib(str(label))) is not None]
    memory_gib = min(rooms, default=None) if sizes.empty else float(sizes.min()) / GIB
    is_full = runs["out_of_memory"] == "device"
    shown = runs[is_full | (runs["status"] == "done")].assign(is_full=is_full)
    shown = shown[shown["global_batch"].notna() & (shown["launcher"] != "simulated")]
    peaks = []
    for row in shown.to_dict("records"):
        size = None if row["is_full"] else row["peak_memory_bytes"]
        peak_gib = None if pd.isna(size) else float(size) / GIB
        if peak_gib is not None or memory_gib is not None:
            room_gib = memory_gib or np.nan  # of no use beside a peak
            setting = setting_of_row(row, "sample")
            peaks.append(Peak(setting, network, room_gib, peak_gib, not row["is_full"]))
    return Memory(network, memory_gib, tuple(peaks))


@lru_cache(maxsize=16)
def _learned(peaks: tuple[Peak, ...], seed: int) -> MemoryModel:
    return learn(peaks[:: max(1, -(-len(peaks) // _MOST))], seed)
