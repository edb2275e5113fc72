"""Select the recommended option under constraints, with the reason."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from wattlaw.analysis.advice.option import Option, Quantity
from wattlaw.analysis.footprint import Footprint
from wattlaw.analysis.planning.question import GOALS
from wattlaw.analysis.result import Caution
from wattlaw.errors import BadInput
from wattlaw.formatting import duration_text, energy_text, origin_of, plural


@dataclass(frozen=True)
class Constraints:
    """The constraints that an option must meet; None is no constraint."""

    deadline_s: float | None = None
    max_slowdown: float | None = None  # share of the time of the fastest setting allowed
    energy_budget_j: float | None = None
    max_gpus: int | None = None
    minimize: str | None = None  # one of GOALS

    def __post_init__(self) -> None:
        if self.minimize is not None and self.minimize not in GOALS:
            raise BadInput(f"minimize: given {self.minimize!r}; allowed: {', '.join(GOALS)}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < float("inf"):
                raise BadInput(f"{name}: given {value:g}; allowed: a number of at least {least:g}")
        for name in ("deadline_s", "energy_budget_j"):
            if getattr(self, name) == 0:
                raise BadInput(f"{name}: given 0; allowed: above 0")

    def check_factors(self, footprint: Footprint | None) -> None:
        """Check that the prices and the intensity that the goal needs are given."""
        factors = footprint or Footprint()
        known = {
            "cost": factors.price_per_kwh is not None or factors.price_per_gpu_hour is not None,
            "carbon": factors.grid_g_per_kwh is not None,
        }
        if not known.get(self.minimize or "", True):
            needed = "a price" if self.minimize == "cost" else "the carbon intensity (grid)"
            raise BadInput(f"minimize: given {self.minimize} without {needed}; allowed: with it")


_LEAST = {"deadline_s": 0, "max_slowdown": 0, "energy_budget_j": 0, "max_gpus": 1}


@dataclass(frozen=True)
class Decision:
    """The recommended option, or None and the nearest one; the reason and warnings."""

    option: Option | None
    reason: str
    nearest: Option | None = None
    warnings: tuple[Caution, ...] = ()
    is_sure: bool = False  # it is measured, and its bounds, if it has any, meet the constraints


def decide(options: Sequence[Option], constraints: Constraints, worker: str) -> Decision:
    """Return the option to recommend; ``worker`` is the noun for a GPU.

    The objective: with a deadline or a maximum slow-down, the least energy that meets all
    constraints; with an energy budget alone, the shortest time; without constraints, the least
    product of energy and time. ``constraints.minimize`` replaces it. If no energy is known,
    GPU-hours replace energy.

    The first of these groups that has an option is used: measured options whose 95 % upper bounds
    meet deadline and budget; options measured once, which have no bounds; predicted options whose
    upper bounds meet them; measured, then predicted options of which only the mean does. A
    slow-down is a ratio of means. Options with a quality loss are used only if there is no other.
    """
    allowed = [option for option in options if option.gpus <= (constraints.max_gpus or option.gpus)]
    if not allowed:
        least = min(options, key=lambda option: (option.gpus, option.train_time_s.mean))
        return Decision(
            None, f"Every setting needs more than {constraints.max_gpus} {worker}s.", least
        )
    by_energy = any(option.energy_j for option in allowed if option.measured)
    if constraints.energy_budget_j is not None and not by_energy:
        return Decision(
            None, "No energy was measured, so the energy budget cannot be checked.",
            min(allowed, key=lambda option: option.gpu_hours.mean),
        )  # fmt: skip
    usable = [option for option in allowed if option.energy_j or not by_energy]
    sound = [option for option in usable if not option.falls]
    for candidates in (sound, usable):
        decision = _best(candidates, constraints, by_energy=by_energy, worker=worker)
        if decision is not None and candidates is usable and sound:
            waived = (
                f"No setting {' and '.join(_constraint_phrases(constraints, worker))} at a global "
                "batch without a quality loss. Without that condition: "
            )
            return replace(
                decision, reason=waived + decision.reason[0].lower() + decision.reason[1:]
            )
        if decision is not None:
            return decision
    base = _fastest(sound or usable)
    nearest = min(usable, key=lambda option: _excess(option, constraints, base))
    return Decision(
        None, f"No setting {' and '.join(_constraint_phrases(constraints, worker))}.", nearest
    )


def _best(
    options: Sequence[Option], constraints: Constraints, *, by_energy: bool, worker: str
) -> Decision | None:
    if not options:
        return None
    base = _fastest(options)
    groups: dict[int, list[Option]] = {}
    for option in options:
        if (group := _group(option, constraints, base)) is not None:
            groups.setdefault(group, []).append(option)
    if not groups:
        return None
    group = min(groups)
    cost, goal = _objective(constraints, by_energy=by_energy, worker=worker)
    best = min(groups[group], key=lambda one: (cost(one), one.train_time_s.mean, one.gpus))
    text = "Only the mean meets the constraints; the upper bound of its 95 % interval does not."
    warnings = [Caution("only-the-mean-meets", text)] if group in _MEAN_ONLY else []
    unmeasured = [option for option in groups.get(_SURELY_PREDICTED, []) if best.measured]
    better = min(unmeasured, key=cost, default=best)
    if cost(better) < (1 - _WORTH_MEASURING) * cost(best):
        share = 100 * (1 - cost(better) / cost(best))
        text = (
            f"{better.label(worker)} was not run and is predicted to have {share:.0f} % less "
            f"{goal.partition(' ')[2]}: measure it."
        )
        warnings.append(Caution("better-predicted", text))
    kind = origin_of(best.setting["launcher"]) if best.measured else "predicted"
    reason = f"It has the {goal} of {plural(len(groups[group]), f'{kind} setting')}"
    if phrases := _constraint_phrases(constraints, worker):
        reason += f", each of which {' and '.join(phrases)}"
    if constraints.deadline_s is not None or constraints.energy_budget_j is not None:
        reason += ", with its upper 95 % bound" if group in _SURE else ", by the mean"
    return Decision(best, f"{reason}.", None, tuple(warnings), is_sure=group <= 1)


_SURE, _MEAN_ONLY, _SURELY_PREDICTED = (0, 2), (3, 4), 2
#: A predicted setting that costs less by this share is worth a measurement.
_WORTH_MEASURING = 0.05


def _group(option: Option, constraints: Constraints, base: Option) -> int | None:
    """Return how certainly an option meets the constraints (0 is best); None if it does not."""
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
    measured = [option for option in options if option.measured]
    return min(measured or options, key=lambda option: option.train_time_s.mean)


def _objective(
    constraints: Constraints, *, by_energy: bool, worker: str
) -> tuple[Callable[[Option], float], str]:
    spent = partial(_spent, by_energy=by_energy)
    if constraints.minimize in _GOALS:
        attribute, text = _GOALS[constraints.minimize]
        return lambda option: _mean(getattr(option, attribute)), text
    name = "energy" if by_energy else f"{worker}-hours"
    has_time_limit = constraints.deadline_s is not None or constraints.max_slowdown is not None
    if constraints.minimize == "energy" or (constraints.minimize is None and has_time_limit):
        return spent, f"least {name}" if by_energy else f"fewest {name}"
    if constraints.minimize is None and constraints.energy_budget_j is not None:
        return lambda option: option.train_time_s.mean, "shortest time"
    phrases = "energy-delay product" if by_energy else f"product of {name} and time"
    return lambda option: spent(option) * option.train_time_s.mean, f"least {phrases}"


#: Goals that are a quantity of an option, with their names after "the".
_GOALS = {
    "time": ("train_time_s", "shortest time"), "gpu_hours": ("gpu_hours", "fewest GPU-hours"),
    "cost": ("cost", "least cost"), "carbon": ("co2_kg", "least carbon"),
}  # fmt: skip


def _mean(quantity: Quantity | None) -> float:
    return float("inf") if quantity is None else quantity.mean


def _spent(option: Option, *, by_energy: bool) -> float:
    """Return the mean energy or, where no option has one, the GPU-hours."""
    return _mean(option.train_energy_j if by_energy else option.gpu_hours)


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
    excluded. An option that was not measured counts with its upper bounds, so that it is on the
    front only where it is better in all likelihood.
    """
    by_energy = any(option.energy_j for option in options)
    points = [(_upper(option.train_time_s, option), _upper_spent(option, by_energy), option)
              for option in options]  # fmt: skip
    front: list[Option] = []
    least = float("inf")
    for _, spent, option in sorted(points, key=lambda point: point[:2]):
        if spent < least:
            front.append(option)
            least = spent
    return sorted(front, key=lambda option: option.train_time_s.mean)


def _upper(quantity: Quantity | None, option: Option) -> float:
    """Return the mean of a measured option, or the upper bound of a predicted one."""
    if quantity is None:
        return float("inf")
    return quantity.mean if option.measured or quantity.high is None else quantity.high


def _upper_spent(option: Option, by_energy: bool) -> float:
    return _upper(option.train_energy_j if by_energy else option.gpu_hours, option)
