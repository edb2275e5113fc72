"""Unexpected exceptions: one line for the user, and a file with the traceback to report."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from wattlaw.common.errors import one_line
from wattlaw.common.terminal import escape_invisible, escaped_output

EXIT_CODE = 70
#: The exit code of a command that Ctrl-C ended.
INTERRUPTED = 130
#: If this environment variable is set, the traceback is printed too.
TRACEBACK = "WATTLAW_TRACEBACK"
_PREFIX = "wattlaw-crash-"
_MAX_FILE_CHARACTERS = 200_000
_MAX_LINE_CHARACTERS = 200
_MAX_FILES = 20  # in the state folder
_MAX_THREAD_REPORTS = 5  # lines that a process prints about its threads


def report(error: BaseException) -> str:
    """Save a report of an unexpected exception, without environment variables, in a file that only
    the user can read; return the line for the user."""
    try:
        import traceback

        trace = "".join(traceback.format_exception(error))
        if len(trace) > _MAX_FILE_CHARACTERS:
            half = _MAX_FILE_CHARACTERS // 2
            trace = f"{trace[:half]}\n[...]\n{trace[-half:]}"
        summary = one_line(error)[:_MAX_LINE_CHARACTERS]
    except Exception:  # an exception without a valid text, or no memory
        trace = summary = type(error).__name__
    if os.environ.get(TRACEBACK):
        with contextlib.suppress(OSError):
            print(trace, file=sys.stderr)
    try:
        instruction = _save(trace)
    except Exception as failure:
        instruction = f"its traceback cannot be saved ({type(failure).__name__})"
    return f"unexpected error ({summary}); {instruction}"


def print_report(error: BaseException) -> None:
    line = f"wattlaw: {report(error)}"
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def run(main: Callable[[], int | None]) -> int:
    """Run the main function of a wattlaw process; report an unexpected exception in one line."""
    with escaped_output(), reported_in_threads():
        try:
            return main() or 0
        except KeyboardInterrupt:
            return INTERRUPTED
        except SystemExit:
            raise
        except BaseException as error:
            print_report(error)
            return EXIT_CODE


@contextlib.contextmanager
def reported_in_threads() -> Iterator[list[BaseException]]:
    """Report exceptions that end a thread, in the yielded list too, or that Python ignores."""
    crashes: list[BaseException] = []
    lines = 0

    def ignored(args: "threading.ExceptHookArgs | sys.UnraisableHookArgs") -> None:
        nonlocal lines
        lines += 1
        if args.exc_value is not None and lines <= _MAX_THREAD_REPORTS:
            print_report(args.exc_value)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and args.exc_type is not SystemExit:
            crashes.append(args.exc_value)
            ignored(args)

    before = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = in_thread, ignored
    try:
        yield crashes
    finally:
        threading.excepthook, sys.unraisablehook = before


def _save(trace: str) -> str:
    import platform
    import shlex
    import tempfile
    import time

    version = getattr(sys.modules.get("wattlaw"), "__version__", None)
    text = (
        f"command: {shlex.join(sys.argv)}\n"
        f"wattlaw: {version}\npython: {sys.version}\nplatform: {platform.platform()}\n"
        f"time: {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n\n{trace}"
    )
    content = escape_invisible(text).encode("utf-8")
    prefix = f"{_PREFIX}{time.strftime('%Y%m%dT%H%M%S')}-"
    for folder in (_state_folder, tempfile.gettempdir):
        name = None
        try:
            handle, name = tempfile.mkstemp(".txt", prefix, folder())  # mode 0600, never a link
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            return f"please send {name} to the maintainers"
        except (OSError, RuntimeError):
            if name is not None:
                Path(name).unlink(missing_ok=True)
    return f"its traceback cannot be saved: no folder can be written; set {TRACEBACK}=1 to see it"


def _state_folder() -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # the XDG Base Directory Specification ignores relative paths
        base = Path.home() / ".local" / "state"
    folder = base / "wattlaw"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in sorted(folder.glob(f"{_PREFIX}*"))[: 1 - _MAX_FILES]:
        old.unlink(missing_ok=True)
    return folder
