"""What works where the simulator is not installed: everything else."""

import json

from without_addon import wattlaw_without

ADDON = "wattlaw_simulator"


def test_a_study_is_run_and_advised_on(write_study, tmp_path):
    study = write_study(sweeps=[{"gpus": [1], "local_batch": [32, 64]}], repeats=2)
    store = str(tmp_path / "store")
    for arguments in (["check", str(study)], ["run", str(study), "--store", store]):
        done = wattlaw_without(ADDON, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    advised = wattlaw_without(ADDON, "advise", store, "--minimize", "time", "--json")
    assert advised.returncode == 0, advised.stderr
    assert json.loads(advised.stdout)["recommended"]["gpus"] == 1


def test_its_commands_and_its_launcher_are_not_there(write_study, tmp_path):
    assert not {"simulate", "profile"} & set(wattlaw_without(ADDON, "--help").stdout.split())
    assert wattlaw_without(ADDON, "simulate").returncode == 2
    study = write_study(launch={"kind": "simulated"})
    refused = wattlaw_without(ADDON, "check", str(study), cwd=tmp_path)
    assert refused.returncode == 2
    assert "simulated" in refused.stderr and "allowed" in refused.stderr
