"""Runs on paper that are measured by optimizer steps."""

import json
from pathlib import Path

import pytest

from conftest import study_of
from wattlaw.cli.main import main
from wattlaw.store.statistics import statistics
from wattlaw.store.store import Store


def simulated(tmp_path: Path, **changes: object) -> Store:
    path = tmp_path / "study.yaml"
    launch = {"kind": "simulated", "simulation": {"hardware": "mit-v100"}}
    sweeps = [{"gpus": [8], "local_batch": [4]}]
    path.write_text(json.dumps(study_of(**{"launch": launch, "sweeps": sweeps} | changes)))
    assert main(["run", str(path), "--store", str(tmp_path / "store")]) == 0
    return Store.existing(tmp_path / "store")


@pytest.mark.parametrize("measure", [{"steps": 4000}, {"seconds": 30.0}])
def test_a_simulated_run_has_a_warmup_block_and_a_measured_one(measure, tmp_path):
    store = simulated(tmp_path, measure=measure | {"warmup_steps": 50})
    warmup, block = store.pandas("epochs").sort_values("start_ns").itertuples()
    assert (warmup.phase, block.phase) == ("steps", "steps")
    assert (warmup.warmup, block.warmup) == (True, False)
    assert (warmup.from_step, warmup.steps, block.from_step) == (0, 50, 50)
    assert block.samples == 32 * block.steps
    assert block.step_time_mean_s * block.steps == pytest.approx(block.duration_s)
    assert block.gpu_energy_j == pytest.approx(8 * block.gpu_power_mean_w * block.duration_s)
    if "steps" in measure:
        assert block.steps == 4000
    else:
        assert block.duration_s == pytest.approx(30, rel=0.3)
    samples = store.pandas("telemetry")
    assert samples["power_w"].mean() == pytest.approx(block.gpu_power_mean_w, rel=0.2)
    of_gpus = statistics(store)
    (row,) = of_gpus[of_gpus["part"] == "run"].itertuples()
    assert row.power_mean_w == pytest.approx(block.gpu_power_mean_w, rel=0.2)
