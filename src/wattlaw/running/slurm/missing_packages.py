"""What a Python lacks to train workloads.

A login node starts the Python of the jobs, which is a file that login and compute nodes share.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
from functools import cache
from typing import NamedTuple

from wattlaw.common.errors import WattlawError, one_line
from wattlaw.common.isolation import isolate, isolated_environment, isolated_python
from wattlaw.common.processes import run_captured
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue

_TIMEOUT_S = 120
_PROBE = f"from {__name__} import main; main()"
_KERNELS = "--kernels"


class Environment(NamedTuple):
    """A Python with wattlaw: what workloads lack in it, and its build of torch."""

    missing: tuple[str, ...]
    torch: str | None = None  # its version
    architectures: tuple[str, ...] = ()  # of the GPUs that it has kernels for, if requested


@cache
def probe(python: str, names: tuple[str, ...], *, kernels: bool) -> Environment | None:
    """Return what a Python lacks for workloads; None if it cannot be started here."""
    options = [_KERNELS] if kernels else []
    line = isolated_python("-c", _PROBE, *options, *names, python=python)
    try:
        done = run_captured(line, _TIMEOUT_S, isolated_environment())
        absent = re.search("No module named '([^']+)'", done.stderr) if done.returncode else None
        if absent is not None:
            why = f"wattlaw needs {absent[1]}, which cannot be imported"
            return Environment(("wattlaw is not installed" if absent[1] == "wattlaw" else why,))
        missing, torch, architectures = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, IndexError):
        return None
    return Environment(tuple(missing), torch, tuple(architectures))


def main() -> None:
    isolate()
    options = [word for word in sys.argv[1:] if word != _KERNELS]
    missing = []
    for name in options:
        try:
            catalogue.check_installed(WorkloadSpec(name=name))
        except WattlawError as error:
            missing.append(str(error))
    version, architectures = None, list[str]()
    try:
        version = importlib.metadata.version("torch")
        if _KERNELS in sys.argv:
            import torch

            version, architectures = torch.__version__, torch.cuda.get_arch_list()
    except importlib.metadata.PackageNotFoundError:
        pass  # it is in ``missing``
    except Exception as error:  # the installation is damaged, which stops every run
        missing.append(f"torch cannot be imported: {one_line(error)}")
    print(json.dumps([missing, version, architectures]))
