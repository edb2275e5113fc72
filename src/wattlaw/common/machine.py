"""The machine: its processor, its cores and the versions of its software."""

import os
import platform
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def hardware() -> str:
    """Return processor and cores, the hardware label of a run without GPUs."""
    return f"{processor()}, {os.cpu_count()} cores"


def cores_of(label: str) -> int | None:
    """Return the cores in a label of ``hardware``; None in that of GPUs."""
    found = re.search(r", (\d+) cores$", label)
    return int(found[1]) if found else None


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def software(packages: Iterable[str]) -> dict[str, str]:
    versions = {"python": platform.python_version(), "system": platform.platform()}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
