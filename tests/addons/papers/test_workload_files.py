"""Data sets as the public layouts have them, on one and two ranks; and bad ones.

A bad one fails its run with one line; the tests of each format try what can be wrong. Contents are
random.
"""

import io
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tfrecord import TFRecordWriter

from ranks import spec_of, start, windows_of
from reduced import WORKLOADS
from wattlaw.running.training import failures
from wattlaw.store.run_folder import RunFolder

DRAW = np.random.default_rng(0)
IMAGES, MOLECULES, TIMES = 12, 24, 6


def write_wikitext(folder: Path) -> None:
    words = ["".join(DRAW.choice([*"abcdefghij"], 4)) for _ in range(50)]
    for variant in ("wikitext-103-raw-v1", "wikitext-2-raw-v1"):
        (folder / variant).mkdir(parents=True)
        for split, shards in (("train", 2), ("validation", 1), ("test", 1)):
            for shard in range(shards):
                rows = ["", f" = {words[shard].title()} = \n", ""]
                rows += [" " + " ".join(DRAW.choice(words, 40)) + " . \n" for _ in range(12)]
                name = f"{split}-{shard:05}-of-{shards:05}.parquet"
                pq.write_table(pa.table({"text": rows}), folder / variant / name)
    (folder / "README.md").write_text("---\nconfigs: []\n---\n")


def encoded(number: int) -> bytes:
    """Return a photograph as ImageNet has them: JPEG, some grey or CMYK, one a PNG."""
    pixels = Image.fromarray(DRAW.integers(0, 256, (60, 70, 3), np.uint8))
    file = io.BytesIO()
    if number == 2:
        pixels.convert("RGBA").save(file, "PNG")
    else:
        pixels.convert({0: "CMYK", 1: "L"}.get(number, "RGB")).save(file, "JPEG")
    return file.getvalue()


def write_imagenet(folder: Path, *, first_label: int = 1) -> None:
    """Write shards of ``build_imagenet_data.py``: records with any number of bounding boxes."""
    folder.mkdir(parents=True)
    for split, shards, images in (("train", 2, IMAGES), ("validation", 1, 4)):
        for shard in range(shards):
            writer = TFRecordWriter(str(folder / f"{split}-{shard:05}-of-{shards:05}"))
            for number in range(shard, images, shards):
                label, boxes = int(DRAW.integers(1000)) + first_label, number % 3
                name = f"n02105855_{number}.JPEG".encode()
                box = {
                    f"image/object/bbox/{side}": (DRAW.random(boxes).tolist(), "float")
                    for side in ("xmin", "xmax", "ymin", "ymax")
                }
                writer.write(
                    {
                        "image/height": (60, "int"), "image/width": (70, "int"),
                        "image/colorspace": (b"RGB", "byte"), "image/channels": (3, "int"),
                        "image/class/label": (label, "int"),
                        "image/class/synset": (b"n02105855", "byte"),
                        "image/class/text": (b"Shetland sheepdog", "byte"),
                        **box, "image/object/bbox/label": ([label] * boxes, "int"),
                        "image/format": (b"JPEG", "byte"), "image/filename": (name, "byte"),
                        "image/encoded": (encoded(number), "byte"),
                    }
                )  # fmt: skip
            writer.close()


def write_qm9(folder: Path) -> None:
    records = []
    for number in range(MOLECULES):
        atoms, bonds = 3 + number % 20, 6
        records.append(
            {
                "x": torch.rand(atoms, 11),
                "edge_index": torch.randint(atoms, (2, bonds)),
                "edge_attr": torch.rand(bonds, 4),
                "y": torch.randn(1, 19),
                "pos": 3 * torch.randn(atoms, 3),
                "idx": torch.tensor([number]),
                "name": f"gdb_{number + 1}",
                "z": torch.tensor([1, 6, 7, 8, 9])[torch.randint(5, (atoms,))],
            }
        )
    (folder / "raw").mkdir(parents=True)
    torch.save(records, folder / "raw" / "qm9_v3.pt")


def write_era5(folder: Path, rows: int = 33) -> None:
    """Write the files of FourCastNet: 21 channels, of which it uses 20, on a coarse grid."""
    years = {"train": (1979, 1980), "test": (2016,), "out_of_sample": (2018,)}
    for part, numbers in years.items():
        (folder / part).mkdir(parents=True)
        for year in numbers:
            with h5py.File(folder / part / f"{year}.h5", "w") as file:
                file["fields"] = DRAW.standard_normal((TIMES, 21, rows, 64), np.float32)
    (folder / "stats").mkdir()
    for name, shape in (("global_means", (1, 1)), ("time_means", (rows, 64))):
        np.save(folder / "stats" / f"{name}.npy", np.zeros((1, 21, *shape)))
    np.save(folder / "stats" / "global_stds.npy", np.ones((1, 21, 1, 1)))


WRITTEN = {
    "wikitext": write_wikitext, "imagenet": write_imagenet, "qm9": write_qm9, "era5": write_era5,
}  # fmt: skip
SAMPLES = {"imagenet": IMAGES, "qm9": 22, "era5": 2 * (TIMES - 1)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with each data set, which no run may change."""
    folder = tmp_path_factory.mktemp("made")
    for name, write in WRITTEN.items():
        write(folder / name)
    return folder


def small(name: str, **options: object) -> dict[str, object]:
    """Return a workload of a study, reduced, on files instead of synthetic samples."""
    kept = {
        key: value
        for key, value in WORKLOADS[name].options.items()
        if key not in ("train_samples", "evaluation_samples", "classes", "vocab_size", "channels")
    }
    return {"name": name, "options": kept | options}


def good(made: Path) -> dict[str, dict[str, object]]:
    data = {name: {"data": str(made / name)} for name in WRITTEN}
    wikitext = {"data": str(made / "wikitext" / "wikitext-103-raw-v1"), "vocab_size": 300}
    return {
        "imagenet": small("resnet50", source="tfrecord", **data["imagenet"]),
        "wikitext": small("bert-base", source="parquet", **wikitext),
        "qm9": small("schnet", source="qm9", **data["qm9"]),
        "era5": small("fourcastnet", source="era5", **data["era5"]),
    }


def bad(made: Path, here: Path) -> dict[str, tuple[dict[str, object], tuple[str, ...]]]:
    """Damage copies of the files; return workloads on them and the expected errors."""
    for name in WRITTEN:
        shutil.copytree(made / name, here / name)
    workloads = good(here)
    shard = here / "imagenet" / "train-00001-of-00002"
    shard.write_bytes(shard.read_bytes()[:-100])
    year = here / "era5" / "train" / "1980.h5"
    with h5py.File(year, "r+") as file:
        file["fields"][4, 5, 3, 3] = np.nan
    return {
        "truncated": (workloads["imagenet"], (str(shard), "record")),
        "not a number": (workloads["era5"], (str(year), "4", "5")),
    }


class Ran(NamedTuple):
    """What came of a workload: the reason of its failure or None, and its windows."""

    reason: str | None
    windows: list[dict[str, Any]]


def run_ranks(folder: Path, workload: dict[str, Any], gpus: int) -> Ran:
    """Train a workload on ranks, without launcher; as torchrun does, end all with one."""
    spec = spec_of(workload["name"], workload["options"], gpus=gpus, global_batch=4, epochs=1)
    ranks = start(spec, folder, counts=True)
    end_s = time.monotonic() + 100
    while any(rank.exitcode is None for rank in ranks) and time.monotonic() < end_s:
        if any(rank.exitcode for rank in ranks):
            break
        time.sleep(0.02)
    codes = {number: rank.exitcode for number, rank in enumerate(ranks)}
    for rank in ranks:
        rank.kill()
        rank.join()
    if set(codes.values()) == {0}:
        return Ran(None, windows_of(folder))
    failed = {number: code for number, code in codes.items() if code}
    assert failed, f"no end after 100 s: {codes}"
    _, reason = failures.reason_of_ranks(RunFolder(folder).live(1), failed)
    return Ran(reason, windows_of(folder))


def files_in(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.timeout(580)
@pytest.mark.parametrize("kind", ["imagenet", "wikitext", "qm9", "era5"])
def test_public_data_sets_are_trained_on_by_one_and_two_ranks_alike(kind, made, tmp_path):
    before = files_in(made)
    runs = [run_ranks(tmp_path / str(gpus), good(made)[kind], gpus) for gpus in (1, 2)]
    assert [run.reason for run in runs] == [None, None]
    (one,), (two,) = ([w for w in run.windows if w["phase"] == "train"] for run in runs)
    # A last step of one sample is dropped where it has two ranks.
    assert two["samples"] == one["samples"] - (one["samples"] % 4 == 1)
    assert one["samples"] == SAMPLES.get(kind, one["samples"]) > 8
    # Batch normalization takes the statistics of what one rank computes.
    is_same = one["samples"] == two["samples"] and kind != "imagenet"
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-3 if is_same else 0.5)
    assert files_in(made) == before


@pytest.mark.timeout(580)
@pytest.mark.parametrize("kind", ["truncated", "not a number"])
def test_bad_data_fail_their_run_with_one_line_that_names_them(kind, made, tmp_path):
    workload, named = bad(made, tmp_path / "data")[kind]
    reason = run_ranks(tmp_path / "run", workload, 2).reason
    assert reason is not None
    assert "\n" not in reason
    assert "Traceback" not in reason
    for words in named:
        assert words in reason
