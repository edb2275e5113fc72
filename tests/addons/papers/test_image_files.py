"""Images from folders, as the vision workloads read them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wattlaw.common.errors import BadInput
from wattlaw.workloads.data_loading import Loader, sample_seeds
from wattlaw.workloads.workload import Dataset, Shard
from wattlaw_papers.workloads.vision import ResNet50Options
from wattlaw_papers.workloads.vision.classifier import ResNet50
from wattlaw_papers.workloads.vision.synthetic_images import make_data

SIZE = 42


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "data"
    make_data(folder, SIZE, seed=5)
    return folder


@pytest.fixture
def own(tmp_path):
    make_data(tmp_path / "data", 12, seed=5)
    return tmp_path / "data"


def read(data: Path, *, training: bool = True) -> Dataset:
    task = ResNet50(ResNet50Options(source="folder", data=str(data), image_size=48))
    return task.training_data() if training else task.evaluation_data()


def everything(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = np.arange(len(data))
    return data.batch(numbers, sample_seeds(0, 0, numbers))


def test_a_folder_has_its_images_by_class(made):
    images, labels = everything(read(made, training=False))
    assert len(images) == SIZE // 4
    assert labels.tolist() == sorted(number % 10 for number in range(SIZE // 4))


def test_evaluation_takes_the_middle_of_the_resized_image(own):
    path = own / "val" / "class0" / "a.png"
    pixels = np.zeros((100, 200, 3), np.uint8)
    pixels[:, 50:150, 0] = 200  # the middle is red
    Image.fromarray(pixels).save(path)
    data = read(own, training=False)
    index = next(i for i in range(len(data)) if data.path(i) == path)
    images, _ = data.batch(np.array([index]), np.zeros(1, np.uint64))
    assert (images[0, 0] == 200).all()
    assert (images[0, 1:] == 0).all()


def test_training_cuts_and_mirrors_by_the_seed_and_leaves_torchs_own_seed_alone(made):
    data = read(made)
    state = torch.get_rng_state()
    images, _ = data.batch(np.array([3] * 20), np.arange(20, dtype=np.uint64))
    again, _ = data.batch(np.array([3] * 20), np.arange(20, dtype=np.uint64))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(images, again)
    assert len({image.numpy().tobytes() for image in images}) == 20


@pytest.mark.parametrize("training", [True, False])
def test_a_folder_without_images_names_the_expected_layout(tmp_path, training):
    with pytest.raises(BadInput, match="class folders"):
        read(tmp_path, training=training)


def test_a_class_that_is_only_in_val_is_refused(own):
    (own / "val" / "unknown").mkdir()
    with pytest.raises(BadInput, match="unknown: a class that is not in"):
        read(own, training=False)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_file_is_named(own, workers):
    path = own / "train" / "class7" / "0000007.jpg"
    path.write_bytes(path.read_bytes()[:-3000])
    loader = Loader(read(own), Shard(0, 1, 4, 0), workers, training=True)
    with pytest.raises(BadInput, match=rf"{path}: \d+ bytes that cannot be decoded") as caught:
        list(loader.epoch(0))
    assert "\n" not in str(caught.value)
