"""The entry point: runs a command and prints any error as one line on standard error.

Only the standard library is imported before errors and Ctrl-C are caught.
"""

import atexit
import contextlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

#: The exit code of shells for a command that Ctrl-C ended.
INTERRUPTED = 130
_MAX_CHARACTERS = 2000  # of a message
#: What users call an option.
_SAME = {"objective": "--minimize", "goal": "--minimize"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. An error prints one line, never a traceback."""
    try:
        from wattlaw.common.isolation import isolate

        if arguments is None:  # this is the process of the command, not a caller of this function
            isolate()
        from wattlaw.common import crash, terminal

        with contextlib.ExitStack() as stack:
            stack.enter_context(terminal.escaped_output())
            crashes = stack.enter_context(crash.reported_in_threads())
            with _warnings_as_notes(), _progress_bars():
                code = _run(arguments)
            try:
                terminal.flush_output()
            except BrokenPipeError:
                code = code or 1
            except OSError as error:
                code = code or 2
                _print_error(f"{error.filename}: {error.strerror}")
            if arguments is None:  # a thread may still fail while the process ends
                atexit.register(stack.pop_all().close)
            return code or (crash.EXIT_CODE if crashes else 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        # for a Ctrl-C while the interpreter ends
        if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    from wattlaw.common.errors import DamagedFileWarning

    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if not issubclass(category, DamagedFileWarning):
            show_others(message, category, *place)
        elif str(message) not in shown:
            shown.add(str(message))
            _print_error(str(message))

    with warnings.catch_warnings():
        if not sys.warnoptions:  # the warnings of libraries are for developers
            warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=DamagedFileWarning)
        show_others, warnings.showwarning = warnings.showwarning, show  # type: ignore[assignment]
        yield


@contextlib.contextmanager
def _progress_bars() -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from wattlaw.common import progress

    bar = WorkBar()
    token = progress.observer.set(bar)
    try:
        yield
    finally:
        progress.observer.reset(token)
        bar.stop()


class WorkBar:
    """A bar on standard error for work that takes longer than ``progress.SHOWN_AFTER_S``."""

    def __init__(self) -> None:
        self._started_s: dict[str, float] = {}
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show how much is done; the bar is removed after the last item."""
        from wattlaw.common.progress import SHOWN_AFTER_S

        started_s = self._started_s.setdefault(what, time.monotonic())
        if self._bar is None and time.monotonic() - started_s >= SHOWN_AFTER_S:
            from rich import progress as bars

            from wattlaw.cli.common.console import Console

            columns = (bars.TextColumn("{task.description}", markup=False), bars.BarColumn())
            clock = bars.TimeElapsedColumn()
            screen = Console(stderr=True)
            self._bar = bars.Progress(*columns, clock, console=screen, transient=True)
            self._task = self._bar.add_task(what, total=total)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, description=what, completed=done, total=total)
        if done == total:
            self._started_s.pop(what)
            self.stop()

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _run(arguments: Sequence[str] | None) -> int:
    try:
        from wattlaw.cli.app import app

        _refuse_empty(sys.argv[1:] if arguments is None else arguments)
        result = app(args=arguments, prog_name="wattlaw", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        code, text = INTERRUPTED, "interrupted"
    except SystemExit as error:  # from typer and rich: the reader of the output is gone
        return error.code if isinstance(error.code, int) else 1
    except BrokenPipeError as error:
        if error.filename is not None:
            return 1
        code, text = 2, str(error)
    except BaseException as error:
        code, text = _describe(error)
    _print_error(text)
    return code


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse empty arguments, but not those of a measured command: a path would be this folder."""
    from wattlaw.cli.app import MEASURING

    checked = list(arguments)
    if "--" in checked:
        checked = checked[: checked.index("--")]
    elif checked and checked[0] in MEASURING:
        return
    for number, argument in enumerate(checked, 1):
        name, equals, value = argument.partition("=")
        if not argument or (name.startswith("--") and equals and not value):
            from wattlaw.common.errors import BadInput

            which = name or f"argument {number}"
            raise BadInput(f"{which} is empty; is a shell variable not set?")


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError):
        line = " ".join(text.split())
        if len(line) > _MAX_CHARACTERS:  # the start has the place, the end what is expected
            line = f"{line[: _MAX_CHARACTERS - 505]} ... {line[-500:]}"
        print(f"wattlaw: {line}", file=sys.stderr, flush=True)


def _nearest_option(given: str, context: Any) -> str:
    """Return the option that is most like another; dashes, which all have, do not count."""
    from wattlaw.common.text import nearest

    names = (name for parameter in context.command.params for name in parameter.opts)
    known = {name.strip("-"): name for name in names if name.startswith("--")}
    known |= {name: option for name, option in _SAME.items() if option in known.values()}
    near = nearest(given.strip("-").replace("_", "-")[:60], known)
    for name, option in known.items():
        near = near.replace(f"{name!r}", option)
    return f"{near}; see {context.command_path} --help"


def _describe(error: BaseException) -> tuple[int, str]:
    from wattlaw.common import crash
    from wattlaw.common.errors import WattlawError

    usage = sys.modules.get("typer.exceptions")  # None if typer cannot be imported
    if isinstance(error, WattlawError):
        code, text = error.exit_code, str(error)
    elif isinstance(error, PermissionError):
        code, text = 3, f"no permission: {error.filename or error}"
        if error.strerror and error.errno and error.strerror != os.strerror(error.errno):
            text += f": {error.strerror}"  # ours, not the system's
    elif isinstance(error, OSError):
        code, text = 2, f"{error.filename or 'the system'}: {error.strerror or error}"
    elif isinstance(error, UnicodeEncodeError):
        code = 2
        text = (
            f"{error.object[:100]!a}: cannot be encoded as {error.encoding}; use valid UTF-8 and "
            "a UTF-8 locale such as LC_ALL=C.UTF-8"
        )
    elif usage is not None and isinstance(error, usage.Abort):
        if isinstance(error.__cause__, EOFError):  # typer takes it for the end of the input
            code, text = crash.EXIT_CODE, crash.report(error.__cause__)
        else:
            code, text = 1, "interrupted"
    elif usage is not None and isinstance(error, usage.TyperException):
        code, text = 2, getattr(error, "format_message", error.__str__)()
        if (given := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
            text = f"no such option {given}{_nearest_option(given, error.ctx)}"
        text = text.replace(": Value error, ", ": ")  # pydantic's, not the user's
    else:
        code, text = crash.EXIT_CODE, crash.report(error)
    return code, text
