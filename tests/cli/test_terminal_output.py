"""Text from data cannot control a terminal, a page or a spreadsheet."""

import contextlib
import csv
import json
import os
import pty
import re
import subprocess
import sys
import unicodedata
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paths
from conftest import environment
from made_runs import made_record, made_spec
from wattlaw.api.progress_lines import LineProgress
from wattlaw.cli.common.console import Console, make_table
from wattlaw.cli.main import main
from wattlaw.common.formatting import replace_invisible
from wattlaw.common.terminal import escape_invisible
from wattlaw.store.record import RunRecord
from wattlaw.store.rows import read_rows
from wattlaw.store.store import Store
from wattlaw.store.table_files import write_table
from wattlaw.study.setting import Setting

#: Colour, title, hyperlink, C1 CSI, carriage return, bidi, separators, zero width, tags, a lone
#: half of a pair, and what rich would take for markup and emoji.
BAD = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;http://evil\x1b\\x \x9b31m \x7f\x00\r\x0b\x85"
    "\u061c\u200e\u202eabc\u202c\u2066\u2069\u2028\u2029\u200b\ufeff\u00ad\U000e0041\u3164\ufe0f"
    " [red]x[/red] [link=http://evil]y[/link] :smile:"
)
#: What rich itself writes to a terminal.
COLOURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]")


def hidden(text: str) -> set[str]:
    """Return the characters of a text that no output may have, by an independent list."""
    kinds = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return {c for c in text if unicodedata.category(c) in kinds and c not in "\n\t"} | {
        c for c in text if c in "\u034f\u115f\u1160\u17b4\u3164\uffa0\ufe0f"
    }


def record(run_id: str, status: str) -> RunRecord:
    spec = made_spec(Setting(gpus=1, local_batch=8), hardware=BAD)
    told = {"study": f"study {BAD}", "reason": BAD, "notes": (BAD, "=1+1")}
    return made_record(run_id, spec, status=status, **told)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store"
    home = Store(path)
    home.create()
    for number, status in enumerate(("failed", "skipped")):
        one = record(f"{number:016x}", status)
        home.folder(one.run_id).write(one)
    return path


@given(st.text(st.characters(exclude_categories=())))
def test_escaped_text_has_no_invisible_character_and_the_rest_is_unchanged(text):
    shown = escape_invisible(text)
    assert not hidden(shown)
    assert escape_invisible(shown) == shown
    assert [c for c in text if c in "\n\t" or " " <= c <= "~"] == [
        c for c in escape_invisible(text, "") if c in "\n\t" or " " <= c <= "~"
    ]
    if not hidden(text) and not set(text) - set(map(chr, range(0x250))):
        assert shown == text
    assert hidden(replace_invisible(text)) == set()


def test_no_command_prints_control_characters_of_a_store(store, tmp_path, capsys):
    for line in (
        ["status", store],
        ["status", store, "--json"],
        ["advise", store, "-w", BAD],
        ["export", store, BAD, "-o", tmp_path / "x.csv"],
        ["check", tmp_path / BAD.replace("/", "").replace("\0", "")],
        ["workloads", "show", BAD],
        ["--help"],
    ):
        main(list(map(str, line)))
        shown = capsys.readouterr()
        assert not hidden(shown.out + shown.err), line
        assert shown.out + shown.err


@pytest.mark.parametrize("width", [80, 50])
def test_a_table_that_does_not_fit_is_a_list_with_whole_numbers(width, capsys):
    headings = ("GPUs", "workload", "time", "energy per sample", "power")
    rows = [("16", "resnet50", "8.97 min (7.66 to 13.4)", "1.42 J (1.23 to 1.92)", "\u2013"),
            ("16", "bert", "12.1 min (11.9 to 12.3)", "0.9 J (0.8 to 1.1)", "139 W")]  # fmt: skip
    numbers = ("GPUs", "time", "energy per sample", "power")
    console = Console(width=width)
    console.print(make_table(headings, rows, right=numbers, title="Predicted", caption="a note"))
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines)
    assert {cell for row in rows for cell in row[2:4]} == {
        cell for row in rows for cell in row[2:4] if any(cell in line for line in lines)
    }
    pairs = [re.split(r"\s{2,}", line.strip()) for line in lines]
    if width == 50:
        assert pairs.count(["GPUs 16"]) == 1  # rows of one heading are below it
        assert ["time", "8.97 min (7.66 to 13.4)"] in pairs
        assert [pair[1] for pair in pairs if pair[0] == "power"] == ["139 W"]


def test_a_line_break_in_data_makes_no_line_of_its_own(tmp_path, capsys):
    observer = LineProgress(partial(Console().print, soft_wrap=True), 1)
    one = record("a" * 16, "failed").model_copy(update={"reason": "first\nwattlaw: forged"})
    observer.ended(one, is_new=True)
    observer.note("queue\nwattlaw: forged")
    table = tmp_path / "t.csv"
    table.write_text('n,t,w\n1,2,"a\nwattlaw: forged"\n', encoding="utf-8")
    assert main(["fit", str(table), "--x", "n", "--y", "t", "--by", "w"]) == 2
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert not re.search("^wattlaw: forged", shown.out + shown.err, re.MULTILINE)


def on_a_terminal(*line: object, **changes: str) -> tuple[int, str]:
    """Run Python with a terminal as its input and output; return its code and what that showed."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in environment().items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, *map(str, line)], stdin=theirs, stdout=theirs, stderr=theirs,
        env=plain | {"TERM": "xterm-256color"} | changes,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone when its last user is
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    return process.wait(60), shown.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def test_a_terminal_gets_our_colours_and_none_from_data(store):
    code, shown = on_a_terminal("-m", "wattlaw", "status", store)
    assert code == 0
    assert "\x1b[1m" in shown  # the table's header
    assert not hidden(COLOURS.sub("", shown))
    assert "\x1b[31m" not in shown
    plain = re.sub(r"[│\s]", "", COLOURS.sub("", shown))
    assert all(code in plain for code in (r"\x1b[31m", "[red]", "[link=http://evil]", ":smile:"))


def test_the_progress_bar_and_what_is_printed_meanwhile_are_escaped(tmp_path):
    code = """
import sys
from wattlaw.cli.common.console import Console, make_table
from wattlaw.cli.common.progress_bars import observer_for
from wattlaw.common.terminal import escaped_output
from test_terminal_output import BAD, record
with escaped_output(), observer_for(Console(), 2) as observer:
    observer.started(record("a" * 16, "running"))
    observer.note(BAD)
    print(BAD)
    print(BAD, file=sys.stderr)
    observer.ended(record("a" * 16, "failed"), is_new=True)
"""
    script = tmp_path / "show.py"
    script.write_text(code)
    own = (Path(__file__).parent, paths.SUPPORT, paths.SUPPORT.parent)
    path = os.pathsep.join([*map(str, own), os.environ.get("PYTHONPATH", "")])
    code, text = on_a_terminal(script, PYTHONPATH=path)
    assert code == 0, text
    text = re.sub(r"\r(?=\x1b\[2?K)", "", text)
    assert not hidden(COLOURS.sub("", text))
    assert "\x1b[31mred" not in text
    assert text.count("[red]x[/red]") >= 3


def test_log_lines_and_warnings_are_escaped():
    code = """
import logging, sys, warnings
from wattlaw.common.terminal import escaped_output
with escaped_output():
    assert not hasattr(sys.stdout, "buffer")  # nothing gets past
    logging.getLogger("other").warning("log %s", "\\x1b[31m\\u202e\\udcff")
    warnings.warn("warned \\x1b[31m\\u202e\\udcff")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    shown = found.stderr.decode()
    assert r"log \x1b[31m\u202e\udcff" in shown
    assert r"warned \x1b[31m\u202e\udcff" in shown
    assert not hidden(shown)


FORMULAS = (
    "=1+1", "+cmd|' /C calc'!A0", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "'=1",
    "''@x", "＝1", "-", "- x",
)  # fmt: skip
HARMLESS = ("-5", "+1.5e3", "-inf", "'quoted'", "a=b", "", "text")


def test_csv_cells_that_are_formulas_get_an_apostrophe_and_numbers_stay(tmp_path):
    table = pa.table({"=name": [*FORMULAS, *HARMLESS], "x": [-1.5] * 20})
    path = tmp_path / "t.csv"
    write_table(path, table)
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["'=name", "x"]
    assert [row[0] for row in rows] == [*(f"'{text}" for text in FORMULAS), *HARMLESS]
    assert {row[1] for row in rows} == {"-1.5"}
    back = read_rows(path)
    assert back.columns == ("=name", "x")
    texts = [text for text in (*FORMULAS, *HARMLESS) if text[:1] not in ("\r", "\n")]
    read = [row.cells["=name"] or "" for row in back.rows if row.fault is None]
    assert read == [text.strip() for text in texts]
    write_table(tmp_path / "t.jsonl", table)
    lines = (tmp_path / "t.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line)["=name"] for line in lines if line] == [*FORMULAS, *HARMLESS]
