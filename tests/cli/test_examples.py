"""The examples in the package: listed, copied, and studies that ask for what their papers did."""

from functools import cache
from pathlib import Path

import pytest

from wattlaw import examples
from wattlaw.cli.main import main
from wattlaw.examples import EXAMPLES, example
from wattlaw.running.planning import plan_study
from wattlaw.study.plan import PlannedRun
from wattlaw.study.setting import Setting

FOLDER = Path(examples.__file__).parent
NAMES = [known.name for known in EXAMPLES]


def test_every_file_in_the_folder_belongs_to_one_example():
    files = [file for known in EXAMPLES for file in known.files]
    there = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert sorted(files) == sorted(there - {"__init__.py"})


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_copied_and_its_study_passes_its_check(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "new" / "folder"
    assert main(["examples", "copy", name, str(folder)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.name for path in written] == list(example(name).files)
    for path in written:
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()
    if written[0].suffix == ".yaml":
        monkeypatch.chdir(folder)  # where the script is
        assert main(["check", str(written[0])]) == 0


def test_a_copy_overwrites_nothing(tmp_path, capsys):
    script = tmp_path / "own_script.py"
    script.write_text("mine")
    assert main(["examples", "copy", "own-script", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(script) in line
    assert "wattlaw examples copy own-script DIR" in line
    assert [path.name for path in tmp_path.iterdir()] == ["own_script.py"]
    assert script.read_text() == "mine"


# The two studies that this project began with.


@cache
def planned_runs(name: str) -> list[PlannedRun]:
    return plan_study(FOLDER / name).runs


def test_the_mit_study_has_the_training_settings_of_the_paper():
    """Frey et al. 2022: batch per GPU, precision and epochs of each model."""
    found: dict[str, set[tuple[object, ...]]] = {}
    for run in planned_runs("mit-2022-all.yaml"):
        setting, epochs = run.spec.setting, run.spec.measure.epochs
        told = (setting.local_batch, setting.precision, epochs)
        found.setdefault(run.spec.workload.name, set()).add(told)
    assert found == {
        **{name: {(256, "fp16", 10)} for name in ("vgg16", "inceptionv3", "resnet50")},
        "bert-base": {(8, "fp32", epochs) for epochs in (4, 6, 10, 15, 25, 40)},
        "dimenet": {(128, "fp32", 200)},
        "schnet": {(128, "fp32", 200), (128, "fp32", 1000)},
    }


def test_the_kit_study_scales_resnet50_in_the_three_ways_of_the_paper_twice():
    """Huber et al. 2025; each way with all of the data, and with data that grow with the GPUs."""
    runs = planned_runs("kit-2025-resnet50.yaml")
    settings = {run.spec.setting for run in runs}
    assert len(runs) == 5 * len(settings)
    small, large, all_counts = (
        [2**n for n in powers] for powers in (range(5), range(5, 9), range(9))
    )
    ways = [
        *((gpus, 256) for gpus in small),  # local batches 256 to 16
        *((gpus, 8192) for gpus in large),  # local batches 256 to 32
        *((gpus, 256 * gpus) for gpus in all_counts),  # global batches 256 to 65,536
    ]
    assert settings == {
        Setting(gpus=gpus, local_batch=batch // gpus, dataset_fraction=share)
        for gpus, batch in ways
        for share in (1.0, gpus / 256)
    }
    (recipe,) = {(run.spec.measure.epochs, run.spec.measure.sample_hz) for run in runs}
    assert recipe == (100, 1)
