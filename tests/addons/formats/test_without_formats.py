"""Without the add-on, its formats are not known, and everything else works."""

import pytest

from import_samples import SAMPLES
from imported import a_file
from without_addon import wattlaw_without

CORE = {"nvidia-smi", "zeus", "slurm", "table"}
SOURCES = [sample for sample in SAMPLES if sample.format in CORE]


def test_the_formats_of_the_core_are_imported_and_exported(tmp_path):
    for sample in SOURCES:
        path, settings = sample.write(tmp_path), [*sample.settings.items()]
        options = [text for name, value in settings for text in (f"--{name}", value)]
        done = wattlaw_without(
            "wattlaw_formats", "import", str(path), *options, "--store", str(tmp_path / "s")
        )
        assert done.returncode == 0, done.stderr
    for what in ("runs.csv", "bundle.zip"):
        line = ["export", str(tmp_path / "s"), what.split(".")[0], "-o", str(tmp_path / what)]
        assert wattlaw_without("wattlaw_formats", *line).returncode == 0
        assert (tmp_path / what).stat().st_size > 0


@pytest.mark.parametrize("format", ["perun", "mlperf", "codecarbon"])
def test_the_formats_of_the_addon_are_unknown_files(tmp_path, format):
    sample = next(each for each in SAMPLES if each.format == format)
    path = sample.write(tmp_path)
    done = wattlaw_without("wattlaw_formats", "import", str(path), "--store", str(tmp_path / "s"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert path.name in line
    assert "--map" in line if path.suffix == ".csv" else "no known format" in line
    assert format not in line.partition("allowed:")[2]


def test_no_help_or_message_names_what_is_not_there(tmp_path):
    for command in ("import", "export"):
        told = wattlaw_without("wattlaw_formats", command, "--help").stdout
        assert "nvidia-smi" in told or "bundle" in told
        assert not {"perun", "tensorboard", "extrap"} & {*told.replace(",", " ").split()}
    path = a_file(tmp_path / "points.json", '{"parameters": ["x"], "measurements": {}}')
    done = wattlaw_without("wattlaw_formats", "import", str(path), "--store", str(tmp_path / "s"))
    assert (done.returncode, "no known format" in done.stderr) == (2, True)
