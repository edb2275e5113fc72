"""What the values of a run are: of which source by its launcher, and of which phases of it."""

from collections.abc import Iterable
from typing import Any

#: Phases of windows in which a run trains, and what they count; of a run the first one counts.
TRAINING = {"train": "epochs", "steps": "steps", "run": "run"}
MEASURED = "measured"
#: What runs of a launcher that does not measure are called, from the most to the least real.
_NOT_MEASURED = {"replay": "replayed", "simulated": "simulated"}
#: The status, in analyses, of done runs that the present version of their study did not make.
EARLIER = "earlier version"
ORIGINS = (MEASURED, *_NOT_MEASURED.values())


def origin_of(launcher: Any) -> str:
    """Return what a launcher's runs are: ``measured``, ``replayed`` or ``simulated``."""
    return _NOT_MEASURED.get(launcher, MEASURED)


def source_of(launcher: Any) -> str:
    """Return where the values of a launcher's runs are from: its origin, or ``imported``."""
    return "imported" if launcher == "imported" else origin_of(launcher)


def origins_label(launchers: Iterable[Any]) -> str:
    """Return ``simulated`` or ``replayed`` (or both) if no run is measured, else ""."""
    return _label({origin_of(launcher) for launcher in launchers})


def sources_label(launchers: Iterable[Any]) -> str:
    """Return the sources of runs, such as ``imported``, if none was measured here, else ""."""
    return _label({source_of(launcher) for launcher in launchers})


def _label(sources: set[str]) -> str:
    return "" if MEASURED in sources else " and ".join(sorted(sources))
