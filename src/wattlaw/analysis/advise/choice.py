"""Select the recommended option under constraints, with the reason."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from wattlaw.analysis.advise.footprint import Footprint
from wattlaw.analysis.advise.option import Option, Quantity
from wattlaw.analysis.decide.question import Constraints
from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS
from wattlaw.analysis.metrics.result import Caution
from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import duration_text, energy_text, plural


def check_factors(constraints: Constraints, footprint: Footprint | None) -> None:
    """Check that the prices and the intensity that the goal needs are given."""
    factors = footprint or Footprint()
    known = {
        "cost": factors.price_per_kwh is not None or factors.price_per_gpu_hour is not None,
        "carbon": factors.grid_g_per_kwh is not None,
    }
    if not known.get(constraints.minimize or "", True):
        needed = "price or price_per_gpu_hour" if constraints.minimize == "cost" else "grid"
        raise BadInput(f"minimize: given {constraints.minimize}; allowed: together with {needed}")


@dataclass(frozen=True)
class Decision:
    """The recommended option, or None and the nearest one; the reason and warnings.

    ``meets`` is which constraints the option meets; empty without constraints.
    """

    option: Option | None
    reason: str
    nearest: Option | None = None
    warnings: tuple[Caution, ...] = ()
    meets: str = ""


def without_electricity(
    constraints: Constraints, footprint: Footprint | None, energy_is: str | None
) -> tuple[Footprint | None, tuple[Caution, ...]]:
    """Return the factors; those of a cost without known energy are of GPU-hours alone."""
    if constraints.minimize != "cost" or energy_is is not None or footprint is None:
        return footprint, ()
    if None in (footprint.price_per_kwh, footprint.price_per_gpu_hour):
        return footprint, ()
    text = "No energy is known: the cost is that of GPU-hours, electricity is not counted."
    return replace(footprint, price_per_kwh=None), (Caution("electricity-not-counted", text),)


def goal_of(constraints: Constraints, footprint: Footprint | None, *, by_energy: bool) -> str:
    """Return what is minimized, one of ``GOALS``; GPU-hours replace an energy that is not known."""
    goal = constraints.minimize
    if goal is None and (
        constraints.deadline_s is not None or constraints.max_slowdown is not None
    ):
        goal = "energy"
    goal = goal or ("edp" if constraints.energy_budget_j is None else "time")
    has_energy = goal in ("energy", "carbon") or (
        goal == "cost" and footprint is not None and footprint.price_per_kwh is not None
    )
    return "gpu_hours" if has_energy and not by_energy else goal


def goal_text(goal: str, worker: str, *, by_energy: bool) -> str:
    """Return what is minimized in words: ``energy x time``."""
    energy = "energy" if by_energy else f"{worker}-hours"
    texts = {"edp": f"{energy} x time", "gpu_hours": f"{worker}-hours"}
    return texts.get(goal, goal)


def fastest(options: Sequence[Option]) -> Option:
    """Return the fastest option of runs; a predicted one only where there is no other."""
    of_runs = [option for option in options if not option.is_predicted]
    return min(of_runs or options, key=lambda option: option.train_time_s.mean)


def decide(options: Sequence[Option], constraints: Constraints, worker: str) -> Decision:
    """Return the option to recommend; ``worker`` is the noun for a GPU.

    The objective: with a deadline or a maximum slow-down, the least energy that meets all
    constraints; with an energy budget alone, the shortest time; without constraints, the least
    product of energy and time. ``constraints.minimize`` replaces it. If no energy is known,
    GPU-hours replace energy.

    The first of these groups that has an option is used: options of runs whose 95 % upper bounds
    meet deadline and budget; options that ran once, which have no bounds; predicted options whose
    upper bounds meet them; options of runs, then predicted ones of which only the mean does. A
    slow-down is a ratio of means to the fastest option of runs, whether its energy is known or not.
    """
    by_energy = any(option.energy_j for option in options if not option.is_predicted)
    if constraints.energy_budget_j is not None and not by_energy:
        return Decision(
            None, "No energy is known, so the energy budget cannot be checked.",
            min(options, key=lambda option: option.gpu_hours.mean),
        )  # fmt: skip
    usable = [option for option in options if option.energy_j or not by_energy]
    base = fastest(options)
    groups: dict[int, list[Option]] = {}
    for option in usable:
        if (group := _group(option, constraints, base)) is not None:
            groups.setdefault(group, []).append(option)
    phrases = _constraint_phrases(constraints, worker)
    if not groups:
        nearest = min(
            usable,
            key=lambda item: max(q.mean / most for q, most in _bounds(item, constraints, base)),
        )
        known = " with a known energy" if len(usable) < len(options) else ""
        return Decision(None, f"No setting{known} {' and '.join(phrases)}.", nearest)
    group = min(groups)
    goal = goal_of(constraints, options[0].footprint, by_energy=by_energy)
    cost = partial(goal_value, goal, by_energy=by_energy)
    best = min(groups[group], key=lambda item: (cost(item), item.train_time_s.mean, item.gpus))
    text = "Only the mean meets the constraints; the upper bound of its 95 % interval does not."
    warnings = (Caution("only-the-mean-meets", text),) if group in (3, 4) else ()
    name = goal_text(goal, worker, by_energy=by_energy)
    reason = f"least {name} of {plural(len(groups[group]), f'{best.source} setting')}"
    meets = " and ".join(phrases)
    if phrases:
        reason += f", each of which {meets}"
    return Decision(best, reason, None, warnings, f"only its mean {meets}" if warnings else meets)


def as_trained(
    decision: Decision, options: Sequence[Option], constraints: Constraints, worker: str
) -> Decision:
    """Add the numbers of epochs that meet the bounds to the reason of a decision without an option.

    The runs trained different numbers of epochs: a setting may exceed a bound over those of the
    others, and meet it over its own.
    """
    own = [
        replace(item, amount=Quantity(item.epochs_trained)) for item in options
        if item.unit == "epoch" and item.epochs_trained
    ]  # fmt: skip
    found = decide(own, constraints, worker).option if own else None
    if found is None:
        return decision
    limits = [name for name in POWER_SETTINGS if found.setting[name] is not None]
    text = (
        f"{found.label(worker, limits)} would do so over the {found.amount.mean:g} epochs that it "
        f"ran ({duration_text(found.train_time_s.mean)})."
    )
    return replace(decision, reason=f"{decision.reason} {text}")


def goal_value(goal: str, option: Option, *, by_energy: bool) -> float:
    """Return the mean of what is minimized; infinite if it is not known."""
    if goal == "edp":
        energy = option.train_energy_j if by_energy else option.gpu_hours
        return _mean(energy) * option.train_time_s.mean
    quantities = {
        "energy": option.train_energy_j, "time": option.train_time_s, "gpu_hours": option.gpu_hours,
        "cost": option.cost, "carbon": option.co2_kg,
    }  # fmt: skip
    return _mean(quantities[goal])


def meets(option: Option, constraints: Constraints, base: Option) -> bool:
    """Return whether the mean of an option meets the constraints; see ``decide`` for ``base``."""
    return _group(option, constraints, base) is not None


def _group(option: Option, constraints: Constraints, base: Option) -> int | None:
    """Return how certainly an option meets the constraints (0 is best); None if it does not."""
    bounds = _bounds(option, constraints, base)
    if any(quantity.mean > most for quantity, most in bounds):
        return None
    if all(quantity.high is not None and quantity.high <= most for quantity, most in bounds):
        return 2 if option.is_predicted else 0
    if option.repeats == 1:
        return 1
    return 4 if option.is_predicted else 3


def _bounds(option: Option, constraints: Constraints, base: Option) -> list[tuple[Quantity, float]]:
    """Return what is constrained, each with its upper bound; a slow-down is a ratio of means."""
    mean = option.train_time_s.mean
    slowest = base.train_time_s.mean * (1 + (constraints.max_slowdown or 0.0))
    bounds = [
        (option.train_time_s, constraints.deadline_s),
        (option.train_energy_j, constraints.energy_budget_j),
        (Quantity(mean, mean, mean), None if constraints.max_slowdown is None else slowest),
    ]
    return [(quantity, most) for quantity, most in bounds if quantity and most is not None]


def _mean(quantity: Quantity | None) -> float:
    return float("inf") if quantity is None else quantity.mean


def _constraint_phrases(constraints: Constraints, worker: str) -> list[str]:
    """Return the constraints as phrases that follow "no setting" or "each"."""
    phrases = []
    if constraints.deadline_s is not None:
        phrases.append(f"meets the deadline of {duration_text(constraints.deadline_s)}")
    if constraints.energy_budget_j is not None:
        phrases.append(f"uses at most {energy_text(constraints.energy_budget_j)}")
    if constraints.max_slowdown is not None:
        phrases.append(f"is at most {100 * constraints.max_slowdown:g} % slower than the fastest")
    if constraints.max_gpus is not None:
        phrases.append(f"has at most {constraints.max_gpus} {worker}s")
    return phrases


def pareto(options: Sequence[Option]) -> list[Option]:
    """Return the options that no other beats in time and energy, the fastest first.

    If no energy is known, GPU-hours replace it; if only some options have energy, the others are
    excluded. A predicted option counts with its upper bounds, so that it is on the front only where
    it is better in all likelihood.
    """
    by_energy = any(option.energy_j for option in options)
    points = []
    for option in options:
        energy = option.train_energy_j if by_energy else option.gpu_hours
        if energy is not None:
            points.append((_upper(option.train_time_s, option), _upper(energy, option), option))
    front: list[Option] = []
    least = float("inf")
    for _, spent, option in sorted(points, key=lambda point: point[:2]):
        if spent < least:
            front.append(option)
            least = spent
    return sorted(front, key=lambda option: option.train_time_s.mean)


def _upper(quantity: Quantity, option: Option) -> float:
    """Return the mean of an option of runs, or the upper bound of a predicted one."""
    return quantity.high if option.is_predicted and quantity.high else quantity.mean
