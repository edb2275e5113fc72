"""Carries an input out in a sandbox and says what is wrong with what came of it."""

import contextlib
import io
import os
import re
import resource
import subprocess
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path

from bombs import Peak, watch
from soak import parsers
from soak.case import Case
from soak.sandbox import Sandbox, changed_environment, command_line

CODES = {0, 1, 2, 3, 4}
#: Of one input: processor time and memory, and the length of a message.
MOST_CPU_S, MOST_BYTES, MOST_TEXT = 20.0, 1 << 30, 3000
MOST_WALL_S = 90.0
_BAD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True)
class Problem:
    """What is wrong, and by what such failures are taken for the same."""

    cause: str
    detail: str


def judge(case: Case, sandbox: Sandbox, templates: Path) -> list[Problem]:
    """Carry out a case in an empty sandbox; return what is wrong."""
    for name, entry in case.files.items():
        entry.put(sandbox.inputs / name, templates)
    before = snapshot(sandbox.inputs)
    environment = sandbox.environment()
    for name, value in case.env.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = _filled(value, sandbox)
    if case.is_process:
        problems = _as_process(case, sandbox, environment)
    else:
        with changed_environment(environment):
            problems = _in_process(case, sandbox)
    if "inputs change" not in case.options and (changed := _changes(before, sandbox.inputs)):
        problems.append(Problem("an input is changed", ", ".join(changed[:5])))
    return problems + _left(case, sandbox)


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return kind, size and time of all that lies in a folder."""
    found = {}
    for entry in _walk(folder):
        about = entry.stat(follow_symlinks=False)
        found[entry.path] = (about.st_mode, about.st_size, about.st_mtime_ns)
        if entry.is_dir(follow_symlinks=False):
            found[entry.path] = (about.st_mode, 0, 0)
    return found


def _walk(folder: Path | str) -> "list[os.DirEntry[str]]":
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            found.append(entry)
            if entry.is_dir(follow_symlinks=False):
                found += _walk(entry.path)
    return found


def _changes(before: dict[str, tuple[int, int, int]], folder: Path) -> list[str]:
    after = snapshot(folder)
    # The lock of a run is made by whoever looks after it.
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


def _left(case: Case, sandbox: Sandbox) -> list[Problem]:
    """Say which files are left that the command line has not asked for."""
    # torch keeps a folder of its own; what lies in any other was left by us.
    left = [str(path) for path in sandbox.tmp.iterdir() if not path.name.startswith("torch")]
    allowed = {str(sandbox.work / name) for name in case.outputs}
    left += [entry.path for entry in os.scandir(sandbox.work) if entry.path not in allowed]
    left += [entry.path for entry in _walk(sandbox.work) if entry.name.startswith(".")]
    shown = ", ".join(path.removeprefix(str(sandbox.root)) for path in left[:5])
    return [Problem("a file is left behind", shown)] if left else []


def _filled(word: str, sandbox: Sandbox) -> str:
    for name in ("inputs", "work", "root"):
        word = word.replace(
            f"{{{name}}}", str(sandbox.root if name == "root" else getattr(sandbox, name))
        )
    return word


def _in_process(case: Case, sandbox: Sandbox) -> list[Problem]:
    out, err = io.BytesIO(), io.BytesIO()
    streams = [
        io.TextIOWrapper(out, case.encoding, "strict", newline="", write_through=True),
        io.TextIOWrapper(err, case.encoding, "backslashreplace", newline="", write_through=True),
    ]
    before_fds = set(Path("/proc/self/fd").iterdir())
    os.chdir(sandbox.work)
    _reset_peak()
    start_bytes, start_s = _memory("VmRSS"), _cpu_s()
    code: object = None
    problems = []
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            if case.call == "wattlaw":
                from wattlaw.cli.main import main

                code = main([_filled(word, sandbox) for word in case.argv])
            else:
                told = parsers.PARSERS[case.call](sandbox, case.options)
                if told:
                    problems.append(Problem(f"{case.call}: {told.partition(':')[0]}", told))
    except SystemExit as error:
        code = error.code
        problems.append(Problem(f"SystemExit {error.code!r}", "SystemExit leaves main()"))
    except BaseException as error:
        problems.append(_of_exception(error))
    os.chdir("/")
    took_s, took_bytes = _cpu_s() - start_s, _memory("VmHWM") - start_bytes
    if took_s > MOST_CPU_S:
        problems.append(Problem("it takes too long", f"{took_s:.0f} s of processor time"))
    if took_bytes > MOST_BYTES:
        problems.append(Problem("it takes too much memory", f"{took_bytes >> 20} MiB"))
    new = set(Path("/proc/self/fd").iterdir()) - before_fds
    problems += [Problem("open files are left", str(sorted(new)))] if len(new) > 20 else []
    if case.call == "wattlaw" and not problems:
        texts = [text.getvalue().decode(case.encoding, "replace") for text in (out, err)]
        problems += of_output(code, *texts, is_coloured=is_coloured(case))
    return problems


def _as_process(case: Case, sandbox: Sandbox, environment: dict[str, str]) -> list[Problem]:
    words = [_filled(word, sandbox) for word in case.argv]
    environment |= {"PYTHONIOENCODING": case.encoding} if case.encoding != "utf-8" else {}

    process = subprocess.Popen(
        command_line(*words), env=environment, cwd=sandbox.work, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    peak = Peak()
    folders = [sandbox.work, sandbox.tmp]
    watcher = threading.Thread(target=watch, args=(process.pid, folders, peak), daemon=True)
    watcher.start()
    try:
        said = process.communicate(timeout=MOST_WALL_S)
    except subprocess.TimeoutExpired:
        return [Problem("it does not end", f"after {MOST_WALL_S:.0f} s")]
    finally:
        process.kill()
        process.communicate()
        watcher.join()
    texts = [text.decode(case.encoding, "replace") for text in said]
    problems = of_output(process.returncode, *texts, is_coloured=is_coloured(case))
    for what, used in (("memory", peak.memory), ("disk", peak.disk)):
        if used > MOST_BYTES:
            problems.append(Problem(f"it takes too much {what}", f"{used >> 20} MiB"))
    if "refused" in case.options and process.returncode != 2:
        problems.append(Problem("a bomb is not refused", f"exit code {process.returncode}"))
    return problems


def is_coloured(case: Case) -> bool:
    """Say whether colours are asked for, whose escapes are then right."""
    return bool(case.env.keys() & {"FORCE_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"})


def of_output(code: object, out: str, err: str, *, is_coloured: bool = False) -> list[Problem]:
    """Return what is wrong with an exit code and what was printed."""
    if is_coloured:
        out, err = (re.sub(r"\x1b\[[0-9;]*m", "", text) for text in (out, err))
    if "Traceback (most recent call last)" in out + err:
        lines = (out + err).strip().splitlines()
        places = [
            line.strip() for line in lines if "wattlaw/" in line and line.strip().startswith("File")
        ]
        last = lines[-1][:200]
        where = _place(places[-1]) if places else ""
        return [Problem(f"a traceback: {last.partition(':')[0]} {where}", last)]
    if code not in CODES:
        return [Problem(f"exit code {code}", err.strip()[-300:])]
    problems = []
    lines = [line for line in err.splitlines() if line.strip()]
    if code in (2, 3) and not (lines and lines[-1].startswith("wattlaw: ")):
        problems.append(Problem(f"exit code {code} without a line 'wattlaw: '", err[-300:]))
    if found := _BAD.search(out + err):
        at = found.start()
        problems.append(
            Problem("a control character is printed", ascii((out + err)[max(0, at - 60) : at + 20]))
        )
    if lines and max(map(len, lines)) > MOST_TEXT:
        problems.append(Problem("a message is too long", max(lines, key=len)[:200]))
    return problems


def _of_exception(error: BaseException) -> Problem:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/src/wattlaw/" in f.filename]
    last = ours[-1] if ours else frames[-1]
    place = f"{last.filename.rpartition('src/')[2]}:{last.name}"
    text = " ".join(str(error).split())[:300]
    return Problem(f"{type(error).__name__} in {place}", f"line {last.lineno}: {text}")


def _place(line: str) -> str:
    found = re.search(r'wattlaw/([^"]*)", line (\d+), in (\S+)', line)
    return f"in {found[1]}:{found[3]}" if found else ""


def _cpu_s() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0
