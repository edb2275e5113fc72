"""Writes small synthetic files in the layout of FourCastNet's ERA5."""

from pathlib import Path

import h5py
import numpy as np
import torch

from wattlaw.workloads.weather.era5 import Array
from wattlaw.workloads.weather.synthetic import Climate
from wattlaw.workloads.workload import check_new_data

_GRID = (33, 64)  # an odd number of rows as ERA5's 721; the last is not used
_TRAINING_YEARS, _EVALUATION_YEAR = (1979, 1980), 2016
_FEWEST_TIMES = 4

# The paper's variables in the order of its files, with approximate means and deviations.
_VARIABLES = (
    ("u10", -0.1, 5.6),  # m/s
    ("v10", 0.2, 4.8),
    ("t2m", 278.5, 21.2),  # K
    ("sp", 96_650.0, 9_590.0),  # Pa
    ("msl", 100_960.0, 1_330.0),
    ("t850", 274.6, 15.6),
    ("u1000", 0.0, 6.1),
    ("v1000", 0.2, 5.3),
    ("z1000", 740.0, 1_070.0),  # m2/s2
    ("u850", 1.4, 8.2),
    ("v850", 0.1, 6.3),
    ("z850", 13_750.0, 1_470.0),
    ("u500", 6.6, 12.0),
    ("v500", 0.0, 9.2),
    ("z500", 54_110.0, 3_350.0),
    ("t500", 253.0, 13.1),
    ("z50", 199_350.0, 5_880.0),
    ("r500", 50.4, 33.5),  # %
    ("r850", 69.1, 26.3),
    ("tcwv", 18.3, 16.4),  # kg/m2
)


def make_data(folder: Path, size: int, seed: int) -> None:
    """Write two years for training and one for evaluation, and the training data's statistics.

    The grid is 33 x 64 with 20 channels: read it with the option ``image_size: [32, 64]``. A
    training file has ``size`` times, at least 4; the evaluation file has half as many, at least 4.

    Raises ``BadInput`` if the folder is not empty, or ``size`` is too small.
    """
    check_new_data(folder, size, _FEWEST_TIMES)
    climate = Climate(len(_VARIABLES), *_GRID, seed=seed)
    years = [_fields(climate, number, size) for number in range(len(_TRAINING_YEARS))]
    for name, fields in zip(_TRAINING_YEARS, years, strict=True):
        _write(folder / "train" / f"{name}.h5", fields)
    evaluation = _fields(climate, len(years), max(_FEWEST_TIMES, size // 2))
    _write(folder / "test" / f"{_EVALUATION_YEAR}.h5", evaluation)
    _write_statistics(folder / "stats", np.concatenate(years))


def _fields(climate: Climate, year: int, times: int) -> Array:
    fields = torch.empty(times, *climate.shape)
    for time, state in enumerate(fields):
        climate.state(year, time, state)
    _, means, stds = (np.array(column) for column in zip(*_VARIABLES, strict=True))
    scaled: Array = fields.numpy() * stds[:, None, None] + means[:, None, None]
    return scaled.astype(np.float32)


def _write(path: Path, fields: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset("fields", data=fields, chunks=(1, 1, *fields.shape[2:]))


def _write_statistics(folder: Path, fields: Array) -> None:
    folder.mkdir()
    for name, values in (
        ("global_means", fields.mean((0, 2, 3), np.float64, keepdims=True)),
        ("global_stds", fields.std((0, 2, 3), np.float64, keepdims=True)),
        ("time_means", fields.mean(0, np.float64, keepdims=True)),
    ):
        np.save(folder / f"{name}.npy", values)
