"""The settings to predict: what the caller names, and otherwise what most runs have."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import pairwise, product
from types import MappingProxyType
from typing import Any

from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.common.errors import BadInput
from wattlaw.study.setting import LAYOUT, LAYOUT_NAMES, Setting, layout_of

#: A power limit and a clock limit.
Limit = tuple[float | None, ...]
#: Settings that a baseline may name.
BASELINE = ("gpus", "nodes", "local_batch", "global_batch", *LIMITS, *LAYOUT_NAMES)
#: Without GPU counts, predictions go up to this multiple of the largest measured one.
_REACH = 4


def usual_values(settings: Sequence[Setting]) -> dict[str, Any]:
    """Return the batch (``local_batch`` or ``global_batch``), limits and so on of most settings.

    The batch is the global one if more GPU counts share one than share a local one.
    """
    names = ("precision", "gradient_accumulation", *LIMITS)
    values = {}
    for name in names:
        listed = [getattr(item, name) for item in settings]
        values[name] = max(dict.fromkeys(listed), key=listed.count)  # the first of equally frequent
    best: dict[str, tuple[int, float | None]] = {}
    for name in ("local_batch", "global_batch"):
        gpus_of: dict[float, set[int]] = {}
        for item in settings:
            if (batch := getattr(item, name)) is not None:
                gpus_of.setdefault(batch, set()).add(item.gpus)
        most = max(gpus_of, key=lambda batch: len(gpus_of[batch]), default=None)
        best[name] = (0 if most is None else len(gpus_of[most]), most)
    is_global = best["global_batch"][0] > best["local_batch"][0]
    kept = "global_batch" if is_global else "local_batch"
    return values | {kept: best[kept][1]}


def combinations(
    measured: Sequence[Setting],
    node_gpus: int | None,
    gpus: Sequence[int] = (),
    *,
    nodes: Sequence[int] = (),
    gpus_per_node: int | None = None,
    local_batch: Sequence[float] = (),
    global_batch: Sequence[float] = (),
    power_limit_w: Sequence[float | None] = (),
    clock_limit_mhz: Sequence[float | None] = (),
    layout: Mapping[str, Sequence[Any]] = MappingProxyType({}),
) -> list[Setting]:
    """Return all combinations of values.

    What is not named has the value of most measured settings (``usual_values``); GPU counts are the
    measured ones and their doublings up to four times the largest; nodes of ``node_gpus`` GPUs are
    the fewest. ``layout`` has values of ``LAYOUT`` and ``micro_batch``; of its combinations, those
    that cannot exist are left out.

    ``BadInput``: Both batches are given, a global batch cannot be divided by the GPUs, or a value
    is out of its range.
    """
    if local_batch and global_batch:
        raise BadInput("given local_batch and global_batch; allowed: one of them")
    usual = usual_values(measured)
    rule = "global_batch" if global_batch else "local_batch"
    batches: Sequence[float | None] = global_batch or local_batch
    if not batches:
        rule = "global_batch" if "global_batch" in usual else "local_batch"
        batches = [usual[rule]]
    layouts = _layouts(measured, layout)
    on_nodes: Sequence[int | None] = nodes or [None]
    settings = []
    for count, on, batch, watts, mhz, shared in product(
        gpus or doublings(item.gpus for item in measured),
        on_nodes,
        batches,
        power_limit_w or [usual["power_limit_w"]],
        clock_limit_mhz or [usual["clock_limit_mhz"]],
        layouts,
    ):
        local = batch if rule == "local_batch" or batch is None else batch / count
        if local is not None and local != int(local) and not shared:
            if not gpus:
                continue
            given = "given" if global_batch else "the runs have"
            raise BadInput(
                f"global_batch: {given} {batch:g} for {count} GPUs; allowed: a multiple of them"
            )
        if on is not None and gpus_per_node is not None and count > on * gpus_per_node:
            raise BadInput(
                f"nodes: given {on} of {gpus_per_node} GPUs for {count} GPUs; allowed: at "
                f"least {math.ceil(count / gpus_per_node)}"
            )
        values = {"precision": usual["precision"], "local_batch": local, "power_limit_w": watts,
                  "clock_limit_mhz": mhz}  # fmt: skip
        micro = shared.get("micro_batch")
        sizes = {name: value for name, value in shared.items() if name != "micro_batch"}
        values["gradient_accumulation"] = 1 if micro else usual["gradient_accumulation"]
        # Not every GPU count can have the layout of most settings.
        is_tried = layout or (sizes and not gpus)
        with suppress(BadInput) if is_tried else nullcontext():
            setting = placed(count, on, gpus_per_node or node_gpus, **values, **sizes)
            setting = setting.in_micro_batches(micro) if micro else setting
            if (setting.micro_batch or 0) % 1:
                raise BadInput(f"global_batch: given {batch:g}; allowed: whole micro-batches")
            settings.append(setting)
    if layout and not settings:
        raise BadInput("layout: none of its combinations can exist with these GPUs and batches")
    return settings


def _layouts(
    measured: Sequence[Setting], given: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the layout of most settings, with all combinations of what is given."""
    if unknown := given.keys() - {*LAYOUT_NAMES}:
        allowed = ", ".join(LAYOUT_NAMES)
        raise BadInput(f"layout: unknown name {min(unknown)!r}; allowed: {allowed}")
    seen = [tuple((name, getattr(item, name)) for name in LAYOUT) for item in measured]
    defaults = Setting(1)
    most = {k: v for k, v in max(dict.fromkeys(seen), key=seen.count) if v != getattr(defaults, k)}
    return [most | dict(zip(given, values, strict=True)) for values in product(*given.values())]


def baseline(
    values: Mapping[str, Any], measured: Sequence[Setting], node_gpus: int | None
) -> Setting:
    """Return the setting that predictions are compared with.

    ``BadInput``: A name is not in ``BASELINE``, or the GPUs are missing.
    """
    if unknown := set(values) - {*BASELINE}:
        raise BadInput(
            f"baseline: unknown setting {min(unknown)!r}; allowed: {', '.join(BASELINE)}"
        )
    if values.get("gpus") is None:
        raise BadInput("baseline: gpus is missing; allowed: such as gpus=4,global_batch=256")
    lists = {name: [value] for name, value in values.items() if value is not None}
    layout = {name: lists.pop(name) for name in LAYOUT_NAMES if name in lists}
    [setting] = combinations(measured, node_gpus, layout=layout, **lists)  # type: ignore[arg-type]
    return setting


def doublings(counts: Iterable[int], reach: float = _REACH) -> list[int]:
    """Return counts and their doublings, up to ``reach`` times the largest.

    Examples
    --------
    >>> doublings([1, 3])
    [1, 2, 3, 4, 6, 8, 12]
    """
    distinct = {*counts}
    top = reach * max(distinct)
    for count in tuple(distinct):
        while (count := 2 * count) <= top:
            distinct.add(count)
    return sorted(distinct)


def placed(gpus: int, nodes: int | None, node_gpus: int | None, **values: Any) -> Setting:
    """Return a setting on so many nodes; without a number, on the fewest of ``node_gpus`` GPUs."""
    if nodes is None and node_gpus is not None:
        return Setting.packed(gpus, node_gpus, **values)
    return Setting(gpus, nodes=nodes, **values)


def local_batches(measured: Sequence[Setting], gpus: int) -> list[float | None]:
    """Return batches of a GPU: the measured local and global ones, and doublings between them.

    GPUs that share a copy of the model may have a part of a sample; then, only global ones.
    """
    batches: dict[float | None, None] = {}
    if any(item.model_gpus > 1 for item in measured):
        whole = dict.fromkeys(item.global_batch for item in measured)
        return [batch and batch / gpus for batch in whole]
    for item in measured:
        for batch in (item.local_batch, item.global_batch and item.global_batch / gpus):
            if batch is None or (batch >= 1 and batch == int(batch)):
                batches[batch] = None
    known = sorted(batch for batch in batches if batch is not None)
    for low, high in pairwise(known):
        between = low
        while (between := 2 * between) < high:
            batches[between] = None
    return list(batches)


def variants(measured: Sequence[Setting], most: int) -> list[dict[str, Any]]:
    """Return what settings that did not run may have of precision, layout and micro-batches.

    That is what ran; where layouts differ, also each combination of their values, unless these are
    more than ``most``.
    """
    if len(set(map(layout_of, measured))) == 1 and measured[0].model_gpus == 1:
        pairs = dict.fromkeys((item.precision, item.gradient_accumulation) for item in measured)
        same = {name: getattr(measured[0], name) for name in LAYOUT}
        return [same | {"precision": one, "gradient_accumulation": parts} for one, parts in pairs]
    names = ("precision", *LAYOUT_NAMES)
    values = [dict.fromkeys(getattr(item, name) for item in measured) for name in names]
    rows = dict.fromkeys(tuple(getattr(item, name) for name in names) for item in measured)
    if math.prod(map(len, values)) <= most:
        rows |= dict.fromkeys(product(*values))
    return [dict(zip(names, row, strict=True)) for row in rows]


def halfway_limits(limits: Sequence[Limit]) -> Iterator[Limit]:
    """Yield limits half-way between neighbours that differ in one limit alone."""
    for place in range(len(LIMITS)):
        by_other: dict[float | None, list[float]] = {}
        for limit in limits:
            if (value := limit[place]) is not None:
                by_other.setdefault(limit[1 - place], []).append(value)
        for other, values in by_other.items():
            for low, high in pairwise(sorted(values)):
                middle = float(round((low + high) / 2))
                yield (middle, other) if place == 0 else (other, middle)
