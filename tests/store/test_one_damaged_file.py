"""One missing or damaged file of a run: the run is left out and named, the others remain."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import wattlaw
from conftest import study_of
from wattlaw.cli.main import main
from wattlaw.store.store import Store

STUDY = {
    "sweeps": [{"gpus": [1, 2, 4], "local_batch": [32]}],
    "workloads": [{"name": "resnet50"}],
    "repeats": 2,
    "launch": {"kind": "simulated", "simulation": {"hardware": "dgx-h100"}},
}


def overwrite(path: Path, share: float, count: int) -> None:
    content = bytearray(path.read_bytes())
    start = int(share * len(content))
    content[start : start + count] = random.Random(1).randbytes(count)
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: overwrite(path, 0, path.stat().st_size),
    "garbage inside": lambda path: overwrite(path, 0.4, 64),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("whole")
    study, store = folder / "study.yaml", folder / "store"
    study.write_text(yaml.safe_dump(study_of(**STUDY)))
    assert main(["run", str(study), "--store", str(store)]) == 0
    return Store(store)


@pytest.fixture
def damaged(whole: Store, tmp_path: Path) -> Path:
    copy = tmp_path / "store"
    shutil.copytree(whole.path, copy)
    return copy


def run_ids(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "runs").iterdir())


def shown(capsys: pytest.CaptureFixture[str], *line: object) -> tuple[int, str, list[str]]:
    capsys.readouterr()
    code = main([str(word) for word in line])
    output = capsys.readouterr()
    return code, output.out, output.err.splitlines()


@pytest.mark.parametrize(
    ("name", "damage"),
    [("run.json", "missing"), ("run.json", "garbage"), ("epochs.parquet", "cut"),
     ("telemetry.parquet", "garbage")],
)  # fmt: skip
def test_a_run_with_a_damaged_file_is_repeated(name, damage, damaged, whole, capsys, tmp_path):
    run_id = run_ids(damaged)[0]
    path = damaged / "runs" / run_id / name
    DAMAGES[damage](path)
    _, output, _ = shown(capsys, "status", damaged, "--json")
    (row,) = json.loads(output)["not_done"]
    assert (row["run_id"], row["status"]) == (run_id, "damaged")
    assert str(path) in row["reason"]
    code, _, (error,) = shown(capsys, "advise", damaged, "--json")
    assert (code, f"run {run_id} is left out" in error) == (0, True)
    code, _, (error,) = shown(capsys, "fit", damaged, "--strict")
    assert code == 2
    assert str(path) in error

    study = whole.path.parent / "study.yaml"
    code, _, _ = shown(capsys, "run", study, "--store", damaged)
    if name == "run.json" and damage != "missing":
        # What the record says is not known, such as whether a job still runs: it is kept.
        assert code == 1
        assert Store(damaged).records_by_id()[run_id] is None
        return
    assert code == 0
    record = Store(damaged).folder(run_id).read()
    assert record.status == "done"
    if name != "run.json":
        assert record.attempts == 2
        assert any(str(path) in note for note in record.notes)
    results = wattlaw.open(damaged, strict=True)
    assert {*results.metrics["run_id"]} == {*run_ids(damaged)}
    assert not results.damaged
