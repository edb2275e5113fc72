"""Stores with damaged, foreign and abandoned files: named, left out of other runs, tidied up."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_store import ID, a_store

import wattlaw
from made_runs import made_record, made_spec
from wattlaw.cli.main import main
from wattlaw.measure.devices.meter import Facts as DeviceFacts
from wattlaw.running.finish import finish
from wattlaw.store.live import open_windows, write_window
from wattlaw.store.record import DeviceReport, Facts, RunRecord, SamplerReport
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.schema import EPOCHS
from wattlaw.store.store import Store
from wattlaw.study.model import Measure
from wattlaw.study.setting import Setting

HOST = "a"
SIDE_FILES = (f"sampler.{HOST}.json", f"facts.{HOST}.json",
              f"limits.{HOST}.json", f"telemetry.{HOST}.csv")  # fmt: skip


def _replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: (path.unlink(missing_ok=True), make(path))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "another type": lambda path: path.write_bytes(b'{"host": 3, "samples": NaN}\n'),
    "null values": lambda path: path.write_bytes(b'[{"host": null, "at": null}]\n'),
    "deep": lambda path: path.write_bytes(b"[" * 200_000 + b"\n"),
    "huge": _replaced(lambda path: (path.touch(), os.truncate(path, 9 * 10**9))),
    "a pipe": _replaced(os.mkfifo),
    "endless": _replaced(lambda path: path.symlink_to("/dev/zero")),
}
#: A sample, for commands that read them all alike; ``make soak`` tries more of each.
SOME = ("another type", "huge", "a pipe")


@pytest.fixture
def in_time():
    """Fail a test that waits for a pipe."""

    def end(*_: object) -> None:
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def trained(folder: Path) -> tuple[RunRecord, RunFolder]:
    """Return a run whose training has ended well, and which is still to be finished."""
    measure = Measure(epochs=2, warmup_epochs=0, evaluate=False)
    spec = made_spec(Setting(gpus=1, local_batch=8), measure=measure)
    run = RunFolder(folder / ID)
    live = run.live(1)
    live.mkdir(parents=True)
    with open_windows(live, HOST) as windows:
        for epoch in range(2):
            write_window(windows, HOST, epoch=epoch, phase="train", warmup=False,
                         start_ns=10**9 * (1 + epoch), duration_s=1.0)  # fmt: skip
    device: dict[str, DeviceFacts] = {"facts": {}}
    report = SamplerReport(
        host=HOST, samples=1, duration_s=2.0, cpu_s=0.1, start_cpu_s=0.1,
        devices=(DeviceReport(id="cpu", kind="cpu", name="x", **device),),
    )  # fmt: skip
    (live / f"sampler.{HOST}.json").write_text(report.model_dump_json())
    (live / f"facts.{HOST}.json").write_text(Facts(hosts=(HOST,)).model_dump_json())
    (live / f"clocks.{HOST}.json").write_text("[]")
    (live / f"limits.{HOST}.json").write_text("[]")
    (live / f"telemetry.{HOST}.csv").write_text(
        "device,kind,t_ns,cpu_cores\ncpu,cpu,1500000000,1\n"
    )
    return made_record(ID, spec, status="running", attempts=1), run


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_side_file_is_a_note_of_a_run_that_is_done(tmp_path, damage):
    for name in SIDE_FILES:
        before, run = trained(tmp_path / name)
        DAMAGES[damage](run.live(1) / name)
        after = finish(before, run)
        assert (after.status, after.reason) == ("done", None), name
        assert any(name in note for note in after.notes), (name, after.notes)
        run.write(after)
        assert run.read() == after  # what it took from the file can be read again
        assert pq.read_table(run.epochs_path)["epoch"].to_pylist() == [0, 1]


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("damage", SOME)
def test_damaged_windows_fail_their_run_and_are_named(tmp_path, damage):
    before, run = trained(tmp_path)
    path = run.live(1) / f"windows.{HOST}.csv"
    DAMAGES[damage](path)
    after = finish(before, run)
    assert after.status == "failed"
    assert path.name in str(after.reason)
    assert str(after.reason).isprintable()


@pytest.fixture
def store(tmp_path):
    return a_store(tmp_path / "store")


def assert_one_line(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    """Check that a single message names a file of the damaged run and the run."""
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line
    assert path.parent.name in line


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("energy_verdict", "fine"),
        ("run_id", None),
        ("duration_s", float("nan")),
        ("start_ns", 2**63 - 1),
    ],
)
def test_a_value_that_no_run_writes_names_its_file(
    store, column, value, capsys, tmp_path, monkeypatch
):
    path = store.folder(ID).epochs_path
    row = {"run_id": ID, "host": "a", "epoch": 0, "phase": "train", "duration_s": 1.0,
           "start_ns": 1, "energy_source": "none", "energy_verdict": "unavailable"}  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row, row | {column: value}], EPOCHS), path)
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(store.path), "metrics", "-o", "x.csv"]) == 0
    assert len(Path("x.csv").read_text().splitlines()) == 1  # the heading
    error = capsys.readouterr().err
    assert str(path) in error
    assert column in error
    assert len(error.splitlines()) == 1
    assert main(["export", str(store.path), "metrics", "-o", "x.csv", "--strict"]) == 2
    assert_one_line(capsys, path)


@pytest.fixture
def study(write_decide):
    """Return a study of two runs, replayed in this process."""
    return write_decide(None, sweeps=[{"gpus": [1, 2], "local_batch": [32]}], repeats=1)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("run.json", Path.unlink), ("run.json", DAMAGES["deep"]), ("epochs.parquet", DAMAGES["cut"]),
     ("telemetry.parquet", DAMAGES["another type"])],
)  # fmt: skip
def test_a_run_with_a_damaged_file_is_left_out_and_repeated(tmp_path, study, name, damage, capsys):
    store = Store(tmp_path / "store")
    assert main(["run", str(study), "--store", str(store.path)]) == 0
    run_ids = {folder.run_id for folder in store.folders()}
    folder = next(store.folders())
    path = folder.path / name
    damage(path)
    capsys.readouterr()
    assert main(["status", str(store.path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["not_done"]
    assert (row["run_id"], row["status"]) == (folder.run_id, "damaged")
    assert str(path) in row["reason"]
    assert main(["advise", str(store.path), "--json"]) == 0
    assert f"run {folder.run_id} is left out" in capsys.readouterr().err
    assert main(["fit", str(store.path), "--strict"]) == 2
    assert_one_line(capsys, path)
    code = main(["run", str(study), "--store", str(store.path)])
    if name == "run.json" and damage is not Path.unlink:
        # What the record says is not known, such as whether a job still runs: it is kept.
        assert (code, store.records_by_id()[folder.run_id]) == (1, None)
        return
    assert (code, folder.read().status) == (0, "done")
    if name != "run.json":
        assert folder.read().attempts == 2
        assert any(str(path) in note for note in folder.read().notes)
    results = wattlaw.open(store.path, strict=True)
    assert ({*results.metrics["run_id"]}, dict(results.damaged)) == (run_ids, {})


WRITER = """
import sys, time
from pathlib import Path
from wattlaw.common.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print(temporary, flush=True)
    time.sleep(600)
"""


def test_temporary_files_of_killed_writers_are_removed_and_others_stay(store):
    first, second = store.folders()
    live = second.live(3)
    live.mkdir(parents=True)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True)
        for path in (live / "facts.a.json", second.record_path)
    ]
    try:
        dead, living = (Path(writer.stdout.readline().strip()) for writer in writers)
        (first.path / ".nfs0000000001").touch()
        (first.path / ".mine.txt").touch()
        writers[0].kill()
        writers[0].wait()
        store.remove_abandoned()
        assert (dead.exists(), living.exists()) == (False, True)
        assert {path.name for path in first.path.glob(".*")} == {".nfs0000000001", ".mine.txt"}
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


def test_a_done_run_that_was_killed_before_its_live_files_were_dropped_is_tidied(tmp_path, study):
    store = Store(tmp_path / "store")
    assert main(["run", str(study), "--store", str(store.path)]) == 0
    first, second = store.folders()
    for folder in (first, second):
        folder.live(1).mkdir(parents=True)
        folder.checkpoint_path.write_text("x")
    with RunLock(second) as held:
        assert held.acquire()  # by somebody who lives
        assert main(["run", str(study), "--store", str(store.path)]) == 0
    assert not (first.path / "live").exists()
    assert not first.checkpoint_path.exists()
    assert second.live(1).exists()
