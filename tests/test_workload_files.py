"""Real files on two ranks: all are read; a bad one fails its run alone, with one line.

Some go through ``wattlaw run``, the others straight to ranks: what differs is in the ranks.
"""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch

from ranks import spec_of, start, windows_of
from reduced import WORKLOADS
from wattlaw.cli.main import main
from wattlaw.launch.planning import plan_study
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.training import failures

SIZE = 24
FILES = {"vgg16": "imagenet", "bert-base": "wikitext", "schnet": "qm9", "fourcastnet": "era5"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small data set of every kind."""
    folder = tmp_path_factory.mktemp("made")
    for name, kind in FILES.items():
        line = ["workloads", "make-data", name, str(folder / kind), "--size", str(SIZE)]
        assert main(line) == 0
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
    text = {"tokenizer": str(made / "wikitext" / "tokenizer"), "vocab_size": 2000}
    era5 = {"source": "era5", "data": str(made / "era5"), "channels": 20}
    images = {"data": str(made / "imagenet"), "classes": 10}
    return {
        "shards": small("vgg16", source="tfrecord", **images),
        "image folder": small("resnet50", source="folder", **images),
        "text": small("bert-base", source="text", data=str(made / "wikitext" / "text"), **text),
        "parquet": small(
            "bert-base", source="parquet", data=str(made / "wikitext" / "parquet"), **text
        ),
        "molecules": small("schnet", source="qm9", data=str(made / "qm9")),
        "weather": small("fourcastnet", **era5),
    }


#: Through ``wattlaw run``: a good one, and bad ones that one rank or both cannot read.
WHOLE = ("shards", "truncated", "missing")


def bad(made: Path, here: Path) -> dict[str, tuple[dict[str, object], tuple[str, ...]]]:
    """Damage copies of the files; return workloads on them and the expected errors."""
    for kind in FILES.values():
        shutil.copytree(made / kind, here / kind)
    shard = here / "imagenet" / "train-00001-of-00002"
    shard.write_bytes(shard.read_bytes()[:-100])
    picture = sorted((here / "imagenet" / "train").rglob("*.jpg"))[3]
    picture.write_bytes(picture.read_bytes()[:200])
    year = here / "era5" / "train" / "1980.h5"
    with h5py.File(year, "r+") as file:
        file["fields"][7, 5, 3, 3] = np.nan
    raw = here / "qm9" / "raw" / "qm9_v3.pt"
    molecules = torch.load(raw, weights_only=True)
    molecules[5] |= {name: molecules[5][name][:1] for name in ("x", "z", "pos")}
    torch.save(molecules, raw)
    images = {"data": str(here / "imagenet"), "classes": 10}
    words = str(here / "wikitext" / "tokenizer")
    text = str(here / "wikitext" / "text")
    return {
        "truncated": (small("vgg16", source="tfrecord", **images), (str(shard), "record")),
        "corrupt": (small("resnet50", source="folder", **images), (str(picture),)),
        "not a number": (
            small("fourcastnet", source="era5", data=str(here / "era5"), channels=20),
            (str(year), "7", "5"),
        ),
        "one atom": (small("schnet", source="qm9", data=str(here / "qm9")), (str(raw), "5")),
        "vocabulary": (
            small("bert-base", source="text", data=text, tokenizer=words, vocab_size=100),
            (words, "100"),
        ),
        "missing": (
            small("schnet", source="qm9", data=str(here / "nowhere")),
            (str(here / "nowhere"),),
        ),
        "wrong shape": (
            small("fourcastnet", source="era5", data=str(made / "era5"), channels=21),
            (str(made / "era5"), "21"),
        ),
    }


class Ran(NamedTuple):
    """What came of a workload: the reason of its failure or None, and its windows."""

    reason: str | None
    windows: list[dict[str, Any]]


def run_whole(folder: Path, workloads: dict[str, dict[str, object]]) -> dict[str, Ran]:
    """Run a study of workloads on two ranks by the command line."""
    study = {
        "name": "files",
        "workloads": [*workloads.values()],
        "sweeps": [{"gpus": [2], "local_batch": [4]}],
        "order": "as_written",
        "measure": {"epochs": 1, "warmup_epochs": 0},
        "launch": {"gpus_per_node": 4, "threads_per_worker": 1, "max_parallel": 2},
    }
    path = folder / "study.json"
    path.write_text(json.dumps(study))
    planned = plan_study(path).runs  # in the order of the file
    assert main(["run", str(path), "--store", str(folder / "store")]) == 1
    store = Store(folder / "store")
    records = {record.run_id: record for record in store.records()}
    windows = store.arrow("epochs").to_pylist()
    found = {}
    for kind, run in zip(workloads, planned, strict=True):
        record = records[run.run_id]
        assert record.status == ("failed" if record.reason else "done")
        mine = [window for window in windows if window["run_id"] == run.run_id]
        found[kind] = Ran(record.reason, mine)
    return found


def run_ranks(folder: Path, workload: dict[str, Any]) -> Ran:
    """Train a workload on two ranks, without launcher; as torchrun does, end all with one."""
    spec = spec_of(workload["name"], workload["options"], gpus=2, global_batch=8, epochs=1)
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


@pytest.fixture(scope="module")
def damaged(
    made: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[dict[str, object], tuple[str, ...]]]:
    """Return the workloads on bad data and their expected errors."""
    return bad(made, tmp_path_factory.mktemp("damaged"))


@pytest.fixture(scope="module")
def ran(
    made: Path,
    damaged: dict[str, tuple[dict[str, object], tuple[str, ...]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Ran]:
    """Run some good and bad ones in one study; give a function that tells what came of any."""
    here = tmp_path_factory.mktemp("ran")
    workloads = good(made) | {kind: workload for kind, (workload, _) in damaged.items()}
    found = run_whole(here, {kind: workloads[kind] for kind in WHOLE})

    def tell(kind: str) -> Ran:
        if kind not in found:
            found[kind] = run_ranks(here / "alone" / kind, workloads[kind])
        return found[kind]

    return tell


@pytest.mark.timeout(580)
@pytest.mark.parametrize(
    "kind", ["shards", "image folder", "text", "parquet", "molecules", "weather"]
)
def test_every_sample_of_real_files_is_trained_on_once(kind, ran):
    run = ran(kind)
    assert run.reason is None
    (mine,) = (window for window in run.windows if window["phase"] == "train")
    expected = {"shards": SIZE, "image folder": SIZE, "weather": 2 * (SIZE - 1)}
    if kind in expected:
        assert mine["samples"] == expected[kind]
    assert mine["samples"] > 8
    assert np.isfinite(mine["loss"])


@pytest.mark.timeout(580)
@pytest.mark.parametrize(
    "kind",
    ["truncated", "corrupt", "not a number", "one atom", "vocabulary", "missing", "wrong shape"],
)
def test_bad_data_fail_their_run_with_one_line_that_names_them(kind, ran, damaged):
    reason = ran(kind).reason
    assert reason is not None
    assert "\n" not in reason
    assert "Traceback" not in reason
    for words in damaged[kind][1]:
        assert words in reason
