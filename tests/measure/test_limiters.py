"""What every limiter promises, by the same tests for all; then what is particular to NVIDIA's."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from conftest import setenv, wait_for
from fake_amdsmi import AmdMachine
from fake_nvml import FakeGpus
from limiting import FAKE_PATH
from wattlaw.common import registry
from wattlaw.common.errors import NotAvailable, NotPermitted
from wattlaw.measure.devices import meter
from wattlaw.measure.devices.limiter import GROUP, Limiter

NOBODY = 65534
NVIDIA = ("nvidia", "nvidia-smi")
#: Two devices of 217.5 W; by default 250 W, at least 100 W and at most 260 W.
BOARDS = {
    "limit_min_mw": 100_000,
    "limit_max_mw": 260_000,
    "limit_default_mw": 250_000,
    "limit_mw": 217_500,
}


@dataclass
class Way:
    name: str
    meter: str
    denied: Callable[[], AbstractContextManager[None]]
    lose: Callable[[], object]
    boards: FakeGpus | None = None
    machine: AmdMachine | None = None

    @property
    def before_w(self) -> float:
        """The limit of both devices; AMD's driver has whole watts only."""
        return 217.5 if self.machine is None else 217

    @contextmanager
    def opened(self) -> Iterator[Limiter]:
        with contextlib.closing(registry.load(GROUP, self.name).open()) as limiter:
            yield limiter


@contextmanager
def refusing(boards: FakeGpus) -> Iterator[None]:
    boards.header.root = 0
    try:
        yield
    finally:
        boards.header.root = 1


def lose(boards: FakeGpus) -> None:
    boards[0].lost_ns = time.time_ns()


@contextmanager
def read_only(*paths: Path) -> Iterator[None]:
    """Make files and folders read-only, for root too, who becomes another user."""
    modes = {path: path.stat().st_mode for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        for path, mode in modes.items():
            path.chmod(mode)


def nvidia(request: pytest.FixtureRequest) -> Way:
    boards = request.getfixturevalue("fake_gpus")(2, **BOARDS)
    return Way("nvidia", "nvidia", lambda: refusing(boards), lambda: lose(boards), boards)


def nvidia_smi(request: pytest.FixtureRequest) -> Way:
    boards = request.getfixturevalue("fake_gpus")(2, **BOARDS)
    patch = request.getfixturevalue("monkeypatch")
    boards.header.root = 0
    setenv(patch, {**boards.environment(), "PATH": FAKE_PATH})

    @contextmanager
    def denied() -> Iterator[None]:
        with patch.context() as only_here:
            only_here.setenv("FAKE_SUDO_REFUSES", "1")
            yield

    return Way("nvidia-smi", "nvidia", denied, lambda: lose(boards), boards)


def amd(request: pytest.FixtureRequest) -> Way:
    machine = request.getfixturevalue("amd_machine")("MI210", library=False)
    files = [gpu.hwmon / "power1_cap" for gpu in machine.gpus]
    denied = partial(read_only, *files)
    return Way("amd-sysfs", "amd", denied, machine[0].remove, machine=machine)


#: A new limiter has a row, by the name of its entry point.
WAYS = {"amd-sysfs": amd, "nvidia": nvidia, "nvidia-smi": nvidia_smi}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param](request)


def test_all_registered_limiters_follow_the_contract():
    assert {*registry.names(GROUP)} == {*WAYS}


def test_devices_are_those_of_the_meter(way):
    measured = registry.load(meter.GROUP, way.meter).open(meter.Target(os.getpid()))
    with way.opened() as limiter, contextlib.closing(measured):
        assert limiter.devices() == [device.id for device in measured.devices()]
        assert len(limiter.devices()) == 2


def test_a_limit_reads_as_it_was_set_and_on_no_other_device(way):
    with way.opened() as limiter:
        first, second = limiter.devices()
        assert limiter.read(first).power_limit_w == way.before_w
        for watts in (150, 203.251 if way.machine is None else 203, 100, 260, way.before_w):
            limiter.set_power_limit(first, watts)
            state = limiter.read(first)
            assert (state.device, state.power_limit_w) == (first, pytest.approx(watts, abs=1e-6))
            assert state.enforced_w == pytest.approx(watts, abs=1e-6)
            assert limiter.read(second).power_limit_w == way.before_w
        limiter.set_power_limit(second, 150)
        limiter.close()  # a second time at the end of the block, which does no harm
    with way.opened() as limiter:
        assert limiter.read(second).power_limit_w == 150


def test_a_limit_out_of_range_is_rejected_and_changes_nothing(way):
    with way.opened() as limiter:
        device = limiter.devices()[0]
        state = limiter.read(device)
        assert (state.min_w, state.max_w) == (100, 260)
        for watts in (99.999, 260.001, -100, 10_000, 0):
            with pytest.raises(NotAvailable) as caught:
                limiter.set_power_limit(device, watts)
            assert not isinstance(caught.value, NotPermitted)
            assert device in str(caught.value)
        assert limiter.read(device) == state


def test_a_user_without_permission_gets_an_error_and_changes_nothing(way):
    with way.opened() as limiter:
        device = limiter.devices()[0]
        with way.denied(), pytest.raises(NotPermitted, match=device):
            limiter.set_power_limit(device, 150)
        assert limiter.read(device).power_limit_w == way.before_w
        limiter.set_power_limit(device, 150)
        assert limiter.read(device).power_limit_w == 150


def test_a_device_that_is_not_there_is_not_available(way):
    with way.opened() as limiter:
        for call in (
            limiter.read,
            lambda device: limiter.set_power_limit(device, 150),
            lambda device: limiter.lock_clock(device, 900),
            limiter.unlock_clock,
        ):
            with pytest.raises(NotAvailable, match="GPU-unknown"):
                call("GPU-unknown")


@pytest.mark.parametrize("way", ["amd-sysfs"], indirect=True)
def test_only_the_power_of_amd_gpus_is_limited(way):
    with way.opened() as limiter:
        device = limiter.devices()[0]
        state = limiter.read(device)
        assert (state.min_mhz, state.max_mhz) == (None, None)
        assert "power" in state.no_clock_limit_reason
        for call in (lambda: limiter.lock_clock(device, 900), lambda: limiter.unlock_clock(device)):
            with pytest.raises(NotAvailable, match=device):
                call()


@pytest.mark.parametrize("way", NVIDIA, indirect=True)
def test_a_clock_is_locked_and_unlocked(way):
    with way.opened() as limiter:
        device = limiter.devices()[0]
        state = limiter.read(device)
        assert (state.min_mhz, state.max_mhz) == (210, 1410)
        board = way.boards[0]
        limiter.lock_clock(device, 900)
        assert (board.locked_min_mhz, board.locked_max_mhz) == (900, 900)
        for _ in range(2):  # when nothing is locked, that is no error
            limiter.unlock_clock(device)
            assert (board.locked_min_mhz, board.locked_max_mhz) == (0, 0)
        with pytest.raises(NotAvailable, match=device):
            limiter.lock_clock(device, 5000)
        with way.denied(), pytest.raises(NotPermitted, match=device):
            limiter.lock_clock(device, 900)


def test_a_lost_device_is_not_available_and_the_other_is(way):
    with way.opened() as limiter:
        first, second = limiter.devices()
        way.lose()
        for call in (limiter.read, lambda device: limiter.set_power_limit(device, 150)):
            with pytest.raises(NotAvailable, match=f"{first}: .*lost") as caught:
                call(first)
            assert not isinstance(caught.value, NotPermitted)
        limiter.set_power_limit(second, 150)
        assert limiter.read(second).power_limit_w == 150
    with way.opened() as limiter:
        assert limiter.devices() == [second]


@pytest.mark.parametrize("way", ["nvidia-smi"], indirect=True)
def test_a_refusal_of_sudo_is_recognised_in_any_language(way, tmp_path, monkeypatch):
    sudo = tmp_path / "bin" / "sudo"
    sudo.parent.mkdir()
    sudo.write_text('#!/bin/sh\necho "sudo: Ein Passwort ist notwendig" >&2\nexit 1\n')
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sudo.parent}:{os.environ['PATH']}")
    with way.opened() as limiter:
        device = limiter.devices()[0]
        with pytest.raises(NotPermitted, match="sudo -n nvidia-smi"):
            limiter.set_power_limit(device, 150)


@pytest.mark.parametrize("way", ["nvidia-smi"], indirect=True)
def test_nvidia_smi_waits_for_another_that_changes_the_same_board(way, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SMI_SLOW", str(tmp_path / "slow"))
    with way.opened() as limiter:
        first, second = limiter.devices()
        (tmp_path / "slow.next").touch()
        slow = threading.Thread(target=limiter.set_power_limit, args=(first, 120))
        slow.start()
        begun = tmp_path / "slow.begun"
        wait_for(begun.exists, "nvidia-smi to begin", 60)
        limiter.set_power_limit(second, 140)
        assert slow.is_alive()
        threading.Timer(0.3, begun.unlink).start()
        limiter.set_power_limit(first, 150)
        slow.join()
        assert [board.limit_mw for board in way.boards] == [150_000, 140_000]
