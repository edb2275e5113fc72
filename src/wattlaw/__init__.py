"""Measure how training time and energy scale, find the laws behind it, say what to run."""

TYPE_CHECKING = False  # for `python -m wattlaw`, `typing` may still be a file of the working folder
if TYPE_CHECKING:
    from wattlaw.launch.tracking import Track, track

    __version__: str

__all__ = ["Track", "__version__", "track"]


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: ``import wattlaw`` stays quick."""
    if name in ("Track", "track"):
        from wattlaw.launch import tracking

        return getattr(tracking, name)
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'wattlaw' has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("wattlaw")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
