"""Statistics of the fields: mean and standard deviation of each channel, and the mean state."""

from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError

import numpy as np
import numpy.typing as npt

from wattlaw.errors import BadInput
from wattlaw.workloads.weather.grid import kept_rows

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation of each channel, over all times and points of the globe."""

    means: Array  # (channels, 1, 1), in the fields' own units
    stds: Array

    def standardise(self, fields: Array) -> None:
        """Subtract the means from fields (..., channels, height, width) and divide, in place."""
        fields -= self.means
        fields /= self.stds


def read_channel_statistics(folder: Path, channels: int) -> ChannelStatistics:
    """Return the first channels of ``global_means.npy`` and ``global_stds.npy``.

    Both have the shape (1, C, 1, 1), C not less than ``channels``.

    Raises
    ------
    BadInput
        A file is missing, is no such array, or a value is not finite or a deviation not above 0.
    """
    means = _read(folder / "global_means.npy", channels, (1, 1))
    stds = _read(folder / "global_stds.npy", channels, (1, 1))
    if not (stds > 0).all():
        channel = int(np.argmin(stds.ravel() > 0))
        found = stds.ravel()[channel]
        raise BadInput(
            f"{folder / 'global_stds.npy'}: channel {channel} is {found:g}; allowed: above 0"
        )
    return ChannelStatistics(means, stds)


def read_climatology(folder: Path, channels: int, height: int, width: int) -> Array:
    """Return the mean state, standardised, of shape (channels, height, width).

    ``time_means.npy`` has the shape (1, C, rows, width); an odd number of rows loses its last.

    Raises
    ------
    BadInput
        As for ``read_channel_statistics``.
    """
    path = folder / "time_means.npy"
    means = _read(path, channels, (height, width))
    read_channel_statistics(folder, channels).standardise(means)
    return means


def _read(path: Path, channels: int, size: tuple[int, int]) -> Array:
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file")
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, TypeError, MemoryError, TokenError) as error:
        words = " ".join(str(error).split())
        raise BadInput(f"{path}: not a .npy file of numbers: {words}") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f":
        raise BadInput(f"{path}: not a .npy file of floating-point numbers")
    shape = "x".join(map(str, found.shape)) or "a single number"
    fits = found.ndim == 4 and found.shape[0] == 1 and found.shape[1] >= channels
    rows = size[0] if size == (1, 1) else kept_rows(found.shape[2]) if fits else 0
    if not fits or (rows, found.shape[3]) != size:
        allowed = f"1xCx{size[0]}x{size[1]}"
        if size != (1, 1):
            allowed += f" or 1xCx{size[0] + 1}x{size[1]}"
        raise BadInput(f"{path}: shape {shape}; allowed: {allowed} with C at least {channels}")
    kept = found[0, :channels, :rows].astype(np.float32)
    if not np.isfinite(kept).all():
        channel = int(np.argwhere(~np.isfinite(kept))[0][0])
        raise BadInput(f"{path}: channel {channel} has a value that is not a finite number")
    return kept
