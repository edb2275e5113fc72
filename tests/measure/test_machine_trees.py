"""``wattlaw devices`` on five types of machine, and ``limits``: what a user sees of them."""

import json
import os

import pytest

from conftest import setenv, wattlaw
from fake_nvml import FakeGpus
from trees import MACHINES
from wattlaw.cli.commands.devices import devices

#: Per machine: the devices that have energy or power, by meter, and the reasons of other meters.
EXPECTED = {
    "nvidia": {
        "rapl": {"package-0", "dram-0", "package-1", "dram-1"},
        "nvidia": "NVIDIA driver",  # its library is not in a tree
        "node-power": "no ACPI power meter",
        "cray": "not an HPE Cray machine",
    },
    "lumi": {
        "amd": {f"AMD-{0xB45D0000DEADBEE0 + gpu:x}" for gpu in range(8)},
        "cray": {"cray-node", "cray-cpu", "cray-memory", *(f"cray-accel{i}" for i in range(4))},
        "node-power": "read from pm_counters",
        "rapl": "no RAPL counters",
    },
    "aurora": {
        "intel": {f"intel-0000:{0x18 + i:02x}:00.0" for i in range(6)},
        "rapl": {"package-0", "dram-0", "package-1", "dram-1"},
        "cray": "not an HPE Cray machine",
    },
    "grace-hopper": {
        "grace": {f"{scope}-{socket}" for scope in ("module", "grace") for socket in range(4)},
        "node-power": "no ACPI power meter",
        "rapl": "no RAPL counters",
    },
    "virtual-machine": {
        "cray": "not an HPE Cray machine",
        "grace": "no ACPI power meter",
        "intel": "no Intel GPU",
        "node-power": "no ACPI power meter",
        "rapl": "a virtual machine, or no driver",
    },
}

#: The title of the table: what the energy of a run includes.
TITLES = {
    "nvidia": "Energy of a run includes: cpu + dram",
    "lumi": "Energy of a run includes: node",
    "aurora": "Energy of a run includes: gpu + cpu + dram",
    "grace-hopper": "Energy of a run includes: module",
    "virtual-machine": "Energy cannot be measured on this machine",
}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_lists_what_it_measures_and_why_it_does_not_measure_the_rest(
    machine, tmp_path, monkeypatch, capsys
):
    for name in [n for n in os.environ if n.startswith(("SLURM_", "ZE_", "WATTLAW_FAKE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WATTLAW_FAKE_NVML", "")
    MACHINES[machine](tmp_path / "sys", tmp_path / "bin")
    monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(tmp_path / "sys"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    assert devices(as_json=True) == 0
    listed = json.loads(capsys.readouterr().out)
    meters = {meter["name"]: meter for meter in listed["meters"]}
    for name, expected in EXPECTED[machine].items():
        found = meters[name]["devices"]
        if isinstance(expected, str):
            assert found == []
            assert expected in meters[name]["reason"]
        else:
            assert {device["id"] for device in found} == expected
            assert not any("failed" in device["facts"] for device in found)
            assert all(device["facts"].get("scope") for device in found)
    limits = {limiter["name"]: limiter["devices"] for limiter in listed["limiters"]}
    if machine == "lumi":  # two GPUs of a board have one limit
        assert limits["amd-sysfs"][0]["limited_with"] == [limits["amd-sysfs"][1]["device"]]
    assert devices() == 0
    assert capsys.readouterr().out.splitlines()[0].strip() == TITLES[machine]


@pytest.fixture
def boards(tmp_path, monkeypatch):
    """Give two boards, one of which stands at an odd limit, to every process started from here."""
    found = FakeGpus.create(
        tmp_path / "boards", 2, buffers=1, limit_mw=[217_500, 400_000], limit_default_mw=400_000
    )
    setenv(monkeypatch, found.environment())
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
