"""ERA5 in the layout of FourCastNet's authors: one HDF5 file per year, and statistics.

    DATA/train/*.h5   DATA/test/*.h5         dataset ``fields`` [time, channel, row, column]
    DATA/stats/global_means.npy, global_stds.npy (1, C, 1, 1), time_means.npy (1, C, row, column)

https://github.com/NVlabs/FourCastNet, README and ``utils/data_loader_multifiles.py``. Their files
have 721 x 1440 points and may have more channels than are used: the first channels are used.
Evaluation reads the folder ``test``.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tokenize import TokenError
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch

from wattlaw.common.errors import BadInput, one_line
from wattlaw.common.text import collapse_whitespace
from wattlaw.workloads.workload import Indices, Seeds

#: Errors of h5py for damaged files.
_H5PY_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError)

Array = npt.NDArray[np.float32]
Size = tuple[int, int, int]  # channels, height and width of a state


def kept_rows(rows: int) -> int:
    """Return the number of rows of a file that are used: of ERA5's 721 from pole to pole the first
    720, which can be split into patches."""
    return rows - rows % 2


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation of each channel, over all times and points of the globe."""

    means: Array  # (channels, 1, 1), in the fields' own units
    stds: Array

    def standardise(self, fields: Array) -> None:
        fields -= self.means
        fields /= self.stds


def read_channel_statistics(folder: Path, channels: int) -> ChannelStatistics:
    """Return the first channels of ``global_means.npy`` and ``global_stds.npy``, (1, C, 1, 1)."""
    means = _read(folder / "global_means.npy", channels, (1, 1))
    stds = _read(folder / "global_stds.npy", channels, (1, 1))
    if not (stds > 0).all():
        channel = int(np.argmin(stds.ravel() > 0))
        given = f"{folder / 'global_stds.npy'}: channel {channel} is {stds.ravel()[channel]:g}"
        raise BadInput(f"{given}; allowed: above 0")
    return ChannelStatistics(means, stds)


def read_climatology(folder: Path, channels: int, height: int, width: int) -> Array:
    """Return the mean state, standardised, of ``time_means.npy``: (channels, height, width)."""
    path = folder / "time_means.npy"
    means = _read(path, channels, (height, width))
    read_channel_statistics(folder, channels).standardise(means)
    return means


def _read(path: Path, channels: int, size: tuple[int, int]) -> Array:
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file")
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, TypeError, MemoryError, TokenError) as error:
        reason = collapse_whitespace(str(error))
        raise BadInput(f"{path}: not a .npy file of numbers: {reason}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        raise BadInput(f"{path}: not a .npy file of floating-point numbers")
    shape = "x".join(map(str, array.shape)) or "a single number"
    fits = array.ndim == 4 and array.shape[0] == 1 and array.shape[1] >= channels
    rows = size[0] if size == (1, 1) else kept_rows(array.shape[2]) if fits else 0
    if not fits or (rows, array.shape[3]) != size:
        allowed = f"1xCx{size[0]}x{size[1]}"
        if size != (1, 1):
            allowed += f" or 1xCx{size[0] + 1}x{size[1]}"
        raise BadInput(f"{path}: shape {shape}; allowed: {allowed} with C at least {channels}")
    kept = array[0, :channels, :rows].astype(np.float32)
    if not np.isfinite(kept).all():
        channel = int(np.argwhere(~np.isfinite(kept))[0][0])
        raise BadInput(f"{path}: channel {channel} has a value that is not a finite number")
    return kept


class Era5:
    """Sequences of ``steps`` + 1 states, ``step`` records apart, of a folder of yearly files; none
    crosses two files. Sample i begins at the i-th time, by file names, that has all its steps.
    Fields are standardised on the CPU, so that the GPU's work is the same as with synthetic
    data."""

    reads_files = True

    def __init__(
        self, folder: Path, statistics: ChannelStatistics, size: Size, *, steps: int, step: int
    ) -> None:
        if not folder.is_dir():
            raise BadInput(f"{folder}: there is no such folder; allowed: one with *.h5 files")
        self._paths = sorted(folder.glob("*.h5"))
        if not self._paths:
            raise BadInput(f"{folder}: has no *.h5 file; allowed: one file per year")
        self._statistics, self._size = statistics, size
        self._ahead = [number * step for number in range(steps + 1)]
        times = [_times(path, size, needed=steps * step + 1) for path in self._paths]
        self._ends = np.cumsum(np.array(times) - steps * step)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batch(self, indices: Indices, seeds: Seeds) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        """Return the first states and those after each step, standardised float32 of shape
        (samples, channels, height, width)."""
        shape = (len(indices), *self._size)
        times = [np.empty(shape, np.float32) for _ in self._ahead]
        for row, index in enumerate(indices.tolist()):
            file = int(np.searchsorted(self._ends, index, side="right"))
            time = index - (int(self._ends[file - 1]) if file else 0)
            for states, ahead in zip(times, self._ahead, strict=True):
                self._read(self._paths[file], time + ahead, states[row])
        return tuple(map(torch.from_numpy, times))

    def _read(self, path: Path, time: int, out: Array) -> None:
        channels, height, _ = self._size
        try:
            _fields(path, os.getpid()).read_direct(out, np.s_[time, :channels, :height])
        except _H5PY_ERRORS as error:
            raise BadInput(f"{path}: time {time} cannot be read: {one_line(error)}") from None
        # The sum is quick to check; values are searched only if it is not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            total = out.sum()
        if not np.isfinite(total):
            bad = np.argwhere(~np.isfinite(out))
            if len(bad):
                channel, row, column = bad[0].tolist()
                value, where = out[channel, row, column], f"row {row}, column {column}"
                raise BadInput(f"{path}: time {time}, channel {channel}: {value} at {where}")
        self._statistics.standardise(out)


@lru_cache(maxsize=128)
def _fields(path: Path, process: int) -> Any:  # noqa: ARG001 - handles do not survive a fork
    # Many read-only and parallel file systems refuse locks.
    return h5py.File(path, "r", locking="best-effort")["fields"]


def _times(path: Path, size: Size, needed: int) -> int:
    channels, height, width = size
    try:
        with h5py.File(path, "r", locking="best-effort") as file:
            fields = file.get("fields")
            if not isinstance(fields, h5py.Dataset):
                names = ", ".join(file) or "nothing"
                raise BadInput(f"{path}: has no dataset 'fields'; it has {names}")
            shape, dtype = fields.shape, fields.dtype
    except _H5PY_ERRORS as error:
        raise BadInput(f"{path}: cannot be read as an HDF5 file: {one_line(error)}") from None
    if shape is None or len(shape) != 4 or dtype.kind != "f":
        what = "nothing" if shape is None else "x".join(map(str, shape)) or "a single number"
        allowed = "allowed: floating-point numbers [time, channel, row, column]"
        raise BadInput(f"{path}: 'fields' is {what} of {dtype}; {allowed}")
    if shape[1] < channels:
        allowed = f"allowed: at least {channels}, the option 'channels'"
        raise BadInput(f"{path}: 'fields' has {shape[1]} channels; {allowed}")
    if (kept_rows(shape[2]), shape[3]) != (height, width):
        allowed = f"allowed: {height}x{width}, the option 'image_size', or {height + 1}x{width}"
        raise BadInput(f"{path}: 'fields' has a grid of {shape[2]}x{shape[3]}; {allowed}")
    if shape[0] < needed:
        raise BadInput(f"{path}: has {shape[0]} times; allowed: at least {needed} for one sample")
    return int(shape[0])
