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


def test_a_machine_without_hardware_says_of_each_meter_why_it_measures_nothing():
    found = told("devices")
    reasons = {meter["name"]: meter["reason"] for meter in found["meters"]}
    assert "no NVIDIA driver" in reasons["nvidia"]
    assert "powercap" in reasons["rapl"]
    assert reasons["host"] is None
    assert all(limiter["reason"] for limiter in found["limiters"])
    assert "no NVIDIA driver" in wattlaw("devices").stdout.replace("\n", " ")


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


def test_boards_are_listed_with_what_they_support_and_how_they_can_be_limited(boards):
    found = told("devices")
    (nvidia,) = (meter for meter in found["meters"] if meter["name"] == "nvidia")
    facts = nvidia["devices"][0]["facts"]
    assert (facts["power"], facts["energy_counter"]) == ("buffer", "field")
    assert facts["counter_refresh_s"] == pytest.approx(0.02, rel=0.2)
    (limiter,) = (one for one in found["limiters"] if one["name"] == "nvidia")
    assert limiter["devices"][0]["power_limit_w"] == 217.5
    assert boards[0].uuid.decode() in wattlaw("devices").stdout.replace("\n", "")


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


@pytest.mark.parametrize("line", [[], ["--power-limit", "-5"], ["--power-limit", "nan"],
                                  ["--clock-limit", "900", "--prior-clocks", "x"]])  # fmt: skip
def test_an_invalid_limit_gives_a_one_line_error(boards, line):
    done = wattlaw("limits", "set", *line)
    assert done.returncode in (2, 3)
    assert done.stderr.count("\n") == 1
    assert [boards[i].limit_mw for i in range(2)] == [217_500, 400_000]
