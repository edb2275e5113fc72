"""The base package, without torch, on each CPython that it is for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT


def interpreter(version: str) -> str | None:
    """Return a CPython of a version that can make environments: this one, of pyenv, or on PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable, *map(str, pyenv.glob(f"{version}.*/bin/python"))]
    probe = "import sys, pip, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in [*candidates, shutil.which(f"python{version}")]:
        if candidate:
            done = subprocess.run([candidate, "-c", probe], capture_output=True, check=False)
            if done.returncode == 0 and done.stdout.decode().strip() == version:
                return candidate
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, source]
    subprocess.run(line, check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.timeout(900)  # a minute, where nothing else runs
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_base_package_runs_its_main_commands(version, wheel):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"CPython {version} is not installed here (looked in pyenv and on PATH)")
    line = [python, ROOT / "tools" / "try_wheel.py", wheel, "--main"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok ") >= 8
