"""Unexpected exceptions: one line for the user, and a file with the traceback to send."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from wattlaw.errors import one_line
from wattlaw.terminal import escape_invisible, escaped_output

EXIT_CODE = 70
#: What a shell says of a command that Ctrl-C ended.
INTERRUPTED = 130
#: Set to anything, the traceback is printed too.
TRACEBACK = "WATTLAW_TRACEBACK"
_PREFIX = "wattlaw-crash-"
_MOST_CHARS = 200_000
_MOST_SHOWN = 200
#: Reports that stay in the state folder, and lines of threads that a process prints.
_MOST_KEPT, _MOST_LINES = 20, 5


def report(error: BaseException) -> str:
    """Save what is known of an unexpected exception; return the line for the user.

    The file has the command line, versions, platform and the traceback, and no environment
    variables. Only the user can read it.
    """
    try:
        import traceback

        told = "".join(traceback.format_exception(error))
        if len(told) > _MOST_CHARS:
            told = f"{told[: _MOST_CHARS // 2]}\n[...]\n{told[-_MOST_CHARS // 2 :]}"
        what = one_line(error)[:_MOST_SHOWN]
    except Exception:  # an exception whose text cannot be made, or no memory for it
        told = what = type(error).__name__
    if os.environ.get(TRACEBACK):
        with contextlib.suppress(OSError):
            print(told, file=sys.stderr)
    try:
        where = _saved(told)
    except Exception as trouble:
        where = f"its traceback cannot be saved ({type(trouble).__name__})"
    return f"unexpected error ({what}); {where}"


def print_report(error: BaseException) -> None:
    """Report an unexpected exception on standard error."""
    line = f"wattlaw: {report(error)}"
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def run(main: Callable[[], int | None]) -> int:
    """Run the main function of a process of ours; an unexpected exception is one line."""
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
    """Report exceptions that end a thread, or that Python ignores, in one line each.

    Gives the list of those that ended a thread.
    """
    crashes: list[BaseException] = []
    lines = 0

    def reported(error: BaseException) -> None:
        nonlocal lines
        lines += 1
        if lines <= _MOST_LINES:
            print_report(error)

    def in_thread(found: threading.ExceptHookArgs) -> None:
        if found.exc_value is not None and found.exc_type is not SystemExit:
            crashes.append(found.exc_value)
            reported(found.exc_value)

    def ignored(found: "sys.UnraisableHookArgs") -> None:
        if found.exc_value is not None:
            reported(found.exc_value)

    before = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = in_thread, ignored
    try:
        yield crashes
    finally:
        threading.excepthook, sys.unraisablehook = before


def _saved(told: str) -> str:
    """Write the file and say where it is."""
    import platform
    import shlex
    import tempfile
    import time

    version = getattr(sys.modules.get("wattlaw"), "__version__", None)
    text = (
        f"command: {shlex.join(sys.argv)}\n"
        f"wattlaw: {version}\npython: {sys.version}\nplatform: {platform.platform()}\n"
        f"time: {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n\n{told}"
    )
    content = escape_invisible(text).encode("utf-8")
    for folder in (_state_folder, lambda: Path(tempfile.gettempdir())):
        try:
            prefix = f"{_PREFIX}{time.strftime('%Y%m%dT%H%M%S')}-"
            handle, name = tempfile.mkstemp(".txt", prefix, folder())  # mode 0600, never a link
        except (OSError, RuntimeError):
            continue
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
        except OSError:
            Path(name).unlink(missing_ok=True)
            continue
        return f"please send {name} to the maintainers"
    return f"its traceback cannot be saved: no folder can be written; set {TRACEBACK}=1 to see it"


def _state_folder() -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # unset, or to be ignored (XDG Base Directory Specification)
        base = Path.home() / ".local" / "state"
    folder = base / "wattlaw"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in sorted(folder.glob(f"{_PREFIX}*"))[: 1 - _MOST_KEPT]:
        old.unlink(missing_ok=True)
    return folder
