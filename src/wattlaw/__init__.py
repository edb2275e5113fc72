"""Measure how training time and energy scale, find the laws behind it, say what to run."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattlaw.launch.tracking import Track, track

try:
    __version__ = version("wattlaw")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["Track", "__version__", "track"]


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: ``import wattlaw`` stays quick."""
    if name in ("Track", "track"):
        from wattlaw.launch import tracking

        return getattr(tracking, name)
    raise AttributeError(f"module 'wattlaw' has no attribute {name!r}")
