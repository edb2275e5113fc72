"""``devices`` and ``limits``: what a user sees of the machine."""

import json

import pytest

from conftest import wattlaw
from fake_nvml import FakeGpus


@pytest.fixture
def boards(tmp_path, monkeypatch) -> FakeGpus:
    """Give two boards, one of which stands at an odd limit, to every process started from here."""
    found = FakeGpus.create(
        tmp_path / "boards", 2, buffers=1, limit_mw=[217_500, 400_000], limit_default_mw=400_000
    )
    for name, value in found.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WATTLAW_LIMITS_DIR", str(tmp_path / "limits"))
    return found


def told(*arguments: object) -> object:
    done = wattlaw(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_root_of_the_kernels_files_that_is_not_a_folder_is_bad_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for root in (tmp_path / "missing", tmp_path / "file"):
        (tmp_path / "file").touch()
        monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(root))
        done = wattlaw("measure", "--", "true")
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert f"WATTLAW_SYSFS_ROOT: {root} is not a folder" in line
        assert [path.name for path in tmp_path.iterdir()] == ["file"]  # nothing was written


def test_limits_set_show_and_restore_work_together(boards):
    assert wattlaw("limits", "set", "--power-limit", 150).returncode == 0
    assert [boards[i].limit_mw for i in range(2)] == [150_000, 150_000]
    shown = {row["device"]: row for row in told("limits", "show")}
    mine = shown[boards[0].uuid.decode()]
    assert (mine["power_limit_w"], mine["to_restore"]["power_limit_w"]) == (150.0, 217.5)
    refused = wattlaw("measure", "--power-limit", 130, "--", "true")
    assert (refused.returncode, "limits restore" in refused.stderr) == (3, True)
    restored = wattlaw("limits", "restore")
    assert restored.returncode == 0
    assert restored.stdout.count("restored") == 2
    assert [boards[i].limit_mw for i in range(2)] == [217_500, 400_000]
    assert wattlaw("limits", "restore").stdout == "There are no limits to restore.\n"


def test_limits_set_locks_a_clock_only_if_clocks_are_stated_unlocked(boards):
    refused = wattlaw("limits", "set", "--clock-limit", 900)
    assert (refused.returncode, "prior_clocks" in refused.stderr) == (3, True)
    done = wattlaw("limits", "set", "--clock-limit", 900, "--prior-clocks", "default")
    assert "clock locked at 900 MHz" in done.stdout
    assert boards[0].locked_max_mhz == 900
    wattlaw("limits", "restore")
    assert boards[0].locked_max_mhz == 0
