"""Which option is recommended under given constraints, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattlaw.analysis.advice.formatting import ENERGY_UNITS, TIME_UNITS, with_unit
from wattlaw.analysis.advice.option import Option, Quantity
from wattlaw.errors import BadInput


@dataclass(frozen=True)
class Constraints:
    """What an answer has to keep; None does not matter. All hold together."""

    deadline_s: float | None = None
    max_slowdown: float | None = None  # share of the time of the fastest setting allowed
    energy_budget_j: float | None = None
    max_gpus: int | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < float("inf"):
                raise BadInput(f"{name}: given {value:g}; allowed: a number of at least {least:g}")
        for name in ("deadline_s", "energy_budget_j"):
            if getattr(self, name) == 0:
                raise BadInput(f"{name}: given 0; allowed: above 0")


_LEAST = {"deadline_s": 0, "max_slowdown": 0, "energy_budget_j": 0, "max_gpus": 1}


@dataclass(frozen=True)
class Decision:
    """The recommended option, or None with the nearest one; why, and what to be warned of."""

    option: Option | None
    reason: str
    nearest: Option | None = None
    warnings: tuple[str, ...] = ()
    is_sure: bool = False  # measured, and not by its mean alone within the constraints


def decide(options: Sequence[Option], constraints: Constraints, worker: str) -> Decision:
    """Return the option to recommend.

    What is best: with a deadline or a greatest slow-down, the least energy that keeps all
    constraints; with an energy budget alone, the fastest; without any, the least product of energy
    and time. Where no energy is known, GPU-hours stand for it.

    Which options count, the first group that has one: measured ones whose 95 % upper bounds keep
    deadline and budget; measured once, which have no bounds; predicted ones whose upper bounds do;
    measured, then predicted ones of which only the mean does. A slow-down is a ratio of means.
    Options at which quality is shown to fall count only if no other does.

    Parameters
    ----------
    options
        Measured and predicted ones.
    constraints
        What to keep.
    worker
        What a GPU is called, in words.
    """
    allowed = [one for one in options if one.gpus <= (constraints.max_gpus or one.gpus)]
    if not allowed:
        least = min(options, key=lambda one: (one.gpus, one.train_time_s.mean))
        return Decision(None, f"No setting has as few as {constraints.max_gpus} {worker}s.", least)
    by_energy = any(one.energy_j for one in allowed if one.measured)
    if constraints.energy_budget_j is not None and not by_energy:
        return Decision(
            None, "No energy was measured, so that no budget can be checked.",
            min(allowed, key=lambda one: one.gpu_hours.mean),
        )  # fmt: skip
    usable = [one for one in allowed if one.energy_j or not by_energy]
    sound = [one for one in usable if not one.falls]
    for candidates in (sound, usable):
        found = _best(candidates, constraints, by_energy=by_energy, worker=worker)
        if found is not None and candidates is usable and sound:
            waived = (
                f"Nothing {' and '.join(_kept(constraints, worker))} at a global batch whose "
                "quality holds; giving that up: "
            )
            return replace(found, reason=waived + found.reason[0].lower() + found.reason[1:])
        if found is not None:
            return found
    base = _fastest(sound or usable)
    nearest = min(usable, key=lambda one: _excess(one, constraints, base))
    return Decision(None, f"Nothing {' and '.join(_kept(constraints, worker))}.", nearest)


def _best(
    options: Sequence[Option], constraints: Constraints, *, by_energy: bool, worker: str
) -> Decision | None:
    if not options:
        return None
    base = _fastest(options)
    groups: dict[int, list[Option]] = {}
    for one in options:
        if (group := _group(one, constraints, base)) is not None:
            groups.setdefault(group, []).append(one)
    if not groups:
        return None
    group = min(groups)
    cost, words = _objective(constraints, by_energy=by_energy, worker=worker)
    found = min(groups[group], key=lambda one: (cost(one), one.train_time_s.mean, one.gpus))
    warnings = []
    if group in _MEAN_ONLY:
        warnings.append(
            "Only the mean keeps the constraints: the upper bound of its 95 % interval does not."
        )
    reason = f"It has the {words} of {len(groups[group])} {_GROUPS[group]} settings"
    if kept := _kept(constraints, worker):
        reason += f" of which each {' and '.join(kept)}"
    if constraints.deadline_s is not None or constraints.energy_budget_j is not None:
        reason += ", with its upper 95 % bound" if group in _SURE else ", by the mean"
    return Decision(found, f"{reason}.", None, tuple(warnings), is_sure=group <= 1)


_SURE, _MEAN_ONLY = (0, 2), (3, 4)
_GROUPS = ("measured", "measured", "predicted", "measured", "predicted")


def _group(option: Option, constraints: Constraints, base: Option) -> int | None:
    """Return how surely an option keeps the constraints (0 is best); None where it does not."""
    if constraints.max_slowdown is not None and not _within(option, base, constraints.max_slowdown):
        return None
    bounded = [
        (option.train_time_s, constraints.deadline_s),
        (option.train_energy_j, constraints.energy_budget_j),
    ]
    checks = [(quantity, most) for quantity, most in bounded if quantity and most is not None]
    if any(quantity.mean > most for quantity, most in checks):
        return None
    bounds = [(quantity.high, most) for quantity, most in checks]
    if all(high is not None and high <= most for high, most in bounds):
        return 0 if option.measured else 2
    if option.measured and option.repeats == 1:
        return 1
    return 3 if option.measured else 4


def _within(option: Option, base: Option, slowdown: float) -> bool:
    return option.train_time_s.mean <= base.train_time_s.mean * (1 + slowdown)


def _fastest(options: Sequence[Option]) -> Option:
    """Return the fastest measured option; predicted ones only where none is measured."""
    measured = [one for one in options if one.measured]
    return min(measured or options, key=lambda one: one.train_time_s.mean)


def _objective(
    constraints: Constraints, *, by_energy: bool, worker: str
) -> tuple[Callable[[Option], float], str]:
    def spent(option: Option) -> float:
        energy: Quantity | None = option.train_energy_j if by_energy else option.gpu_hours
        return float("inf") if energy is None else energy.mean

    name = "energy" if by_energy else f"{worker}-hours"
    if constraints.deadline_s is not None or constraints.max_slowdown is not None:
        return spent, f"least {name}" if by_energy else f"fewest {name}"
    if constraints.energy_budget_j is not None:
        return lambda one: one.train_time_s.mean, "shortest time"
    words = "energy-delay product" if by_energy else f"product of {name} and time"
    return lambda one: spent(one) * one.train_time_s.mean, f"least {words}"


def _excess(option: Option, constraints: Constraints, base: Option) -> float:
    """Return by how much, as a factor, the mean exceeds the constraint that it exceeds most."""
    ratios = [1.0]
    if constraints.deadline_s is not None:
        ratios.append(option.train_time_s.mean / constraints.deadline_s)
    if constraints.energy_budget_j is not None and option.train_energy_j is not None:
        ratios.append(option.train_energy_j.mean / constraints.energy_budget_j)
    if constraints.max_slowdown is not None:
        ratios.append(
            option.train_time_s.mean / base.train_time_s.mean / (1 + constraints.max_slowdown)
        )
    return max(ratios)


def _kept(constraints: Constraints, worker: str) -> list[str]:
    """Return what is kept, in words that go on after "nothing" or "each"."""
    words = []
    if constraints.deadline_s is not None:
        words.append(f"meets the deadline of {with_unit(constraints.deadline_s, TIME_UNITS)}")
    if constraints.energy_budget_j is not None:
        words.append(f"keeps within {with_unit(constraints.energy_budget_j, ENERGY_UNITS)}")
    if constraints.max_slowdown is not None:
        words.append(f"is at most {100 * constraints.max_slowdown:g} % slower than the fastest")
    if constraints.max_gpus is not None:
        words.append(f"has at most {constraints.max_gpus} {worker}s")
    return words


def pareto(options: Sequence[Option]) -> list[Option]:
    """Return the options that no other beats in time and energy, the fastest first.

    Where no energy is known GPU-hours stand for it; where only some have energy, the others are
    not among them.
    """
    by_energy = any(one.energy_j for one in options)
    front: list[Option] = []
    least = float("inf")

    def spent(one: Option) -> float:
        energy = one.train_energy_j if by_energy else one.gpu_hours
        return float("inf") if energy is None else energy.mean

    for one in sorted(options, key=lambda one: (one.train_time_s.mean, spent(one))):
        if spent(one) < least:
            front.append(one)
            least = spent(one)
    return front
