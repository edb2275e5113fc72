"""Scopes of energy: the kinds of devices whose energies add up, each part of a machine once.

As text, a scope is its kinds with ``+`` between them: ``node``, ``module+dram``, ``gpu+cpu+dram``.
"""

from collections.abc import Collection, Mapping

__all__ = ["KINDS", "PARTS", "outermost"]

#: Kinds of devices that contain none of each other, except where a device states that it does.
PARTS = ("gpu", "cpu", "dram")
#: Kinds whose energy can be that of a run, from the outermost scope to the innermost.
KINDS = ("node", "module", *PARTS)


def outermost(contains: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return the outermost kinds, which together count everything and nothing twice.

    Parameters
    ----------
    contains
        Of each kind that has an energy, the kinds that its devices contain. A node contains all.

    Examples
    --------
    >>> outermost({"gpu": (), "cpu": ("dram",), "dram": ()})
    ('gpu', 'cpu')
    >>> outermost({"module": ("gpu", "cpu"), "gpu": (), "cpu": (), "dram": ()})
    ('module', 'dram')
    """
    if "node" in contains:
        return ("node",)
    inside = {kind: _inside(kind, contains) for kind in KINDS if kind in contains}
    kept = list(inside)
    for kind in reversed(inside):
        outer = [other for other in inside if other != kind and kind in inside[other]]
        # Of kinds that claim to contain each other, the first one remains.
        if any(other in kept or other not in inside[kind] for other in outer):
            kept.remove(kind)
    return tuple(kept)


def _inside(kind: str, contains: Mapping[str, Collection[str]]) -> set[str]:
    """Return what a kind contains, also by way of what it contains."""
    inside: set[str] = set()
    waiting = [*contains[kind]]
    while waiting:
        inner = waiting.pop()
        if inner not in inside:
            inside.add(inner)
            waiting += contains.get(inner, ())
    return inside
