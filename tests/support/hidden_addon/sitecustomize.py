"""Hides a package and its entry points from every Python process of a test."""

import os
import sys
from importlib import metadata

HIDDEN = os.environ["WATTLAW_TEST_HIDDEN"]
_entry_points = metadata.entry_points


class Refusing:
    """Finds no module of the package."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def without_hidden(**named):
    points = _entry_points(**named)
    return metadata.EntryPoints(p for p in points if p.module.partition(".")[0] != HIDDEN)


sys.meta_path.insert(0, Refusing)
metadata.entry_points = without_hidden
