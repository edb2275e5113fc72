"""Limits are restored after SIGKILL and SIGTERM."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pynvml
import pytest

from conftest import started, wait_for
from limiting import (
    CAP,
    FAKE_PATH,
    OWNER,
    SET,
    Child,
    Place,
    child,
    child_named,
    kill,
    kill_tree,
    places,
    restore_stale_or_raise,
    stays,
)
from soak.__main__ import one_round
from soak.outcome import Outcome
from soak.sandbox import bases, sandbox
from wattlaw.measure.limits.guard import acquire
from wattlaw.measure.limits.requests import Limits

Start = Callable[..., Place]


@pytest.fixture
def start(tmp_path, fake_gpus, monkeypatch):
    yield from places(tmp_path, fake_gpus, monkeypatch)


@pytest.mark.parametrize("how", [kill_tree, subprocess.Popen.terminate])
def test_an_ended_campaign_restores_limits(start, write_study, tmp_path, how):
    place = start(2, limit_mw=[217_500, 203_251])
    study = write_study(
        workloads=[{"name": "own", "command": ["sleep", "60"]}],
        sweeps=[{"gpus": [1], "global_batch": [128], "power_limit_w": [150]}],
    )
    with started("run", study, "--store", tmp_path / "store") as campaign:
        wait_for(lambda: place.limits_w == [150, 150], "the caps")
        how(campaign)
        place.wait_until_clean()
    assert place.limits_w == [217.5, 203.251]


@pytest.mark.parametrize(
    ("number", "command", "code"),
    [
        (signal.SIGINT, "exec sleep 30", 128 + signal.SIGINT),
        (signal.SIGTERM, "trap 'exit 7' TERM; sleep 30 & wait", 7),
    ],
)
def test_a_terminated_command_restores_limits_and_passes_its_exit_code(
    start, number, command, code
):
    place = start()
    with place.measured("--power-limit", 150, "--", "sh", "-c", command) as process:
        child_named(process, "sleep")
        assert place.limits_w == [150]
        process.send_signal(number)
        assert process.wait(20) == code
    assert place.limits_w == [217.5]
    assert place.is_clean()


def test_previous_limits_are_on_disk_before_the_driver_is_called(start):
    place = start()
    place.boards.fault(SET, hang=True)
    with place.owner(150, is_waited_for=False) as owner:
        wait_for(lambda: place.boards.calls(SET) == 1, "the driver to be asked")
        (name,) = place.files
        path = place.folder.path / name
        told = json.loads(path.read_text())
        assert (told["device"], told["power_limit_w"]) == (place.devices[0], 217.5)
        assert told["owner_pid"] == owner.pid
        assert stat.S_IMODE(path.stat().st_mode) in (0o600, 0o644)
        assert len(place.watchdogs) == 1
        kill(owner)  # and a driver that hangs is waited for
        wait_for(lambda: place.boards.calls(SET) == 2, "the watchdog to ask the driver")
        assert place.files == [name]
        place.boards.clear_faults()
        place.wait_until_clean()
    assert place.limits_w == [217.5]


def test_a_board_has_one_owner_until_it_is_released(start):
    place = start(2)
    first, second = place.devices
    with place.owner(150, [first]) as owner:
        assert acquire([first]) is acquire(place.devices) is None
        with acquire([second]) as other:
            other.apply(Limits(160))
            assert place.limits_w == [150, 160]
        place.boards.fault(SET, code=pynvml.NVML_ERROR_UNKNOWN)
        kill(owner)
        assert stays(lambda: acquire([first]) is None, 1.2)
        assert [left.state for left in restore_stale_or_raise(place.folder)] == ["in use"]
        assert place.limits_w == [150, 217.5]
        assert place.boards.calls(SET) >= 5  # the watchdog does not give up
        place.boards.clear_faults()
        place.wait_until_clean()
    assert place.limits_w == [217.5, 217.5]
    with acquire([first]) as held:
        held.apply(CAP)


@pytest.mark.parametrize("who", ["acquire", "start"])
def test_the_next_start_restores_limits_that_outlived_their_watchdog(start, who):
    place = start()
    with place.owner(150) as owner:
        for watchdog in place.watchdogs:
            watchdog.kill()
        kill(owner)
    assert stays(lambda: place.limits_w == [150], 0.2)
    if who == "acquire":
        with acquire(place.devices) as held:
            (applied,) = held.apply(Limits(120))
            assert applied.power_limit_before_w == 217.5
            assert place.folder.read(place.devices[0]).power_limit_w == 217.5
    else:  # even of a command that limits nothing
        with place.measured("--", "true") as process:
            assert process.wait(20) == 0
            assert f"restored the limits of {place.devices[0]}" in process.stderr.read()
    assert place.limits_w == [217.5]


def test_a_signal_that_ends_the_owner_does_not_end_the_watchdog(start):
    place = start()
    with place.owner(150) as owner:
        (watchdog,) = place.watchdogs
        assert os.getsid(watchdog.pid) != os.getsid(owner.pid)
        assert watchdog.pid not in {p.pid for p in family(owner)}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            watchdog.send_signal(number)
        kill_tree(owner)
        place.wait_until_clean()
    assert place.limits_w == [217.5]


def test_the_command_inherits_neither_locks_nor_the_pipe_of_the_watchdog(start):
    place = start()
    with place.measured("--power-limit", 150, "--", "sleep", 30) as process:
        command = child_named(process, "sleep")
        (watchdog,) = place.watchdogs
        pipes = {open_files(watchdog.pid)[n] for n in ("0", "1")}
        assert pipes < set(open_files(process.pid).values())
        assert set(open_files(command.pid)) == {"0", "1", "2"}
        for member in family(process):
            found = set(open_files(member.pid).values())
            assert not found & pipes
            assert not [name for name in found if name.endswith(".lock")]


def open_files(pid: int) -> dict[str, str]:
    return {link.name: str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}


def test_a_forked_child_that_lives_on_does_not_hide_the_death_of_its_owner(start):
    place = start()
    code = OWNER.replace("time.sleep", "__import__('os').fork(); time.sleep")
    with child([sys.executable, "-c", code, "150", *place.devices]) as owner:
        wait_for(lambda: len(family(owner)) == 1 and place.limits_w == [150], "the fork")
        kill(owner)
        wait_for(lambda: place.limits_w == [217.5], "the limit to be given back", 20)


def family(process: Child) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_a_pending_nvidia_smi_does_not_undo_the_restore(start, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", FAKE_PATH)
    monkeypatch.setenv("FAKE_SMI_SLOW", str(tmp_path / "slow"))
    (tmp_path / "slow").touch()
    place = start(root=0)
    with place.owner(150, is_waited_for=False) as owner:
        child_named(owner, "python3")
        time.sleep(0.2)
        (tmp_path / "slow").unlink()  # the next one is quick
        kill(owner)  # and not nvidia-smi, which belongs to root
        place.wait_until_clean()
        assert place.limits_w == [217.5]
        assert stays(lambda: place.limits_w == [217.5], 1.5)
    assert place.boards.calls(SET) == 4  # both ways, to limit and to give back


@pytest.mark.parametrize("kind", ["caps", "amd-caps"])
def test_limits_are_restored_whichever_processes_are_killed(kind, tmp_path):
    """A sample of the rounds of ``make soak``."""
    told = Outcome(kind)
    with bases(), sandbox(kind) as own:
        one_round(kind, "sample:0", own, told)
    assert not told.failures
