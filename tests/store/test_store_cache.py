"""The cache of finished runs: every table is the same with it, without it, and after any change."""

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_stores import write_store
from made_studies import mit
from wattlaw.store import cache
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.schema import TABLES
from wattlaw.store.statistics import statistics
from wattlaw.store.store import Store

SETTLED_S = 0.15


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    study = mit(counts=(1, 2), repeats=2)
    path = tmp_path_factory.mktemp("made") / "store"
    write_store(path, study.runs.iloc[:12], study.epochs, samples=6)
    time.sleep(SETTLED_S)
    return path


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(cache, "_MIN_RUNS", 1)


@pytest.fixture
def store(made, tmp_path):
    without = shutil.ignore_patterns(cache.FOLDER)
    shutil.copytree(made, tmp_path / "store", ignore=without)
    time.sleep(SETTLED_S)
    return Store(tmp_path / "store")


def tables(path: Path) -> dict[str, str]:
    """Return every table as text, in which NaN equals NaN."""
    opened = Store(path)
    read = {name: opened.arrow(name).to_pylist() for name in TABLES}
    return {name: str(rows) for name, rows in read.items()} | {
        "statistics": statistics(opened).to_csv(float_format="%.9g")
    }


def cached(path: Path) -> pa.Table:
    return pq.read_table(path / cache.FOLDER / "runs.parquet")


def test_a_second_reading_opens_no_file_of_a_run(store, monkeypatch):
    first = tables(store.path)
    assert cached(store.path).num_rows == 12
    for path in (store.path / "runs").rglob("*.parquet"):
        path.chmod(0o664)
    monkeypatch.setattr("wattlaw.store.run_folder.RunFolder.read", None)
    monkeypatch.setattr("wattlaw.store.store.Store.folder", None)
    with pytest.raises(TypeError):  # the change of permissions is a change
        Store(store.path).arrow("epochs")
    monkeypatch.undo()
    monkeypatch.setattr(cache, "_MIN_RUNS", 1)
    time.sleep(SETTLED_S)
    tables(store.path)
    monkeypatch.setattr("wattlaw.store.run_folder.RunFolder.read", None)
    opened = Store(store.path)
    assert str(opened.arrow("runs").to_pylist()) == first["runs"]
    assert str(opened.arrow("epochs").to_pylist()) == first["epochs"]
    assert statistics(opened).to_csv(float_format="%.9g") == first["statistics"]


def test_an_edited_run_is_read_again_even_with_its_old_size_and_time(store):
    tables(store.path)
    folder = next(store.folders())
    before = folder.record_path.stat()
    text = folder.record_path.read_text()
    folder.record_path.write_text(text.replace('"order_seed": 0', '"order_seed": 7'))
    os.utime(folder.record_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert folder.record_path.stat().st_size == before.st_size
    rows = Store(store.path).arrow("runs").to_pylist()
    assert [row["order_seed"] for row in rows] == [7] + [0] * 11


def damaged(content: bytes, how: str, at: float) -> bytes:
    place = int(at * (len(content) - 1))
    if how == "cut":
        return content[:place]
    if how == "flip":
        return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
    return b"x" * place if how == "other" else b""


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(["cut", "flip", "other", "empty"]), st.floats(0, 1),
       st.sampled_from(["runs", "epochs", "statistics"]))  # fmt: skip
def test_a_damaged_cache_is_never_believed(made, how, at, name):
    expected = tables(made)
    path = made / cache.FOLDER / f"{name}.parquet"
    path.write_bytes(damaged(path.read_bytes(), how, at))
    assert tables(made) == expected == tables(made)


def test_a_cache_is_as_readable_as_the_runs(store):
    (store.path / "runs").chmod(0o750)
    private = next(store.folders())
    private.record_path.chmod(0o600)
    time.sleep(SETTLED_S)
    tables(store.path)
    folder = store.path / cache.FOLDER
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert stat.S_IMODE((folder / "runs.parquet").stat().st_mode) == 0o640
    assert private.run_id not in cached(store.path)["run_id"].to_pylist()


READER = """
import sys
from pathlib import Path
from wattlaw.store import cache
from wattlaw.store.statistics import statistics
from wattlaw.store.store import Store
cache._MIN_RUNS = 1
for _ in range(2):
    opened = Store(Path(sys.argv[1]))
    rows = [opened.arrow(name).num_rows for name in ("runs", "epochs")]
    print(*rows, len(statistics(opened)))
"""


def test_many_processes_read_and_write_one_cache(store):
    opened = Store(store.path)
    rows = [opened.arrow(name).num_rows for name in ("runs", "epochs")]
    expected = " ".join(map(str, [*rows, len(statistics(opened))]))
    line = [sys.executable, "-c", READER, str(store.path)]
    readers = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    while any(reader.poll() is None for reader in readers):
        for path in (store.path / cache.FOLDER).glob("*.parquet"):
            path.unlink(missing_ok=True)
        time.sleep(0.05)
    assert [reader.communicate()[0].splitlines() for reader in readers] == [[expected] * 2] * 2
    assert [reader.returncode for reader in readers] == [0, 0]
    assert not [*(store.path / cache.FOLDER).glob(".*")]


def test_a_store_that_cannot_be_written_is_read(store):
    expected = tables(store.path)
    shutil.rmtree(store.path / cache.FOLDER)
    (store.path / cache.FOLDER).touch()  # also root cannot make the folder
    assert tables(store.path) == expected
    assert (store.path / cache.FOLDER).is_file()


def edit(folder: RunFolder, **changes: object) -> None:
    folder.write(folder.read().model_copy(update=changes), durable=False)


CHANGES: dict[str, Callable[[RunFolder], object]] = {
    "another seed": lambda folder: edit(folder, seed=99),
    "failed": lambda folder: edit(folder, status="failed"),
    "removed": lambda folder: shutil.rmtree(folder.path),
    "cut": lambda folder: os.truncate(folder.telemetry_path, 100),
    "fewer windows": lambda folder: pq.write_table(
        pq.read_table(folder.epochs_path).slice(1), folder.epochs_path
    ),
}


@pytest.mark.filterwarnings("ignore::wattlaw.common.errors.DamagedFileWarning")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_tables_are_the_same_with_and_without_cache_after_a_change(store, change, tmp_path):
    before = tables(store.path)
    folder = next(store.folders())
    shutil.copytree(folder.path, tmp_path / "kept")
    change(folder)
    after = tables(store.path)
    shutil.rmtree(store.path / cache.FOLDER, ignore_errors=True)
    assert before != after == tables(store.path)
    shutil.copytree(tmp_path / "kept", folder.path, dirs_exist_ok=True)
    assert tables(store.path) == before
