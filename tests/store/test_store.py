"""The store: atomic files, records, tables."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from made_runs import made_record, made_spec
from made_stores import write_store
from made_tables import frames, run_row, window_row
from wattlaw.common.errors import BadInput
from wattlaw.common.files import replacing, write_parquet, write_text
from wattlaw.store.live import open_windows
from wattlaw.store.record import Facts, Interruption, RunRecord, Site, now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.schema import EPOCHS, TABLES, TELEMETRY
from wattlaw.store.store import Store
from wattlaw.study.model import WorkloadSpec
from wattlaw.study.setting import Setting

ID = "0123456789abcdef"


def record(run_id: str = ID, **changes: object) -> RunRecord:
    workload = WorkloadSpec(name="digits-cnn", options={"lr": 0.1})
    spec = made_spec(Setting(gpus=2, local_batch=32), workload=workload, repeat=1)
    known = made_record(run_id, spec, study="test", seed=1)
    return known.model_copy(update=changes)


def test_a_record_comes_back_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path / ID)
    assert folder.read() is None
    written = record(status="failed", reason="a\nb", facts=Facts(hosts=("x",), parameters=5))
    folder.write(written)
    assert folder.read() == written


FOREIGN = {
    "half a record": record().model_dump_json().encode()[:200],
    "an unknown status": record().model_dump_json().replace("planned", "lost").encode(),
    "a batch that cannot be": record().model_dump_json().replace("64", "65").encode(),
    "a key with line breaks": b'{"facts": {"software": {"a\\n\\u001b[31m": 3}}}',
    "another run": record("f" * 16).model_dump_json().encode(),
}


@pytest.mark.parametrize("content", FOREIGN)
def test_the_error_for_an_invalid_record_names_the_file(tmp_path, content):
    folder = RunFolder(tmp_path / ID)
    folder.path.mkdir()
    folder.record_path.write_bytes(FOREIGN[content])
    with pytest.raises(BadInput) as error:
        folder.read()
    assert str(error.value).startswith(f"{folder.record_path}: ")
    assert str(error.value).isprintable()


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")

    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "whole until here \ud800")
    with pytest.raises(OSError, match="Is a directory"):
        write_parquet(tmp_path, EPOCHS.empty_table())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_files_and_folders_have_the_permissions_of_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        folder = a_store(tmp_path / "store").folder(ID)
        folder.live(1).mkdir(parents=True)
        open_windows(folder.live(1), "a").close()
        with RunLock(folder) as lock:
            assert lock.acquire()
    finally:
        os.umask(before)
    found = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert len(found) == 6 + 3
    for path in found:
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask, path
    for path in {path.parent for path in found}:
        assert path.stat().st_mode & 0o777 == 0o777 & ~mask, path


def test_a_lock_belongs_to_one_process_and_ends_with_it(tmp_path):
    folder = RunFolder(tmp_path / ID)
    assert not RunLock(folder).is_locked()
    assert list(tmp_path.iterdir()) == []  # asking creates no file
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
    assert RunLock(folder).is_locked()
    holder.kill()
    holder.communicate()
    assert mine.acquire()
    assert RunLock(folder).is_locked()
    mine.release()
    assert not RunLock(folder).is_locked()


def a_store(path: Path) -> Store:
    store = Store(path)
    store.create()
    for run_id, status, reason in ((ID, "done", None), ("f" * 16, "failed", "because")):
        folder = store.folder(run_id)
        folder.write(record(run_id, status=status, reason=reason, started_at=now()))
        epochs = pa.Table.from_pylist(
            [{"run_id": run_id, "epoch": n, "duration_s": 1.5} for n in range(3)], schema=EPOCHS
        )
        samples = pa.Table.from_pylist(
            [{"run_id": run_id, "t_ns": 2**60 + 1, "throttle": 0}, {"t_ns": 0, "power_w": 0.0}],
            schema=TELEMETRY,
        )
        folder.write_tables(epochs, samples)
    return store


@pytest.fixture
def store(tmp_path):
    return a_store(tmp_path / "store")


@pytest.mark.parametrize("table", TABLES)
def test_an_empty_store_has_empty_tables_of_every_kind(tmp_path, table):
    store = Store(tmp_path / "store")
    store.create()
    assert store.arrow(table).schema == TABLES[table]
    assert list(store.pandas(table).columns) == TABLES[table].names
    assert len(store.pandas(table)) == 0


@pytest.mark.parametrize(("table", "rows"), [("runs", 2), ("epochs", 3), ("telemetry", 2)])
def test_every_way_of_reading_gives_the_same_table_of_done_runs(store, table, rows):
    schema = TABLES[table]
    arrow, frame = store.arrow(table), store.pandas(table)
    assert arrow.schema == schema
    assert arrow.num_rows == rows
    assert pa.Table.from_pandas(frame, schema, preserve_index=False).equals(arrow)


def test_unmeasured_values_are_null_and_zeros_are_zero(store):
    row, other = store.arrow("telemetry").to_pylist()
    assert (row["power_w"], row["mem_used_bytes"], row["throttle"]) == (None, None, 0)
    assert (other["power_w"], other["throttle"]) == (0.0, None)
    frame = store.pandas("telemetry")
    assert frame["power_w"].isna().tolist() == [True, False]
    assert store.pandas("epochs")["gpu_energy_j"].isna().all()


def test_the_table_of_another_run_is_rejected(store):
    path = store.folder(ID).epochs_path
    foreign = pq.read_table(path).to_pylist()
    pq.write_table(pa.Table.from_pylist([r | {"run_id": "e" * 16} for r in foreign], EPOCHS), path)
    with pytest.raises(BadInput, match=f"it is of run '{'e' * 16}', not {ID}"):
        Store(store.path, strict=True).arrow("epochs")


def test_a_folder_without_runs_is_not_a_store_and_a_store_cannot_replace_a_file(tmp_path):
    with pytest.raises(BadInput, match="not a store"):
        Store.existing(tmp_path)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(BadInput, match="cannot be a store"):
            Store(path).create()


START = datetime(2026, 11, 1, 12, tzinfo=UTC)
SITE = Site(
    scheduler="slurm", job_id="17", partition="gpu", nodes=("n1", "n2"), energy_j=5000.0,
    energy_source="sacct ConsumedEnergyRaw", energy_start_at=START,
    energy_end_at=START + timedelta(seconds=20),
)  # fmt: skip
CUT = Interruption(attempt=1, at=START, reason="node failure")


def test_the_table_of_runs_has_what_the_scheduler_says(tmp_path):
    store = write_store(tmp_path, *frames([run_row("a", launcher="slurm")], [window_row("a", 1)]))
    changes = {"site": SITE, "interruptions": (CUT, CUT), "attempts": 3}
    store.folder("a").write(store.folder("a").read().model_copy(update=changes), durable=False)
    (row,) = store.arrow("runs").to_pylist()
    assert (row["job_id"], row["partition"], row["node_names"]) == ("17", "gpu", ["n1", "n2"])
    assert (row["interruptions"], row["site_energy_j"]) == (2, 5000.0)
    assert row["site_energy_source"] == "sacct ConsumedEnergyRaw"
    assert row["site_energy_start_at"] == START
    assert row["site_energy_end_at"] == START + timedelta(seconds=20)
