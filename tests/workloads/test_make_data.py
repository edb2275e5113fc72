"""``wattlaw workloads make-data``: small data in the formats that workloads read."""

import hashlib
from pathlib import Path

import pytest

from wattlaw.cli.main import main

#: One workload of each format.
FORMATS = ["bert-base", "fourcastnet", "resnet50", "schnet"]
SIZE = 6


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["workloads", "make-data", *map(str, words)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    return line


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_seed_writes_the_same_files_and_another_seed_others(name, tmp_path, capsys):
    for folder, seed in (("one", 0), ("same", 0), ("other", 2**32 - 1)):
        line = ["workloads", "make-data", name, str(tmp_path / folder), "--size", str(SIZE)]
        assert main([*line, "--seed", str(seed)]) == 0
    one, same, other = (content(tmp_path / folder) for folder in ("one", "same", "other"))
    assert one == same != other
    first = capsys.readouterr().out.splitlines()[0]
    size = sum(path.stat().st_size for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert first == (
        f"{tmp_path / 'one'}: {len(one)} files, {size:,} bytes, synthetic data for {name}, seed 0"
    )


@pytest.mark.parametrize("name", FORMATS)
def test_existing_files_in_a_folder_are_not_changed(name, tmp_path, capsys):
    mine = tmp_path / "data" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    for place in (mine.parent, mine):
        assert str(place) in refused(capsys, name, place, "--size", SIZE)
    assert content(tmp_path) == {"data/mine.txt": hashlib.sha256(b"mine").hexdigest()}


def test_invalid_workloads_and_sizes_are_rejected(tmp_path, capsys):
    folder = tmp_path / "data"
    assert refused(capsys, "digits-cnn", folder, "--size", 4) == (
        "wattlaw: workloads make-data: digits-cnn reads no files"
    )
    line = refused(capsys, "digits", folder, "--size", 4)
    assert "'digits'; allowed: bert-base, digits-cnn, dimenet" in line
    for wrong in (["--size", 0], ["--size", "four"], ["--size", 6, "--seed", 2**32]):
        assert wrong[-2] in refused(capsys, "vgg16", folder, *wrong)
    assert "--size" in refused(capsys, "vgg16", folder)
    assert "/proc/data" in refused(capsys, "vgg16", "/proc/data", "--size", SIZE)
    assert not folder.exists()
