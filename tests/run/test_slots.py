"""Slots of a machine: each has one owner, and is released when its owner dies."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import study_of, wait_for
from wattlaw.api.studies import run
from wattlaw.common.errors import NotAvailable
from wattlaw.run.local import LocalLauncher
from wattlaw.run.slots import _FOLDERS as FOLDERS
from wattlaw.run.slots import Slots
from wattlaw.study.launching import Launch
from wattlaw.study.model import Study
from wattlaw.study.plan import expand

SCRIPT = """
import sys, time
from pathlib import Path
from wattlaw.run.slots import Slots
lease = Slots(Path(sys.argv[1])).acquire(["gpu-0", "gpu-1"], 1)
print(list(lease), flush=True)
time.sleep(600)
"""

TWO = ["GPU-a", "GPU-b"]


def test_a_slot_has_one_owner_and_is_released_when_it_is_killed(tmp_path):
    slots = Slots(tmp_path)
    owner = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout.readline().strip() == "['gpu-0']"
    lease = slots.acquire(["gpu-0", "gpu-1"], 1)
    assert list(lease) == ["gpu-1"]
    assert slots.acquire(["gpu-0", "gpu-1"], 1) is None
    owner.kill()
    owner.communicate()
    wait_for(lambda: slots.acquire(["gpu-0"], 1), "the slot of the killed process")
    lease.release()
    lease.release()
    assert list(slots.acquire(["gpu-0", "gpu-1"], 2)) == ["gpu-0", "gpu-1"]


@given(st.lists(st.integers(1, 4), max_size=6))
def test_at_most_four_of_four_slots_have_owners(tmp_path_factory, counts):
    slots = Slots(tmp_path_factory.mktemp("slots"))
    names = ["MIG-GPU-1/2/0", "b", "c", "d"]
    leases = [lease for count in counts if (lease := slots.acquire(names, count))]
    taken = [name for lease in leases for name in lease]
    assert len(taken) == len(set(taken)) <= 4
    for lease in leases:
        lease.release()
    assert len(slots.acquire(names, 4)) == 4


def test_two_launchers_of_one_machine_share_its_slots(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTLAW_SLOTS_DIR", str(tmp_path))
    (run, *_) = expand(
        Study.model_validate(study_of() | {"workloads": ({"name": "x"},)}, strict=False)
    )
    first, second = (LocalLauncher(Launch(gpus_per_node=2), TWO, TWO) for _ in "ab")
    lease = first.allocate(run.spec)
    assert list(lease.workers) == ["GPU-a"]
    assert second.allocate(run.spec) is None
    third = LocalLauncher(Launch(gpus_per_node=2, max_parallel=2), TWO, TWO)
    assert list(third.allocate(run.spec).workers) == ["GPU-b"]
    lease.release()
    assert list(second.allocate(run.spec).workers) == ["GPU-a"]


HOLDER = """
import os, sys, time
from pathlib import Path
from wattlaw.run.slots import Slots
if len(sys.argv) > 3:
    os.umask(0o077)
    os.setuid(int(sys.argv[3]))
lease = Slots.of_this_machine(Path(sys.argv[1])).acquire([sys.argv[2]], 1)
print(lease is not None, flush=True)
time.sleep(600)
"""
NOBODY = 65534


@pytest.fixture
def hold(monkeypatch):
    """Return a function that occupies a slot of this machine from another process."""
    monkeypatch.delenv("WATTLAW_SLOTS_DIR")
    held = []

    def make(store, name, *user, **options):
        line = [sys.executable, "-c", HOLDER, str(store), name, *user]
        held.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True, **options))
        assert held[-1].stdout.readline() == "True\n"
        return held[-1]

    yield make
    for process in held:
        process.kill()
        process.wait()
        process.stdout.close()
    for path in slot_files():
        path.unlink()


NAME = f"test-{os.getpid()}"


def slot_files():
    return [path for folder in FOLDERS for path in Path(folder).glob(f"wattlaw-slot-{NAME}*")]


def test_the_slots_of_a_machine_are_one_whatever_tmpdir_is_and_name_who_has_them(tmp_path, hold):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    store = tmp_path / "its store"
    owner = hold(store, NAME, env=environment)
    slots = Slots.of_this_machine(tmp_path / "mine")
    assert slots.acquire([NAME], 1) is None
    (holder,) = slots.holders([NAME])
    user = pwd.getpwuid(os.getuid()).pw_name
    assert holder == f"process {owner.pid} of user {user}, store {store}"
    (path,) = slot_files()
    assert path.stat().st_mode & 0o777 == 0o666
    owner.kill()
    wait_for(lambda: slots.acquire([NAME], 1), "the slot of the killed process")
    assert slots.holders([NAME]) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("is_first", [True, False])
def test_users_share_the_slots_whoever_was_the_first(tmp_path, hold, is_first):
    slots = Slots.of_this_machine(tmp_path)
    if is_first:  # the file is of root
        slots.acquire([NAME], 1).release()
    owner = hold("/store", NAME, str(NOBODY))
    assert slots.acquire([NAME], 1) is None
    assert slots.holders([NAME]) == [f"process {owner.pid} of user nobody, store /store"]


def test_what_another_user_puts_in_place_of_a_slot_is_not_followed_or_written(tmp_path, hold):
    target = tmp_path / "precious"
    target.write_text("as it was")
    folder = tmp_path / "slots"
    folder.mkdir()
    slots = Slots(folder, tmp_path)
    (folder / "wattlaw-slot-link").symlink_to(target)
    (folder / "wattlaw-slot-hard").hardlink_to(target)
    os.mkfifo(folder / "wattlaw-slot-pipe")
    with pytest.raises(NotAvailable, match="is a link; it belongs to user"):
        slots.acquire(["link"], 1)
    with pytest.raises(NotAvailable, match="not a regular file"):
        slots.acquire(["pipe"], 1)
    assert slots.acquire(["hard"], 1) is not None
    assert target.read_text() == "as it was"
    (folder / "wattlaw-slot-told").write_text('{"pid": 1, "store": "a\\u001b[31m\\nb"}')
    assert "\x1b" not in " ".join(slots.holders(["told"]))


def test_a_campaign_that_waits_names_who_uses_the_machine(write_study, tmp_path, hold, monkeypatch):
    monkeypatch.setenv("WATTLAW_SLOTS_DIR", str(tmp_path / "slots"))
    owner = hold(tmp_path / "other", "run-0")
    path = write_study(
        workloads=[{"name": "command", "command": ["true"]}],
        sweeps=[{"gpus": [1], "local_batch": [1]}],
        measure={"epochs": 1, "warmup_epochs": 0},
        repeats=1,
    )
    lines = []

    def progress(line):
        lines.append(line)
        if "waiting" in line:
            owner.kill()

    outcome = run(path, tmp_path / "store", progress=progress)
    assert outcome.done == 1
    assert f"process {owner.pid} of user" in lines[0]
    assert f"store {tmp_path / 'other'}" in lines[0]
