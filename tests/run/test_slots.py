"""Slots of a machine: each has one owner, and is released when its owner dies."""

import os
import subprocess
import sys

import pytest

from conftest import wait_for
from wattlaw.api.studies import run
from wattlaw.common import machine_lock
from wattlaw.running.local import free_slot, users_text

#: Occupies one of the named slots, as a user and in a network namespace of its own where asked.
HOLDER = """
import ctypes, os, sys, time
from wattlaw.running.local import free_slot
uid, namespace, *names = sys.argv[1:]
if namespace:
    ctypes.CDLL(None).unshare(int(namespace))
os.setuid(int(uid))
lease = free_slot(names)
print(*lease or ["nothing"], flush=True)
time.sleep(600)
"""
NOBODY, NEW_NETWORK = 65534, 0x40000000
TWO = [f"GPU-{'x' * 500}{name}" for name in "ab"]  # longer than an address
root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


@pytest.fixture
def hold(monkeypatch, tmp_path):
    monkeypatch.setenv("WATTLAW_LOCKS", str(tmp_path))  # of this test
    held = []

    def make(*names, uid=None, namespace=""):
        uid = os.getuid() if uid is None else uid
        line = [sys.executable, "-c", HOLDER, str(uid), str(namespace), *names]
        held.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        return held[-1], held[-1].stdout.readline().strip()

    yield make
    for process in held:
        process.kill()
        process.communicate()


def test_a_slot_has_one_owner_and_is_released_when_it_is_killed(hold):
    owner, name = hold(*TWO)
    assert name == TWO[0]
    lease = free_slot(TWO)
    assert list(lease) == TWO[1:]
    assert free_slot(TWO) is None
    user = machine_lock.user_name(os.getuid())
    assert users_text(TWO).endswith(f": process {owner.pid} of user {user}")  # not this process
    owner.kill()
    wait_for(lambda: free_slot(TWO[:1]), "the slot of the killed process")
    lease.release()
    lease.release()
    assert users_text(TWO) is None
    assert [free_slot([name]) is None for name in TWO] == [False, False]


@root_only
def test_users_share_the_slots_of_a_machine(hold):
    lease = free_slot(TWO)
    owner, name = hold(*TWO, uid=NOBODY)
    assert name == TWO[1]
    assert f": process {owner.pid} of user nobody" in users_text(TWO)
    assert hold(*TWO, uid=1)[1] == "nothing"
    lease.release()


@root_only
def test_a_container_with_a_network_of_its_own_has_slots_of_its_own(hold):
    assert hold("GPU-a")[1] == hold("GPU-a", namespace=NEW_NETWORK)[1] == "GPU-a"


def test_a_campaign_that_waits_names_who_uses_the_machine(write_study, tmp_path, hold):
    owner, _ = hold("run-0")
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

    assert run(path, tmp_path / "store", progress=progress).done == 1
    assert f"process {owner.pid} of user" in lines[0]
