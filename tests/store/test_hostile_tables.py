"""Tables made to break a reader: bounded memory, and one line that says what and where."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bombs import MIB, run_watched
from wattlaw.cli.main import main
from wattlaw.store.measurements import read_table

FAR = pa.array([2**62], pa.int64())


def a_parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def fit(path: Path, *options: str) -> list[str]:
    return ["fit", str(path), "--x", "n", "--y", "t", *options]


def bring(path: Path, *more: str) -> list[str]:
    mapping = ",".join(["gpus=n,epoch_time_s=t", *more])
    return ["import", str(path), "--map", mapping, "--store", str(path.parent / "store")]


def told(capsys: pytest.CaptureFixture[str], line: list[str]) -> str:
    assert main(line) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "".join(lines)
    assert all(one.isprintable() and len(one) < 700 for one in lines)
    return lines[0]


def test_a_bomb_of_rows_is_refused_before_it_is_read(tmp_path):
    rows = 20_000_000
    path = tmp_path / "bomb.parquet"
    ones = pa.array(np.ones(rows))
    pq.write_table(pa.table({"n": ones, "t": ones}), path, compression="zstd")
    assert path.stat().st_size < 300_000
    code, said, peak = run_watched(bring(path), tmp_path, tmp_path, 100)
    assert code == 2
    assert f"{path}: given 20,000,000 rows; allowed: at most 200,000 in one table" in said
    assert len(said.splitlines()) == 1
    assert peak.memory < 500 * MIB


# Columns that are neither numbers nor texts, and how messages call them.
COLUMNS: dict[str, tuple[Callable[[], Any], str]] = {
    "a list": (lambda: pa.array([[1.0]]), "list<"),
    "bytes": (lambda: pa.array([b"1"]), "binary"),
    "a duration": (lambda: pa.array([1], pa.duration("s")), "duration"),
    "a moment past the year 9999": (lambda: FAR.cast(pa.timestamp("us")), "years 1 to 9999"),
    "a moment of no zone": (
        lambda: pa.array([1]).cast(pa.timestamp("us", tz="Mars/Olympus")), "unknown zone"
    ),
    "a day past the year 9999": (
        lambda: pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), "years 1 to 9999"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_another_kind_is_named(tmp_path, capsys, name):
    make, called = COLUMNS[name]
    path = a_parquet(tmp_path / "t.parquet", n=[1], t=[1.0], s=make())
    for line in (fit(path, "--by", "s"), bring(path, "options.s=s")):
        said = told(capsys, line)
        assert said.startswith(f"wattlaw: {path}: ")
        assert 'column "s"' in said
        assert called in said
    assert main(bring(path)) == 0  # what no field is mapped to is not looked at


def test_numbers_of_every_width_and_texts_of_every_kind_are_read(tmp_path, capsys):
    kinds = (
        *(pa.float16(), pa.float32(), pa.int8(), pa.uint64(), pa.decimal128(25, 2)),
        *(pa.decimal256(60, 2), pa.string(), pa.large_string()),
    )
    columns = {f"c{i}": pa.array([1, 2, 4, 8]).cast(kind) for i, kind in enumerate(kinds)}
    path = a_parquet(tmp_path / "t.parquet", n=columns["c3"], t=[8.0, 4.1, 2.2, 1.0], **columns)
    assert main(bring(path, *(f"options.{name}={name}" for name in columns))) == 0
    for name in columns:
        frame = read_table(path, [name, "t"])
        assert frame[name].tolist() == [1, 2, 4, 8]
    capsys.readouterr()
    nothing = a_parquet(tmp_path / "t.parquet", n=pa.nulls(3), t=pa.nulls(3))
    assert "left out 3 rows without n or t" in told(capsys, fit(nothing))


FILES: dict[str, tuple[bytes, str]] = {
    "zeros.jsonl": (b"\0" * 1000, "not a table"),
    "utf16.csv": ("n,t\n1,2\n".encode("utf-16")[:-1], "not UTF-16-LE text (byte"),
    "latin.csv": ("n,t,é\n1,2,ü\n".encode("latin-1"), "iconv -f WINDOWS-1252 -t UTF-8"),
    "zip.csv": (gzip.compress(b"n,t\n1,2\n"), "not UTF-8 text"),
    "twice.csv": (b"n,t,n\n1,2,3\n", 'column "n" occurs twice'),
    "quote.csv": (b'n,t\n1,"' + (b"x" * 999 + b"\n") * 11_000, "line 10,002: field larger"),
    "line.jsonl": (b'{"n": "' + b"x" * 11_000_000, "line 1 has more than 10,000,000 characters"),
    "wide.csv": (b"a," * 200_000, "more than 100,000 columns"),
    "deep.jsonl": (b"[" * 1_000_000, "line 1: is not JSON"),
    "magic.parquet": (b"PAR1" + b"\xff" * 100 + b"PAR1", "not a table"),
}


@pytest.mark.parametrize("name", FILES)
def test_an_invalid_table_gives_a_one_line_error(tmp_path, capsys, name):
    content, why = FILES[name]
    (tmp_path / name).write_bytes(content)
    for line in (fit(tmp_path / name), bring(tmp_path / name)):
        said = told(capsys, line)
        assert str(tmp_path / name) in said or "--map" in said
        assert why in said


def test_a_parquet_file_on_which_pyarrow_aborts_is_refused(tmp_path, capsys):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"n": [1.0, None, 4.0], "t": [4.0, 2.1, 1.0]}), path)
    content = path.read_bytes()
    optional, required = b"\x25\x02\x18\x01n", b"\x25\x00\x18\x01n"  # of column n, in Thrift
    assert optional in content
    path.write_bytes(content.replace(optional, required))  # its statistics have nulls
    for line in (fit(path), bring(path)):
        assert str(path) in told(capsys, line)
