"""Plug-ins: workloads, devices and launchers that packages register as entry points."""

from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from wattlaw.common.errors import BadInput, NotAvailable, one_line


class Command(NamedTuple):
    """A command of an add-on (``wattlaw.commands``); its function is imported to run it only."""

    help: str
    module: str
    function: str
    #: The heading below which ``wattlaw --help`` lists it.
    group: str = "Add-ons"


#: The search takes some 10 ms.
_points = cache(lambda group: entry_points(group=group))


def names(group: str) -> list[str]:
    return sorted({point.name for point in _points(group)})


def load(group: str, name: str) -> Any:
    """Import what is registered as ``name``; ``NotAvailable`` has the reason where this fails."""
    for point in _points(group).select(name=name):
        try:
            return point.load()
        except Exception as error:
            raise NotAvailable(
                f"{group} {name!r} ({point.value}) cannot be loaded: {one_line(error)}"
            ) from error
    kind = group.rsplit(".", 1)[-1].removesuffix("s")
    raise BadInput(f"no {kind} is named {name!r}; allowed: {', '.join(names(group))}")


def load_installed(group: str) -> dict[str, Any]:
    """Load all objects of a group, without those that need a package which is not installed.

    A missing module of an installed package is a fault in it: ``NotAvailable``, as in ``load``.
    """
    loaded = {}
    for name in names(group):
        try:
            loaded[name] = load(group, name)
        except NotAvailable as error:
            cause, (point, *_) = error.__cause__, _points(group).select(name=name)
            missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
            own = point.module.partition(".")[0]
            if missing is None or (
                missing != own and missing.partition(".")[0] in ("wattlaw", own)
            ):
                raise
    return loaded
