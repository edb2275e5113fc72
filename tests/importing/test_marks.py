"""Windows of a time series: of a file, and of the lines of a log."""

from pathlib import Path

import pytest

import import_samples as samples
from imported import a_file, left_out, windows
from wattlaw.api.imports import Import, read_import
from wattlaw.common.errors import BadInput


def marked(tmp_path: Path, text: str, pattern: str = r"step (?P<step>\d+)") -> Import:
    """Import a log of GPUs from 2026-01-31 12:00:00 on, with windows of the lines of a text."""
    gpus = a_file(tmp_path / "gpu.csv", samples.nvidia_smi(seconds=600))
    return read_import([gpus, a_file(tmp_path / "train.log", text)], pattern=pattern)


FORMS = [
    "[2026-01-31 12:{m:02}:{s:02},500] step {n}", "2026-01-31T12:{m:02}:{s:02}.5Z step {n}",
    "2026/01/31 12:{m:02}:{s:02} step {n}", "2026-01-31T14:{m:02}:{s:02}+0200 step {n}",
    "31.01.2026 12:{m:02}:{s:02} step {n}", "[{t}.25] step {n}", "ts={t}000 step {n}",
    '{{"time": "2026-01-31 12:{m:02}:{s:02}"}} step {n}',
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_time_of_a_line_is_read_in_the_forms_of_loggers(tmp_path, form):
    lines = [form.format(m=n // 60, s=n % 60, n=n, t=1_769_860_800 + n) for n in range(20, 121, 20)]
    rows = windows(marked(tmp_path, "\n".join(lines)), "steps")
    assert [(row["steps"], row["duration_s"]) for row in rows] == [(20, 20.0)] * 5
    assert rows[0]["start_ns"] // 10**9 == 1_769_860_820
    assert all(row["gpu_energy_j"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("12:00:{:02} step {}", "3 lines left out, the first is line 1: matches .* has no time"),
        ("01/02/2026 12:00:{:02} step {}", "has no time such as 2026-01-31"),
        ("2026-01-02 12:00:{:02} PM step {}", "has no time such as 2026-01-31"),
        ("2026-13-31 12:00:{:02} step {}", "has no time such as 2026-01-31"),
        ("2026-01-31 12:00:{:02} iteration {}", "3 lines left out, .* does not match"),
    ],
)
def test_a_time_that_is_not_certain_is_named_with_what_is_missing(tmp_path, form, words):
    text = "\n".join(form.format(second, second) for second in (10, 20, 30))
    with pytest.raises(BadInput, match=words):
        marked(tmp_path, text)


@pytest.mark.parametrize("pattern", [r"step \d+", r"step (\d+)", r"step (?P<steps>\d+)"])
def test_a_pattern_without_a_group_is_named_with_what_is_missing(tmp_path, pattern):
    with pytest.raises(BadInput, match="no group step or epoch"):
        marked(tmp_path, "2026-01-31 12:00:10 step 1\n2026-01-31 12:00:20 step 2", pattern)


@pytest.mark.parametrize("is_named", [False, True])
def test_evaluations_pauses_and_steps_that_go_back_are_no_step_time(tmp_path, is_named):
    at = iter([0, 10, 20, 31, 45, 55, 65, 66, 265, 275, 285, 295])
    texts = [
        "step 10", "step 20", "step 30", "Validation: top1=0.7", "step 40", "step 50", "step 60",
        "step 60", "step 70", "step 80", "step 50", "step 60",
    ]  # fmt: skip
    if is_named:
        texts[3] = "top1 0.7"
    lines = [
        f"2026-01-31 12:{s // 60:02}:{s % 60:02} {text}" for s, text in zip(at, texts, strict=True)
    ]
    pattern = r"step (?P<step>\d+)" + r"|(?P<evaluation>top1 [\d.]+)" * is_named
    read = marked(tmp_path, "\n".join([*lines, "the end", "step 90 without a time"]), pattern)
    rows = windows(read, "steps")
    assert [(row["steps"], row["duration_s"]) for row in rows] == [(10, 10.0)] * 6
    assert left_out(read) == {
        "a line of an evaluation": 1,
        "the same step or epoch as the line before": 1,
        "does not match --pattern": 1,
        "matches --pattern but has no time such as 2026-01-31 12:00:00": 1,
    }
    notes = " ".join(read.runs[0].record.notes)
    for words in ("with an evaluation", "numbers go back", "with a pause"):
        assert f"1 interval left out: {'in which the ' * words.startswith('n')}{words}" in notes


def test_lines_of_evaluations_that_match_are_none_of_training(tmp_path):
    texts = ["step 10", "step 20", "eval step 1", "eval step 2", "step 30", "step 40"]
    lines = [f"2026-01-31 12:00:{10 * i:02} {text}" for i, text in enumerate(texts)]
    read = marked(tmp_path, "\n".join(lines))
    assert [(row["steps"], row["duration_s"]) for row in windows(read)] == [(10, 10.0)] * 2
    both = [f"2026-01-31 12:00:{10 * i:02} epoch {i} val_loss 0.5" for i in range(3)]
    read = marked(tmp_path, "\n".join(both), r"epoch (?P<epoch>\d+)")
    assert len(windows(read, "train")) == 2
    assert "every line has a word such as eval" in " ".join(read.runs[0].record.notes)


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
    assert [text[:7] for text in read.files[1].rejected] == ["line 10", "line 11", "line 12"]
    a_file(marks, "start,end\n5,1\n")
    with pytest.raises(BadInput, match="line 2: the window ends before"):
        read_import([gpus, marks])
