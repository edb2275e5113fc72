"""Real files through ``wattlaw run`` on two ranks: all are read; a bad one fails its run alone."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from reduced import WORKLOADS
from wattlaw.cli.main import main
from wattlaw.launch.planning import plan_study
from wattlaw.store.store import Store

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


#: The bad data that two ranks meet as well: one of them alone, or both at once.
ON_TWO_RANKS = ("truncated", "missing")


def bad(made: Path, here: Path) -> dict[str, tuple[dict[str, object], tuple[str, ...]]]:
    """Damage copies of the files; return workloads on them and what must be told."""
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
    """What came of the study."""

    runs: dict[str, pd.Series]
    epochs: pd.DataFrame
    told: dict[str, tuple[str, ...]]


def planned(path: Path, gpus: int, workloads: dict[str, dict[str, object]]) -> dict[str, str]:
    """Write a study; return the ids of its runs by kind."""
    study = {
        "name": path.stem,
        "workloads": [*workloads.values()],
        "sweeps": [{"gpus": [gpus], "local_batch": [4]}],
        "order": "as_written",
        "measure": {"epochs": 1, "warmup_epochs": 0},
        "launch": {"gpus_per_node": 4, "threads_per_worker": 1, "max_parallel": 2},
    }
    path.write_text(json.dumps(study))
    runs = plan_study(path).runs  # in the order of the file
    return {kind: run.run_id for kind, run in zip(workloads, runs, strict=True)}


@pytest.fixture(scope="module")
def ran(made: Path, tmp_path_factory: pytest.TempPathFactory) -> "Ran":
    """Run good and bad ones in one study on two ranks, and the other bad ones on one rank."""
    here = tmp_path_factory.mktemp("damaged")
    damaged = bad(made, here)
    spoilt = {kind: workload for kind, (workload, _) in damaged.items()}
    on_two = good(made) | {kind: spoilt.pop(kind) for kind in ON_TWO_RANKS}
    ids = {}
    for gpus, workloads in ((2, on_two), (1, spoilt)):
        path = here / f"on{gpus}.json"
        ids |= planned(path, gpus, workloads)
        assert main(["run", str(path), "--store", str(here / "store")]) == 1
    store = Store(here / "store")
    runs, epochs = store.pandas("runs").set_index("run_id"), store.pandas("epochs")
    found = {kind: runs.loc[run_id] for kind, run_id in ids.items()}
    return Ran(found, epochs, {kind: told for kind, (_, told) in damaged.items()})


@pytest.mark.timeout(580)
@pytest.mark.parametrize(
    "kind", ["shards", "image folder", "text", "parquet", "molecules", "weather"]
)
def test_every_sample_of_real_files_is_trained_on_once(kind, ran):
    run = ran.runs[kind]
    assert run.status == "done", run.reason
    mine = ran.epochs[(ran.epochs.run_id == run.name) & (ran.epochs.phase == "train")]
    expected = {"shards": SIZE, "image folder": SIZE, "weather": 2 * (SIZE - 1)}
    if kind in expected:
        assert mine.samples.item() == expected[kind]
    assert mine.samples.item() > 8
    assert np.isfinite(mine.loss.item())


@pytest.mark.timeout(580)
@pytest.mark.parametrize(
    "kind",
    ["truncated", "corrupt", "not a number", "one atom", "vocabulary", "missing", "wrong shape"],
)
def test_bad_data_fail_their_run_with_one_line_that_names_them(kind, ran):
    run = ran.runs[kind]
    assert run.status == "failed"
    assert "\n" not in run.reason
    assert "Traceback" not in run.reason
    for words in ran.told[kind]:
        assert words in run.reason
