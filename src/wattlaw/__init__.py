"""Measure how training time and energy scale, find the laws behind it, say what to run."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("wattlaw")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
