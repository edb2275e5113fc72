"""Bundles: what is exported is read back equal, and hostile archives are refused."""

import io
import json
import os
import re
import stat
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

import wattlaw
from made_stores import write_store
from made_tables import frames, run_row, study, window_row
from wattlaw.api.results import Results
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput, DamagedFileWarning
from wattlaw.exporting.bundle import columns_in_markdown
from wattlaw.store.bundle import Bundle, open_store
from wattlaw.store.schema import TABLES, describe_columns
from wattlaw.store.statistics import read_telemetry
from wattlaw.store.store import Store

STUDY = """\
name: example
workloads: [{name: resnet50}]
sweeps:
  - {gpus: [1, 2, 4], global_batch: [256]}
  - {gpus: [4], global_batch: [256], power_limit_w: [150, 200]}
repeats: 2
measure: {epochs: 2, warmup_epochs: 1, sample_hz: 2}
launch: {kind: simulated, simulation: {hardware: mit-v100}}
"""
DECIDE = "decide: {minimize: time}\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the store of a simulated study, with a decision."""
    folder = tmp_path_factory.mktemp("bundle")
    for text in (STUDY, STUDY + DECIDE):
        (folder / "study.yaml").write_text(text)
        wattlaw.run(folder / "study.yaml", folder / "store")
    assert (folder / "store/decision.json").exists()
    return folder / "store"


@pytest.fixture(scope="module")
def bundle(store: Path) -> Path:
    path = store.parent / "study.zip"
    exported = wattlaw.open(store).export("bundle", path)
    assert exported.files == (path,)
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> object:
    assert main([*map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_bundle_opens_equal_to_its_store(store, bundle):
    first, again = wattlaw.open(store), wattlaw.open(bundle)
    for table in ("runs", "epochs", "metrics", "settings", "statistics"):
        assert_frame_equal(getattr(first, table), getattr(again, table))
        assert len(getattr(first, table)) > 0
    assert_frame_equal(first.telemetry(), again.telemetry())
    some = first.runs["run_id"].iloc[1]
    assert_frame_equal(first.telemetry(some), again.telemetry([some]))
    assert (first.decision, first.damaged) == (again.decision, again.damaged)
    for table in TABLES:
        assert first.arrow(table).equals(again.arrow(table))
    with pytest.raises(BadInput, match="allowed: a run that is done"):
        again.telemetry("unknown")


@pytest.mark.parametrize("line", [("advise",), ("fit",), ("fit", "--y", "energy_j"), ("claims",)])
def test_commands_print_the_same_json_of_a_bundle(line, store, bundle, capsys):
    command, *options = line
    of_store = printed(capsys, command, store, "--json", *options)
    assert of_store == printed(capsys, command, bundle, "--json", *options)
    assert of_store


def test_a_report_reads_the_same_from_a_bundle(store, bundle):
    runs = wattlaw.open(store).runs
    first, again = (read_telemetry([open_store(path)], runs) for path in (store, bundle))
    for one, other in zip(first, again, strict=True):
        assert_frame_equal(one, other)
        assert len(one) > 0


def test_a_bundle_of_a_bundle_is_the_same_file(bundle, tmp_path):
    wattlaw.open(bundle).export("bundle", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == bundle.read_bytes()


def test_a_bundle_explains_itself(store, bundle, tmp_path):
    with zipfile.ZipFile(bundle) as file:
        assert file.testzip() is None
        texts = {name: file.read(name) for name in file.namelist() if "parquet" not in name}
        assert all(not info.is_dir() and info.external_attr >> 16 == stat.S_IFREG | 0o644
                   for info in file.infolist())  # fmt: skip
    assert texts["studies/example.yaml"].decode() == STUDY + DECIDE
    readme = texts["README.md"].decode()
    assert f"Done runs: {len(wattlaw.open(store).metrics)} runs simulated." in readme
    assert all(f"| `{row['column']}` |" in readme for row in describe_columns())
    citation = yaml.safe_load(texts["CITATION.cff"])
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "dataset")
    assert citation["title"].endswith("example")
    assert all(citation[key] for key in ("message", "authors", "references"))
    environments = json.loads(texts["environment.json"])
    assert sum(item["runs"] for item in environments) == len(wattlaw.open(store).runs)
    for table in TABLES:
        rows = pd.read_csv(io.BytesIO(texts[f"{table}.csv"]))
        frame = wattlaw.open(store).arrow(table).to_pandas()
        assert (list(rows), len(rows)) == (list(frame), len(frame))
    assert len(pd.read_csv(io.BytesIO(texts["columns.csv"]))) == len(describe_columns())


def test_every_column_has_a_description_and_the_unit_that_its_name_says():
    rows = describe_columns()
    assert [(row["table"], row["column"]) for row in rows] == [
        (table, name) for table, schema in TABLES.items() for name in schema.names
    ]
    assert all(row["meaning"].strip() for row in rows)
    units = {"s": "s", "j": "J", "w": "W", "mhz": "MHz", "ns": "ns", "hz": "Hz", "bytes": "B",
             "c": "°C", "seconds": "s", "at": "UTC"}  # fmt: skip
    for row in rows:
        end = row["column"].rsplit("_", 1)[-1]
        if row["column"] != end:
            assert row["unit"] == units.get(end, "FLOP" if "flops" in row["column"] else ""), row
    columns = columns_in_markdown().replace("## ", "### ")  # part of a page
    assert columns in Path("docs/store.md").read_text(encoding="utf-8")


def test_the_temporary_folder_of_a_bundle_is_private_and_removed(bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    opened = open_store(bundle)
    assert isinstance(opened, Bundle)
    opened.arrow("telemetry")
    (folder,) = (tmp_path / "t").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    del opened
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert not [*(tmp_path / "t").iterdir()]


def test_a_damaged_run_stays_damaged_and_strict_refuses_it(tmp_path):
    made = write_store(tmp_path / "s", *study((1, 2), "counter"))
    damaged = next(made.folders())
    damaged.epochs_path.write_bytes(b"")
    with pytest.warns(DamagedFileWarning):
        first = wattlaw.open(made.path)
        first.export("bundle", tmp_path / "b.zip")
    again = wattlaw.open(tmp_path / "b.zip")
    assert again.damaged.keys() == {damaged.run_id}
    assert_frame_equal(first.metrics, again.metrics)
    with pytest.raises(BadInput, match=damaged.run_id):
        wattlaw.open(tmp_path / "b.zip", strict=True)


def test_imported_runs_survive_a_bundle_and_say_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("gpus,t,e\n1,100,1000\n2,52,1040\n4,27,1100\n8,15,1200\n")
    fields = "gpus=gpus,epoch_time_s=t,gpu_energy_j=e,energy_source=@counter,local_batch=@32"
    line = ["import", "t.csv", "--map", fields, "--workload", "w", "--hardware", "h"]
    assert main([*line, "--store", "s"]) == 0
    assert main(["export", "s", "bundle", "-o", "b.zip"]) == 0
    capsys.readouterr()
    assert printed(capsys, "fit", "s", "--json") == printed(capsys, "fit", "b.zip", "--json")
    assert_frame_equal(wattlaw.open("s").metrics, wattlaw.open("b.zip").metrics)
    with zipfile.ZipFile("b.zip") as file:
        assert "4 runs imported" in file.read("README.md").decode()
    assert main(["export", "b.zip", "extrap", "-o", "x.jsonl"]) == 0
    series = [json.loads(text)["metric"] for text in Path("x.jsonl").read_text().splitlines()]
    assert len(series) == 8
    assert all(metric.endswith(", imported") for metric in series)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FLOATS = st.none() | st.floats(min_value=0, width=64, allow_nan=False, allow_infinity=False)


@settings(max_examples=15)
@given(data=st.data())
def test_any_table_survives_a_bundle(data, tmp_path_factory):
    """Texts with line breaks and formulas, tiny and huge numbers, missing values."""
    folder = tmp_path_factory.mktemp("any")
    rows, windows = [], []
    for number in range(data.draw(st.integers(0, 3))):
        run_id = f"{number:016}"
        rows.append(run_row(run_id, hardware=data.draw(TEXTS) or None,
                            reason=data.draw(TEXTS), notes=data.draw(st.lists(TEXTS, max_size=2)),
                            repeat=number))  # fmt: skip
        windows.append(window_row(run_id, 0, gpu_energy_j=data.draw(FLOATS),
                                  loss=data.draw(FLOATS | st.just(float("nan")))))  # fmt: skip
    write_store(folder / "s", *frames(rows, windows), samples=2)
    first = wattlaw.open(folder / "s")
    first.export("bundle", folder / "b.zip")
    again = wattlaw.open(folder / "b.zip")
    for table in TABLES:
        a, b = first.arrow(table).to_pandas(), again.arrow(table).to_pandas()
        assert_frame_equal(a, b, check_exact=True)


def rewritten(bundle: Path, path: Path, **changes: bytes | None) -> Path:
    """Copy a bundle with members replaced, or left out for None."""
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            key = name.replace(".", "_").replace("/", "_")
            content = changes.get(key, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return path


def add(*names: str | zipfile.ZipInfo, content: bytes = b"x") -> Callable[[Path, Path], None]:
    def change(bundle: Path, path: Path) -> None:
        path.write_bytes(bundle.read_bytes())
        with warnings.catch_warnings(), zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
            warnings.simplefilter("ignore")  # of a name that occurs twice
            for name in names:
                file.writestr(name, content, zipfile.ZIP_DEFLATED)

    return change


def link(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


def table_bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def with_column(name: str, values: list[object]) -> Callable[[Path, Path], None]:
    def change(bundle: Path, path: Path) -> None:
        table = wattlaw.open(bundle).arrow("runs").slice(0, len(values))
        place = table.schema.get_field_index(name)
        column = pa.array(values, TABLES["runs"].field(name).type)
        rewritten(bundle, path, runs_parquet=table_bytes(table.set_column(place, name, column)))

    return change


def bomb(bundle: Path, path: Path) -> None:
    """Many rows of one value in few bytes: the table is small, its rows are not."""
    rows = 100_000_000
    none = pa.nulls(1)
    columns = {f.name: none.cast(f.type) for f in TABLES["telemetry"]}
    buffer = io.BytesIO()
    one = pa.table(columns, TABLES["telemetry"])
    with pq.ParquetWriter(buffer, TABLES["telemetry"], compression="zstd") as writer:
        piece = pa.concat_tables([one] * 1).take(pa.array(np.zeros(rows // 100, np.int8)))
        for _ in range(20):
            writer.write_table(piece)
    rewritten(bundle, path, telemetry_parquet=buffer.getvalue())


HOSTILE: dict[str, Callable[[Path, Path], object]] = {
    "a path above it": add("../evil"),
    "a path above it inside": add("studies/../../evil.yaml"),
    "an absolute path": add("/evil.wattlaw"),
    "a drive": add("C:evil"),
    "a path of another system": add("studies\\..\\evil.yaml"),
    "a link": add(link("studies/evil.yaml"), content=b"/etc/passwd"),
    "two members of a name": add("decision.json"),
    "a bomb": add("runs.csv.bak", content=bytes(200 * 2**20)),
    "a table that is a bomb": bomb,
    "many members": add(*(f"x{i}" for i in range(10_001))),
    "no version": lambda old, new: rewritten(old, new, bundle_json=None),
    "a version that is no JSON": lambda old, new: rewritten(old, new, bundle_json=b"[" * 10**5),
    "a version of later": lambda old, new: rewritten(
        old, new, bundle_json=b'{"bundle_version": 2, "schema_version": 2}'
    ),
    "another schema": lambda old, new: rewritten(
        old, new, bundle_json=b'{"bundle_version": 1, "schema_version": 1}'
    ),
    "no runs": lambda old, new: rewritten(old, new, runs_parquet=None),
    "runs that are no table": lambda old, new: rewritten(old, new, runs_parquet=b"PAR1"),
    "epochs of other columns": lambda old, new: rewritten(
        old, new, epochs_parquet=table_bytes(pa.table({"x": [1]}))
    ),
    "no epochs": lambda old, new: rewritten(old, new, epochs_parquet=None),
    "an unknown status": with_column("status", ["gone"]),
    "a missing workload": with_column("workload", [None]),
    "no GPUs": with_column("gpus", [0]),
    "a negative size": with_column("global_batch", [-1]),
    "an infinite limit": with_column("power_limit_w", [float("inf")]),
    "options that are no object": with_column("options", ["[1]"]),
    "a run twice": with_column("run_id", ["a", "a"]),
    "a text": lambda _, new: new.write_text("not a zip"),
    "nothing": lambda _, new: new.write_bytes(b""),
    "half of it": lambda old, new: new.write_bytes(old.read_bytes()[: old.stat().st_size // 2]),
    "a bit that flipped": lambda old, new: new.write_bytes(_flipped(old.read_bytes())),
}


def _flipped(content: bytes) -> bytes:
    place = content.index(b"PAR1") + 40
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_bundle_is_refused_in_one_line_and_writes_nothing(
    kind, bundle, tmp_path, monkeypatch, capsys
):
    (tmp_path / "work").mkdir()
    (tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    path = tmp_path / "hostile.zip"
    HOSTILE[kind](bundle, path)
    monkeypatch.chdir(tmp_path / "work")
    assert main(["export", str(path), "statistics", "-o", "out.csv"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(path) in error
    assert "wattlaw export STORE bundle" in error
    assert not re.search(r"[A-Z]\w+(Error|File|Invalid):", error)
    assert not [*(tmp_path / "work").iterdir()]
    assert not [*(tmp_path / "t").iterdir()]
    assert not Path("/evil.wattlaw").exists()
    assert not (tmp_path / "evil").exists()


@settings(max_examples=40)
@given(data=st.data())
def test_no_change_of_bytes_ends_in_an_unexpected_error(data, bundle, tmp_path_factory):
    content = bytearray(bundle.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # The ends of a file and of its members have what a reader interprets.
        place = data.draw(st.integers(0, 5000) | st.integers(len(content) - 3000, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("f") / "x.zip"
    path.write_bytes(content)
    try:
        opened = wattlaw.open(path)
        for table in TABLES:
            assert opened.arrow(table).schema == TABLES[table]
    except BadInput as error:
        assert str(path) in str(error)
    finally:
        path.unlink()


def test_a_bundle_is_no_place_for_runs_and_no_table_to_import(bundle, store, tmp_path, capsys):
    before = bundle.read_bytes()
    study_file = store.parent / "study.yaml"
    for line in (["run", study_file, "--store", bundle], ["status", bundle], ["cancel", bundle]):
        assert main([*map(str, line)]) == 2
        assert str(bundle) in capsys.readouterr().err
    assert bundle.read_bytes() == before
    assert isinstance(wattlaw.open(bundle), Results)
    assert not isinstance(open_store(store), Bundle)
    assert isinstance(open_store(store), Store)


def test_a_bundle_that_was_unpacked_and_packed_again_is_read(bundle, tmp_path):
    with zipfile.ZipFile(bundle) as file:
        file.extractall(tmp_path / "files")
    path = tmp_path / "again.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for root, folders, names in os.walk(tmp_path / "files"):
            for name in (*folders, *names):
                member = Path(root, name)
                file.write(member, member.relative_to(tmp_path / "files"))
        file.writestr("LICENSE", "CC-BY-4.0")
    assert_frame_equal(wattlaw.open(path).epochs, wattlaw.open(bundle).epochs)
