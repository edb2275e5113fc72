"""Carries an input out in a sandbox and says what is wrong with what came of it."""

import contextlib
import io
import os
import re
import resource
import traceback
from dataclasses import dataclass
from pathlib import Path

from soak import parsers
from soak.case import Case
from soak.sandbox import Sandbox, changed_environment

CODES = {0, 1, 2, 3, 4}
#: Of one input: processor time and memory, and the length of a message.
MOST_CPU_S, MOST_BYTES, MOST_TEXT = 20.0, 1 << 30, 3000
_BAD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True)
class Problem:
    """What is wrong, and by what such failures are taken for the same."""

    cause: str
    detail: str


def judge(case: Case, sandbox: Sandbox, templates: Path) -> list[Problem]:
    for name, entry in case.files.items():
        entry.put(sandbox.inputs / name, templates)
    before = snapshot(sandbox.inputs)
    given = {name: _filled(text, sandbox) for name, text in case.env.items() if text is not None}
    unset = {name for name, text in case.env.items() if text is None}
    kept = {name: text for name, text in sandbox.environment().items() if name not in unset}
    with changed_environment(kept | given):
        problems = _carried_out(case, sandbox)
    after = snapshot(sandbox.inputs)
    changed = [p for p in sorted(before.keys() | after.keys()) if before.get(p) != after.get(p)]
    if changed and not case.changes_inputs:
        problems.append(Problem("an input is changed", ", ".join(changed[:5])))
    return problems + _left(case, sandbox)


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return kind, size and time of all that lies in a folder."""
    found = {}
    for entry in _walk(folder):
        about = entry.stat(follow_symlinks=False)
        is_folder = entry.is_dir(follow_symlinks=False)
        times = (0, 0) if is_folder else (about.st_size, about.st_mtime_ns)
        found[entry.path] = (about.st_mode, *times)
    return found


def _walk(folder: Path | str) -> "list[os.DirEntry[str]]":
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            found.append(entry)
            if entry.is_dir(follow_symlinks=False):
                found += _walk(entry.path)
    return found


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
        word = word.replace(f"{{{name}}}", str(getattr(sandbox, name)))
    return word


def _carried_out(case: Case, sandbox: Sandbox) -> list[Problem]:
    out, err = io.BytesIO(), io.BytesIO()
    streams = [
        io.TextIOWrapper(out, "utf-8", "strict", newline="", write_through=True),
        io.TextIOWrapper(err, "utf-8", "backslashreplace", newline="", write_through=True),
    ]
    before_fds = set(Path("/proc/self/fd").iterdir())
    os.chdir(sandbox.work)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    start_bytes, start_s = _memory("VmRSS"), _cpu_s()
    code: object = None
    problems = []
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            if case.call == "wattlaw":
                from wattlaw.cli.main import main

                code = main([_filled(word, sandbox) for word in case.argv])
            elif told := parsers.PARSERS[case.call](sandbox, case.options):
                problems.append(Problem(f"{case.call}: {told.partition(':')[0]}", told))
    except SystemExit as error:
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
        texts = [text.getvalue().decode("utf-8", "replace") for text in (out, err)]
        problems += of_output(code, *texts)
    return problems


def of_output(code: object, out: str, err: str) -> list[Problem]:
    """Return what is wrong with an exit code and what was printed."""
    if "Traceback (most recent call last)" in out + err:
        return [Problem("a traceback", (out + err).strip().splitlines()[-1][:200])]
    if code not in CODES:
        return [Problem(f"exit code {code}", err.strip()[-300:])]
    problems = []
    lines = [line for line in err.splitlines() if line.strip()]
    if code in (2, 3) and not (lines and lines[-1].startswith("wattlaw: ")):
        problems.append(Problem(f"exit code {code} without a line 'wattlaw: '", err[-300:]))
    if found := _BAD.search(out + err):
        near = (out + err)[max(0, found.start() - 60) : found.start() + 20]
        problems.append(Problem("a control character is printed", ascii(near)))
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


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0
