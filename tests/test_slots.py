"""Slots on a machine: never held twice, given back at death."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import study_of, wait_for
from wattlaw.errors import NotAvailable
from wattlaw.launch.local import LocalLauncher
from wattlaw.launch.slots import Slots
from wattlaw.study.launching import Launch
from wattlaw.study.model import Study
from wattlaw.study.plan import expand

HOLD = """
import sys, time
from pathlib import Path
from wattlaw.launch.slots import Slots
claim = Slots(Path(sys.argv[1])).acquire(["gpu-0", "gpu-1"], 1)
print(claim.names, flush=True)
time.sleep(600)
"""

TWO = ["GPU-a", "GPU-b"]


def test_a_place_is_held_by_one_process_and_given_back_when_it_is_killed(tmp_path):
    places = Slots(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline().strip() == "['gpu-0']"
    claim = places.acquire(["gpu-0", "gpu-1"], 1)
    assert claim.names == ["gpu-1"]
    assert places.acquire(["gpu-0", "gpu-1"], 1) is None
    holder.kill()
    holder.communicate()
    wait_for(lambda: places.acquire(["gpu-0"], 1), "the place of the killed process")
    claim.release()
    claim.release()
    assert places.acquire(["gpu-0", "gpu-1"], 2).names == ["gpu-0", "gpu-1"]


@given(st.lists(st.integers(1, 4), max_size=6))
def test_of_four_places_no_more_than_four_are_ever_held(tmp_path_factory, counts):
    places = Slots(tmp_path_factory.mktemp("places"))
    names = ["MIG-GPU-1/2/0", "b", "c", "d"]
    held = [claim for count in counts if (claim := places.acquire(names, count))]
    taken = [name for claim in held for name in claim.names]
    assert len(taken) == len(set(taken)) <= 4
    for claim in held:
        claim.release()
    assert len(places.acquire(names, 4).names) == 4


def test_two_launchers_of_one_machine_do_not_run_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (run, *_) = expand(
        Study.model_validate(study_of() | {"workloads": ({"name": "x"},)}, strict=False)
    )
    one, other = (LocalLauncher(Launch(gpus_per_node=2), TWO, TWO) for _ in "ab")
    claim = one.allocate(run.spec)
    assert claim.workers.names == ["GPU-a"]
    assert other.allocate(run.spec) is None
    third = LocalLauncher(Launch(gpus_per_node=2, max_parallel=2), TWO, TWO)
    assert third.allocate(run.spec).workers.names == ["GPU-b"]
    claim.release()
    assert other.allocate(run.spec).workers.names == ["GPU-a"]


def test_a_folder_for_places_that_is_not_ours_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = Slots.of_this_user()._folder
    assert folder.stat().st_mode & 0o077 == 0
    folder.rmdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(NotAvailable, match="belongs to another user"):
        Slots.of_this_user()
