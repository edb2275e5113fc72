"""``devices``, ``limits`` and ``selftest``: what a user sees of the machine."""

import json
import time

import pytest

from conftest import wattlaw
from fake_nvml import FakeGpus
from wattlaw.cli.main import main
from wattlaw.running import selftest
from wattlaw.running.selftest import median_interval, run_checks, slowdown_check


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


@pytest.mark.parametrize("command", [["devices"], ["limits", "show"], ["measure", "--", "true"]])
def test_a_root_of_the_kernels_files_that_is_not_a_folder_is_bad_input(
    tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    for root in (tmp_path / "missing", tmp_path / "file"):
        (tmp_path / "file").touch()
        monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(root))
        done = wattlaw(*command)
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


def test_the_selftest_has_a_verdict_for_each_line_and_a_value_where_there_is_one(boards):
    shown: list[tuple[str, float]] = []
    found = run_checks(watch_s=4.0, pairs=6, progress=lambda *step: shown.append(step))
    checks = {(check.check, check.device): check for check in found}
    assert len({text for text, _ in shown}) == 2
    assert [share for _, share in shown] == sorted(share for _, share in shown)
    uuid = boards[0].uuid.decode()
    assert checks["counter's refresh period", uuid].value == pytest.approx(0.02, rel=0.2)
    assert checks["counter against integral of power", uuid].verdict == "ok"
    assert checks["meter", "rapl"].verdict == "not available"
    assert checks["slow-down of a training loop", None].value is not None
    for check in checks.values():
        assert (check.value is None) == (check.verdict == "not available")
        assert check.verdict in ("ok", "poor", "cannot tell", "not available")


@pytest.mark.parametrize(
    ("slowdowns", "verdict"),
    [
        ([0.0001, 0.0002, 0.0003, -0.0001, 0.0, 0.0004, 0.0002], "ok"),
        ([0.01, 0.02, 0.03, 0.011, 0.012, 0.013, 0.014], "poor"),
        ([-0.05, 0.04, 0.0, 0.02, -0.03, 0.0001, -0.0001], "cannot tell"),
        ([0.0001] * 5, "cannot tell"),
    ],
)
def test_a_slowdown_is_judged_by_its_interval(slowdowns, verdict):
    assert slowdown_check(slowdowns).verdict == verdict


def test_the_selftest_ends_in_time_on_a_slow_machine():
    begun_s = time.monotonic()
    checks = run_checks(watch_s=1.0, pairs=10_000, most_s=4.0)
    assert time.monotonic() - begun_s < 20
    assert {check.check for check in checks} >= {"slow-down of a training loop"}


@pytest.mark.parametrize(("value", "code"), [(0.0, 0), (1.0, 1)])
def test_the_exit_code_of_the_selftest_says_whether_a_check_is_poor(value, code, monkeypatch):
    checks = [slowdown_check([value] * 8), slowdown_check([0.0] * 2)]
    monkeypatch.setattr(selftest, "run_checks", lambda **_: checks)
    assert main(["selftest", "--json"]) == code


def test_the_interval_of_a_median_is_that_of_the_order_statistics():
    assert median_interval([float(n) for n in range(1, 11)]) == (2.0, 9.0)  # n = 10: 97.9 %
