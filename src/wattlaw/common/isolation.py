"""Keep the working folder out of the import path of wattlaw's processes.

They may run as root, and must not import a ``random.py`` next to a study. A user's command keeps
the user's environment.

This module imports only what Python has already imported: before ``isolate`` has run, an import may
load a file of the working folder.
"""

import os
import sys

#: The value of PYTHONSAFEPATH in the environment of wattlaw's processes.
_ISOLATED = "wattlaw"
_CHANGED_VARIABLES = ("PYTHONPATH", "PYTHONSAFEPATH")
_SAVED_PREFIX = "WATTLAW_USER_"


def isolated_python(*arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command line of a Python process of wattlaw: ``-m MODULE`` or ``-c CODE``."""
    return [python, "-I" if sys.flags.isolated else "-P", *arguments]


def isolated_environment() -> dict[str, str]:
    """Return the environment for wattlaw's processes, based on that of this process.

    PYTHONSAFEPATH also applies to the processes that they start, through other libraries too.
    PYTHONPATH keeps its absolute entries: an empty or relative entry is in the working folder.
    """
    isolated = dict(os.environ)
    if isolated.get("PYTHONSAFEPATH") != _ISOLATED:
        saved = {
            _SAVED_PREFIX + name: isolated[name] for name in _CHANGED_VARIABLES if name in isolated
        }
        isolated = saved | isolated
    isolated["PYTHONSAFEPATH"] = _ISOLATED
    kept = [entry for entry in _entries(isolated.pop("PYTHONPATH", "")) if entry.startswith("/")]
    return isolated | ({"PYTHONPATH": os.pathsep.join(kept)} if kept else {})


def user_environment() -> dict[str, str]:
    """Return the environment for a user's command: that of this process with the user's values."""
    user = dict(os.environ)
    if user.get("PYTHONSAFEPATH") == _ISOLATED:
        for name in _CHANGED_VARIABLES:
            user.pop(name, None)
            if _SAVED_PREFIX + name in user:
                user[name] = user.pop(_SAVED_PREFIX + name)
    return user


def isolate() -> None:
    """Isolate this process; a second call has no effect.

    This process and the processes that it starts then import nothing from the working folder,
    except those that are started with ``user_environment``.
    """
    if os.environ.get("PYTHONSAFEPATH") == _ISOLATED:
        return
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib may not be imported yet
    except OSError:  # a folder that was removed
        here = ""
    if not sys.flags.safe_path and sys.path[:1] in ([here], [""]):
        del sys.path[0]  # ``python -m wattlaw`` put it there
    entries = _entries(os.environ.get("PYTHONPATH", ""))
    relative = {os.path.normpath(os.path.join(here, entry)) for entry in entries}  # noqa: PTH118
    relative -= {os.path.normpath(entry) for entry in entries if entry.startswith("/")}
    sys.path[:] = [entry for entry in sys.path if entry not in relative]
    isolated = isolated_environment()
    if "PYTHONPATH" not in isolated:
        os.environ.pop("PYTHONPATH", None)
    os.environ.update(isolated)


def _entries(path: str) -> list[str]:
    return path.split(os.pathsep) if path else []
