"""Runs the command line as if an add-on were not installed."""

import subprocess
import sys

HIDE = """
import importlib.metadata, sys

addon = sys.argv.pop(1)
found = importlib.metadata.entry_points

def entry_points(**wanted):
    points = found(**wanted)
    return importlib.metadata.EntryPoints(p for p in points if not p.value.startswith(addon))

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == addon:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

importlib.metadata.entry_points = entry_points
sys.meta_path.insert(0, Hidden())
from wattlaw.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def wattlaw_without(addon: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Return what ``wattlaw`` prints without the package ``addon``, with the exit code."""
    line = [sys.executable, "-c", HIDE, addon, *map(str, arguments)]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=120)
