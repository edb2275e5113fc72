"""Imports as tables: the same runs as run folders, written once, completely or not at all."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paths
from made_stores import write_store
from made_studies import mit
from wattlaw.api.results import open as open_store
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput, DamagedFileWarning
from wattlaw.running.run_status import store_status
from wattlaw.store.import_tables import ImportedRun, write_runs
from wattlaw.store.schema import TABLES
from wattlaw.store.statistics import joint_utilisation, statistics
from wattlaw.store.store import Store

STUDY = mit(counts=(1, 2), repeats=2)
RUN_ROWS = STUDY.runs.iloc[:8].assign(status=["failed", *["done"] * 7])


def runs_of(folders: Store) -> list[ImportedRun]:
    runs = []
    for number, folder in enumerate(folders.folders()):
        known = folder.read()
        assert known is not None
        is_done = known.status == "done"
        windows = pq.read_table(folder.epochs_path).to_pylist() if is_done else []
        samples = pq.read_table(folder.telemetry_path) if is_done else None
        runs.append(ImportedRun(known, windows, samples, line=number))
    return runs


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("folders") / "store"
    return write_store(path, RUN_ROWS, STUDY.epochs, samples=5)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store")
    store.create()
    return store


def import_path(store: Store) -> Path:
    (path,) = (store.path / "imports").glob("*/")
    return path


def test_an_import_has_the_tables_of_run_folders(folders, store):
    counts = write_runs(store, runs_of(folders))
    assert (counts.added, counts.unchanged, counts.rejected) == (8, 0, ())
    assert not [*(store.path / "runs").iterdir()]
    for name, schema in TABLES.items():
        tables = [Store(path.path).arrow(name) for path in (folders, store)]
        assert tables[1].schema == schema
        assert str(tables[1].to_pylist()) == str(tables[0].to_pylist())
    pd.testing.assert_frame_equal(statistics(store), statistics(folders), rtol=1e-9)
    assert joint_utilisation(store).equals(joint_utilisation(folders))
    some = Store(folders.path).arrow("runs")["run_id"].to_pylist()[2:4]
    assert joint_utilisation(store, some).equals(joint_utilisation(folders, some))
    samples = (open_store(each.path).table("telemetry", some) for each in (store, folders))
    assert next(samples).equals(next(samples))
    one, other = store_status(store), store_status(folders)
    assert (one.states, one.not_done) == (other.states, other.not_done)


def test_folders_and_imports_of_one_store_are_read_together(folders, store):
    runs = runs_of(folders)
    shutil.copytree(folders.path / "runs", store.path / "runs", dirs_exist_ok=True)
    for run in runs[::2]:
        shutil.rmtree(store.folder(run.record.run_id).path)
    assert write_runs(store, runs).added == 4
    for name in TABLES:
        assert str(store.arrow(name).to_pylist()) == str(folders.arrow(name).to_pylist())


@pytest.mark.parametrize(
    "change", [{"duration_s": -1.0}, {"energy_verdict": "fine"}, {"run_id": None}, {"steps": 2**70}]
)
def test_a_value_that_no_run_has_is_refused_and_nothing_is_written(folders, store, change):
    runs = runs_of(folders)
    bad = dataclasses.replace(runs[3], windows=[runs[3].windows[0] | change])
    with pytest.raises(BadInput):
        write_runs(store, [*runs[:3], bad])
    assert not [*store.path.glob("imports/*/"), *store.path.glob(".importing.*")]


@pytest.mark.parametrize(
    ("name", "how"),
    [("runs", "cut"), ("epochs", "missing"), ("telemetry", "cut"), ("runs", "other")],
)
def test_a_damaged_import_is_left_out_and_named(folders, store, name, how, capsys):
    runs = runs_of(folders)
    write_runs(store, runs[:4])
    damaged = import_path(store)
    write_runs(store, runs[4:])
    path = damaged / f"{name}.parquet"
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif how == "missing":
        path.unlink()
    else:
        pq.write_table(pa.table({"run_id": ["x"]}), path)
    opened = Store(store.path)
    with pytest.warns(DamagedFileWarning, match=f"import {damaged.name} is left out"):
        rows = {table: set(opened.arrow(table)["run_id"].to_pylist()) for table in TABLES}
    assert set(opened.damaged) == {damaged.name}
    assert rows["epochs"] == {run.record.run_id for run in runs[4:]}
    with pytest.raises(BadInput, match=damaged.name):
        Store(store.path, strict=True).arrow(name)
    assert main(["status", str(store.path)]) == 0
    assert "damaged" in capsys.readouterr().out
    if name == "runs":
        with pytest.raises(BadInput, match=damaged.name):
            write_runs(store, runs)


def test_a_copied_import_is_left_out(folders, store):
    write_runs(store, runs_of(folders))
    before = store.arrow("runs")
    shutil.copytree(import_path(store), store.path / "imports" / "zz")
    opened = Store(store.path)
    with pytest.warns(DamagedFileWarning, match="import zz is left out"):
        assert opened.arrow("runs").equals(before)


IMPORT = """
import sys
from pathlib import Path
from test_import_tables import runs_of as runs
from wattlaw.store.import_tables import write_runs
from wattlaw.store.store import Store
first = int(sys.argv[3])
store, folders = (Store(Path(path)) for path in sys.argv[1:3])
print(write_runs(store, runs(folders)[first : first + 6]).added)
"""


def test_imports_at_the_same_time_write_each_run_once(folders, store):
    places = [str(paths.SUPPORT), *sys.path]
    code = f"import sys; sys.path[:0] = {places!r}\n{IMPORT}"
    line = [sys.executable, "-c", code, str(store.path), str(folders.path)]
    writers = [subprocess.Popen([*line, first], stdout=subprocess.PIPE) for first in "02"]
    assert sum(int(writer.communicate()[0]) for writer in writers) == 8
    assert not Store(store.path).snapshot().damage
    assert store.arrow("runs").num_rows == 8
