"""Other users of the machine put what they like into the shared folder of saved limits.

The attacker is a real process of another user (nobody), so these tests take root.
"""

import contextlib
import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fake_nvml import FakeGpus
from limiting import FAKE_BIN, SET, Place, restore_stale_or_raise
from sites import Node, nodes
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.measure.devices.nvidia.limiter import NvidiaSmiLimiter
from wattlaw.measure.limits import state_folder as saved_module
from wattlaw.measure.limits.guard import acquire
from wattlaw.measure.limits.prolog_limits import VARIABLE as REPORTS
from wattlaw.measure.limits.prolog_limits import verify_prolog_limits
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.saved_state import boot_id
from wattlaw.measure.limits.state_folder import VARIABLE, StateFolder
from wattlaw.run.local import LocalLauncher
from wattlaw.study.launching import Launch
from wattlaw.study.model import Measure, RunSpec, WorkloadSpec
from wattlaw.study.setting import Setting

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")

NOBODY, DAEMON = 65534, 1
HARDWARE = {"limit_max_mw": 250_000, "limit_default_mw": 250_000, "limit_mw": 217_500}
CAP = Limits(power_limit_w=150)
GIB = 2**30


@contextlib.contextmanager
def user(uid: int, act: Callable[[], object], *, stays: bool = False) -> Iterator[int]:
    """Do something in a process of another user; give its pid. ``stays``: until the block ends."""
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
    """Do something as another user."""
    with user(uid, act):
        pass


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Give a folder that every user reaches, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="wattlaw-test-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place(
    open_folder: Path, fake_gpus: Callable[..., FakeGpus], monkeypatch: pytest.MonkeyPatch
) -> Place:
    """Give two boards and a shared folder, made by root."""
    made = Place(open_folder, fake_gpus(2, **HARDWARE), monkeypatch)
    made.folder.create()
    return made


def state(device: str, /, **changes: object) -> str:
    """Return a forged state: a limit that nobody has set, to be restored."""
    made = {
        "device": device, "host": socket.gethostname(), "power_limit_w": 100.0, "set_w": 217.5,
        "unlock_clock": True, "token": "forged", "owner_pid": 2**22 - 1, "user": "root",
        "made_at": datetime.now(UTC).isoformat(), "boot_id": boot_id(),
    }  # fmt: skip
    return json.dumps(made | changes)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8 * GIB)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def full_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


def deep(path: Path) -> None:
    path.write_text("[" * 8_000 + "]" * 8_000)


def unreadable(path: Path) -> None:
    path.touch(mode=0)


KINDS: dict[str, Callable[[Path], object]] = {
    "sparse": sparse,
    "pipe": os.mkfifo,
    "socket": unix_socket,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "loop": lambda path: path.symlink_to(path.name),
    "folder": full_folder,
    "deep": deep,
    "unreadable": unreadable,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_foreign_file_in_place_of_a_saved_state_is_ignored(place: Place, kind: str) -> None:
    first, second = place.devices
    path = place.folder.path / f"{first}.json"
    by(NOBODY, lambda: KINDS[kind](path))
    start_s = time.perf_counter()
    assert restore_stale_or_raise(place.folder, include_kept=True) == []
    with acquire([first, second]) as held:
        held.apply(CAP)
        assert place.limits_w == [150, 150]
    assert time.perf_counter() - start_s < 5
    assert place.limits_w == [217.5, 217.5]
    survey = place.folder.survey()
    assert survey.states == survey.damaged == []
    if kind != "unreadable":  # root reads it, and it is empty
        (line,) = survey.ignored
        assert str(path) in line
    assert "nobody" in survey.ignored[0]
    assert place.files == [path.name]


@pytest.mark.parametrize("kind", KINDS)
def test_root_replaces_a_foreign_file_in_place_of_a_lock(place: Place, kind: str) -> None:
    path = place.folder.path / f"{place.devices[0]}.lock"
    by(NOBODY, lambda: KINDS[kind](path))
    with acquire(place.devices) as held:
        held.apply(CAP)
        assert place.limits_w == [150, 150]
    assert place.limits_w == [217.5, 217.5]
    if kind not in ("sparse", "deep", "unreadable"):  # a regular file is a lock
        (line,) = place.folder.survey().ignored
        assert "nobody" in line


def test_an_error_names_the_owner_of_a_foreign_lock_file(place: Place) -> None:
    path = place.folder.path / f"{place.devices[0]}.lock"
    by(NOBODY, lambda: os.mkfifo(path))

    def limit() -> None:
        with pytest.raises(NotAvailable, match=r"not a regular file.*user nobody.*root can"):
            acquire(place.devices)

    by(DAEMON, limit)


def test_a_huge_file_costs_neither_time_nor_memory(place: Place) -> None:
    for name in (f"{place.devices[0]}.json", "other.json"):
        by(NOBODY, lambda name=name: sparse(place.folder.path / name))
    usage, lines = [], []
    for folder in (place.folder.path, place.folder.path.parent / "none"):
        process = subprocess.Popen(
            [sys.executable, "-m", "wattlaw", "limits", "show", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, VARIABLE: str(folder)},
        )  # fmt: skip
        resource.prlimit(process.pid, resource.RLIMIT_AS, (4 * GIB, 4 * GIB))
        shown, said = process.stdout.read(), process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert (process.returncode, len(json.loads(shown))) == (0, 2), said
        usage.append((used.ru_utime + used.ru_stime, used.ru_maxrss))
        lines.append(said.splitlines())
    assert usage[0][0] - usage[1][0] < 1.0
    assert usage[0][1] - usage[1][1] < 50_000  # KiB
    assert [len(said) for said in lines] == [1, 0]


def test_thousands_of_files_are_reported_in_one_line(place: Place) -> None:
    def flood() -> None:
        for number in range(1_000):
            (place.folder.path / f"{number:04}.json").write_text("{" if number % 2 else "")
        (place.folder.path / "\x1b[31m\n\u202e.json").touch()

    by(NOBODY, flood)
    start_s = time.perf_counter()
    survey = place.folder.survey()
    assert time.perf_counter() - start_s < 1
    assert len(survey.ignored) == 1
    assert survey.ignored[0].isprintable()


FORGED = {
    "plain": {},
    "set_w": {"set_w": None},
    "kept": {"kept": True},
    "pid 1": {"owner_pid": 1},
    "pid of ours": {"owner_pid": os.getpid()},
    "huge pid": {"owner_pid": 2**63},
    "negative pid": {"owner_pid": -1},
    "far future": {"made_at": "9999-12-31T23:59:59.999999-23:59"},
    "year 10000": {"made_at": "10000-01-01T00:00:00Z"},
    "huge time": {"made_at": 1e300},
    "other boot": {"boot_id": "of last week"},
    "other host": {"host": "node-b", "boot_id": None},
    "our host, kept": {"host": "node-b", "kept": True},
    "path": {"device": "../../etc/passwd"},
    "control": {"user": "\x1b[2J\u202e"},
    "no power": {"power_limit_w": None, "set_w": None},
    "huge power": {"power_limit_w": 1e308},
    "of a job": {"job_id": "7", "node": "n"},
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED)
def test_a_forged_saved_state_is_ignored(place: Place, changes: dict[str, object]) -> None:
    device = place.devices[0]
    path = place.folder.path / f"{device}.json"
    forged = state(device, **changes)
    by(NOBODY, lambda: path.write_text(forged))
    for include_kept in (False, True):
        assert not [one for one in restore_stale_or_raise(place.folder, include_kept=include_kept)
                    if one.state in ("restored", "not restored")]  # fmt: skip
    place.boards[0].locked_max_mhz = 1200
    assert place.boards.calls(SET) == 0
    with acquire([device]) as held:
        held.apply(CAP)
        assert place.limits_w == [150, 217.5]
    assert place.limits_w == [217.5, 217.5]
    assert place.boards[0].locked_max_mhz == 1200
    assert path.exists()


def test_root_restores_for_a_user_whom_sudo_lets_set_limits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = [str(FAKE_BIN), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    for device, changes in zip(place.devices, [{}, {"set_w": None}], strict=True):
        file, text = place.folder.path / f"{device}.json", state(device, **changes)
        by(NOBODY, lambda file=file, text=text: file.write_text(text))
    assert [one.state for one in restore_stale_or_raise(place.folder, include_kept=True)] == [
        "of another user"
    ]
    monkeypatch.setenv("FAKE_SUDO_USERS", "nobody")
    assert [one.state for one in restore_stale_or_raise(place.folder)] == ["of another user"]
    assert [one.state for one in restore_stale_or_raise(place.folder, include_kept=True)] == [
        "restored"
    ]
    assert place.limits_w == [100, 217.5]


def test_root_ignores_a_state_that_changed_after_the_sudo_check(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = place.devices[0]
    file = place.folder.path / f"{device}.json"
    text = state(device)  # here, since nobody may not read root's Python
    by(NOBODY, lambda: file.write_text(text))
    other = tmp_path / "other.json"
    other.write_text(state(device, power_limit_w=120.0))
    sudo = tmp_path / "bin" / "sudo"
    sudo.parent.mkdir()
    sudo.write_text(f"#!/bin/sh\ncat {other} > {file}\n")  # as the user might in that moment
    sudo.chmod(0o755)
    path = [str(sudo.parent), str(FAKE_BIN), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    found = restore_stale_or_raise(place.folder, include_kept=True)
    assert [one.state for one in found] == ["of another user"]
    assert place.limits_w[0] == 217.5


def test_a_lock_file_can_be_taken_by_every_user_whatever_the_umask(place: Place) -> None:
    before = os.umask(0o077)
    try:
        handle = place.folder.lock("GPU-new")
    finally:
        os.umask(before)
    assert handle is not None
    assert os.fstat(handle).st_mode & 0o777 == 0o644
    os.close(handle)


def test_another_users_living_process_keeps_its_board_without_its_lock_file(place: Place) -> None:
    device = place.devices[0]
    path = place.folder.path / f"{device}.json"
    with user(NOBODY, lambda: None, stays=True) as pid:
        by(NOBODY, lambda: path.write_text(state(device, owner_pid=pid)))
        with (
            acquire([device]) as held,
            pytest.raises(NotAvailable, match=f"in use by nobody, pid {pid}"),
        ):
            held.apply(CAP)
    with acquire([device]) as held:
        held.apply(CAP)
    assert place.limits_w == [217.5, 217.5]


def lock_of(place: Place, device: str) -> object:
    file = (place.folder.path / f"{device}.lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def test_the_owner_of_a_lock_is_named(place: Place) -> None:
    device = place.devices[0]

    with (
        user(NOBODY, lambda: lock_of(place, device), stays=True) as pid,
        place.measured("--power-limit", 120, "--", "true") as process,
    ):
        assert process.wait(20) == 3
        assert f"{device}: pid {pid} (nobody)" in process.stderr.read()
        assert place.limits_w == [217.5, 217.5]


def test_a_waiting_run_prints_the_owner_of_a_lock_once(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    device = place.devices[0]
    launcher = LocalLauncher(Launch(kind="local", gpus_per_node=1), [], [device])
    spec = RunSpec(
        workload=WorkloadSpec(name="digits-cnn"), setting=Setting(gpus=1, power_limit_w=150),
        repeat=0, measure=Measure(epochs=2, warmup_epochs=1), launch_kind="local",
    )  # fmt: skip
    with user(NOBODY, lambda: lock_of(place, device), stays=True) as pid:
        assert launcher.allocate(spec) is launcher.allocate(spec) is None
    assert capsys.readouterr().err.count(f"pid {pid} (nobody)") == 1
    launcher.allocate(spec).release()


@pytest.mark.parametrize("which", ["folder", "parent", "open parent", "mode"])
def test_a_folder_that_another_user_can_replace_is_refused(
    place: Place, open_folder: Path, which: str
) -> None:
    parent = open_folder / "parent"
    parent.mkdir()
    folder = parent / "limits"
    folder.mkdir()
    folder.chmod(0o777 if which == "mode" else 0o1777)
    (folder / f"{place.devices[0]}.json").write_text(state(place.devices[0]))
    if which == "open parent":
        parent.chmod(0o777)
    elif which != "mode":
        os.chown(folder if which == "folder" else parent, NOBODY, NOBODY)
    for call in (
        lambda: restore_stale_or_raise(StateFolder(folder), include_kept=True),
        lambda: acquire(place.devices, StateFolder(folder)),
    ):
        with pytest.raises(NotAvailable, match=f"{VARIABLE}"):
            call()
    assert place.boards.calls(SET) == 0


def test_root_makes_no_folder_where_another_user_could_replace_it(
    place: Place, open_folder: Path
) -> None:
    parent = open_folder / "open"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(NotAvailable, match="other users can remove files in it"):
        StateFolder(parent / "new" / "limits").create()
    assert list(parent.iterdir()) == []


def test_a_hard_link_to_a_file_of_root_is_ignored(place: Place) -> None:
    precious = place.folder.path.parent / "precious"
    precious.write_text("precious")
    path = place.folder.path / f"{place.devices[0]}.json"
    os.link(precious, path)  # as anybody may where fs.protected_hardlinks is 0
    with acquire(place.devices) as held:
        held.apply(CAP)
    assert (place.limits_w, precious.read_text()) == ([217.5, 217.5], "precious")


def test_commands_without_limits_need_no_trusted_folder(
    place: Place, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder / "limits-of-nobody"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    monkeypatch.setenv(VARIABLE, str(folder))
    done = subprocess.run(
        [sys.executable, "-m", "wattlaw", "limits", "show", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(json.loads(done.stdout)) == 2
    assert len(done.stderr.splitlines()) == 1
    with place.measured("--", "true") as process:  # what limits nothing runs
        assert process.wait(20) == 0


@pytest.fixture
def users_boards(place: Place, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Let every user reach the boards; this driver lets every user limit them."""
    place.boards = FakeGpus(shutil.copy(place.boards.path, open_folder / "boards"))
    place.boards.path.chmod(0o666)
    monkeypatch.setenv("WATTLAW_FAKE_NVML", str(place.boards.path))
    return place


@pytest.mark.parametrize("kind", ["sparse", "pipe", "folder", "forged"])
def test_a_user_without_root_is_not_stopped_by_another_users_state(
    users_boards: Place, kind: str
) -> None:
    device = users_boards.devices[0]
    path = users_boards.folder.path / f"{device}.json"
    put = KINDS.get(kind) or (lambda path: path.write_text(state(device, kept=True, set_w=150.0)))
    by(NOBODY, lambda: put(path))

    def limit() -> None:
        with acquire([device]) as held:
            held.apply(CAP, kept=True)

    by(DAEMON, limit)
    assert users_boards.limits_w[0] == 150
    users = {one.user for one in users_boards.folder.survey().states}
    assert saved_module.user_name(DAEMON) in users
    by(DAEMON, lambda: restore_stale_or_raise(users_boards.folder, include_kept=True))
    assert users_boards.limits_w[0] == 217.5
    assert users_boards.files == [path.name]


def test_without_a_folder_of_roots_users_have_private_ones_and_see_each_others_locks(
    place: Place, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    shared = open_folder / "sticky" / "shared"
    shared.parent.mkdir()
    shared.parent.chmod(0o1777)
    monkeypatch.setattr(saved_module, "_FOLDER", str(shared))

    def lock() -> int | None:
        folder = StateFolder()
        folder.create()
        return folder.lock("GPU-0")

    def fails() -> None:
        assert lock() is None
        assert f"({saved_module.user_name(NOBODY)})" in (StateFolder().lock_owner("GPU-0") or "")

    with user(NOBODY, lock, stays=True):
        by(DAEMON, fails)
        by(0, fails)  # which makes the shared folder
        assert shared.stat().st_mode & 0o7777 == 0o1777
        private = shared.with_name(f"{shared.name}-{NOBODY}")
        assert (private.stat().st_uid, private.stat().st_mode & 0o777) == (NOBODY, 0o755)
    by(DAEMON, lambda: (lock() is not None) or sys.exit(1))
    by(NOBODY, lambda: StateFolder().path == private or sys.exit(1))
    by(2, lambda: StateFolder().path == shared or sys.exit(1))


def test_a_private_folder_that_another_user_has_made_is_not_used(
    place: Place, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    open_folder.chmod(0o1777)
    shared = open_folder / "shared"
    monkeypatch.setattr(saved_module, "_FOLDER", str(shared))
    by(NOBODY, shared.with_name(f"shared-{DAEMON}").mkdir)

    def refused() -> None:
        with pytest.raises(NotAvailable, match="nobody"):
            StateFolder().create()

    by(DAEMON, refused)
    StateFolder().create()  # root helps, as the message says
    by(DAEMON, lambda: StateFolder().create())


def test_a_process_merely_named_nvidia_smi_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = place.devices[0]
    path = [str(FAKE_BIN), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    place.boards.header.root = 0
    line = ["nvidia-smi", "-c", "read x", "-i", device, "-pl", "100"]
    hostile = subprocess.Popen(
        line, executable="/bin/bash", stdin=subprocess.PIPE,
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
    )  # fmt: skip
    try:
        time.sleep(0.2)
        assert hostile.poll() is None
        start_s = time.perf_counter()
        with contextlib.closing(NvidiaSmiLimiter.open()) as limiter:
            limiter.set_power_limit(device, 150)
            assert limiter.read(device).power_limit_w == 150
        assert time.perf_counter() - start_s < 5
    finally:
        hostile.kill()
        hostile.communicate()


# ---- limits/site ----


@pytest.fixture
def node(
    tmp_path: Path, fake_gpus: Callable[..., FakeGpus], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node]:
    """Give a node of a site."""
    for made in nodes(tmp_path, fake_gpus, monkeypatch):
        yield made(1)


def test_root_does_not_use_a_sticky_folder_of_states(node: Node) -> None:
    node.state.mkdir(parents=True)
    node.state.chmod(0o1777)
    (node.state / f"{node.devices[0]}.json").write_text(
        state(node.devices[0], set_w=287.5, job_id="7", node="n")
    )
    assert node.hook("restore")[0] == 1
    node.prolog(comment=None)
    assert node.limits_w == [287.5]


@pytest.mark.parametrize("kind", ["sparse", "pipe", "link", "folder", "deep"])
def test_a_job_without_a_valid_report_fails_at_once(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv(REPORTS, str(tmp_path))
    KINDS[kind](tmp_path / "7.n.json")
    start_s = time.perf_counter()
    with pytest.raises(NotAvailable, match=r"7\.n\.json"):
        verify_prolog_limits(Limits(250), node.devices, "7", wait_s=0)
    assert time.perf_counter() - start_s < 1


def test_a_folder_in_place_of_a_report_neither_drains_the_node_nor_keeps_a_cap(node: Node) -> None:
    node.prolog()
    assert node.limits_w == [250]
    report = next(node.reports.iterdir())
    report.unlink()
    full_folder(report)
    assert node.hook("epilog")[0] == 0
    assert node.limits_w == [287.5]


def test_a_state_of_root_that_is_damaged_stops_its_board_alone(place: Place) -> None:
    first, second = place.devices
    (place.folder.path / f"{first}.json").write_text(state(first, set_w=None))
    with acquire([first]) as held, pytest.raises(BadInput, match="not a saved limit"):
        held.apply(CAP)
    with acquire([second]) as held:
        held.apply(CAP)
    assert place.limits_w == [217.5, 217.5]


def test_the_usual_folder_of_another_user_stops_neither_root_nor_others(
    place: Place, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    open_folder.chmod(0o1777)
    shared = open_folder / "shared"
    monkeypatch.setattr(saved_module, "_FOLDER", str(shared))
    by(NOBODY, shared.mkdir)

    def private() -> None:
        StateFolder().create()
        assert StateFolder().path.name == f"shared-{DAEMON}"

    by(DAEMON, private)
    StateFolder().create()
    assert (shared.stat().st_uid, shared.stat().st_mode & 0o7777) == (0, 0o1777)
    assert shared.with_name(f"shared-{NOBODY}").stat().st_uid == NOBODY
