"""Measure how training time and energy scale, fit laws to the measurements, recommend settings."""

TYPE_CHECKING = False  # for `python -m wattlaw`, `typing` may still be a file of the working folder
if TYPE_CHECKING:
    from wattlaw.api.fits import fit
    from wattlaw.api.imports import import_files
    from wattlaw.api.results import open
    from wattlaw.api.studies import load_study, run
    from wattlaw.running.tracker import Track, track

    __version__: str

__all__ = ["Track", "__version__", "fit", "import_files", "load_study", "open", "run", "track"]

_MODULES = {
    "Track": "running.tracker",
    "fit": "api.fits",
    "import_files": "api.imports",
    "load_study": "api.studies",
    "open": "api.results",
    "run": "api.studies",
    "track": "running.tracker",
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used, so that ``import wattlaw`` is quick."""
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"wattlaw.{_MODULES[name]}"), name)
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'wattlaw' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("wattlaw")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
