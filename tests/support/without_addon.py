"""``wattlaw`` as it is where an add-on is not installed."""

import os
import subprocess
import sys
from pathlib import Path

_HIDING = Path(__file__).parent / "hidden_addon"


def python_without(addon: str, *arguments: str, **options: object) -> subprocess.CompletedProcess:
    """Run Python, and what it starts, with a package and its entry points hidden."""
    paths = os.pathsep.join(filter(None, [str(_HIDING), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": paths, "WATTLAW_TEST_HIDDEN": addon}
    given = {"env": env, "capture_output": True, "text": True, "timeout": 300} | options
    return subprocess.run([sys.executable, *arguments], check=False, **given)


def wattlaw_without(addon: str, *arguments: str, **options: object) -> subprocess.CompletedProcess:
    return python_without(addon, "-m", "wattlaw", *arguments, **options)
