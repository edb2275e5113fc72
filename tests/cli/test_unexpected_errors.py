"""After any error a command ends with one line and a documented exit code."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from test_terminal_output import hidden, on_a_terminal, record

from conftest import environment, heard, python, wattlaw
from wattlaw.cli.main import main
from wattlaw.store.store import Store

#: Runs $INJECTED when the module $AT is imported: a fault at any place, in a real process.
FAULTS = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("AT"):
            del os.environ["AT"]
            exec(compile(os.environ["INJECTED"], "injected", "exec"), {})
sys.meta_path.insert(0, Finder())
"""
WORKLOADS = "wattlaw.cli.commands.workloads"
SECRET = "hunter2-of-the-environment"  # noqa: S105


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    home = Store(tmp_path_factory.mktemp("ascii") / "store")
    home.create()
    one = record("0" * 16, "failed").model_copy(update={"reason": "naïve Größe → 中 …"})
    home.folder(one.run_id).write(one)
    return home.path


@pytest.fixture
def faults(tmp_path):
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "sitecustomize.py").write_text(FAULTS)
    path = os.pathsep.join([str(tmp_path / "faults"), os.environ.get("PYTHONPATH", "")])
    state = str(tmp_path / "state")
    return {"PYTHONPATH": path, "XDG_STATE_HOME": state, "WATTLAW_TRACEBACK": "", "SECRET": SECRET}


@pytest.fixture
def run_with(faults):
    """Give a function that runs ``wattlaw workloads --json`` with a fault."""

    def run(at: str, code: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        own = os.environ | faults | {"AT": at, "INJECTED": code} | changes
        return wattlaw("workloads", "--json", env=own)

    return run


def saved_by(found: "subprocess.CompletedProcess[str]") -> Path:
    assert len(found.stderr.splitlines()) == 1, found.stderr
    return Path(re.findall(r"please send (\S+) ", found.stderr)[0])


def test_an_unexpected_exception_is_one_line_and_a_private_report_to_send(run_with, tmp_path):
    folder = tmp_path / "state" / "wattlaw"
    folder.mkdir(parents=True, mode=0o700)
    for number in range(25):
        (folder / f"wattlaw-crash-20200101T0000{number}-x.txt").touch()
    found = run_with(WORKLOADS, "raise RuntimeError('boom \\x1b[31m \\u202e\\nsecond line')")
    assert found.returncode == 70
    assert found.stderr.startswith("wattlaw: ")
    assert "RuntimeError: boom" in found.stderr
    assert not hidden(found.stderr)
    report = saved_by(found)
    assert report.parent == folder
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    text = report.read_text(encoding="utf-8")
    for told in ("Traceback (most recent call last)", "workloads --json", "platform: ",
                 f"python: {sys.version}", "wattlaw: 0"):  # fmt: skip
        assert told in text
    assert SECRET not in text
    assert not hidden(text)
    assert len(list(folder.iterdir())) == 20  # old ones are removed


@pytest.mark.parametrize(
    ("at", "code", "name"),
    [
        (WORKLOADS, "def f(): f()\nf()", "RecursionError"),
        (WORKLOADS, "class Panic(BaseException): pass\nraise Panic('rust')", "Panic"),
        ("typer", "raise RuntimeError('import')", "RuntimeError"),
    ],
)
def test_any_exception_anywhere_is_reported(run_with, at, code, name):
    # A state folder that cannot be made: the report goes to the folder for temporary files.
    found = run_with(at, code, XDG_STATE_HOME="/dev/null/state")
    assert found.returncode == 70
    assert name in found.stderr
    report = saved_by(found)
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    assert "Traceback" in report.read_text(encoding="utf-8")
    report.unlink()


def test_an_exception_in_a_thread_is_reported_and_the_command_continues(run_with):
    code = "import threading\ndef f(): raise RuntimeError('in a thread')\n"
    code += "threading.Thread(target=f).start()"
    found = run_with(WORKLOADS, code)
    assert found.returncode == 70
    assert "RuntimeError: in a thread" in found.stderr
    assert saved_by(found).is_file()
    assert json.loads(found.stdout)


def test_our_other_processes_end_in_one_line_too(faults):
    injected = {"AT": "wattlaw_site.hooks", "INJECTED": "raise RuntimeError('boom')"}
    found = python("-m", "wattlaw_site", "show", env=os.environ | faults | injected)
    assert found.returncode == 70
    assert "Traceback" in saved_by(found).read_text(encoding="utf-8")


@pytest.mark.parametrize("at", ["wattlaw.common.errors", WORKLOADS])
def test_ctrl_c_while_modules_are_imported_shows_no_traceback(run_with, at):
    code = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(1)"
    with heard():
        found = run_with(at, code)
    assert found.returncode == 130
    assert "Traceback" not in found.stderr
    assert len(found.stderr.splitlines()) <= 1


def test_a_closed_output_pipe_ends_the_command_silently():
    reader, writer = os.pipe()
    os.close(reader)
    found = wattlaw("workloads", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert found.returncode == 1
    assert found.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["workloads", "--version"])
def test_a_full_disk_under_standard_output_is_named(command):
    with Path("/dev/full").open("w") as full:
        found = wattlaw(command, stdout=full, stderr=subprocess.PIPE)
    assert found.returncode == 2
    assert found.stderr == "wattlaw: standard output: No space left on device\n"


ASCII = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin-1": {"PYTHONIOENCODING": "latin-1:strict"},
}


@pytest.mark.parametrize("encoding", ASCII)
def test_a_terminal_that_knows_ascii_only_shows_every_text(store, tmp_path, encoding):
    table = tmp_path / "t.csv"
    table.write_text("n,t,w\n1,9,Größe\n2,5,Größe\n4,3,Größe\n1,2,中\n", encoding="utf-8")
    line = ["fit", table, "--x", "n", "--y", "t", "--by", "w"]
    found = wattlaw(*line, env=environment() | ASCII[encoding], text=False)
    assert found.returncode == 0, found.stderr
    assert b"Gr" in found.stdout
    assert b"\\u4e2d" in found.stderr
    code, shown = on_a_terminal("-m", "wattlaw", "status", store, **ASCII[encoding])
    assert code == 0
    assert r"\u4e2d" in shown
    assert "+--" in shown.replace("\x1b[1m", "")  # a table of plain lines


def test_names_in_invalid_utf8_give_a_result_or_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bad = os.fsdecode(b"x\xff")
    Path(f"{bad}.csv").write_text("n,t\n1,9\n2,5\n4,3\n", encoding="utf-8")
    assert main(["fit", f"{bad}.csv", "--x", "n", "--y", "t"]) == 0
    capsys.readouterr()
    for line in (
        ["import", f"{bad}.csv", "--map", "gpus=n,epoch_time_s=t", "--store", bad],
        ["measure", "-o", bad, "--", "touch", "ran"],
        ["status", bad],
        ["report", bad],
        ["check", bad],
    ):
        assert main(line) == 2
        shown = capsys.readouterr()
        assert len(shown.err.splitlines()) == 1
        assert not hidden(shown.err)
    assert not Path("ran").exists()  # nothing is measured that could not be stored
