"""Folders of the repository that tests use."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
SCRIPTS = SUPPORT / "scripts"
OUTPUT = ROOT / "tests" / "output"
