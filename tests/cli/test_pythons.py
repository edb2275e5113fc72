"""The base package, without torch, on the newest CPython that it is for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT

NEWEST = "3.13"  # the tests run on another; ``make dist PYTHON=...`` tries the wheel on any


def interpreter() -> str | None:
    """Return a CPython of that version that can make environments: this, of pyenv, or on PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable, *map(str, pyenv.glob(f"{NEWEST}.*/bin/python"))]
    probe = "import sys, pip, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, [*candidates, shutil.which(f"python{NEWEST}")]):
        done = subprocess.run([candidate, "-c", probe], capture_output=True, check=False)
        if done.returncode == 0 and done.stdout.decode().strip() == NEWEST:
            return candidate
    return None


@pytest.mark.timeout(900)  # a minute, where nothing else runs
def test_the_base_package_runs_its_main_commands(tmp_path):
    python = interpreter()
    if python is None:
        pytest.skip(f"CPython {NEWEST} is not installed here (looked in pyenv and on PATH)")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, tmp_path]
    subprocess.run(line, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    line = [python, ROOT / "tools" / "try_wheel.py", wheel, "--main"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok ") >= 8
