"""Files of known tools that are not read."""

import pytest

from imported import a_file
from public_data import misread_file
from wattlaw.api.imports import read_import
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput

FOREIGN = {
    "perun.json": ('{"id": "app", "type": 1, "metadata": {}, "nodes": [{}]}', "perun", "hdf5"),
    "bench.json": ('[\n    {\n "name": "app_1 - RUNTIME", "unit": "s"}]', "perun", "hdf5"),
    "perun.csv": (
        ",run id,hostname,device_group,sensor,unit,magnitude,timestep,value\n0,0,n1,gpu,x,W\n",
        "perun", "hdf5",
    ),
    "points.txt": ("# made\nPARAMETER p\nPOINTS 4 8\nREGION r\nDATA 1 2\n", "Extra-P", "--map"),
    "points.jsonl": ('{"params":{"x":20},"metric":"m","value":8.5}\n', "Extra-P", "--map"),
    "points.json": ('{"parameters": ["x"], "measurements": {}}', "Extra-P", "--map"),
    "spl.txt": (
        "Time,11-08-2023 12:26:59.302,Watts,317.500000,Volts,229.3,Amps,1.4,PF,0.98,Mark,run\n",
        "PTDaemon", "node_energy_j",
    ),
    "chart.csv": (
        '"Step","a - loss","a - loss__MIN","a - loss__MAX"\n1,2,2,2\n', "Weights & Biases", "--map",
    ),
    "wandb-history.jsonl": ('{"loss": 1, "_step": 1, "_timestamp": 17}\n', "Weights", "--map"),
    "loss": ("1700000000000 0.5 1\n1700000001000 0.4 2\n", "MLflow", "mlflow experiments csv"),
    "train_results.json": (
        '{\n "epoch": 1.0,\n "train_runtime": 5.0\n}', "Hugging Face", "trainer_state.json",
    ),
    "power.json": (
        '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"gpu":"0"},'
        '"values":[[1700000000,"300"]]}]}}', "Prometheus", "DCGM_FI_DEV_POWER_USAGE",
    ),
    "dmon.txt": ("#Entity   POWER\n      W\nGPU 0     300.1\n", "dcgmi dmon", "nvidia-smi"),
    "result_0.txt": (
        "start\n:::MLPv0.6.0 resnet 1560000000.5 (a.py:1) run_start\n", "MLPerf Training", "--map",
    ),
    "scalar.csv": ("Wall time,Step,Value\n1700000000.5,1,0.5\n", "TensorBoard", "event file"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_not_read_is_named_with_a_remedy(tmp_path, capsys, name):
    content, what, remedy = FOREIGN[name]
    path = a_file(tmp_path / name, content)
    assert main(["import", str(path), "--store", str(tmp_path / "store")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(words in line for words in (name, what, remedy))


@pytest.mark.parametrize("name", ["extrap_input.txt", "extrap_2p.txt", "extrap.jsonl"])
def test_real_files_of_extrap_are_named(name):
    path = misread_file("README.md").parents[1] / "formats" / name
    with pytest.raises(BadInput, match="Extra-P"):
        read_import(path)
