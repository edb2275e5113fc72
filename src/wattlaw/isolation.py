"""Keep the working folder out of the import path of wattlaw's own processes.

They may run as root, and a ``random.py`` that lies beside a study is not meant for them. A user's
own command keeps the rules of the environment that the user gave.

This module imports nothing that Python has not imported already: until ``isolate`` has run, an
import may find a file of the working folder.
"""

import os
import sys

#: As the value of PYTHONSAFEPATH it marks the environment of wattlaw's own processes.
_OWN = "wattlaw"
_CHANGED = ("PYTHONPATH", "PYTHONSAFEPATH")
_SAVED = "WATTLAW_USER_"


def isolated_python(*words: str, python: str = sys.executable) -> list[str]:
    """Return the command line of one of wattlaw's own Python processes.

    Parameters
    ----------
    words
        What follows the interpreter's options: ``-m MODULE`` or ``-c CODE``, and arguments.
    python
        The interpreter.
    """
    return [python, "-I" if sys.flags.isolated else "-P", *words]


def isolated_environment() -> dict[str, str]:
    """Return the environment for wattlaw's own processes, made of that of this process.

    PYTHONSAFEPATH holds for what they start in turn, also through other libraries. PYTHONPATH
    keeps its absolute entries: an empty or relative one means the working folder, or a part of it.
    """
    own = dict(os.environ)
    if own.get("PYTHONSAFEPATH") != _OWN:
        own = {_SAVED + name: own[name] for name in _CHANGED if name in own} | own
    own["PYTHONSAFEPATH"] = _OWN
    kept = [entry for entry in _entries(own.pop("PYTHONPATH", "")) if entry.startswith("/")]
    return own | ({"PYTHONPATH": os.pathsep.join(kept)} if kept else {})


def user_environment() -> dict[str, str]:
    """Return the environment for a user's own command: this one, with what the user gave."""
    user = dict(os.environ)
    if user.get("PYTHONSAFEPATH") == _OWN:
        for name in _CHANGED:
            user.pop(name, None)
            if _SAVED + name in user:
                user[name] = user.pop(_SAVED + name)
    return user


def isolate() -> None:
    """Make this process one of wattlaw's own; more than once is harmless.

    From here on it imports nothing from the working folder, nor does what it starts, unless it is
    started with ``user_environment``.
    """
    if os.environ.get("PYTHONSAFEPATH") == _OWN:
        return
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib may not be imported yet
    except OSError:  # it was removed, and nothing can be imported from it
        here = ""
    if not sys.flags.safe_path and sys.path[:1] in ([here], [""]):
        del sys.path[0]  # ``python -m wattlaw`` put it there
    entries = _entries(os.environ.get("PYTHONPATH", ""))
    relative = {os.path.normpath(os.path.join(here, entry)) for entry in entries}  # noqa: PTH118
    relative -= {os.path.normpath(entry) for entry in entries if entry.startswith("/")}
    sys.path[:] = [entry for entry in sys.path if entry not in relative]
    own = isolated_environment()
    if "PYTHONPATH" not in own:
        os.environ.pop("PYTHONPATH", None)
    os.environ.update(own)


def _entries(path: str) -> list[str]:
    return path.split(os.pathsep) if path else []
