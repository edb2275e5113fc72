"""Windows of a time series, of a file."""

import pytest

import import_samples as samples
from imported import a_file, left_out, windows
from wattlaw.api.imports import read_import
from wattlaw.common.errors import BadInput


def test_windows_within_others_or_reversed_do_not_count_twice(tmp_path):
    rows = [
        (0, 130, "train"), (0, 500, "run"), (10, 60, "train"), (60, 120, "train"),
        (60, 120, "train"),
        (100, 130, "train"), (110, 140, "evaluate"), (15, 20, "forward"), (200, 150, "train"),
        (300, 310, "12"), (310, "soon", "train"),
    ]  # fmt: skip
    start = 1_769_860_800
    text = "".join(
        f"{start + begin},{end if isinstance(end, str) else start + end},{phase}\n"
        for begin, end, phase in rows
    )
    gpus = a_file(tmp_path / "gpu.csv", samples.nvidia_smi(seconds=600))
    marks = a_file(tmp_path / "windows.csv", "start,end,phase\n" + text)
    read = read_import([gpus, marks])
    assert [(row["phase"], round(row["duration_s"], 6)) for row in windows(read)] == [
        ("run", 500.0), ("train", 50.0), ("forward", 5.0), ("train", 60.0), ("evaluate", 30.0),
    ]  # fmt: skip
    assert "1 window of training with an evaluation" in " ".join(read.runs[0].record.notes)
    assert left_out(read) == {
        "a window that contains others of its phase": 1,
        "a window that is in the file twice": 1,
        "a window that overlaps the one before": 1,
    }
    assert [text.split(":")[0] for text in read.files[1].rejected] == [
        "line 10",
        "line 11",
        "line 12",
    ]
    a_file(marks, "start,end\n5,1\n")
    with pytest.raises(BadInput, match="line 2: the window ends before"):
        read_import([gpus, marks])
