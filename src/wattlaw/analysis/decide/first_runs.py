"""The runs that come first, because no other runs have their information."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from wattlaw.analysis.decide.candidates import Candidate
from wattlaw.analysis.predict.observation import Floats
from wattlaw.study.setting import Setting

#: Distinct settings that are measured first where they are cheap: each has at most this share of
#: the work of all runs.
_FEWEST, _FREE = 16, 0.001
#: Batches whose ends differ by more than this factor are measured in the middle too.
_WIDE = 8
#: A repeat that has at most this share of the work of all runs is made for the noise that it shows.
_CHEAP_REPEAT = 0.05
#: The first layout has at least this chance to fit into memory.
_LIKELY_TO_FIT = 0.5


def first_layouts(
    possible: Sequence[Candidate], seen: Sequence[Setting], chances: Mapping[Setting, float]
) -> list[Candidate]:
    """Return the layouts to try until one has run: the least model parallelism that may fit.

    It is the usual rule: sharded states, and the largest micro-batch. ``chances`` are those to fit.
    """

    def rank(item: Candidate) -> tuple[float, ...]:
        setting, chance = item.setting, chances[item.setting]
        sharded = setting.sharding != "none"
        unlikely = 0.0 if chance >= _LIKELY_TO_FIT else 1 - chance
        size = setting.gpus, setting.model_gpus, setting.tp, -(setting.micro_batch or 0.0)
        return (unlikely, *size, not sharded)

    return [] if seen else sorted(possible, key=rank)


def first_runs(possible: Sequence[Candidate], seen: Sequence[Setting]) -> list[Candidate]:
    """Return the cheapest runs with information that no others have: the ends of each axis.

    Of a wide range of batches the middle one too: small batches take the time of launching kernels,
    and large ones that of computing. Clocks are relative to the highest that was locked, so that
    both ends are needed. Where a study has repeats, one of them shows the noise of runs.
    """
    known = [*(item.setting for item in possible), *seen]
    kinds: list[Callable[[Setting], bool]] = [lambda item: not _limits(item)]
    batches = sorted({item.local_batch for item in known if item.local_batch})
    caps = sorted({item.power_limit_w for item in known if item.power_limit_w})
    clocks = sorted({item.clock_limit_mhz for item in known if item.clock_limit_mhz})
    is_wide = batches[-1:] > [_WIDE * value for value in batches[:1]]
    middle = batches[len(batches) // 2 :][: int(is_wide)]
    kinds += [partial(_has, "local_batch", value) for value in batches[:1] + batches[-1:] + middle]
    kinds += [partial(_has, "clock_limit_mhz", value) for value in clocks[-1:] + clocks[:1]]
    kinds += [partial(_has, "power_limit_w", value) for value in caps[:1]]
    kinds += [lambda item: item.gpus > 1, lambda item: (item.nodes or 1) > 1]
    order = sorted(possible, key=_size)
    first: list[Candidate] = []
    for shows in kinds:
        if not any(shows(item) for item in (*seen, *(each.setting for each in first))):
            first += [item for item in order if shows(item.setting)][:1]
    works = np.array([item.setting.samples * item.steps for item in order])
    if seen and len(set(seen)) == len(seen):  # how much repeats differ
        first += [item for item in _up_to(_CHEAP_REPEAT, order, works) if item.setting in seen][:1]
    return [*first, *_spread(order, works, [*seen, *(item.setting for item in first)])]


def _up_to(share: float, order: Sequence[Candidate], works: Floats) -> list[Candidate]:
    if not works.any():  # the steps of runs are not known
        return []
    limit = share * works.sum()
    return [item for item, work in zip(order, works, strict=True) if work <= limit]


def _spread(
    order: Sequence[Candidate], works: Floats, seen: Sequence[Setting]
) -> Iterator[Candidate]:
    """Yield cheap runs, each as different as possible: they show how smooth the error is."""
    cheap = _up_to(_FREE, order, works)
    places = np.array([_place(item.setting) for item in cheap])
    known = [_place(item) for item in dict.fromkeys(seen)]
    while cheap and len(known) < _FEWEST:
        apart = np.abs(places[:, None] - known).sum(2).min(1)
        if apart.max() <= 0:
            return
        chosen = int(apart.argmax())
        known.append(places[chosen])
        yield cheap[chosen]


def _place(setting: Setting) -> Floats:
    """Return where a setting is among others; what is twice as much is 1 apart."""
    amounts = (
        setting.gpus, setting.nodes or setting.gpus, setting.local_batch or 1.0,
        setting.power_limit_w or 1e3, setting.clock_limit_mhz or 1e4,
    )  # fmt: skip
    return np.asarray(np.log2(np.array(amounts, dtype=float)))


def _has(name: str, value: float, setting: Setting) -> bool:
    return bool(getattr(setting, name) == value)


def _limits(setting: Setting) -> int:
    return (setting.power_limit_w is not None) + (setting.clock_limit_mhz is not None)


def _size(candidate: Candidate) -> tuple[float, ...]:
    setting = candidate.setting
    limits = (setting.power_limit_w or np.inf, setting.clock_limit_mhz or np.inf)
    return (
        setting.gpus, setting.nodes or 1, _limits(setting), -min(limits),
        setting.local_batch or 0.0,
    )  # fmt: skip
