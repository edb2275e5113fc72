"""Tables in and out of files: types, missing values, values that are no numbers."""

import csv
import json
import math
import os
import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
