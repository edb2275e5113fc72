"""The schema version of a store: written when it is created, checked by every command."""

import json

import pytest
from test_store import a_store

from wattlaw import __version__
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput
from wattlaw.store.store import Store
from wattlaw.store.version import SCHEMA_VERSION, version_path

READERS = ("status", "cancel", "fit", "advise")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return a_store(tmp_path / "store").path


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_new_store_has_the_version_and_keeps_its_file(tmp_path):
    store = Store(tmp_path / "deep" / "store")
    store.create()
    path = version_path(store.path)
    assert json.loads(path.read_text()) == {"schema_version": SCHEMA_VERSION}
    before = path.stat().st_mtime_ns
    Store(store.path).create()
    assert path.stat().st_mtime_ns == before
    assert sorted(entry.name for entry in store.path.iterdir()) == ["runs", "store.json"]


@pytest.mark.parametrize("command", READERS)
def test_every_command_refuses_a_newer_store_and_names_both_versions(store, command, capsys):
    version = SCHEMA_VERSION + 1
    version_path(store).write_text(json.dumps({"schema_version": version}))
    assert main([command, str(store)]) == 2
    line = refusal(capsys)
    assert f"schema version {version}" in line
    assert f"wattlaw {__version__} reads schema version {SCHEMA_VERSION}" in line
    assert "upgrade wattlaw" in line


def test_a_store_with_runs_and_without_the_file_says_that_it_is_missing(store, capsys):
    version_path(store).unlink()
    assert main(["status", str(store)]) == 2
    line = refusal(capsys)
    assert f"{version_path(store)}: missing" in line
    assert f'restore the file; this wattlaw writes {{"schema_version": {SCHEMA_VERSION}}}' in line


def test_nothing_is_written_into_a_store_of_another_version(tmp_path, write_study, store, capsys):
    study = write_study()
    version_path(store).write_text('{"schema_version": 99}')
    before = sorted(store.rglob("*"))
    for words in (
        ("run", str(study), "--store", str(store)),
        ("run", str(study), "--store", str(store), "--dry-run"),
        ("measure", "--store", str(store), "--", "true"),
    ):
        assert main([*words]) == 2
        assert "schema version 99" in refusal(capsys)
    assert sorted(store.rglob("*")) == before


def test_a_folder_without_runs_becomes_a_store(tmp_path):
    (tmp_path / "runs").mkdir()
    assert Store.existing(tmp_path).records() == []
    Store(tmp_path).create()
    assert version_path(tmp_path).exists()


@pytest.mark.parametrize("value", ["1", 1.0, True, None, 0, -1, [1], float("nan")])
def test_an_invalid_schema_version_is_rejected(store, value):
    version_path(store).write_text(json.dumps({"schema_version": value}))
    with pytest.raises(BadInput, match="integer >= 1"):
        Store.existing(store)
