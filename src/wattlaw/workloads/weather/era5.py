"""ERA5 as FourCastNet's authors laid it out: one HDF5 file per year, and its statistics.

    DATA/train/*.h5   DATA/test/*.h5         dataset ``fields`` [time, channel, row, column]
    DATA/stats/global_means.npy, global_stds.npy (1, C, 1, 1), time_means.npy (1, C, row, column)

https://github.com/NVlabs/FourCastNet, README and ``utils/data_loader_multifiles.py``. Their files
have 721 x 1440 points and may have more channels than are used: the first ones are. Evaluation
reads ``test``, under no other name.
"""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from wattlaw.errors import BadInput
from wattlaw.workloads.weather.grid import kept_rows
from wattlaw.workloads.weather.statistics import Array, ChannelStatistics
from wattlaw.workloads.workload import Indices, Seeds

#: What h5py raises for damaged files.
_H5PY_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError)


class Era5:
    """Sequences of states from a folder of yearly files; none goes from one file into the next.

    Sample i begins at the i-th time, counted through the files by name, that has all its steps in
    the same file. Fields are standardised here, on the CPU: that costs as many bytes on the way
    to a GPU as raw ones, keeps the loader processes and not the GPU busy, and leaves the measured
    work of the GPU the same as with synthetic data.

    Parameters
    ----------
    folder
        That of the files, ``*.h5``.
    statistics
        Each channel's mean and spread.
    size
        (channels, height, width) of a state.
    steps, step
        How many states follow the first one, and how many records apart.

    Raises
    ------
    BadInput
        There are no files, or one is not as it has to be.
    """

    reads_files = True

    def __init__(
        self,
        folder: Path,
        statistics: ChannelStatistics,
        size: tuple[int, int, int],
        *,
        steps: int,
        step: int,
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
        self._open = _OpenFiles()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batch(self, indices: Indices, seeds: Seeds) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        """Return the states at the beginning and after each step.

        Each has the shape (samples, channels, height, width), is standardised and float32.

        Raises
        ------
        BadInput
            A record cannot be read or has a value that is not finite.
        """
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
            self._open(path).read_direct(out, np.s_[time, :channels, :height])
        except _H5PY_ERRORS as error:
            raise BadInput(f"{path}: time {time} cannot be read: {_words(error)}") from None
        # One sum tells nearly always that all is well; only then is the bad value looked for.
        with np.errstate(over="ignore", invalid="ignore"):
            total = out.sum()
        if not np.isfinite(total):
            bad = np.argwhere(~np.isfinite(out))
            if len(bad):
                channel, row, column = bad[0].tolist()
                raise BadInput(
                    f"{path}: time {time}, channel {channel}: {out[channel, row, column]} at row"
                    f" {row}, column {column}; allowed: finite numbers"
                )
        self._statistics.standardise(out)


class _OpenFiles:
    """The datasets this process has open: HDF5 handles do not survive a fork."""

    def __init__(self) -> None:
        self._process, self._datasets = 0, dict[Path, Any]()

    def __call__(self, path: Path) -> Any:
        if self._process != os.getpid():
            self._process, self._datasets = os.getpid(), {}
        if path not in self._datasets:
            self._datasets[path] = _opened(path)["fields"]
        return self._datasets[path]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the handles behind when a dataset is sent to a process that was not forked."""
        return {"_process": 0, "_datasets": {}}


def _opened(path: Path) -> Any:
    # Many read-only and parallel file systems refuse locks.
    return h5py.File(path, "r", locking="best-effort")


def _times(path: Path, size: tuple[int, int, int], needed: int) -> int:
    """Return how many times a file has, once it is sure that its records are as they must be."""
    channels, height, width = size
    try:
        with _opened(path) as file:
            found = file.get("fields")
            if not isinstance(found, h5py.Dataset):
                names = ", ".join(file) or "nothing"
                raise BadInput(f"{path}: has no dataset 'fields'; it has {names}")
            shape, dtype = found.shape, found.dtype
    except _H5PY_ERRORS as error:
        raise BadInput(f"{path}: cannot be read as an HDF5 file: {_words(error)}") from None
    if shape is None or len(shape) != 4 or dtype.kind != "f":
        what = "nothing" if shape is None else "x".join(map(str, shape)) or "a single number"
        raise BadInput(
            f"{path}: 'fields' is {what} of {dtype};"
            " allowed: floating-point numbers [time, channel, row, column]"
        )
    if shape[1] < channels:
        raise BadInput(
            f"{path}: 'fields' has {shape[1]} channels; allowed: at least {channels},"
            " the option 'channels'"
        )
    if (kept_rows(shape[2]), shape[3]) != (height, width):
        raise BadInput(
            f"{path}: 'fields' has a grid of {shape[2]}x{shape[3]}; allowed: {height}x{width}, the"
            f" option 'image_size', or {height + 1}x{width}, whose last row is left out"
        )
    if shape[0] < needed:
        raise BadInput(f"{path}: has {shape[0]} times; allowed: at least {needed} for one sample")
    return int(shape[0])


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())
