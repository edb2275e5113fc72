"""Optimizer steps of unmodified training scripts: recorded in the script, read and summarised here.

docs/measuring.md describes the files, the environment variables and the limits.
"""

import os
from collections.abc import Mapping
from pathlib import Path

#: The folder of the records; without it the hook does nothing.
STEPS_FOLDER = "WATTLAW_STEPS"
_HOOK = Path(__file__).parent / "hook"


def instrumented_environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Create the folder of the records; return the environment in which a command fills it.

    On several nodes, it is on a file system that they share. The hook's folder is the first of
    PYTHONPATH. Python processes that ignore it (``-I``, ``-E``, ``-S``) are not instrumented.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(_HOOK), environment.get("PYTHONPATH")]))
    return {**environment, "PYTHONPATH": path, STEPS_FOLDER: str(folder.absolute())}
