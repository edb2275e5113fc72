"""The runs that a decision needs: those that come first, and those before it is declared.

The first ones have information that no others have. What a decision refers to is checked.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from wattlaw.analysis.decide.evidence import Candidate
from wattlaw.analysis.predict.observation import Floats
from wattlaw.study.setting import Setting, layout_of

#: Distinct settings that are measured first where they are cheap: each has at most this share of
#: the work of all runs.
_FEWEST, _FREE = 16, 0.001
#: Batches whose ends differ by more than this factor are measured in the middle too.
_WIDE = 8
#: A repeat that has at most this share of the work of all runs is made for the noise that it shows.
_CHEAP_REPEAT = 0.05
#: The first layout has at least this chance to fit into memory.
_LIKELY_TO_FIT = 0.5
#: A run shows a setting with equal load on at most this many times as many GPUs, or as few; one of
#: a single GPU, which communicates with nobody, shows no other.
_GPU_FACTOR = 2.0
#: A setting is measured itself where that takes at most this share of the GPU-hours of all runs:
#: the model's error is the most favourable for the setting that looks the best. The others are
#: those of neighbours with a batch or limit that no run has shown (kernels may suit one batch and
#: not another), and of neighbours on other GPUs of which no run has shown the placement.
_CHEAP, _CHEAP_NEIGHBOUR, _CHEAP_PLACEMENT = 0.03, 0.06, 0.02
#: A neighbour's batch differs by this factor at least: batches between are much like the leading.
_BATCH_FACTOR = 1.5
#: The axes of what a GPU does, on however many GPUs.
_AXES = ("local_batch", "power_limit_w", "clock_limit_mhz")


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


@dataclass(frozen=True)
class Checks:
    """``hours`` are those of each candidate, and ``total`` those of all runs, with those made.

    A job that is not ``is_modelled`` shows no setting by the run of another.
    """

    seen: Sequence[Setting]
    hours: Mapping[Candidate, float]
    total: float
    is_modelled: bool = True

    def of(self, setting: Setting) -> list[Candidate] | None:
        """Return the runs that would show a setting, the best first; None if it needs none."""
        if setting in self.seen:
            return None
        own = [item for item in self.hours if item.setting == setting]
        cheap = [item for item in own if self.hours[item] <= _CHEAP * self.total]
        if cheap or not self.is_modelled:
            return cheap or own
        if any(shows(run, setting) for run in self.seen):
            return None
        runs = [item for item in self.hours if shows(item.setting, setting)]
        return sorted(runs, key=lambda item: self.hours[item])

    def before(
        self,
        leading: Sequence[Setting],
        choices: Sequence[Setting],
        able: Collection[Candidate],
    ) -> tuple[list[Candidate] | None, set[Candidate]]:
        """Return the runs of which one is needed before deciding for the first setting.

        It is None if none is. All that are ``leading`` have to be shown. Also those of the ``able``
        runs that are useful then.
        """
        runs = map(self.of, leading)
        needed = next((item for item in runs if item is not None), None)
        useful = {*(needed or ()), *self.of_neighbours(leading[0], choices)}
        return needed, useful.intersection(able)

    def cost(self, setting: Setting) -> float:
        """Return the GPU-hours of the run that a setting needs; infinite if there is none."""
        runs = self.of(setting)
        return 0.0 if runs is None else min(map(self.hours.__getitem__, runs[:1]), default=inf)

    def of_neighbours(self, leading: Setting, choices: Sequence[Setting]) -> list[Candidate]:
        """Return cheap runs that show neighbours of which none has: a load on however many GPUs."""
        loads, places = (
            {_load(item) for item in self.seen},
            {_placement(item) for item in self.seen},
        )
        near = {_load(item) for item in _neighbours(leading, choices)} - loads
        other = [item for item in _other_places(leading, choices) if _placement(item) not in places]
        return [
            item
            for item, hours in self.hours.items()
            if (_load(item.setting) in near and hours <= _CHEAP_NEIGHBOUR * self.total)
            or (item.setting in other and hours <= _CHEAP_PLACEMENT * self.total)
        ]


def shows(run: Setting, setting: Setting) -> bool:
    """Whether a run at one setting is near enough to be certain of the other."""
    is_near = 1 / _GPU_FACTOR <= run.gpus / setting.gpus <= _GPU_FACTOR
    both_communicate = (run.gpus > 1) == (setting.gpus > 1)
    return is_near and both_communicate and _load(run) == _load(setting)


def _load(setting: Setting) -> tuple[object, ...]:
    axes = (getattr(setting, name) for name in _AXES)
    return (*axes, setting.gradient_accumulation, setting.precision, layout_of(setting))


def _placement(setting: Setting) -> object:
    return setting.gpus_per_node or setting.gpus


def _other_places(leading: Setting, choices: Sequence[Setting]) -> Iterator[Setting]:
    def distance(other: Setting) -> tuple[int, int]:
        nodes = abs((leading.nodes or 0) - (other.nodes or 0))
        return abs(leading.gpus - other.gpus), nodes

    same = [item for item in choices if _load(item) == _load(leading)]
    for sign in (-1, 1):
        others = [item for item in same if sign * item.gpus > sign * leading.gpus]
        yield from sorted(others, key=distance)[:1]


def _neighbours(leading: Setting, choices: Sequence[Setting]) -> Iterator[Setting]:
    """Yield the settings that have the next smaller or larger batch or limit, else the same."""
    for name in _AXES:
        same = {name: getattr(leading, name)}
        values = {
            getattr(item, name) or inf: item for item in choices if replace(item, **same) == leading
        }
        here = getattr(leading, name) or inf
        apart = _BATCH_FACTOR if name == "local_batch" else 1.0
        smaller = [value for value in values if value * apart <= here and value != here]
        larger = [value for value in values if value >= here * apart and value != here]
        yield from (values[value] for value in (*sorted(smaller)[-1:], *sorted(larger)[:1]))
