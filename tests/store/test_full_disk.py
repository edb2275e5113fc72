"""A disk that is full: one clear reason, and nothing half-written that counts."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import HERE, agent, record_of
from conftest import wait_for
from ranks import spec_of
from wattlaw.cli.main import main
from wattlaw.running.finish import failure_reason
from wattlaw.running.training.environment import DISK_FULL
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import run_id

KIB = 1024


@pytest.fixture
def disk(tmp_path):
    """Give a folder that is a disk of 640 KiB by itself."""
    folder = tmp_path / "disk"
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=640k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(line, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here, to make a small disk with")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        unmount = ["umount", "-l", str(folder)]
        subprocess.run(unmount, check=True)


@contextlib.contextmanager
def training(disk: Path, **spec: object) -> Iterator[tuple[RunFolder, "subprocess.Popen[bytes]"]]:
    asked = spec_of("digits-dropout", {}, global_batch=24, **spec)
    folder = RunFolder(disk / run_id(asked))
    record_of(asked, folder, 1)
    pause = disk.parent / "pause"
    pause.write_text("0.001")
    one = agent(folder, 1, TEST_PAUSE_FILE=str(pause))
    try:
        yield folder, one
    finally:
        one.kill()
        one.wait()


def test_a_checkpoint_that_does_not_fit_fails_the_run_and_leaves_no_part_of_it(disk):
    with training(disk, epochs=2, checkpoint_every=1) as (folder, one):
        code = one.wait(90)
    log = folder.log_path.read_text()
    reason = failure_reason(folder, 1, code)
    assert code == 1, log
    assert reason.startswith("rank 0: the disk is full: "), log
    assert "checkpoint.pt" in reason
    assert "\n" not in reason
    assert not folder.checkpoint_path.exists()
    assert [path.name for path in folder.path.iterdir() if "checkpoint" in path.name] == []
    assert (folder.live(1) / f"ended.{HERE}.json").exists()
    rows = folder.windows(1).to_pylist()
    assert [row["phase"] for row in rows] == ["train", "evaluate"]


def test_a_run_that_cannot_write_anything_has_a_special_exit_code(disk):
    with training(disk, epochs=50) as (folder, one):
        wait_for(lambda: len(folder.windows(1)) >= 1, "the first window")
        with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(os.urandom(KIB))
        before = len(folder.windows(1))
        code = one.wait(90)
    assert code == DISK_FULL
    # A rank may find the page that another's file has left, and tell it itself.
    assert failure_reason(folder, 1, code).removeprefix("rank 0: ").startswith("the disk is full")
    for row in folder.windows(1).slice(before).to_pylist():  # what came last is whole, or cut
        assert row["duration_s"] is not None


MAP, SWEEPS = "gpus=n,epoch_time_s=t", [{"gpus": [1], "local_batch": [1]}]
COMMANDS = (
    "run study.yaml --store disk/store",
    "run study.yaml --store disk/store --launch simulated --hardware mit-v100",
    f"import table.csv --map {MAP} --store disk/store",
    "export sound bundle -o disk/bundle.zip",
    "report sound -o disk/report.html",
    "measure -o disk/store -- true",
)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_without_room_names_the_path_and_leaves_no_part(
    line, disk, write_study, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("n,t\n1,9\n")
    assert main(["import", "table.csv", "--map", MAP, "--store", "sound"]) == 0
    name = "resnet50" if "simulated" in line else "command"
    workload = {"name": name} | ({"command": ["true"]} if name == "command" else {})
    write_study(workloads=[workload], sweeps=SWEEPS, measure={}, launch={})
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "filler").write_bytes(bytes(free - 4 * KIB))
    capsys.readouterr()
    code, said = main(line.split()), "".join(capsys.readouterr())
    assert (code, "disk/" in said, "No space left" in said) == (2, True, True), said
    assert [*disk.rglob(".*")] == []
    (disk / "filler").unlink()
    enlarge = ["mount", "-o", "remount,size=64m", str(disk)]
    subprocess.run(enlarge, check=True)
    assert main(line.split()) == 0, "".join(capsys.readouterr())
