"""Plug-ins by entry point: how workloads, devices and launchers of any package are found."""

from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from wattlaw.errors import BadInput, NotAvailable, one_line


@cache
def _points(group: str) -> EntryPoints:
    """Return the entry points of a group; looking for them takes some 10 ms."""
    return entry_points(group=group)


def names(group: str) -> list[str]:
    """Return the sorted names registered under an entry-point group, importing none of them."""
    return sorted({point.name for point in _points(group)})


def load(group: str, name: str) -> Any:
    """Import and return what is registered as ``name``.

    Raises
    ------
    BadInput
        No such name; the message lists those there are.
    NotAvailable
        It is registered, but importing it fails; the message says why.
    """
    for point in _points(group).select(name=name):
        try:
            return point.load()
        except Exception as error:
            raise NotAvailable(
                f"{group} {name!r} ({point.value}) cannot be loaded: {one_line(error)}"
            ) from error
    kind = group.rsplit(".", 1)[-1].removesuffix("s")
    raise BadInput(f"no {kind} is named {name!r}; allowed: {', '.join(names(group))}")
