"""Synthetic weather: red-spectrum waves that travel eastwards, a seasonal cycle, warm tropics.

The fields are not computed by physics. They have the shape, dtype, smoothness and spread of
standardised ERA5 fields, and a state determines the next one. They are in memory, or in small files
in the layout of FourCastNet's ERA5.
"""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wattlaw.workloads.workload import Indices, Seeds
from wattlaw_papers.workloads.data_sets import check_new_data
from wattlaw_papers.workloads.weather import STEPS_PER_YEAR
from wattlaw_papers.workloads.weather.scores import latitudes

_Fields = npt.NDArray[np.float32]

_POOLED = 6  # fields of a channel; years differ in their field and its first longitude
# Turns around the globe in six hours: a full turn takes 20 to 60 days, as midlatitude weather does.
_FASTEST, _SLOWEST = 1 / 80, 1 / 240
# Of data sets in files.
_GRID = (33, 64)  # an odd number of rows as ERA5's 721; the last is not used
_TRAINING_YEARS, _EVALUATION_YEAR = (1979, 1980), 2016
_FEWEST_TIMES = 4

# Means and deviations of the channels in files span those of the paper's variables, 0.1 to 200,000.
_MEANS, _STDS = np.geomspace(0.1, 2e5, 20), np.geomspace(4.0, 1e4, 20)


class Climate:
    """States of an invented atmosphere by year and time; channels have mean 0 and deviation 1.

    A channel at time t is a latitude profile plus waves, which move eastwards with the channel's
    speed, plus cos(2 pi t / year + phase) times a contrast of the hemispheres. It needs 24 bytes
    per channel and point: 0.5 GB for 20 channels on 720 x 1440.
    """

    def __init__(self, channels: int, height: int, width: int, seed: int) -> None:
        self.shape = (channels, height, width)
        self._seed = seed
        self._pool = torch.from_numpy(np.empty((_POOLED, *self.shape), np.float32))
        generator = torch.Generator().manual_seed(seed)
        draw = np.random.default_rng(seed)
        self._speeds = draw.uniform(_SLOWEST, _FASTEST, channels) * width
        self._phases = draw.uniform(0, 2 * np.pi, channels)
        profiles, self._contrast, damping = _profiles(channels, height, draw)
        seasonal = draw.uniform(0.02, 0.1, channels)  # of the variance
        self._amplitudes = np.sqrt(2 * seasonal)
        for channel in range(channels):
            steady = draw.uniform(0.2, 0.6)  # of the variance
            profiles[channel] *= steady**0.5
            slope = draw.uniform(1.5, 2.5)  # of amplitudes; kinetic energy falls like k^-3
            share = (1 - steady - seasonal[channel]) ** 0.5
            for field in self._pool[:, channel]:
                waves = _waves(height, width, slope, damping, generator)
                torch.add(profiles[channel], waves, alpha=share, out=field)
        #: Mean state over the years, shape (channels, height, 1), equal at all longitudes.
        self.climatology = profiles

    def state(self, year: int, time: int, out: Tensor) -> None:
        """Write the state at a time of a year, in steps of six hours, into ``out``; a time after
        the end of the year continues its waves."""
        width = self.shape[-1]
        start = np.random.default_rng((self._seed, year)).integers(width)
        fields, angle = self._pool[year % _POOLED], 2 * math.pi * time / STEPS_PER_YEAR
        for channel, speed in enumerate(self._speeds):
            shift = int(start + round(speed * time)) % width
            season = self._amplitudes[channel] * math.cos(angle + self._phases[channel])
            # Shift and add in one pass: at full size the time depends on memory traffic.
            for source, target in (
                (fields[channel, :, : width - shift], out[channel, :, shift:]),
                (fields[channel, :, width - shift :], out[channel, :, :shift]),
            ):
                torch.add(source, self._contrast, alpha=season, out=target)


class SyntheticWeather:
    reads_files = False

    def __init__(
        self, climate: Climate, *, first_year: int, samples: int, steps: int, step: int
    ) -> None:
        self._climate, self._first_year, self._samples = climate, first_year, samples
        self._ahead = [number * step for number in range(steps + 1)]

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Indices, seeds: Seeds) -> tuple[Tensor, ...]:  # noqa: ARG002
        """As ``Era5.batch``; states after the end of a year continue its waves, without a jump."""
        shape = (len(indices), *self._climate.shape)
        times = tuple(torch.from_numpy(np.empty(shape, np.float32)) for _ in self._ahead)
        for row, index in enumerate(indices.tolist()):
            year, time = divmod(index, STEPS_PER_YEAR)
            for states, ahead in zip(times, self._ahead, strict=True):
                self._climate.state(self._first_year + year, time + ahead, states[row])
        return times


def _profiles(
    channels: int, height: int, draw: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return latitude profiles of channels, a contrast of hemispheres, a damping at the poles."""
    latitude = torch.from_numpy(np.deg2rad(latitudes(height))).float()[:, None]
    contrast = _standardised(latitude.sin())
    tropics = _standardised((2 * latitude).cos())
    shares = torch.from_numpy(draw.uniform(-0.5, 0.5, channels)).float()[:, None, None]
    signs = torch.from_numpy(draw.choice([-1.0, 1.0], channels)).float()[:, None, None]
    profiles = signs * (tropics + shares * contrast)
    profiles = torch.stack([_standardised(profile) for profile in profiles])
    return profiles, contrast, latitude.cos().clamp_min(0).sqrt()


def _waves(
    height: int, width: int, slope: float, damping: Tensor, generator: torch.Generator
) -> Tensor:
    """Return a field whose amplitudes fall with the wave number, with mean 0 at each latitude."""
    along = torch.fft.rfftfreq(width, 1 / width)
    across = torch.fft.fftfreq(height, 1 / (2 * height))[:, None]  # rows span half the globe
    amplitudes = (16 + along**2 + across**2) ** (-slope / 2)
    amplitudes[:, 0] = 0
    noise = torch.randn(amplitudes.shape, dtype=torch.complex64, generator=generator)
    return _standardised(torch.fft.irfft2(noise * amplitudes, s=(height, width)) * damping)


def _standardised(field: Tensor) -> Tensor:
    return (field - field.mean()) / field.std(correction=0)


def make_data(folder: Path, size: int, seed: int) -> None:
    """Write two years for training and one for evaluation, and the training data's statistics.

    The grid is 33 x 64 with 20 channels: read it with the option ``image_size: [32, 64]``. A
    training file has ``size`` times, at least 4; the evaluation file has half as many, at least 4.
    """
    check_new_data(folder, size, _FEWEST_TIMES)
    climate = Climate(len(_MEANS), *_GRID, seed=seed)
    years = [_fields(climate, number, size) for number in range(len(_TRAINING_YEARS))]
    for name, fields in zip(_TRAINING_YEARS, years, strict=True):
        _write(folder / "train" / f"{name}.h5", fields)
    evaluation = _fields(climate, len(years), max(_FEWEST_TIMES, size // 2))
    _write(folder / "test" / f"{_EVALUATION_YEAR}.h5", evaluation)
    (folder / "stats").mkdir()
    every = np.concatenate(years)
    for statistic, values in (
        ("global_means", every.mean((0, 2, 3), np.float64, keepdims=True)),
        ("global_stds", every.std((0, 2, 3), np.float64, keepdims=True)),
        ("time_means", every.mean(0, np.float64, keepdims=True)),
    ):
        np.save(folder / "stats" / f"{statistic}.npy", values)


def _fields(climate: Climate, year: int, times: int) -> _Fields:
    fields = torch.empty(times, *climate.shape)
    for time, state in enumerate(fields):
        climate.state(year, time, state)
    scaled = fields.numpy() * _STDS[:, None, None] + _MEANS[:, None, None]
    return scaled.astype(np.float32)


def _write(path: Path, fields: _Fields) -> None:
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset("fields", data=fields, chunks=(1, 1, *fields.shape[2:]))
