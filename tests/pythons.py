"""A Python that lacks some of the packages of this one."""

import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
_SCRIPT = """#!/bin/sh
case $(uname -n) in {hosts}) export PYTHONPATH={source}:{site}; without=-S ;; esac
exec {python} $without "$@"
"""


def python_without(folder: Path, *packages: str, hosts: str = "*") -> Path:
    """Return a Python without packages, by the first letters of their files, on some hosts."""
    site = folder / "site"
    site.mkdir()
    for place in map(Path, sys.path):
        for entry in place.glob("*") if place.name == "site-packages" else ():
            is_without = entry.name.lower().startswith(packages)
            if not is_without and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    python = folder / "python"
    python.write_text(_SCRIPT.format(hosts=hosts, source=SOURCE, site=site, python=sys.executable))
    python.chmod(0o755)
    return python
