"""One missing or damaged file of a run: the run is left out and named, the others remain."""

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import wattlaw
from conftest import study_of
from conftest import wattlaw as wattlaw_command
from wattlaw.cli.main import main
from wattlaw.common.errors import DamagedFileWarning
from wattlaw.store.store import Store

STUDY = {
    "sweeps": [{"gpus": [1, 2, 4], "local_batch": [32]}],
    "workloads": [{"name": "resnet50"}],
    "repeats": 2,
    "launch": {"kind": "simulated", "simulation": {"hardware": "dgx-h100"}},
}


def _overwrite(path: Path, start: int, count: int, seed: int) -> None:
    content = bytearray(path.read_bytes())
    content[start : start + count] = random.Random(seed).randbytes(count)
    path.write_bytes(content)


#: What happens to a file of so many bytes; the share says where.
DAMAGES: dict[str, Callable[[Path, int, float], object]] = {
    "missing": lambda path, *_: path.unlink(),
    "cut": lambda path, size, share: path.write_bytes(path.read_bytes()[: int(size * share)]),
    "garbage": lambda path, size, _: _overwrite(path, 0, size, size),
    "zeros": lambda path, size, _: path.write_bytes(bytes(size)),
    "garbage inside": lambda path, size, share: _overwrite(path, int(size * share), 64, size),
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
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole.path, copy)
    return copy


def run_ids(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "runs").iterdir())


def shown(capsys: pytest.CaptureFixture[str], *line: object) -> tuple[int, str, list[str]]:
    capsys.readouterr()
    code = main([str(word) for word in line])
    output = capsys.readouterr()
    return code, output.out, output.err.splitlines()


@settings(
    max_examples=5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    which=st.integers(0, 10_000), damage=st.sampled_from(sorted(DAMAGES)), share=st.floats(0, 0.99)
)
@example(which=0, damage="missing", share=0.0)
def test_any_one_damaged_file_leaves_the_other_runs(which, damage, share, whole, tmp_path, capsys):
    store = tmp_path / "store"
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(whole.path, store)
    files = sorted(path for path in store.glob("runs/*/*") if path.is_file())
    path = files[which % len(files)]
    DAMAGES[damage](path, path.stat().st_size, share)
    others = {*run_ids(whole.path)} - {path.parent.name}

    code, output, errors = shown(capsys, "status", store, "--json")
    status = json.loads(output)
    assert (code, errors) == (0, [])
    assert {row["run_id"] for row in status["not_done"]} <= {path.parent.name}
    for line in (
        ("export", store, "metrics", "-o", tmp_path / "metrics.jsonl"),
        ("export", store, "statistics", "-o", tmp_path / "statistics.jsonl"),
        ("advise", store, "--json"),
    ):
        code, output, errors = shown(capsys, *line)
        assert code == 0, (line, errors)
        notes = [text for text in errors if str(path) in text]
        assert len(notes) <= 1
        if status["not_done"]:
            assert len(notes) == 1, (line, errors)
            assert f"run {path.parent.name} is left out" in notes[0]
    for name in ("metrics", "statistics"):
        rows = map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())
        assert {row["run_id"] for row in rows} - {path.parent.name} == others
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedFileWarning)
        results = wattlaw.open(store)
        assert {*results.telemetry["run_id"]} >= others
        assert {*results.metrics["run_id"]} >= others
    assert {*results.damaged} <= {path.parent.name}


@pytest.mark.parametrize(
    ("name", "damage"),
    [("run.json", "missing"), ("run.json", "garbage"), ("epochs.parquet", "cut"),
     ("telemetry.parquet", "garbage")],
)  # fmt: skip
def test_a_run_with_a_damaged_file_is_repeated(name, damage, damaged, whole, capsys, tmp_path):
    run_id = run_ids(damaged)[0]
    path = damaged / "runs" / run_id / name
    DAMAGES[damage](path, path.stat().st_size, 0.5)
    _, output, _ = shown(capsys, "status", damaged, "--json")
    (row,) = json.loads(output)["not_done"]
    assert (row["run_id"], row["status"]) == (run_id, "damaged")
    assert str(path) in row["reason"]
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


def test_a_report_shows_the_runs_that_are_left(damaged, tmp_path):
    run_id = run_ids(damaged)[2]
    path = damaged / "runs" / run_id / "telemetry.parquet"
    DAMAGES["garbage inside"](path, path.stat().st_size, 0.4)
    page = tmp_path / "report.html"
    done = wattlaw_command("report", damaged, "-o", page)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()  # and no warning of a library
    assert run_id in line
    assert str(path) in line
    assert "resnet50" in page.read_text(encoding="utf-8")


def test_a_damaged_decision_is_left_out(damaged, capsys):
    path = damaged / "decision.json"
    path.write_text(json.dumps({"workload": "resnet50", "text": "x" * 200}))
    DAMAGES["cut"](path, path.stat().st_size, 0.5)
    code, output, _ = shown(capsys, "advise", damaged, "--json")
    assert code == 0
    assert json.loads(output)["recommended"]["gpus"] in (1, 2, 4)
