"""What every limiter promises, by the same tests for all; then what is particular to NVIDIA's."""

import contextlib
import os
import shutil
import sys
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
from limiting import FAKE_BIN
from trees import IntelCards, put
from wattlaw.common import registry
from wattlaw.common.errors import NotAvailable, NotPermitted
from wattlaw.measure.devices import meter
from wattlaw.measure.devices.limiter import GROUP, Limiter
from wattlaw.measure.limits.guard import acquire
from wattlaw.measure.limits.requests import Limits

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
    min_w: float = 100.0
    has_no_limit: bool = False  # 0 W is accepted: it removes the limit
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


def nvidia(boards: FakeGpus, patch: pytest.MonkeyPatch) -> Way:
    return Way("nvidia", "nvidia", lambda: refusing(boards), lambda: lose(boards), boards)


def nvidia_smi(boards: FakeGpus, patch: pytest.MonkeyPatch) -> Way:
    boards.header.root = 0
    path = [str(FAKE_BIN), str(Path(sys.executable).parent), os.environ["PATH"]]
    setenv(patch, {**boards.environment(), "PATH": os.pathsep.join(path)})

    @contextmanager
    def denied() -> Iterator[None]:
        with patch.context() as only_here:
            only_here.setenv("FAKE_SUDO_REFUSES", "1")
            yield

    return Way("nvidia-smi", "nvidia", denied, lambda: lose(boards), boards)


def amd(name: str, machine: AmdMachine) -> Way:
    files = [gpu.hwmon / "power1_cap" for gpu in machine.gpus]
    return Way(name, "amd", lambda: read_only(*files), machine[0].remove, machine=machine)


def intel(folder: Path, patch: pytest.MonkeyPatch) -> Way:
    cards = IntelCards(folder / "sys", 2, limit_w=217.5)
    for index in range(2):
        put(cards.folders[index] / "power1_rated_max", 260_000_000)
    patch.chdir(folder / "sys")  # what leads there is root's only
    patch.setenv("WATTLAW_SYSFS_ROOT", ".")
    patch.delenv("ZE_AFFINITY_MASK", raising=False)
    return Way(
        "intel",
        "intel",
        lambda: read_only(*(cards.limit(index) for index in range(2))),
        lambda: shutil.rmtree(folder / "sys/devices/pci0000:15"),
        min_w=1.0,
        has_no_limit=True,
    )


def _of_boards(
    make: Callable[[FakeGpus, pytest.MonkeyPatch], Way], request: pytest.FixtureRequest
) -> Way:
    boards = request.getfixturevalue("fake_gpus")(2, **BOARDS)
    return make(boards, request.getfixturevalue("monkeypatch"))


#: A new limiter has a row, by the name of its entry point.
WAYS: dict[str, Callable[[pytest.FixtureRequest], Way]] = {
    "amd-sysfs": lambda request: amd(
        "amd-sysfs", request.getfixturevalue("amd_machine")("MI210", library=False)
    ),
    "nvidia": partial(_of_boards, nvidia),
    "nvidia-smi": partial(_of_boards, nvidia_smi),
    "intel": lambda request: intel(
        request.getfixturevalue("tmp_path"), request.getfixturevalue("monkeypatch")
    ),
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param](request)


@pytest.fixture
def boards(fake_gpus, monkeypatch):
    found = fake_gpus(2, **BOARDS)
    nvidia_smi(found, monkeypatch)
    return found


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
        assert (state.min_w, state.max_w) == (way.min_w, 260)
        none_w = () if way.has_no_limit else (0,)
        for watts in (way.min_w - 0.001, 260.001, -100, 10_000, *none_w):
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


@pytest.mark.parametrize("way", ["amd-sysfs", "intel"], indirect=True)
def test_only_the_power_of_amd_and_intel_gpus_is_limited(way):
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


def test_a_refusal_of_sudo_is_recognised_in_any_language(boards, tmp_path, monkeypatch):
    sudo = tmp_path / "bin" / "sudo"
    sudo.parent.mkdir()
    sudo.write_text('#!/bin/sh\necho "sudo: Ein Passwort ist notwendig" >&2\nexit 1\n')
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sudo.parent}:{os.environ['PATH']}")
    with contextlib.closing(registry.load(GROUP, "nvidia-smi").open()) as limiter:
        device = limiter.devices()[0]
        with pytest.raises(NotPermitted, match="sudo -n nvidia-smi"):
            limiter.set_power_limit(device, 150)


def test_nvidia_smi_waits_for_another_that_changes_the_same_board(boards, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SMI_SLOW", str(tmp_path / "slow"))
    with contextlib.closing(registry.load(GROUP, "nvidia-smi").open()) as limiter:
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
        assert [board.limit_mw for board in boards] == [150_000, 140_000]


@pytest.fixture
def intel_sysfs(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(tmp_path / "sys"))
    monkeypatch.setenv("WATTLAW_LIMITS_DIR", str(tmp_path / "limits"))
    monkeypatch.delenv("ZE_AFFINITY_MASK", raising=False)
    return tmp_path / "sys"


def test_an_intel_card_without_a_limit_in_force_gets_one_and_loses_it_again(intel_sysfs):
    cards = IntelCards(intel_sysfs, 1, limit_w=0, driver="xe")
    with contextlib.closing(registry.load(GROUP, "intel").open()) as limiter:
        (device,) = limiter.devices()
        state = limiter.read(device)
        assert (state.power_limit_w, state.enforced_w, state.max_w) == (0, None, 600)
    lease = acquire([device])
    assert lease is not None
    (report,) = lease.apply(Limits(power_limit_w=350.0))
    assert (report.limiter, report.power_limit_enforced_w, report.note) == ("intel", 350, None)
    assert cards.limit().read_text().strip() == "350000000"
    lease.release()
    assert cards.limit().read_text().strip() == "0"


@pytest.mark.parametrize(
    ("limit_w", "mask", "reason"),
    [
        (650.0, "0,1", r"650 W is outside 1 to 600 W.*not be restored"),  # above the rated 600 W
        (600.0, "1", "would apply to all its users"),  # of whose tiles the job has one
    ],
)
def test_a_card_that_must_not_be_limited_keeps_its_limit(
    intel_sysfs, monkeypatch, limit_w, mask, reason
):
    cards = IntelCards(intel_sysfs, 1, limit_w=limit_w)
    monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
    lease = acquire(["intel-0000:18:00.0"])
    assert lease is not None
    with lease, pytest.raises(NotAvailable, match=reason):
        lease.apply(Limits(power_limit_w=350.0))
    assert cards.limit().read_text().strip() == f"{limit_w:.0f}000000"
