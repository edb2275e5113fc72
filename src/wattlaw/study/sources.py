"""Where the values of a run are from, by its launcher: measured, replayed, simulated, imported."""

from collections.abc import Iterable
from typing import Any

MEASURED = "measured"
#: What runs of a launcher that does not measure are called, from the most to the least real.
_NOT_MEASURED = {"replay": "replayed", "simulated": "simulated"}
ORIGINS = (MEASURED, *_NOT_MEASURED.values())


def origin_of(launcher: Any) -> str:
    """Return what a launcher's runs are: ``measured``, ``replayed`` or ``simulated``."""
    return _NOT_MEASURED.get(launcher, MEASURED)


def source_of(launcher: Any) -> str:
    """Return where the values of a launcher's runs are from: its origin, or ``imported``."""
    return "imported" if launcher == "imported" else origin_of(launcher)


def origins_label(launchers: Iterable[Any]) -> str:
    """Return ``simulated`` or ``replayed`` (or both) if no run is measured, else ""."""
    origins = sorted({origin_of(launcher) for launcher in launchers})
    return "" if MEASURED in origins else " and ".join(origins)


def sources_label(launchers: Iterable[Any]) -> str:
    """Return the sources of runs, such as ``imported``, if none was measured here, else ""."""
    sources = sorted({source_of(launcher) for launcher in launchers})
    return "" if MEASURED in sources else " and ".join(sources)
