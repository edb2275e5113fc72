"""Folders as arguments of an import."""

import os
from pathlib import Path

import pytest

import import_samples as samples
from imported import a_file
from wattlaw.api.imports import import_files, read_import
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput
from wattlaw.store.store import Store

MAP = "gpus=n,epoch_time_s=t"


def a_tree(folder: Path) -> Path:
    a_file(folder / "b.csv", "n,t\n1,10\n2,6\n")
    a_file(folder / "one" / "b.csv", "n,t\n1,10\n")
    a_file(folder / "two" / "jobs.txt", samples.slurm_text())
    a_file(folder / "README.md", "about")
    a_file(folder / "two" / "notes.txt", "about")
    a_file(folder / ".hidden" / "c.csv", "n,t\n1,10\n")
    return folder


def sources(read) -> list[str]:
    found = {run.record.notes[0].removeprefix("imported from ") for run in read.runs}
    return sorted(found)


def test_a_folder_means_its_files_of_known_formats(tmp_path):
    tree = a_tree(tmp_path / "logs")
    read = read_import(tree)
    assert [file.path.name for file in read.files] == ["jobs.txt"]
    assert read.left_out == (
        f"1 file left out, such as {tree / '.hidden'}: hidden",
        f"2 files left out, such as {tree / 'README.md'}: no known format",
        f"2 files left out, such as {tree / 'b.csv'}: a table, which needs --map",
    )


def test_files_of_equal_names_in_different_folders_are_different_runs(tmp_path):
    tree = a_tree(tmp_path / "logs")
    (tree / "two" / "jobs.txt").unlink()
    by_folder = import_files(tree, tmp_path / "store", map=MAP)
    assert (by_folder.added, by_folder.rejected) == (3, 0)
    assert sources(by_folder.read) == ["b.csv", "one/b.csv"]
    for again in (tree, tree / "b.csv", [tree / "b.csv", tree / "one"], [tree, tree / "b.csv"]):
        assert import_files(again, tmp_path / "store", map=MAP).added == 0
    named = read_import([tree / "one" / "b.csv", tree / "b.csv"], map=MAP)
    assert sources(named) == ["b.csv", "one/b.csv"]


def test_a_file_that_is_named_twice_is_refused(tmp_path):
    path = a_file(tmp_path / "a1.csv", "n,t\n2,10\n")
    with pytest.raises(BadInput, match="named twice"):
        read_import([path, path], map=MAP)
    with pytest.raises(BadInput, match="no such file"):
        read_import(tmp_path / "b*.csv", map=MAP)


def test_a_folder_without_a_readable_file_is_one_line_and_exit_code_2(tmp_path, capsys):
    for name in ("empty", "other"):
        (tmp_path / name).mkdir()
    a_file(tmp_path / "other" / "x.md", "x")
    for name in ("empty", "other"):
        assert main(["import", str(tmp_path / name), "--store", str(tmp_path / "s")]) == 2
        told = capsys.readouterr().err
        assert len(told.splitlines()) == 1
        assert "no file of a known format" in told
    assert "x.md: no known format" in told
    assert not (tmp_path / "s").exists()


def test_loops_special_files_and_stores_in_a_folder_are_named(tmp_path):
    tree = a_tree(tmp_path / "logs")
    import_files(tree, tree / "store", map=MAP)
    (tree / "one" / "up").symlink_to(tree)
    (tree / "one" / "self").symlink_to("self")
    (tree / "nowhere").symlink_to("nothing")
    (tree / "same.csv").symlink_to("b.csv")
    os.mkfifo(tree / "pipe")
    read = read_import(tree, map=MAP)
    found = [file.path.relative_to(tree).as_posix() for file in read.files]
    assert found == ["b.csv", "one/b.csv", "two/jobs.txt"]
    named = "\n".join(read.left_out)
    for name, why in (("one/up", "a link to a folder"), ("one/self", "symbolic links"),
                      ("nowhere", "no such file"), ("pipe", "not a plain file"),
                      ("same.csv", "read already"), ("store", "a store of wattlaw")):  # fmt: skip
        assert any(str(tree / name) in line and why in line for line in read.left_out), named


def test_a_damaged_file_of_a_folder_is_rejected_and_the_others_are_imported(tmp_path, capsys):
    tree = tmp_path / "logs"
    a_file(tree / "jobs.txt", samples.slurm_text())
    a_file(tree / "zeus.csv", samples.zeus().splitlines()[0] + b"\n")
    assert main(["import", str(tree), "--store", str(tmp_path / "s")]) == 1
    assert str(tree / "zeus.csv") in capsys.readouterr().err
    assert Store(tmp_path / "s").arrow("runs").num_rows == 2
    assert main(["import", str(tree / "zeus.csv"), "--store", str(tmp_path / "s")]) == 2
