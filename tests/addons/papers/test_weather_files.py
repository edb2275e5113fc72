"""ERA5 in the layout of FourCastNet's authors, and errors for other files."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wattlaw.common.errors import BadInput
from wattlaw.workloads.data_loading import Loader
from wattlaw.workloads.workload import Shard
from wattlaw_papers.workloads.weather import Options
from wattlaw_papers.workloads.weather.era5 import ChannelStatistics, Era5
from wattlaw_papers.workloads.weather.fourcastnet import FourCastNet
from wattlaw_papers.workloads.weather.synthetic_weather import make_data

NO_SEEDS = np.zeros(0, np.uint64)
PLAIN = ChannelStatistics(np.zeros((2, 1, 1), np.float32), np.ones((2, 1, 1), np.float32))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("era5") / "data"
    make_data(folder, size=10, seed=0)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "data"))


def workload(folder: Path, **changes: object) -> FourCastNet:
    files = {"source": "era5", "data": str(folder), "image_size": [32, 64]}
    small = {"embed_dim": 16, "depth": 1, "num_blocks": 2}
    return FourCastNet(Options.model_validate(files | small | changes))


def rewrite(path: Path, fields: object, name: str = "fields") -> None:
    with h5py.File(path, "w") as file:
        file[name] = fields


def fields_of(path: Path) -> np.ndarray:
    with h5py.File(path) as file:
        return file["fields"][()]


def numbered(folder: Path, lengths: list[int]) -> None:
    """Write files whose values tell file and time: 1000 * file + time."""
    folder.mkdir(parents=True)
    for number, length in enumerate(lengths):
        times = 1000.0 * number + np.arange(length, dtype=np.float32)
        fields = np.broadcast_to(times[:, None, None, None], (length, 2, 3, 2))
        rewrite(folder / f"{1979 + number}.h5", fields)


@settings(max_examples=25)
@given(data=st.data(), steps=st.integers(1, 2), step=st.integers(1, 3))
def test_samples_are_the_starts_that_have_all_their_steps(tmp_path_factory, data, steps, step):
    least = steps * step + 1
    lengths = data.draw(st.lists(st.integers(least, least + 6), min_size=1, max_size=4))
    folder = tmp_path_factory.mktemp("files") / "train"
    numbered(folder, lengths)
    files = Era5(folder, PLAIN, (2, 2, 2), steps=steps, step=step)
    expected = [1000 * n + t for n, length in enumerate(lengths) for t in range(length - least + 1)]
    times = files.batch(np.arange(len(files)), NO_SEEDS)
    assert times[0][:, 0, 0, 0].tolist() == expected
    for number, states in enumerate(times):
        assert states[:, 1, 1, 1].tolist() == [start + number * step for start in expected]


def test_a_dataset_works_in_the_parent_and_in_its_loader_processes_in_turn(tmp_path):
    numbered(tmp_path / "train", [6])
    data = Era5(tmp_path / "train", PLAIN, (2, 2, 2), steps=1, step=1)
    here = data.batch(np.array([3]), NO_SEEDS)  # leaves a file open
    loader = Loader(data, Shard(0, 1, 1, seed=0), 2, training=False)
    there = list(loader.epoch(0))[3].data
    again = data.batch(np.array([3]), NO_SEEDS)
    for one, two, three in zip(here, there, again, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_fields_are_standardised_and_the_last_row_and_further_channels_are_left_out(folder):
    path = folder / "train" / "1980.h5"
    fields = fields_of(path)
    fields[:, :, 32], fields[:, 5:] = np.nan, np.nan
    rewrite(path, fields)
    now, later = workload(folder, channels=5).training_data().batch(np.array([9 + 4]), NO_SEEDS)
    mean, std = (np.load(folder / "stats" / f"global_{n}.npy")[0, :5] for n in ("means", "stds"))
    for states, time in ((now, 4), (later, 5)):
        expected = (fields[time, :5, :32].astype(np.float64) - mean) / std
        assert states.dtype == torch.float32
        np.testing.assert_allclose(states[0], expected, atol=1e-4)


def test_forecasts_are_scored_against_the_climatology_of_the_files(made):
    subject = workload(made)
    torch.manual_seed(0)
    model = subject.model()
    data = subject.evaluation_data().batch(np.array([0, 2]), NO_SEEDS)
    with torch.no_grad():
        forecast = model(data[0])[0].double().numpy()
        sums = subject.evaluate(model, data)
    fields = fields_of(made / "test" / "2016.h5")[[1, 3], :, :32].astype(np.float64)
    names = ("global_means", "global_stds", "time_means")
    mean, std, climate = (np.load(made / "stats" / f"{name}.npy") for name in names)
    truth = (fields - mean) / std
    normal = ((climate - mean) / std)[:, :, :32]
    weights = np.cos(np.deg2rad(np.linspace(90, -90, 33)[:32]))[:, None]
    weights /= weights.mean()
    rmse = np.sqrt((weights * (forecast - truth) ** 2).mean((2, 3)))
    f, t = forecast - normal, truth - normal
    both = (weights * f * t).sum((2, 3))
    acc = both / np.sqrt((weights * f**2).sum((2, 3)) * (weights * t**2).sum((2, 3)))
    norms = np.sqrt(((forecast - truth) ** 2).sum((1, 2, 3)) / (truth**2).sum((1, 2, 3)))
    assert float(sums["rmse"]) == pytest.approx(rmse.mean(1).sum(), rel=1e-4)
    assert float(sums["acc"]) == pytest.approx(acc.mean(1).sum(), abs=1e-4)
    assert float(sums["loss"]) == pytest.approx(norms.sum(), rel=1e-4)


def complaint(folder: Path, **changes: object) -> str:
    """Return the one-line error when all training and evaluation data are read."""
    with pytest.raises(BadInput) as caught:
        subject = workload(folder, **changes)
        for data in (subject.training_data(), subject.evaluation_data()):
            data.batch(np.arange(len(data)), NO_SEEDS)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_folders_and_files_that_are_not_there_are_named(folder):
    for name in ("global_stds", "global_means"):
        (folder / "stats" / f"{name}.npy").unlink()
        assert complaint(folder) == f"{folder / 'stats' / name}.npy: there is no such file"
    shutil.rmtree(folder)
    make_data(folder, size=4, seed=0)
    shutil.rmtree(folder / "test")
    assert complaint(folder).startswith(f"{folder / 'test'}: there is no such folder")
    for path in (folder / "train").iterdir():
        path.unlink()
    assert complaint(folder).startswith(f"{folder / 'train'}: has no *.h5 file")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:9999]), "cannot be read .*HDF5 file: .*truncated"),
        (lambda p: rewrite(p, np.zeros(3), "data"), "has no dataset 'fields'; it has data"),
        (lambda p: rewrite(p, fields_of(p)[0]), "is 20x33x64 of float32; allowed: .*time, channel"),
        (lambda p: rewrite(p, fields_of(p)[:, :19]), "has 19 channels; allowed: at least 20"),
        (lambda p: rewrite(p, fields_of(p)[..., :63]), "grid of 33x63; allowed: 32x64.*or 33x64"),
        (lambda p: rewrite(p, fields_of(p)[:1]), "has 1 times; allowed: at least 2"),
    ],
)
def test_a_file_that_is_not_as_it_must_be_is_named_before_training(folder, spoil, words):
    path = folder / "train" / "1980.h5"
    spoil(path)
    with pytest.raises(BadInput, match=words) as caught:
        workload(folder).training_data()
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_is_found_with_its_file_time_and_channel(folder, value):
    path = folder / "test" / "2016.h5"
    with h5py.File(path, "r+") as file:
        file["fields"][3, 17, 30, 2] = value
    found = f"{path}: time 3, channel 17: {value} at row 30, column 2"
    assert complaint(folder) == found


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("global_means", lambda a: a[0], "shape 20x1x1; allowed: 1xCx1x1 with C at least 20"),
        ("global_means", lambda a: a.astype(int), "not a .npy file of floating-point"),
        ("global_stds", lambda a: np.where(a == a.max(), 0, a), "channel 3 is 0; allowed: above 0"),
        ("global_means", lambda a: a * np.nan, "channel 0 .* not a finite"),
    ],
)
def test_statistics_that_cannot_be_used_are_refused(folder, name, change, words):
    path = folder / "stats" / f"{name}.npy"
    np.save(path, change(np.where(np.arange(20)[:, None, None] == 3, 1e7, np.load(path))))
    with pytest.raises(BadInput, match=words) as caught:
        workload(folder).training_data()
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
