"""A Python in which an add-on is not installed."""

import os
import subprocess
import sys

#: Hides a package and its entry points, then runs the code or the command that follows.
_HIDE = """
import importlib.metadata as metadata, sys
hidden, code = sys.argv[1:3]
class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
found = metadata.entry_points
metadata.entry_points = lambda **which: metadata.EntryPoints(
    point for point in found(**which) if point.value.partition(".")[0].partition(":")[0] != hidden
)
sys.meta_path.insert(0, Hidden)
sys.argv[:3] = ["wattlaw"]
if code:
    exec(code)
else:
    from wattlaw.cli.main import main
    sys.exit(main())
"""


def without(
    addon: str, *arguments: object, code: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run ``wattlaw`` with these arguments, or the code, where an add-on is not installed."""
    return subprocess.run(
        [sys.executable, "-c", _HIDE, addon, code, *map(str, arguments)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
