"""The store: files that are whole or not there, streams that lose their tail at most."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import wait_for
from wattlaw.errors import BadInput
from wattlaw.store.files import StreamWriter, read_stream, replacing, write_text
from wattlaw.store.record import Facts, RunRecord
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.schema import EPOCHS, SAMPLES, TABLES, TELEMETRY
from wattlaw.store.store import Store
from wattlaw.study.model import Measure, RunSpec, Setting, WorkloadSpec

ID = "0123456789abcdef"


def record(run_id: str = ID, **changes: object) -> RunRecord:
    spec = RunSpec(
        workload=WorkloadSpec(name="digits-cnn", options={"lr": 0.1}),
        setting=Setting(gpus=2, global_batch=64, local_batch=32),
        repeat=1,
        measure=Measure(),
        launch_kind="local",
    )
    known = RunRecord(run_id=run_id, study="test", spec=spec, seed=1, order_seed=0)
    return known.model_copy(update=changes)


def stream_of(path: Path, batches: int = 4, rows: int = 3) -> bytes:
    with StreamWriter(path, SAMPLES) as stream:
        for batch in range(batches):
            stream.append([{"host": "a", "t_ns": batch * rows + row} for row in range(rows)])
    return path.read_bytes()


def times(table: pa.Table) -> list[int]:
    return table["t_ns"].to_pylist()


def test_a_record_comes_back_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path / ID)
    assert folder.read() is None
    written = record(status="failed", reason="a\nb", facts=Facts(hosts=("x",), parameters=5))
    folder.write(written)
    assert folder.read() == written


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"run_id": 3}', "\x00", record("f" * 16).model_dump_json()]
)
def test_a_file_that_is_no_record_of_this_run_is_named(tmp_path, text):
    folder = RunFolder(tmp_path / ID)
    folder.path.mkdir()
    folder.record_path.write_text(text)
    with pytest.raises(BadInput) as error:
        folder.read()
    assert str(folder.record_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")

    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_have_the_permissions_that_the_user_asked_for(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_reader_never_sees_half_a_record(tmp_path):
    folder = RunFolder(tmp_path / ID)
    folder.write(record())
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_store import *\n"
        "folder = RunFolder(Path(sys.argv[2]))\n"
        "for n in range(10**9): folder.write(record(notes=('x' * (n % 5000),)), durable=False)\n"
    )
    line = [sys.executable, "-c", code, str(Path(__file__).parent), str(folder.path)]
    with subprocess.Popen(line) as writer:
        first = folder.record_path.stat().st_ino
        wait_for(lambda: folder.record_path.stat().st_ino != first, "the writer")
        for _ in range(500):
            assert folder.read() is not None
        writer.kill()


def test_a_stream_cut_at_any_byte_gives_the_batches_before_the_cut(tmp_path):
    whole = stream_of(tmp_path / "whole")
    full = times(read_stream(tmp_path / "whole", SAMPLES))
    assert full == list(range(12))
    torn, found = tmp_path / "torn", set()
    for cut in range(len(whole)):
        torn.write_bytes(whole[:cut])
        rows = times(read_stream(torn, SAMPLES))
        assert rows == full[: len(rows)]
        assert len(rows) % 3 == 0
        found.add(len(rows))
    assert found == {0, 3, 6, 9, 12}


@settings(deadline=None)
@given(st.data())
def test_a_stream_with_garbage_at_its_end_never_raises(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("streams")
    whole = stream_of(folder / "whole")
    cut = data.draw(st.integers(0, len(whole)))
    (folder / "torn").write_bytes(whole[:cut] + data.draw(st.binary(max_size=300)))
    rows = times(read_stream(folder / "torn", SAMPLES))
    kept = [t for t in rows if t is not None and 0 <= t < 12]
    assert kept[:3] == list(range(12))[: min(3, len(kept))]


def test_a_killed_writer_loses_its_last_batch_at_most(tmp_path):
    path = tmp_path / "stream"
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from wattlaw.store.files import StreamWriter\n"
        "from wattlaw.store.schema import SAMPLES\n"
        "stream = StreamWriter(Path(sys.argv[1]), SAMPLES)\n"
        "for n in range(10**9):\n"
        "    stream.append([{'t_ns': n}]); print(n, flush=True)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    for _ in range(200):
        said = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    said = max([said, *map(int, writer.communicate()[0].split("\n")[:-1])])
    rows = times(read_stream(path, SAMPLES))
    assert rows == list(range(len(rows)))
    assert len(rows) >= said


def test_a_claim_belongs_to_one_process_and_dies_with_it(tmp_path):
    folder = RunFolder(tmp_path / ID)
    assert not RunLock(folder).is_held()
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from wattlaw.store.run_folder import *\n"
        "lock = RunLock(RunFolder(Path(sys.argv[1])))\n"
        "print(lock.acquire(), flush=True); time.sleep(600)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "True\n"
    mine = RunLock(folder)
    assert not mine.acquire()
    assert RunLock(folder).is_held()
    holder.kill()
    holder.communicate()
    assert mine.acquire()
    assert RunLock(folder).is_held()
    mine.release()
    assert not RunLock(folder).is_held()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Give a store with one done run and one failed."""
    store = Store(tmp_path / "store")
    store.create()
    done = store.folder(ID)
    done.write(record(status="done"))
    epochs = pa.Table.from_pylist(
        [{"run_id": ID, "epoch": n, "duration_s": 1.5} for n in range(3)], schema=EPOCHS
    )
    samples = pa.Table.from_pylist([{"run_id": ID, "t_ns": 7}], schema=TELEMETRY)
    done.write_tables(epochs, samples)
    store.folder("f" * 16).write(record("f" * 16, status="failed", reason="because"))
    return store


@pytest.mark.parametrize("table", TABLES)
def test_an_empty_store_has_empty_tables_of_every_kind(tmp_path, table):
    store = Store(tmp_path / "store")
    store.create()
    assert store.arrow(table).schema == TABLES[table]
    assert list(store.pandas(table).columns) == TABLES[table].names
    assert store.duckdb(table).columns == TABLES[table].names
    assert len(store.pandas(table)) == 0


@pytest.mark.parametrize(("table", "rows"), [("runs", 2), ("epochs", 3), ("telemetry", 1)])
def test_every_way_of_reading_gives_the_same_table(store, table, rows):
    assert store.arrow(table).num_rows == len(store.pandas(table)) == rows
    assert store.duckdb(table).columns == TABLES[table].names
    assert len(store.duckdb(table).fetchall()) == rows


def test_what_was_not_measured_is_null_and_not_zero(store):
    (row,) = store.arrow("telemetry").to_pylist()
    assert row["power_w"] is None
    assert row["mem_used_bytes"] is None
    query = store.duckdb("epochs").aggregate("count(gpu_energy_j), count(*)")
    assert query.fetchall() == [(0, 3)]


def test_a_run_row_says_what_was_asked_and_what_became_of_it(store):
    rows = {row["run_id"]: row for row in store.arrow("runs").to_pylist()}
    assert rows["f" * 16]["reason"] == "because"
    assert rows[ID]["gpus"] == 2
    assert json.loads(rows[ID]["options"]) == {"lr": 0.1}
    assert rows[ID]["power_limit_w"] is None


@pytest.mark.parametrize("damage", ["missing", "garbage", "foreign"])
def test_a_done_run_whose_table_is_damaged_is_named(store, damage):
    path = store.folder(ID).epochs_path
    path.unlink()
    if damage == "garbage":
        path.write_bytes(b"PAR1 not really")
    elif damage == "foreign":
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(BadInput) as error:
        store.arrow("epochs")
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_no_store_is_said_to_be_none(tmp_path):
    with pytest.raises(BadInput, match="no store"):
        Store.existing(tmp_path)
