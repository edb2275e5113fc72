"""Select the recommended option, with the reason."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wattlaw.analysis.advise.offer import Offer, fastest
from wattlaw.analysis.advise.option import Option, Quantity
from wattlaw.analysis.laws.limit_effects import POWER_SETTINGS
from wattlaw.analysis.metrics.result import Caution
from wattlaw.common.formatting import duration_text, energy_text, plural
from wattlaw.study.question import Question


@dataclass(frozen=True)
class Choice:
    """The recommended option, or None and the nearest one; the reason and warnings.

    ``meets`` is which constraints the option meets; empty without constraints.
    """

    option: Option | None
    reason: str
    nearest: Option | None = None
    warnings: tuple[Caution, ...] = ()
    meets: str = ""


@dataclass(frozen=True)
class Chooser:
    """Chooses among options for a question; ``worker`` is the noun for a GPU.

    The objective: with a deadline or a maximum slow-down, the least energy that meets all
    constraints; with an energy budget alone, the shortest time; without constraints, the least
    product of energy and time. ``question.minimize`` replaces it. Without ``by_energy``, GPU-hours
    replace energy.
    """

    question: Question
    worker: str
    by_energy: bool

    @property
    def goal(self) -> str:
        """What is minimized, one of ``GOALS``; GPU-hours replace an energy that is not known."""
        asked, prices = self.question, self.question.footprint
        default = "edp" if asked.energy_budget_j is None else "time"
        if asked.deadline_s is not None or asked.max_slowdown is not None:
            default = "energy"
        goal = asked.minimize or default
        is_of_energy = goal in ("energy", "carbon") or (
            goal == "cost" and prices is not None and prices.price_per_kwh is not None
        )
        return "gpu_hours" if is_of_energy and not self.by_energy else goal

    @property
    def goal_text(self) -> str:
        """What is minimized in words: ``energy x time``."""
        energy = "energy" if self.by_energy else f"{self.worker}-hours"
        texts = {"edp": f"{energy} x time", "gpu_hours": f"{self.worker}-hours"}
        return texts.get(self.goal, self.goal)

    def cost(self, option: Option) -> float:
        """Return the mean of what is minimized; infinite if it is not known."""
        goal, factor = self.goal, 1.0
        if goal == "edp":
            goal, factor = "energy" if self.by_energy else "gpu_hours", option.train_time_s.mean
        quantities = {
            "energy": option.train_energy_j, "time": option.train_time_s,
            "gpu_hours": option.gpu_hours, "cost": option.cost, "carbon": option.co2_kg,
        }  # fmt: skip
        quantity = quantities[goal]
        return float("inf") if quantity is None else quantity.mean * factor

    def choose(self, options: Sequence[Option]) -> Choice:
        """Return the option to recommend.

        The first of these groups that has an option is used: options of runs whose 95 % upper
        bounds meet deadline and budget; options that ran once, which have no bounds; predicted
        options whose upper bounds meet them; options of runs, then predicted ones of which only the
        mean does. A slow-down is a ratio of means to the fastest option of runs, whether its energy
        is known or not.
        """
        if self.question.energy_budget_j is not None and not self.by_energy:
            least = min(options, key=lambda option: option.gpu_hours.mean)
            text = "No energy is known, so the energy budget cannot be checked."
            return Choice(None, text, least)
        usable = [option for option in options if option.energy_j or not self.by_energy]
        base = fastest(options)
        groups: dict[int, list[Option]] = {}
        for option in usable:
            if (group := self._group(option, base)) is not None:
                groups.setdefault(group, []).append(option)
        meets = " and ".join(self._phrases())
        if not groups:
            known = " with a known energy" if len(usable) < len(options) else ""
            nearest = min(
                usable, key=lambda item: max(q.mean / most for q, most in self._bounds(item, base))
            )
            return Choice(None, f"No setting{known} {meets}.", nearest)
        group = min(groups)
        best = min(
            groups[group], key=lambda item: (self.cost(item), item.train_time_s.mean, item.gpus)
        )
        reason = f"least {self.goal_text} of {plural(len(groups[group]), f'{best.source} setting')}"
        if meets:
            reason += f", each of which {meets}"
        if group < 3:
            return Choice(best, reason, meets=meets)
        text = "Only the mean meets the constraints; the upper bound of its 95 % interval does not."
        warnings = (Caution("only-the-mean-meets", text),)
        return Choice(best, reason, None, warnings, f"only its mean {meets}")

    def meets(self, option: Option, base: Option) -> bool:
        """Return whether the mean of an option meets the constraints; ``base`` is the fastest."""
        return self._group(option, base) is not None

    def _group(self, option: Option, base: Option) -> int | None:
        """Return how certainly an option meets the constraints (0 is best); None if not."""
        bounds = self._bounds(option, base)
        if any(quantity.mean > most for quantity, most in bounds):
            return None
        if all(quantity.high is not None and quantity.high <= most for quantity, most in bounds):
            return 2 if option.is_predicted else 0
        if option.repeats == 1:
            return 1
        return 4 if option.is_predicted else 3

    def _bounds(self, option: Option, base: Option) -> list[tuple[Quantity, float]]:
        """Return what is constrained, each with its upper bound; a slow-down is of means."""
        asked, mean = self.question, option.train_time_s.mean
        slowest = None
        if asked.max_slowdown is not None:
            slowest = base.train_time_s.mean * (1 + asked.max_slowdown)
        bounds = [
            (option.train_time_s, asked.deadline_s),
            (option.train_energy_j, asked.energy_budget_j),
            (Quantity(mean, mean, mean), slowest),
        ]
        return [(quantity, most) for quantity, most in bounds if quantity and most is not None]

    def _phrases(self) -> list[str]:
        """Return the constraints as phrases that follow "no setting" or "each"."""
        asked, phrases = self.question, []
        if asked.deadline_s is not None:
            phrases.append(f"meets the deadline of {duration_text(asked.deadline_s)}")
        if asked.energy_budget_j is not None:
            phrases.append(f"uses at most {energy_text(asked.energy_budget_j)}")
        if asked.max_slowdown is not None:
            phrases.append(f"is at most {100 * asked.max_slowdown:g} % slower than the fastest")
        if asked.max_gpus is not None:
            phrases.append(f"has at most {asked.max_gpus} {self.worker}s")
        return phrases

    def as_trained(self, options: Sequence[Option]) -> str:
        """Return for how many epochs a setting meets the bounds, where it does so for its own.

        Where runs trained different numbers of epochs, a setting may exceed a bound over those of
        the others.
        """
        own = [
            replace(item, amount=Quantity(item.epochs_trained))
            for item in options
            if item.unit == "epoch" and item.epochs_trained
        ]
        chooser = replace(self, by_energy=any(item.energy_j for item in own))
        found = chooser.choose(own).option if own else None
        if found is None:
            return ""
        limits = [name for name in POWER_SETTINGS if found.setting[name] is not None]
        return (
            f" {found.label(self.worker, limits)} would do so over the {found.amount.mean:g} "
            f"epochs that it ran ({duration_text(found.train_time_s.mean)})."
        )


def choose(
    offer: Offer, question: Question, worker: str, *, epochs_differ: bool
) -> tuple[Offer, Choice, Choice, Chooser]:
    """Return the offer that was chosen from, the choice, and the one at a larger batch.

    The latter is of the runs if every batch without a known fall is acceptable. It has no option
    where this is a batch that may be recommended anyway.
    """

    def chooser(options: Sequence[Option]) -> Chooser:
        of_runs = (option for option in options if not option.is_predicted)
        return Chooser(question, worker, any(option.energy_j for option in of_runs))

    choice = chooser(offer.offered).choose(offer.offered)
    if not offer.sound:
        least = min(
            offer.allowed or offer.ran, key=lambda item: (item.gpus, item.train_time_s.mean)
        )
        most = f"{question.max_gpus} {worker}s"
        reason = f"Every setting needs more than {most}."
        if offer.allowed:
            reason = f"No setting on at most {most} has a batch of known quality."
        choice = Choice(None, reason, least)
    elif choice.option is None and question.deadline_s is not None and question.max_gpus is None:
        offer = offer.with_predicted(far=True)
        choice = chooser(offer.offered).choose(offer.offered)
    if choice.option is None and epochs_differ:
        text = chooser(offer.sound).as_trained(offer.sound)
        choice = replace(choice, reason=f"{choice.reason}{text}")
    larger = Choice(None, "")
    possible = [item for item in offer.allowed if not item.falls or item in offer.sound]
    if possible:
        found = chooser(possible).choose(possible)
        if found.option is not None and found.option not in offer.sound:
            larger = found
    return offer, choice, larger, chooser(offer.offered)


def pareto(options: Sequence[Option]) -> tuple[Option, ...]:
    """Return the options that no other beats in time and energy, the fastest first.

    If no energy is known, GPU-hours replace it; if only some options have energy, the others are
    excluded. A predicted option counts with its upper bounds, so that it is on the front only where
    it is better in all likelihood.
    """

    def upper(quantity: Quantity, option: Option) -> float:
        return quantity.high if option.is_predicted and quantity.high else quantity.mean

    by_energy = any(option.energy_j for option in options)
    points = []
    for option in options:
        energy = option.train_energy_j if by_energy else option.gpu_hours
        if energy is not None:
            points.append((upper(option.train_time_s, option), upper(energy, option), option))
    front: list[Option] = []
    least = float("inf")
    for _, spent, option in sorted(points, key=lambda point: point[:2]):
        if spent < least:
            front.append(option)
            least = spent
    return tuple(sorted(front, key=lambda option: option.train_time_s.mean))
