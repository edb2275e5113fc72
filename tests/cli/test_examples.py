"""The examples in the package: listed, copied, and studies that can be run."""

from pathlib import Path

import pytest

from wattlaw import examples
from wattlaw.cli.main import main
from wattlaw.examples import EXAMPLES, example

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


def test_a_copy_overwrites_nothing_unless_forced(tmp_path, capsys):
    script = tmp_path / "own_script.py"
    script.write_text("mine")
    assert main(["examples", "copy", "own-script", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(script) in line
    assert "--force" in line
    assert [path.name for path in tmp_path.iterdir()] == ["own_script.py"]
    assert script.read_text() == "mine"
    assert main(["examples", "copy", "own-script", str(tmp_path), "--force"]) == 0
    assert script.read_bytes() == (FOLDER / "own_script.py").read_bytes()
