"""Output files: links of other users in shared folders, and the mode of a file that is replaced."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from made_stores import write_store
from made_tables import study
from wattlaw.cli.main import main
from wattlaw.common.files import write_text

NOBODY, US = 65534, 4321
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")

COMMANDS: dict[str, tuple[str, ...]] = {
    "out.csv": ("export", "STORE", "runs", "-o", "OUT"),
    "out.parquet": ("export", "STORE", "epochs", "-o", "OUT"),
    "out.html": ("report", "STORE", "-o", "OUT"),
    "out.zip": ("export", "STORE", "bundle", "-o", "OUT"),
    "out.json": ("measure", "--json", "OUT", "--", "true"),
}
#: A report takes long: it is tried once, behind a link.
FAST = [name for name in COMMANDS if name != "out.html"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("s") / "store", *study((1, 2), "counter")).path


@pytest.fixture
def shared(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def written(name: str, store: Path, output: Path) -> int:
    places = {"STORE": str(store), "OUT": str(output)}
    return main([places.get(word, word) for word in COMMANDS[name]])


@root_only
@pytest.mark.parametrize("name", FAST)
def test_a_command_does_not_follow_a_link_of_another_user(name, store, shared, tmp_path, capsys):
    ours = tmp_path / "ours"
    ours.write_text("ours")
    (shared / name).symlink_to(ours)
    os.chown(shared / name, NOBODY, NOBODY, follow_symlinks=False)
    assert written(name, store, shared / name) in (2, 3)
    assert f"uid {NOBODY}" in (said := capsys.readouterr().err)
    assert str(shared / name) in said
    assert ours.read_text() == "ours"
    assert [path.name for path in shared.iterdir()] == [name]


@root_only
def test_a_user_does_not_follow_links_of_others_and_follows_those_of_root():
    def as_user(path: Path) -> int:
        if (child := os.fork()) == 0:
            os.setresgid(US, US, US)
            os.setresuid(US, US, US)
            try:
                write_text(path, "new")
            except PermissionError:
                os._exit(13)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    # Another user cannot reach pytest's folders.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        shared, home = Path(name), Path(name, "home")
        shared.chmod(0o1777)
        home.mkdir(mode=0o700)
        os.chown(home, US, US)
        for owner, code in ((NOBODY, 13), (0, 0), (US, 0)):
            link, target = shared / f"link{owner}", home / f"target{owner}"
            link.symlink_to(target)
            os.chown(link, owner, owner, follow_symlinks=False)
            assert as_user(link) == code
            assert target.exists() is (code == 0)
            assert link.is_symlink()
        assert as_user(home / "new") == 0


@pytest.mark.parametrize("name", FAST)
def test_a_replaced_file_has_no_wider_mode_than_before(name, store, tmp_path):
    path = tmp_path / name
    assert written(name, store, path) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask()
    for mode in (0o600, 0o640):
        path.chmod(mode)
        before = path.stat().st_ino
        assert written(name, store, path) == 0
        assert path.stat().st_ino != before
        assert stat.S_IMODE(path.stat().st_mode) == mode


@root_only
def test_a_replaced_file_keeps_the_group_that_may_read_it(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, 0, NOBODY)
    path.chmod(0o640)
    write_text(path, "new")
    assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (NOBODY, 0o640)


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
