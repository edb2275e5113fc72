"""The runs that are made before a decision is declared: what it refers to has to be measured."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from wattlaw.analysis.decide.candidates import Candidate
from wattlaw.study.setting import Setting, layout_of

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
        if any(_shows(run, setting) for run in self.seen):
            return None
        runs = [item for item in self.hours if _shows(item.setting, setting)]
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
        loads, places = {_load(item) for item in self.seen}, {_place(item) for item in self.seen}
        near = {_load(item) for item in _neighbours(leading, choices)} - loads
        other = [item for item in _other_places(leading, choices) if _place(item) not in places]
        return [
            item
            for item, hours in self.hours.items()
            if (_load(item.setting) in near and hours <= _CHEAP_NEIGHBOUR * self.total)
            or (item.setting in other and hours <= _CHEAP_PLACEMENT * self.total)
        ]


def _shows(run: Setting, setting: Setting) -> bool:
    is_near = 1 / _GPU_FACTOR <= run.gpus / setting.gpus <= _GPU_FACTOR
    both_communicate = (run.gpus > 1) == (setting.gpus > 1)
    return is_near and both_communicate and _load(run) == _load(setting)


def _load(setting: Setting) -> tuple[object, ...]:
    axes = (getattr(setting, name) for name in _AXES)
    return (*axes, setting.gradient_accumulation, setting.precision, layout_of(setting))


def _place(setting: Setting) -> object:
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
