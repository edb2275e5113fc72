"""Without the add-on, its formats are not known, and everything else works."""

from import_samples import SAMPLES
from without_addon import wattlaw_without

BY_FORMAT = {sample.format: sample for sample in SAMPLES}


def test_the_formats_of_the_core_are_imported_and_exported(tmp_path):
    path, store = BY_FORMAT["zeus"].write(tmp_path), str(tmp_path / "s")
    done = wattlaw_without("wattlaw_formats", "import", str(path), "--store", store)
    assert done.returncode == 0, done.stderr
    line = ["export", store, "bundle", "-o", str(tmp_path / "bundle.zip")]
    assert wattlaw_without("wattlaw_formats", *line).returncode == 0
    assert (tmp_path / "bundle.zip").stat().st_size > 0


def test_the_formats_of_the_addon_are_unknown_files_and_no_help_names_them(tmp_path):
    path = BY_FORMAT["mlperf"].write(tmp_path)
    done = wattlaw_without("wattlaw_formats", "import", str(path), "--store", str(tmp_path / "s"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert path.name in line
    assert "no known format" in line
    assert not {"mlperf", "perun"} & {*line.partition("allowed:")[2].replace(",", " ").split()}
    told = wattlaw_without("wattlaw_formats", "import", "--help").stdout
    assert "nvidia-smi" in told
    assert not {"perun", "tensorboard", "extrap"} & {*told.replace(",", " ").split()}
