"""The process that sets limits restores them, and reports errors.

What happens when processes are killed is in test_killed_owners.py.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pynvml
import pytest

from limiting import CAP, SET, Place, places, restore_stale_or_raise
from wattlaw.common.errors import BadInput, NotAvailable, NotPermitted
from wattlaw.measure.limits.guard import acquire
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.state_folder import SavedState, StateFolder, boot_id

Start = Callable[..., Place]
NOT_SUPPORTED, UNKNOWN = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
LOCK, UNLOCK = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"


@pytest.fixture
def start(tmp_path, fake_gpus, monkeypatch):
    yield from places(tmp_path, fake_gpus, monkeypatch)


def saved_limit(device: str, **changes: object) -> SavedState:
    made = {
        "device": device,
        "power_limit_w": 203.251,
        "unlock_clock": False,
        "token": "of-the-dead",
        "owner_pid": 2**22 - 1,  # nobody
        "user": "somebody",
        "made_at": datetime.now(UTC),
        "boot_id": boot_id(),
        "host": socket.gethostname(),
        "set_w": 217.5,  # as the boards of these tests stand
    }
    return SavedState(**(made | changes))


def test_a_cap_is_restored_to_its_previous_value_not_the_maximum(start):
    place = start(2)
    place.boards[1].limit_mw = 203_251
    with pytest.raises(ZeroDivisionError), acquire(place.devices) as held:
        held.apply(Limits(150, 900))
        assert place.limits_w == [150, 150]
        assert {board.locked_min_mhz for board in place.boards} == {900}
        assert len(place.files) == 2
        1 / 0  # noqa: B018
    assert place.limits_w == [217.5, 203.251]
    assert {board.locked_max_mhz for board in place.boards} == {0}
    assert place.is_clean()
    held.release()  # once more does no harm


def test_requested_enforced_and_previous_limits_are_recorded(start):
    place = start(2, clamp_mw=[0, 180_000])
    with acquire(place.devices) as held:
        plain, clamped = held.apply(CAP)
    assert (plain.power_limit_w, plain.power_limit_enforced_w) == (150, 150)
    assert (plain.power_limit_before_w, plain.limiter, plain.note) == (217.5, "nvidia", None)
    assert (clamped.power_limit_w, clamped.power_limit_enforced_w) == (150, 180)
    assert clamped.note == f"{place.devices[1]} enforces 180 W instead of 150 W"
    assert place.limits_w == [217.5, 217.5]


@pytest.mark.parametrize(
    ("function", "fault", "limits", "reason", "calls"),
    [
        ("nvmlDeviceGetPowerManagementLimit", {"code": NOT_SUPPORTED}, CAP, "not be restored", 0),
        (SET, {"code": NOT_SUPPORTED}, CAP, "Not Supported", 2),
        (LOCK, {"code": NOT_SUPPORTED}, Limits(None, 900), "Not Supported", 0),
        (SET, {"code": UNKNOWN, "board": 1}, CAP, "Unknown Error", 4),
        (LOCK, {"code": NO_PERMISSION}, Limits(150, 900), "Insufficient Permissions", 2),
    ],
)
def test_boards_are_as_before_if_one_of_their_limits_cannot_be_set(
    start, function, fault, limits, reason, calls
):
    place = start(2 if "board" in fault else 1)
    for name in {function, UNLOCK if function == LOCK else function}:
        place.boards.fault(name, **fault)
    error = NotPermitted if fault["code"] == NO_PERMISSION else NotAvailable
    with acquire(place.devices) as held, pytest.raises(error, match=reason):
        held.apply(limits)
    assert {*place.limits_w} == {217.5}
    assert {board.locked_max_mhz for board in place.boards} == {0}
    assert place.boards.calls(SET) == calls  # each is limited, or tried, and restored, or tried
    assert place.is_clean()


def test_a_refused_restore_is_reported_and_tried_again(start):
    place = start()
    held = acquire(place.devices)
    held.apply(CAP)
    place.boards.fault(SET, code=pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(NotAvailable, match=r"not restored: .*; try 'wattlaw limits restore'"):
        held.release()
    assert place.folder.read(place.devices[0]).power_limit_w == 217.5
    assert acquire(place.devices) is None  # the watchdog has it
    tries = place.boards.calls(SET)
    held.release()
    assert place.boards.calls(SET) <= tries + 1  # by the watchdog; it is not ours any more
    place.boards.clear_faults()
    place.wait_until_clean()
    assert place.limits_w == [217.5]


def test_a_kept_limit_outlives_its_process_until_limits_restore(start):
    place = start()
    with acquire(place.devices) as held:
        held.apply(CAP, kept=True)
        assert place.watchdogs == []
    (left,) = restore_stale_or_raise(place.folder)
    assert (left.state, place.limits_w) == ("kept", [150])
    with (
        acquire(place.devices) as held,
        pytest.raises(NotAvailable, match=r"by .* until 'wattlaw limits restore'"),
    ):
        held.apply(Limits(120))
    assert place.limits_w == [150]
    (left,) = restore_stale_or_raise(place.folder, include_kept=True)
    assert (left.state, place.limits_w) == ("restored", [217.5])
    assert place.is_clean()


@pytest.mark.parametrize("is_held", [False, True])
def test_saved_states_of_an_earlier_boot_are_removed(start, is_held):
    place = start()
    place.folder.create()
    place.folder.write(saved_limit(place.devices[0], boot_id="of last week", kept=True))
    if is_held:
        with acquire(place.devices) as held:
            held.apply(CAP)
    else:
        restore_stale_or_raise(place.folder)
    assert place.limits_w == [217.5]
    assert place.is_clean()


def test_a_limit_that_its_owner_restores_is_not_restored_twice(start):
    place = start()
    place.folder.create()
    place.folder.write(saved_limit(place.devices[0]))

    class Late(StateFolder):
        def lock(self, device: str) -> int | None:
            self.remove(device)  # its owner was quicker, and then somebody set another limit
            place.boards[0].limit_mw = 231_000
            return super().lock(device)

    assert [left.state for left in restore_stale_or_raise(Late(place.folder.path))] == ["restored"]
    assert place.limits_w == [231]


DAMAGED: dict[str, Callable[[Path], object]] = {
    "torn": lambda path: path.write_text("{"),
    "of another device": lambda path: path.write_text(saved_limit("other").model_dump_json()),
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/etc/passwd"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_stops_its_device_and_no_other(start, damage):
    place = start(2)
    first, second = place.devices
    place.folder.create()
    place.folder.write(saved_limit(second))
    path = place.folder.path / f"{first}.json"
    damage(path)
    for call in (lambda held: held.apply(CAP), lambda _: restore_stale_or_raise(place.folder)):
        with acquire([first]) as held, pytest.raises(BadInput, match=str(path)):
            call(held)
    assert place.limits_w == [217.5, 203.251]
    assert place.files == [path.name]


def test_a_lock_file_that_a_cleaner_removed_does_not_let_two_in(start):
    place = start(1)
    with acquire(place.devices) as held:
        (place.folder.path / f"{place.devices[0]}.lock").unlink()
        held.apply(CAP)
        code = (
            "import sys; from wattlaw.measure.limits.guard import *; print(acquire(sys.argv[1:]))"
        )
        line = [sys.executable, "-c", code, *place.devices]
        assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == "None\n"
        assert place.limits_w == [150]


def test_a_lease_locks_all_devices_or_none(start):
    place = start(2)
    first, second = place.devices
    with acquire([second]):
        assert acquire(place.devices) is None
        assert place.folder.lock_owner(first) is None
    lock = place.folder.path / f"{second}.lock"
    lock.unlink()
    lock.symlink_to("nowhere")
    with pytest.raises(NotAvailable, match="cannot be opened"):
        acquire(place.devices)
    assert place.folder.lock_owner(first) is None


def test_a_limit_that_somebody_has_changed_since_stays(start):
    place = start(1)
    place.folder.create()
    place.folder.write(saved_limit(place.devices[0], set_w=150.0, unlock_clock=True))
    place.boards[0].limit_mw = 190_000  # an administrator, after the owner had died
    place.boards[0].locked_max_mhz = 900
    (left,) = restore_stale_or_raise(place.folder)
    assert (left.state, "190 W since" in (left.reason or "")) == ("not restored", True)
    assert (place.limits_w, place.boards[0].locked_max_mhz) == ([190], 0)
    assert not place.files


def test_saved_states_of_another_machine_are_ignored(start):
    place = start(1)
    place.folder.create()
    place.folder.write(saved_limit(place.devices[0], host="node-b", boot_id="its own"))
    (left,) = restore_stale_or_raise(place.folder, include_kept=True)
    assert left.state == "on another host"
    assert (place.limits_w, len(place.files)) == ([217.5], 1)
    with acquire(place.devices, place.folder) as held, pytest.raises(NotAvailable, match="node-b"):
        held.apply(CAP)


def test_stale_limits_of_another_container_are_restored(start):
    # It had a name of its own; its process ids say nothing here, where 1 is somebody else.
    place = start(1)
    place.folder.create()
    place.folder.write(saved_limit(place.devices[0], host="4c01db0b339c", owner_pid=1))
    (left,) = restore_stale_or_raise(place.folder)
    assert (left.state, place.limits_w) == ("restored", [203.251])
    assert place.is_clean()
