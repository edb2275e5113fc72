"""TFRecord shards: framing, index files, and errors for damaged ones."""

import gzip
import io
import itertools
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tfrecord import TFRecordWriter
from tfrecord.tools.tfrecord2idx import create_index

from wattlaw.common.errors import BadInput
from wattlaw.workloads.workload import DATA_CACHE
from wattlaw_papers.workloads.vision import tfrecords
from wattlaw_papers.workloads.vision.images import ImageData
from wattlaw_papers.workloads.vision.synthetic_images import make_data
from wattlaw_papers.workloads.vision.tfrecords import Records, Shards, bounds

Features = dict[str, tuple[bytes | int | list[int], str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "data"
    make_data(folder, 12, seed=5)
    return folder


@pytest.fixture
def data(made, tmp_path):
    for path in made.glob("*-of-*"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.fixture
def write(tmp_path):
    def write(*examples: Features) -> Path:
        writer = TFRecordWriter(str(tmp_path / "train-00000-of-00001"))
        for example in examples:
            writer.write(example)
        writer.close()
        return tmp_path

    return write


def example(label: int | list[int] = 1, image: bytes = b"image") -> Features:
    return {"image/encoded": (image, "byte"), "image/class/label": (label, "int")}


def shards_of(data: Path, *, classes: int = 10, first_label: int = 1) -> Shards:
    return Shards(data, classes, first_label, training=True)


def all_of(shards: Shards) -> list[tuple[bytes, int]]:
    return [shards.read(index) for index in range(len(shards))]


def framed(payloads: list[bytes]) -> bytes:
    out = b""
    for payload in payloads:
        length = len(payload).to_bytes(8, "little")
        crc = TFRecordWriter.masked_crc
        out += length + crc(length) + payload + crc(payload)
    return out


def payloads_of(shard: Path) -> list[bytes]:
    ends, reader = bounds(shard).tolist(), Records()
    pairs = enumerate(itertools.pairwise(ends))
    return [reader.read(shard, start, end, record) for record, (start, end) in pairs]


SOME = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


@given(SOME)
def test_every_record_comes_back_as_it_was_written(payloads):
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / "train-0"
        shard.write_bytes(framed(payloads))
        assert payloads_of(shard) == payloads


@given(SOME, st.data())
def test_every_changed_byte_is_detected(payloads, draw):
    good = framed(payloads)
    position = draw.draw(st.integers(0, len(good) - 1))
    change = draw.draw(st.integers(1, 255))
    bad = good[:position] + bytes([good[position] ^ change]) + good[position + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / "train-0"
        shard.write_bytes(bad)
        with pytest.raises(BadInput, match=r"train-0: record \d"):
            payloads_of(shard)


@given(SOME, st.data())
def test_a_shard_that_breaks_off_is_refused(payloads, draw):
    good = framed(payloads)
    ends = np.cumsum([len(payload) + 16 for payload in payloads]).tolist()
    end = draw.draw(st.integers(1, len(good) - 1).filter(lambda size: size not in ends))
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / "train-0"
        shard.write_bytes(good[:end])
        broken = sum(each <= end for each in ends)
        with pytest.raises(BadInput, match=f"train-0: record {broken}: the file ends within it"):
            bounds(shard)


@pytest.mark.parametrize("ending", [".idx", ".index", ".tfindex"])
def test_an_index_of_another_reader_is_no_shard(data, ending):
    expected = all_of(shards_of(data))
    for path in data.glob("train-*"):
        create_index(str(path), f"{path}{ending}")
    assert all_of(shards_of(data)) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no records " * 9, r"record 0: .*uncompressed complete TFRecord files"),
        (gzip.compress(framed([b"one"]), mtime=0), r"record 0: .*uncompressed complete TFRecord"),
    ],
    ids=["text", "gzip"],
)
def test_an_invalid_or_compressed_tfrecord_file_is_rejected(tmp_path, content, words):
    (tmp_path / "train-0").write_bytes(content)
    with pytest.raises(BadInput, match=f"{tmp_path}/train-0: {words}"):
        shards_of(tmp_path)


def test_images_of_every_kind_in_imagenet_are_decoded(write):
    """Some are grey or CMYK and one is a PNG; records have any number of bounding boxes."""
    examples = []
    for boxes, (mode, kind) in enumerate(
        (("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"))
    ):
        file = io.BytesIO()
        Image.new("RGB", (70, 60), (240, 0, 0)).convert(mode).save(file, kind)
        box = {"image/object/bbox/xmin": ([0.5] * boxes, "float")}
        examples.append(example(image=file.getvalue()) | box)
    pictures = ImageData(shards_of(write(*examples)), 32, training=False)
    images, _ = pictures.batch(np.arange(4), np.zeros(4, np.uint64))
    reds, greens = images[:, :2].float().mean((2, 3)).T
    assert (reds - greens > 100).tolist() == [True, False, True, True]
    assert reds[1] == pytest.approx(0.299 * 240, abs=2)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"image/class/label": (1, "int")}, "0 bytes values in feature image/encoded"),
        (example(label=[1, 2]), "2 int64 values in feature image/class/label"),
        (example(label=0), "label 0; allowed: 1 to 10"),
    ],
)
def test_the_error_for_an_invalid_example_names_it(write, features, words):
    shards = shards_of(write(example(), features))
    assert shards.read(0) == (b"image", 0)
    with pytest.raises(BadInput, match=f"train-00000-of-00001: record 1: {words}"):
        shards.read(1)


def test_labels_count_from_the_first_label(write):
    folder = write(example(1), example(3), example(0))
    assert shards_of(folder).read(1)[1] == 2
    assert [label for _, label in all_of(shards_of(folder, first_label=0))] == [1, 3, 0]
    with pytest.raises(BadInput, match="label 3; allowed: 0 to 2"):
        shards_of(folder, classes=3, first_label=0).read(1)


@pytest.mark.parametrize(
    ("train", "validation"),
    [
        ("train/train-{}-of-{}", "validation/validation-{}-of-{}"),
        ("train-{}-of-{}.tfrecord", "valid-{}-of-{}.tfrecord"),
        ("imagenet2012-train.tfrecord-{}-of-{}", "imagenet2012-validation.tfrecord-{}-of-{}"),
        ("train_{}.tfrecords", "validation_{}.tfrecords"),
    ],
)
def test_other_usual_names_of_splits_are_read(data, tmp_path, train, validation):
    for part, name, total in (("train", train, 2), ("validation", validation, 2)):
        for number in range(total):
            shard = data / f"{part}-{number:05}-of-{total:05}"
            target = tmp_path / "renamed" / name.format(f"{number:05}", f"{total:05}")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(shard, target)
    for training in (True, False):
        expected = Shards(data, 10, 1, training=training)
        assert all_of(Shards(tmp_path / "renamed", 10, 1, training=training)) == all_of(expected)


@pytest.fixture
def searched(tmp_path, monkeypatch):
    found: list[Path] = []
    search = tfrecords.bounds

    def slow(shard: Path) -> tfrecords.Bounds:
        found.append(shard)
        time.sleep(0.1)
        return search(shard)

    monkeypatch.setattr(tfrecords, "bounds", slow)
    monkeypatch.setenv(DATA_CACHE, str(tmp_path / "cache" / "data"))
    return found


def test_ranks_that_start_together_search_the_shards_once(data, searched):
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda _: all_of(shards_of(data)), range(4))]
    assert all(images == found[0] for images in found)
    assert sorted(searched) == [data / f"train-0000{number}-of-00002" for number in (0, 1)]
    assert all_of(shards_of(data)) == found[0]
    assert len(searched) == 2


@pytest.mark.parametrize("change", ["append", "touch", "flip", "cut", "empty"])
def test_a_changed_shard_or_a_damaged_index_is_searched_again(data, searched, change):
    before, shard = len(shards_of(data)), data / "train-00001-of-00002"
    (index,) = (data / "cache" / "data").glob("*.npy")
    content = index.read_bytes()
    if change == "append":
        other = data / "train-00000-of-00002"
        shard.write_bytes(shard.read_bytes() + other.read_bytes())
    elif change == "touch":
        os.utime(shard)
    else:
        flipped = content[:150] + bytes([content[150] ^ 1]) + content[151:]
        index.write_bytes({"flip": flipped, "cut": content[:-20], "empty": b""}[change])
    images = all_of(shards_of(data))
    assert len(images) == before + (6 if change == "append" else 0)
    assert len(searched) == 4
    assert all_of(shards_of(data)) == images
    assert len(searched) == 4


def test_missing_shards_and_those_of_another_set_are_noticed(data):
    shutil.copy(data / "train-00000-of-00002", data / "train-00000-of-00001")
    with pytest.raises(BadInput, match="3 shards of a set of 2"):
        shards_of(data)
    (data / "train-00000-of-00001").unlink()
    (data / "train-00000-of-00002").unlink()
    with pytest.raises(BadInput, match="1 shards of a set of 2; shard 0 is missing"):
        shards_of(data)
