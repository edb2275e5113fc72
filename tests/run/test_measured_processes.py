"""``wattlaw measure`` and all processes of its command: signals, terminals, what remains."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conftest import environment, started, wait_for, wattlaw
from wattlaw.store.store import Store

#: A child in a session of its own, as torchrun's; a grandchild that has lost its parent; a program
#: whose first process may ignore signals. Each writes its pid.
TREE = """
import os, pathlib, signal, subprocess, sys, time
folder, ignores = pathlib.Path(sys.argv[1]), sys.argv[2:]
for name in ignores:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
note = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
line = [sys.executable, "-c", note]
subprocess.Popen([*line, str(folder / "session")], start_new_session=True)
orphaned = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
subprocess.run([sys.executable, "-c", orphaned, *line, str(folder / "orphan")])
(folder / "command").write_text(str(os.getpid()))
time.sleep(600)
"""
NAMES = ("session", "orphan", "command")


def pids(folder: Path) -> dict[str, int]:
    """Return the pids of the tree once all of it is there."""

    def found() -> dict[str, int] | None:
        texts = {n: (folder / n).read_text() for n in NAMES if (folder / n).exists()}
        return {n: int(t) for n, t in texts.items()} if all(map(texts.get, NAMES)) else None

    return wait_for(found, "the processes of the command")  # type: ignore[return-value]


def living(known: dict[str, int]) -> set[str]:
    def lives(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return {name for name, pid in known.items() if lives(pid)}


def tree(folder: Path, *ignores: str) -> list[object]:
    return ["measure", "-o", folder / "s", "--", sys.executable, "-c", TREE, folder, *ignores]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_processes_of_the_command(tmp_path, number):
    with started(*tree(tmp_path)) as process:
        known = pids(tmp_path)
        process.send_signal(number)
        assert process.wait(30) in (128 + number, 1)  # Python ends by KeyboardInterrupt
        assert living(known) == set()
    (record,) = Store(tmp_path / "s").records()
    assert record.state == "interrupted"


def test_a_second_ctrl_c_kills_at_once(tmp_path):
    with started(*tree(tmp_path, "SIGINT", "SIGTERM")) as process:
        known = pids(tmp_path)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert "command" in living(known)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 137  # after a first one alone they are killed after 30 s
        assert living(known) == set()


def test_processes_that_remain_after_a_normal_end_have_their_ids_named_and_go_on(tmp_path):
    code = (
        "import subprocess; no = subprocess.DEVNULL; p = subprocess.Popen(['sleep', '600'], "
        "start_new_session=True, stdout=no, stderr=no)"
    )
    line = (sys.executable, "-c", f"{code}; print(p.pid, flush=True); raise SystemExit(3)")
    with subprocess.Popen(
        [sys.executable, "-m", "wattlaw", "measure", "-o", tmp_path, "--", *line],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        pid = int(process.stdout.readline())
        error = process.stderr.read()
    sleeper = psutil.Process(pid)
    try:
        assert process.returncode == 3
        assert f"ps -p {pid}" in next(t for t in error.splitlines() if t.startswith("wattlaw:"))
        (record,) = Store(tmp_path).records()
        assert [note for note in record.notes if f"ps -p {pid}" in note]
        assert sleeper.is_running()
    finally:
        sleeper.kill()


def test_processes_that_lose_their_parent_are_reaped(tmp_path):
    """A command whose daemons end all the time fills no process table."""
    look = (
        "import os, subprocess, time, psutil\n"
        "for _ in range(5): subprocess.run(['sh', '-c', 'true & true'])\n"
        "time.sleep(0.5)\n"
        "states = [p.status() for p in psutil.Process(os.getppid()).children()]\n"
        "print(states.count('zombie'))\n"
        "os.execvp('sh', ['sh', '-c', '(sleep 0.2 &) ; exit 4'])"
    )
    done = wattlaw("measure", "-o", tmp_path, "--", sys.executable, "-c", look)
    assert (done.stdout, done.returncode) == ("0\n", 4)
    (record,) = Store(tmp_path).records()
    assert not [note for note in record.notes if "still run" in note]  # it has ended soon after


class Terminal:
    """A shell in a terminal of its own, as a person uses it."""

    def __init__(self) -> None:
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests in the background ignore it
            shell = ["bash", "--norc", "-i"]
            os.execve("/bin/bash", shell, environment() | {"PS1": "PROMPT "})  # noqa: S606
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self.file, text.encode())

    def shows(self, pattern: str, seconds: float = 40.0) -> "re.Match[str]":
        """Wait for output that matches, and forget it."""
        end_s = time.monotonic() + seconds
        while not (match := re.search(pattern, self.text)):
            assert time.monotonic() < end_s, f"{pattern} is not in {self.text!r}"
            if select.select([self.file], [], [], 0.2)[0]:
                self.text += os.read(self.file, 4096).decode(errors="replace")
        self.text = self.text[match.end() :]
        return match

    def close(self) -> None:
        family = psutil.Process(self.pid).children(recursive=True)
        for member in [*family, psutil.Process(self.pid)]:
            member.kill()
        os.waitpid(self.pid, 0)
        os.close(self.file)


@pytest.fixture
def terminal():
    shell = Terminal()
    shell.shows("PROMPT ")
    yield shell
    shell.close()


def test_a_command_reads_from_the_terminal_and_job_control_works(tmp_path, terminal):
    code = (  # Python's own handler misses a SIGINT that comes just before input() waits
        "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "while True: print('got', input('say: ').upper(), flush=True)"
    )
    line = f'{sys.executable} -m wattlaw measure -o {tmp_path}/s -- {sys.executable} -c "{code}"'
    terminal.type(f"{line}\n")
    terminal.shows("say: ")
    terminal.type("hello\n")
    terminal.shows("got HELLO")
    terminal.type("\x1a")  # Ctrl-Z
    terminal.shows("Stopped")
    terminal.shows("PROMPT ")
    terminal.type(" fg\n")  # in a sandbox the stopped program may take the first key
    terminal.shows("measure.*\r\n")
    terminal.type("again\n")
    terminal.shows("got +AGAIN")
    terminal.shows("say: ")
    terminal.type("\x03")  # Ctrl-C
    terminal.shows("PROMPT ")
    terminal.type("echo code $?\n")
    terminal.shows(r"code 130\r")
    (record,) = Store(tmp_path / "s").records()
    assert record.state == "interrupted"
