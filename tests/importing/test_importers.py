"""What every importer must do, of the core and of add-ons, for a small file of each format."""

import os
import pickle
import random
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from import_samples import SAMPLES, damaged
from wattlaw.api.imports import import_files, read_import
from wattlaw.cli.main import main
from wattlaw.common import registry
from wattlaw.common.errors import BadInput
from wattlaw.importing.detection import HEAD_BYTES, importer_of, importers, read_file
from wattlaw.importing.importer import GROUP, Options
from wattlaw.store.field_map import parse_constants
from wattlaw.store.schema import EPOCHS, TELEMETRY, find_faults
from wattlaw.store.store import Store
from wattlaw.study.out_of_memory import OUT_OF_MEMORY

#: Formats that mark the windows of a time series, and formats without a window of their own.
MARKS, SERIES = {"windows", "log"}, {"nvidia-smi", "zeus-power", "dcgm", "amd-smi", "mlperf-power"}
#: Formats that are not detected by their content.
NAMED = {"table", "log"}
BY_FORMAT = {sample.format: sample for sample in SAMPLES}
#: Inputs of the fuzzer per format; 0 for the few of a short test.
INPUTS = int(os.environ.get("WATTLAW_FUZZ_INPUTS", "0"))
HOSTILE = (
    b"", b"\0", b"\0" * 70_000, b"\xff\xfe" * 1000, b"x" * 2_000_000, b"{" * 100_000,
    pickle.dumps(Path("x")),
)  # fmt: skip


@pytest.fixture(params=SAMPLES, ids=lambda sample: sample.file)
def sample(request, monkeypatch):
    if request.param.format == "perun":  # some of its damaged files make HDF5 loop without end
        monkeypatch.setattr("wattlaw_formats.hdf5._LEAST_S", 5.0)
    return request.param


def test_every_importer_has_a_sample():
    assert {sample.format for sample in SAMPLES} == {*registry.names(GROUP)}


def test_an_importer_detects_its_own_samples_only(tmp_path, sample):
    path, options = sample.write(tmp_path), Options("s", mapping=sample.settings.get("map"))
    head = path.read_bytes()[:HEAD_BYTES]
    detected = {name for name, each in importers().items() if each.detect(path, head)}
    assert detected == {sample.format} - NAMED
    if sample.format not in NAMED:
        assert importer_of(path, options).name == sample.format


def test_an_import_gives_valid_runs_and_says_what_the_file_is(tmp_path, sample):
    files, settings = [sample.write(tmp_path)], dict(sample.settings)
    if sample.format in MARKS:
        files.append(BY_FORMAT["nvidia-smi"].write(tmp_path))
    if sample.format == "mlperf-power":
        files.append(BY_FORMAT["mlperf"].write(tmp_path))
        settings["map"] = "gpus=@8"
    read = read_import(files, **settings)
    assert len(read.runs) == sample.runs
    assert read.files[0].format == sample.format
    assert read.files[0].description.isprintable()
    result = read.write(tmp_path / "store")
    assert (result.added, result.unchanged, result.rejected) == (sample.runs, 0, 0)
    assert import_files(files, tmp_path / "store", **settings).unchanged == sample.runs
    store = Store.existing(tmp_path / "store", strict=True)
    for name, schema in (("epochs", EPOCHS), ("telemetry", TELEMETRY)):
        table = store.arrow(name, validate=True)
        assert table.schema == schema
        assert not find_faults(table)
    for row in store.arrow("runs").to_pylist():
        assert row["launcher"] == "imported"
        assert row["status"] == ("done" if row["reason"] is None else OUT_OF_MEMORY)
        assert row["notes"][0].startswith("imported from ")
        assert row["gpus"] >= 1
    windows = store.arrow("epochs").to_pylist()
    assert all((row["energy_source"] == "none") == (row["energy_verdict"] == "unavailable")
               for row in windows)  # fmt: skip
    if store.arrow("telemetry").num_rows == 0:
        assert all(row["energy_verdict"] != "ok" for row in windows)


def test_a_hostile_file_gives_one_line_and_exit_code_2(tmp_path, capsys, sample):
    path, content = tmp_path / sample.file, sample.content()
    header = content[: content.find(b"\n") + 1 or 10]
    line = ["import", str(path), "--from", sample.format, "--store", str(tmp_path / "store")]
    for name, value in sample.settings.items():
        line += [f"--{name}", value]
    for hostile in (*HOSTILE, header):
        path.write_bytes(hostile)
        assert main(line) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert path.name in told and told.isprintable()
        assert not (tmp_path / "store").exists()


def test_a_missing_file_and_a_folder_are_named(tmp_path, sample):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(BadInput, match=path.name):
            read_import(path, format=sample.format, **sample.settings)


def test_each_row_of_a_damaged_file_is_read_or_left_out_with_a_reason(tmp_path, sample):
    """``WATTLAW_FUZZ_INPUTS`` sets the number of inputs."""
    inputs = INPUTS or (5 if sample.format == "perun" else 12)
    path, settings = sample.write(tmp_path), sample.settings
    mapping = settings.get("map")
    options = Options(
        "s", mapping=mapping, pattern=settings.get("pattern"),
        constants={} if sample.format == "table" else parse_constants(mapping, {}),
        devices=tuple(settings.get("devices", ())),
    )  # fmt: skip
    importer, content = importers()[sample.format], sample.content()
    dice, read = random.Random(zlib.crc32(sample.file.encode()) + 1), 0
    for number in range(10 * inputs):
        if number >= inputs and read > 1:  # the content of some samples differs from run to run
            break
        changed = damaged(dice, content) if number else content
        path.write_bytes(changed)
        try:
            imported, account = read_file(path, importer, options)
        except BadInput as error:
            assert str(error).isprintable(), number
            assert len(str(error)) < 1500, number
            continue
        read += 1
        for run in imported.runs:
            assert not find_faults(pa.Table.from_pylist(list(run.windows), schema=EPOCHS))
            assert run.record.model_validate_json(run.record.model_dump_json()) == run.record
        left_out = sum(each.count for each in account.left_out)
        rejected = len({row.line for row in account.rejected})
        counted = len(account.headers) + account.rows_read + left_out + rejected
        assert sample.count_rows is None or counted == sample.count_rows(changed)
        assert all(each.reason and each.first >= 1 for each in account.left_out)
        texts = account.texts()
        assert all({*texts} <= {*run.record.notes} for run in imported.runs)
        if number == 0:
            assert account.rows_read > 0
            assert not rejected
    assert read > 1
