"""Tables in and out of files: types, missing values, no numbers, and what breaks a reader."""

import csv
import gzip
import json
import math
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattlaw.cli.main import main
from wattlaw.common.files import replacing
from wattlaw.store.table_files import write_table

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("t", pa.string()),
                    ("notes", pa.list_(pa.string())), ("ok", pa.bool_())])  # fmt: skip
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-(2**62), 2**62),
            "x": st.none() | st.floats(),
            "t": st.none() | st.text(min_size=1),
            "notes": st.lists(st.text(), max_size=2),
            "ok": st.booleans(),
        }
    ),
    max_size=8,
)


@given(ROWS)
def test_text_files_distinguish_missing_from_nan(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("tables")
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    write_table(folder / "t.jsonl", table)
    write_table(folder / "t.csv", table)
    lines = (folder / "t.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    with (folder / "t.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    assert len(lines) == len(cells) == len(rows)
    for line, cell, row in zip(lines, cells, rows, strict=True):
        found = json.loads(line)
        assert found["n"] == row["n"]
        assert found["t"] == row["t"]
        assert found["notes"] == json.loads(cell["notes"]) == row["notes"]
        x = row["x"]
        assert found["x"] == ("NaN" if x is not None and math.isnan(x) else
                              str(x) if x is not None and math.isinf(x) else x)  # fmt: skip
        assert (cell["x"] == "") == (x is None)
        assert (cell["n"] == "") == (row["n"] is None)


def test_a_link_is_followed_a_pipe_is_written_to_and_a_folder_is_named(tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    heard: list[str] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    with replacing(pipe) as itself:
        itself.write_text("through")
    reader.join(10)
    assert heard == ["through"]
    with pytest.raises(IsADirectoryError, match=str(tmp_path)), replacing(tmp_path):
        pass


# One line says what and where.


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


def test_a_table_of_too_many_rows_is_refused(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("n,t\n" + "1,1\n" * 200_001)
    assert "more than 200,000 rows" in told(capsys, bring(tmp_path / "t.csv"))


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
    "t.parquet": (b"PAR1" + b"\xff" * 100 + b"PAR1", 'unknown suffix ".parquet"; allowed: .csv'),
}


@pytest.mark.parametrize("name", FILES)
def test_an_invalid_table_gives_a_one_line_error(tmp_path, capsys, name):
    content, why = FILES[name]
    (tmp_path / name).write_bytes(content)
    for line in (fit(tmp_path / name), bring(tmp_path / name)):
        said = told(capsys, line)
        assert str(tmp_path / name) in said or "--map" in said
        assert why in said
