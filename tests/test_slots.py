"""Slots of a machine: each has one owner, and is released when its owner dies."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import study_of, wait_for
from wattlaw.errors import NotAvailable
from wattlaw.launch.local import LocalLauncher, Slots
from wattlaw.study.launching import Launch
from wattlaw.study.model import Study
from wattlaw.study.plan import expand

SCRIPT = """
import sys, time
from pathlib import Path
from wattlaw.launch.local import Slots
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
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
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


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = Slots.of_this_user()._folder
    assert folder.stat().st_mode & 0o077 == 0
    folder.rmdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(NotAvailable, match="belongs to another user"):
        Slots.of_this_user()
