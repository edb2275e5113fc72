"""Scopes of energy: the kinds of devices whose energies add up, each part of a machine once.

The rules of totals are here, for the energies of windows and for the list of a machine's devices.

As text, a scope is its kinds with ``+`` between them: ``node``, ``module+dram``, ``gpu+cpu+dram``.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Kinds of devices that contain none of each other, except where a device states that it does.
PARTS = ("gpu", "cpu", "dram")
#: Kinds whose energy can be that of a run, from the outermost scope to the innermost.
KINDS = ("node", "module", *PARTS)
#: The outermost scope that was measured; and all devices, without meters of modules and nodes.
OUTERMOST, DEVICES = "all", "+".join(PARTS)
#: What ``energy_scope`` selects: GPUs, nodes by their own meters, or the outermost scope.
ENERGY_SCOPES = ("gpu", "node", OUTERMOST)


def is_shared_with_jobs(kind: str, facts: Mapping[str, Any]) -> bool:
    """Return whether the energy of a device includes other jobs of the node. GPUs are assigned."""
    return kind != "gpu" and bool(facts.get("is_shared"))


@dataclass(frozen=True)
class Candidate(Generic[T]):
    device: T
    kind: str
    facts: Mapping[str, Any]
    contains: Collection[str] = ()
    has_energy: bool = True  # False: it cannot be read
    is_used: bool = True  # its energy has no fault that leaves it out of means
    rank: int = 0  # whether it is measured, simulated or estimated: the lower the better

    @property
    def complements(self) -> bool:
        """Return whether it counts only where no other device of its kind has an energy."""
        return bool(self.facts.get("complements"))

    @property
    def quality(self) -> tuple[bool, bool, float]:
        """Return a key of meters of the same node, the least of the best one."""
        resolution_s = self.facts.get("resolution_s")
        resolution_s = resolution_s if isinstance(resolution_s, float) else 0.0
        return not (self.is_used and self.has_energy), self.complements, resolution_s


def select(kind: str, devices: Sequence[Candidate[T]]) -> list[Candidate[T]]:
    """Return the devices of a kind that count.

    Devices that complement others count only where these have no energy. A host is one node, so
    that of several meters of it one counts.
    """
    if kind == "node":
        return sorted(devices, key=lambda device: device.quality)[:1]
    own = [one for one in devices if not one.complements]
    others = [one for one in devices if one.complements]
    return own if not others or any(one.has_energy for one in own) else others


class KindEnergy:
    def __init__(self, counted: Sequence[Candidate[Any]]) -> None:
        known = [one for one in counted if one.has_energy]
        self.contains = {kind for one in known for kind in one.contains}
        self.is_shared = any(is_shared_with_jobs(one.kind, one.facts) for one in known)
        has_all = bool(known) and len(known) == len(counted)
        self.is_used = has_all and not self.is_shared and all(one.is_used for one in known)
        self.complements = any(one.complements for one in known)
        self.rank = min((one.rank for one in known), default=0)


def counted_parts(kinds: Mapping[str, KindEnergy]) -> tuple[str, ...]:
    """Return the outermost parts; those that other jobs use count only if there are no others."""
    parts = outermost({name: kinds[name].contains for name in PARTS if name in kinds})
    return tuple(name for name in parts if not kinds[name].is_shared) or parts


def total(kinds: Mapping[str, KindEnergy]) -> tuple[str, ...]:
    """Return the scope of the total energy, from the kinds that have an energy."""
    scope = counted_parts(kinds)
    least = min((kinds[name].rank for name in scope), default=math.inf)
    module, node = kinds.get("module"), kinds.get("node")
    if module is not None and (module.is_used or not scope) and module.rank <= least:
        scope = outermost({name: kinds[name].contains for name in ("module", *scope)})
        least = module.rank
    # A node's meter that only complements others is slower than those of devices.
    if node is not None and node.is_used and node.rank + node.complements <= least:
        return ("node",)
    return scope


def scope_of_windows(
    scopes: Collection[str | None], measured: Collection[str], complete: Collection[str]
) -> tuple[str, ...]:
    """Return the kinds that are the energy of windows together: the outermost that all have.

    ``scopes`` are the windows' own; ``measured`` are the kinds that some of them have an energy of,
    and ``complete`` those that all have.
    """
    inner = {scope for scope in scopes if scope != "node"}
    if not inner:
        return ("node",)
    kinds = (inner.pop() or "").split("+") if len(inner) == 1 else []
    if "module" in kinds and {*kinds} <= {*complete}:
        return tuple(kinds)
    return tuple(part for part in PARTS if part in measured)


def outermost(contains: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return the outermost kinds, which together count everything and nothing twice.

    ``contains`` has the kinds that have an energy, each with those that its devices contain. A node
    contains all.

    >>> outermost({"gpu": (), "cpu": ("dram",), "dram": ()})
    ('gpu', 'cpu')
    >>> outermost({"module": ("gpu", "cpu"), "gpu": (), "cpu": (), "dram": ()})
    ('module', 'dram')
    """
    if "node" in contains:
        return ("node",)
    inside: dict[str, set[str]] = {}
    for kind in (kind for kind in KINDS if kind in contains):
        inside[kind], waiting = set(), [*contains[kind]]
        while waiting:  # what it contains by way of another kind, too
            inner = waiting.pop()
            if inner not in inside[kind]:
                inside[kind].add(inner)
                waiting += contains.get(inner, ())
    kept = list(inside)
    for kind in reversed(inside):
        outer = [other for other in inside if other != kind and kind in inside[other]]
        # Of kinds that claim to contain each other, the first one remains.
        if any(other in kept or other not in inside[kind] for other in outer):
            kept.remove(kind)
    return tuple(kept)
