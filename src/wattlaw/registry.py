"""Plug-ins by entry point: how workloads, devices and launchers of any package are found."""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from wattlaw.errors import BadInput, NotAvailable, one_line


def names(group: str) -> list[str]:
    """Return the sorted names registered under an entry-point group, importing none of them."""
    return sorted({point.name for point in entry_points(group=group)})


def load(group: str, name: str) -> Any:
    """Import and return what is registered as ``name``.

    Raises
    ------
    BadInput
        No such name; the message lists those there are.
    NotAvailable
        It is registered, but importing it fails; the message says why.
    """
    points: Iterable[EntryPoint] = entry_points(group=group, name=name)
    for point in points:
        try:
            return point.load()
        except Exception as error:
            raise NotAvailable(
                f"{group} {name!r} ({point.value}) cannot be loaded: {one_line(error)}"
            ) from error
    kind = group.rsplit(".", 1)[-1].removesuffix("s")
    raise BadInput(f"no {kind} is named {name!r}; allowed: {', '.join(names(group))}")
