"""Other users of the machine can neither set limits through wattlaw nor keep others from it.

The attacker is a real process of another user (nobody), so these tests take root.
"""

import codecs
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_nvml import FakeGpus
from limiting import CAP, FAKE_PATH, HARDWARE, SET, Place, restore_stale_or_raise
from made_runs import made_spec
from wattlaw.common import machine_lock
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.nvidia.nvidia_limiter import NvidiaSmiLimiter
from wattlaw.measure.limits.guard import acquire
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.state_folder import VARIABLE, StateFolder
from wattlaw.running.local import LocalLauncher
from wattlaw.study.launching import Launch
from wattlaw.study.model import Measure
from wattlaw.study.setting import Setting

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")

NOBODY, DAEMON = 65534, 1


@contextlib.contextmanager
def user(uid: int, act: Callable[[], object], *, stays: bool = False) -> Iterator[int]:
    """Do something in a process of another user; give its pid. ``stays``: until the block ends."""
    codecs.lookup("ascii")  # here, since nobody may not read root's Python
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            kept = act()
            os.write(writer, b"done")
            if stays:
                time.sleep(120)
            del kept
            code = 0
        os._exit(code)
    os.close(writer)
    try:
        assert os.read(reader, 4) == b"done"
        yield pid
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def by(uid: int, act: Callable[[], object]) -> None:
    with user(uid, act):
        pass


@pytest.fixture
def open_folder():
    """Give a folder that every user reaches, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="wattlaw-test-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place(open_folder, fake_gpus, monkeypatch):
    """Give two boards and the folder of root."""
    made = Place(open_folder, fake_gpus(2, **HARDWARE), monkeypatch)
    made.folder.create()
    return made


def own_folder(open_folder: Path) -> StateFolder:
    return StateFolder(open_folder / f"limits-{os.geteuid()}")


def test_the_default_folder_is_that_of_the_user(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    for uid in (NOBODY, 0):
        path = Path(f"/var/tmp/wattlaw-limits-{uid}")  # noqa: S108
        by(uid, lambda path=path: StateFolder().path == path or sys.exit(1))


def test_a_user_limits_what_another_has_left_limited_and_each_restores_their_own(
    place, open_folder, monkeypatch
):
    place.boards = FakeGpus(shutil.copy(place.boards.path, open_folder / "boards"))
    place.boards.path.chmod(0o666)  # this driver lets every user limit them
    monkeypatch.setenv("WATTLAW_FAKE_NVML", str(place.boards.path))
    open_folder.chmod(0o1777)
    device = place.devices[0]

    def limit(watts: float) -> None:
        with acquire([device], own_folder(open_folder)) as held:
            held.apply(Limits(watts), kept=True)

    def restore() -> None:
        restore_stale_or_raise(own_folder(open_folder), include_kept=True)

    limits_w = []
    for uid, act in (
        (NOBODY, lambda: limit(150)),
        (DAEMON, lambda: limit(120)),
        (DAEMON, restore),
        (NOBODY, restore),
    ):
        by(uid, act)
        limits_w.append(place.limits_w[0])
    assert limits_w == [150, 120, 150, 217.5]
    status = (open_folder / f"limits-{NOBODY}").stat()
    assert (status.st_uid, status.st_mode & 0o777) == (NOBODY, 0o700)


def test_the_owner_of_a_lock_is_named(place, open_folder):
    open_folder.chmod(0o1777)
    device = place.devices[0]
    launcher = LocalLauncher(Launch(kind="local", gpus_per_node=1), [], {device: device})
    spec = made_spec(Setting(gpus=1, power_limit_w=150), measure=Measure(epochs=2, warmup_epochs=1))
    with (
        user(NOBODY, lambda: acquire([device], own_folder(open_folder)), stays=True) as pid,
        place.measured("--power-limit", 120, "--", "true") as process,
    ):
        assert process.wait(20) == 3
        assert f"{device}: pid {pid} (nobody)" in process.stderr.read()
        assert launcher.allocate(spec) is None
        assert f"pid {pid} (nobody)" in launcher.status_message()
        assert place.limits_w == [217.5, 217.5]
    launcher.allocate(spec).release()


def test_a_locked_file_excludes_containers_that_share_the_folder_only(place, monkeypatch):
    with acquire(place.devices):
        monkeypatch.setenv(machine_lock.VARIABLE, "of another network namespace")
        assert acquire(place.devices) is None
    with acquire(place.devices) as held:
        held.apply(CAP)
        assert place.limits_w == [150, 150]


@pytest.mark.parametrize("which", ["folder", "parent", "open parent", "sticky", "link"])
def test_a_folder_that_another_user_can_write_or_replace_is_refused(place, open_folder, which):
    with acquire(place.devices) as held:
        held.apply(CAP, kept=True)
    parent = open_folder / "parent"
    folder = parent / "limits"
    parent.mkdir()
    place.folder.path.rename(folder)
    before = place.boards.calls(SET)
    if which == "sticky":
        folder.chmod(0o1777)
    elif which == "link":
        folder.rename(parent / "elsewhere")
        folder.symlink_to(parent / "elsewhere")
    elif which == "open parent":
        parent.chmod(0o777)
    else:
        os.chown(folder if which == "folder" else parent, NOBODY, NOBODY)
    for call in (
        lambda: restore_stale_or_raise(StateFolder(folder), include_kept=True),
        lambda: acquire(place.devices, StateFolder(folder)),
    ):
        with pytest.raises(NotAvailable, match=f"{VARIABLE}"):
            call()
    assert (place.boards.calls(SET), place.limits_w) == (before, [150, 150])


def test_root_makes_no_folder_where_another_user_could_replace_it(open_folder):
    open_folder.chmod(0o777)
    with pytest.raises(NotAvailable, match="other users can remove files in it"):
        StateFolder(open_folder / "new" / "limits").create()
    assert list(open_folder.iterdir()) == []


def test_a_process_merely_named_nvidia_smi_is_not_waited_for(place, monkeypatch):
    device = place.devices[0]
    monkeypatch.setenv("PATH", FAKE_PATH)
    place.boards.header.root = 0
    line = ["nvidia-smi", "-c", "read x", "-i", device, "-pl", "100"]
    hostile = subprocess.Popen(
        line, executable="/bin/bash", stdin=subprocess.PIPE,
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
    )  # fmt: skip
    try:
        time.sleep(0.2)
        assert hostile.poll() is None
        with contextlib.closing(NvidiaSmiLimiter.open()) as limiter:
            limiter.set_power_limit(device, 150)
            assert limiter.read(device).power_limit_w == 150
    finally:
        hostile.kill()
        hostile.communicate()
