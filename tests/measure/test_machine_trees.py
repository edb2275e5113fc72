"""``wattlaw devices`` on five types of machine, and ``limits``: what a user sees of them."""

import json
import os

import pytest

from conftest import setenv, wattlaw
from trees import MACHINES
from wattlaw.cli.commands.devices import devices
from wattlaw.cli.main import main

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
        "cray": {"cray-node", "cray-cpu", "cray-memory"},
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
def boards(fake_gpus, tmp_path, monkeypatch):
    """Give two boards, one at an odd limit, to this process and every one started from here."""
    found = fake_gpus(2, buffers=1, limit_mw=[217_500, 400_000], limit_default_mw=400_000)
    setenv(monkeypatch, {**found.environment(), "WATTLAW_LIMITS_DIR": str(tmp_path / "limits")})
    return found


def test_a_root_of_the_kernels_files_that_is_not_a_folder_is_bad_input(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for root in (tmp_path / "missing", tmp_path / "file"):
        monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(root))
        assert main(["measure", "--", "true"]) == 2
        shown = capsys.readouterr()
        (line,) = shown.err.splitlines()
        assert f"WATTLAW_SYSFS_ROOT: {root} is not a folder" in line
        assert shown.out == ""
        assert [path.name for path in tmp_path.iterdir()] == ["file"]  # nothing was written


def test_limits_set_show_and_restore_work_together(boards, capsys):
    assert wattlaw("limits", "set", "--power-limit", 150).returncode == 0
    assert [boards[i].limit_mw for i in range(2)] == [150_000, 150_000]
    assert main(["limits", "show", "--json"]) == 0
    shown = {row["device"]: row for row in json.loads(capsys.readouterr().out)}
    mine = shown[boards[0].uuid.decode()]
    assert (mine["power_limit_w"], mine["to_restore"]["power_limit_w"]) == (150.0, 217.5)
    assert main(["measure", "--power-limit", "130", "--", "true"]) == 3
    assert "limits restore" in capsys.readouterr().err
    assert main(["limits", "restore"]) == 0
    assert capsys.readouterr().out.count("restored") == 2
    assert [boards[i].limit_mw for i in range(2)] == [217_500, 400_000]
    assert main(["limits", "restore"]) == 0
    assert capsys.readouterr().out == "There are no limits to restore.\n"


def test_limits_set_locks_a_clock_only_if_clocks_are_stated_unlocked(boards, capsys):
    line = ["limits", "set", "--clock-limit", "900"]
    assert main(line) == 3
    assert "prior_clocks" in capsys.readouterr().err
    assert main([*line, "--prior-clocks", "default"]) == 0
    assert "clock locked at 900 MHz" in capsys.readouterr().out
    assert boards[0].locked_max_mhz == 900
    assert main(["limits", "restore"]) == 0
    assert boards[0].locked_max_mhz == 0
