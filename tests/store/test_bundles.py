"""Bundles: an archive explains itself, and is a store once it is unpacked."""

import io
import json
import stat
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import wattlaw
from wattlaw.cli.main import main
from wattlaw.exporting.bundle import columns_in_markdown
from wattlaw.store.schema import TABLES, describe_columns
from wattlaw.store.version import SCHEMA_VERSION

STUDY = """\
name: example
workloads: [{name: resnet50}]
sweeps: [{gpus: [1, 2, 4], global_batch: [256]}]
repeats: 2
measure: {epochs: 2, warmup_epochs: 1, sample_hz: 2}
launch: {kind: simulated, simulation: {hardware: mit-v100}}
decide: {minimize: time}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "study.yaml").write_text(STUDY)
    wattlaw.run(folder / "study.yaml", folder / "store")
    assert (folder / "store/decision.json").exists()
    return folder / "store"


@pytest.fixture(scope="module")
def bundle(store):
    path = store.parent / "study.zip"
    assert wattlaw.open(store).export("bundle", path).files == (path,)
    return path


def test_a_bundle_that_was_unpacked_is_a_store_with_equal_results(store, bundle, tmp_path, capsys):
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(bundle) as file:
        file.extractall(folder)
    first, again = wattlaw.open(store), wattlaw.open(folder)
    for table in ("runs", "epochs", "metrics", "settings", "statistics"):
        assert_frame_equal(getattr(first, table), getattr(again, table))
        assert len(getattr(first, table)) > 0
    for table in TABLES:
        assert first.arrow(table).equals(again.arrow(table))
    assert first.decision == again.decision
    said = []
    for path in (store, folder):
        assert main(["advise", str(path), "--json"]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1]
    again.export("bundle", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def test_a_bundle_explains_itself(store, bundle):
    with zipfile.ZipFile(bundle) as file:
        assert file.testzip() is None
        texts = {name: file.read(name) for name in file.namelist() if "parquet" not in name}
        assert all(
            info.is_dir() or info.external_attr >> 16 == stat.S_IFREG | 0o644
            for info in file.infolist()
        )
    results = wattlaw.open(store)
    assert texts["studies/example.yaml"].decode() == STUDY
    assert json.loads(texts["store.json"]) == {"schema_version": SCHEMA_VERSION}
    readme = texts["README.md"].decode()
    assert f"Done runs: {len(results.metrics)} runs simulated." in readme
    assert all(f"| `{row['column']}` |" in readme for row in describe_columns())
    for table in TABLES:
        rows = pd.read_csv(io.BytesIO(texts[f"{table}.csv"]))
        frame = results.arrow(table).to_pandas()
        assert (list(rows), len(rows)) == (list(frame), len(frame))
    assert len(pd.read_csv(io.BytesIO(texts["columns.csv"]))) == len(describe_columns())


def test_every_column_has_a_description_and_the_unit_that_its_name_says():
    rows = describe_columns()
    assert [(row["table"], row["column"]) for row in rows] == [
        (table, name) for table, schema in TABLES.items() for name in schema.names
    ]
    assert all(row["meaning"].strip() for row in rows)
    units = {"s": "s", "j": "J", "w": "W", "mhz": "MHz", "ns": "ns", "hz": "Hz", "bytes": "B",
             "c": "°C", "seconds": "s", "at": "UTC"}  # fmt: skip
    for row in rows:
        end = row["column"].rsplit("_", 1)[-1]
        if row["column"] != end:
            assert row["unit"] == units.get(end, "FLOP" if "flops" in row["column"] else ""), row
    columns = columns_in_markdown().replace("## ", "### ")  # part of a page
    assert columns in Path("docs/store.md").read_text(encoding="utf-8")
