"""What is chosen: the option that minimizes the goal among those that meet the bounds."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from wattlaw.analysis.advise.option import PREDICTED, Option, Quantity
from wattlaw.analysis.advise.possible_options import Options
from wattlaw.analysis.metrics.result import Caution, Result, plain
from wattlaw.common.formatting import duration_text, energy_text, number, plural
from wattlaw.study.question import Question

#: An option ties if it is better than the recommended one with more than this probability.
TIE = 0.10
#: The order of options from the fastest: those of runs before predicted ones.
BY_SPEED = attrgetter("is_predicted", "job_time_s.mean")
#: The first group of options of which only the mean meets the bounds.
_ONLY_THE_MEAN = 3


@dataclass(frozen=True)
class Savings(Result):
    """The changes of a job from the baseline to the recommended setting, as shares.

    A negative change is a saving. Each has the bounds of its 95 % interval, if they are known.
    """

    time: Quantity | None
    energy: Quantity | None
    gpu_hours: Quantity | None
    cost: Quantity | None
    carbon: Quantity | None

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, change in vars(self).items():
            values[name] = None if change is None else change.mean
            values[f"{name}_ci"] = None if change is None else change.interval
        return plain(values)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Tie(Result):
    """An option that may be as good as the recommended one, or is probably better."""

    option: Option
    probability_better: float
    probability: float  # to be within the tolerance of the best option
    is_near: bool  # their regrets differ by no more than the tolerance

    @property
    def is_better(self) -> bool:
        return not self.is_near and self.probability_better > 1 - TIE

    def to_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("probability_better", "probability")}
        return self.option.to_dict() | own


@dataclass(frozen=True)
class NextRun(Result):
    """The run that lowers the expected regret of the decision most per GPU-hour.

    The regret is the share by which the recommended setting may miss the best one.
    """

    option: Option
    gpu_hours: float
    expected_regret: float | None = None
    regret_after: float | None = None

    @property
    def is_repeat(self) -> bool:
        return self.option.source not in (PREDICTED, "simulated")

    def to_dict(self) -> dict[str, Any]:
        names = ("gpu_hours", "expected_regret", "regret_after", "is_repeat")
        return plain(self.option.columns | {name: getattr(self, name) for name in names})  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Choice(Result):
    """The recommended option, or None and the nearest one, which exceeds the bounds least.

    ``compared`` are the options to choose from with an energy; if no energy is known, all of them.
    ``eligible`` are those of them that meet the bounds, at least in the mean.
    ``question`` is what was asked of a training, with the goal that is minimized, and a slow-down
    as the longest training.
    ``meets`` is which bounds the option meets, in words; empty without bounds.
    """

    recommended: Option | None
    reason: str
    compared: tuple[Option, ...] = field(repr=False)
    question: Question = field(repr=False)
    goal: str  # what is minimized, in words
    nearest: Option | None = None
    warnings: tuple[Caution, ...] = ()
    meets: str = field(default="", repr=False)
    eligible: tuple[Option, ...] = field(default=(), repr=False)
    #: Of ``certainty``: how sure the recommended option is.
    probability: float | None = None
    ties: tuple[Tie, ...] = ()
    next_measurement: NextRun | None = None
    spread_from: str | None = None  # what the probability is from: repeats | model | decision
    savings: Savings | None = None


def choose(options: Options, question: Question, worker: str) -> tuple[Choice, Choice | None]:
    """Return the choice, and the one if every batch without a known fall is acceptable.

    The latter is None where it has no option, or one that may be recommended anyway. ``worker`` is
    the noun for a GPU.
    """
    choice = choose_of(options.offered, question, worker)
    if not options.sound:
        least = min(
            options.allowed or options.ran, key=lambda item: (item.gpus, item.train_time_s.mean)
        )
        bounds = Question(max_gpus=question.max_gpus, max_global_batch=question.max_global_batch)
        reason = f"No setting {_phrase(bounds, worker)}"
        reason += " and a batch of known quality." if options.allowed else "."
        choice = replace(choice, recommended=None, reason=reason, nearest=least, warnings=())
    possible = [item for item in options.allowed if not item.falls or not item.left_out]
    larger = choose_of(possible, question, worker) if possible else None
    if larger is None or larger.recommended is None or not larger.recommended.left_out:
        return choice, None
    return choice, larger


def choose_of(options: Sequence[Option], question: Question, worker: str) -> Choice:
    """Return the option to recommend.

    The goal: with a deadline or a maximum slow-down, the least energy; with a bound on energy or
    GPU-hours alone, the shortest time; without bounds, the least product of energy and time.
    ``question.minimize`` replaces it. GPU-hours replace an energy that is not known.

    The first of these groups that has an option is used: options of runs whose 95 % upper bounds
    meet deadline and budgets; imported options that ran once and have no bounds; predicted options
    whose upper bounds meet them; options of runs, then predicted ones of which only the mean does.
    Times, energies and bounds are of the whole job where it counts (``Question.is_of_jobs``). A
    slow-down is a ratio of means to the fastest option of runs, whether its energy is known or not.
    """
    by_energy = any(option.energy_j for option in options if not option.is_predicted)
    compared = tuple(option for option in options if option.energy_j or not by_energy)
    is_budget = question.energy_budget_j is not None or question.max_gpu_hours is not None
    default = "time" if is_budget else "edp"
    if question.deadline_s is not None or question.max_slowdown is not None:
        default = "energy"
    goal, prices = question.minimize or default, question.footprint
    has_price = prices is not None and prices.price_per_kwh is not None
    is_of_energy = goal in ("energy", "carbon") or (goal == "cost" and has_price)
    goal = "gpu_hours" if is_of_energy and not by_energy else goal
    hours = f"{worker}-hours"
    texts = {"edp": f"{'energy' if by_energy else hours} x time", "gpu_hours": hours}
    text = texts.get(goal, goal)
    asked = replace(question, minimize=goal, max_slowdown=None, samples=None)
    if question.max_slowdown is not None:
        slowest_s = (1 + question.max_slowdown) * min(options, key=BY_SPEED).job_time_s.mean
        asked = replace(asked, slowest_s=slowest_s)
    if question.energy_budget_j is not None and not by_energy:
        reason = "No energy is known, so the energy budget cannot be checked."
        nearest = min(options, key=lambda option: option.gpu_hours.mean)
        return Choice(None, reason, compared, asked, text, nearest)
    groups: dict[int, list[Option]] = {}  # by how certainly they meet the bounds: 0 is best
    eligible = tuple(
        item for item in compared
        if all(quantity.mean <= most for quantity, most in _bounded(item, asked))
    )  # fmt: skip
    for option in eligible:
        bounds = _bounded(option, question)
        group = _ONLY_THE_MEAN + option.is_predicted
        if all(quantity.high is not None and quantity.high <= most for quantity, most in bounds):
            group = 2 if option.is_predicted else 0
        elif option.repeats == 1 and option.time_s.high is None:
            group = 1
        groups.setdefault(group, []).append(option)
    phrase = _phrase(question, worker)
    if not groups:
        known = " with a known energy" if len(compared) < len(options) else ""
        excess = [
            max(quantity.mean / most for quantity, most in _bounded(option, asked))
            for option in compared
        ]
        nearest = compared[excess.index(min(excess))]
        return Choice(None, f"No setting{known} {phrase}.", compared, asked, text, nearest)

    def order(option: Option) -> tuple[float, float, int]:
        name, factor = goal, 1.0
        if goal == "edp":
            name, factor = "energy" if by_energy else "gpu_hours", option.job_time_s.mean
        names = {"energy": "job_energy_j", "time": "job_time_s", "carbon": "co2_kg"}
        quantity: Quantity | None = getattr(option, names.get(name, name))
        cost = float("inf") if quantity is None else quantity.mean * factor
        return cost, option.job_time_s.mean, option.gpus

    group = min(groups)
    best = min(groups[group], key=order)
    reason = f"least {text} of {plural(len(groups[group]), f'{best.source} setting')}"
    if phrase:
        reason += f", {'each of which' if len(groups[group]) > 1 else 'the only one that'} {phrase}"
    if group < _ONLY_THE_MEAN:
        return Choice(best, reason, compared, asked, text, meets=phrase, eligible=eligible)
    warning = Caution(
        "only-the-mean-meets",
        "Only the mean meets the constraints; the upper bound of its 95 % interval does not.",
    )
    only = f"only its mean {phrase}"
    return Choice(best, reason, compared, asked, text, None, (warning,), only, eligible)


def _bounded(option: Option, question: Question) -> list[tuple[Quantity, float]]:
    bounds = [
        (option.job_time_s, question.deadline_s),
        (option.job_time_s, question.slowest_s),
        (option.job_energy_j, question.energy_budget_j),
        (option.gpu_hours, question.max_gpu_hours),
    ]
    return [(quantity, most) for quantity, most in bounds if quantity and most is not None]


def _phrase(question: Question, worker: str) -> str:
    """Return the bounds as a phrase that follows "no setting" or "each of which"."""
    phrases = []
    if question.deadline_s is not None:
        phrases.append(f"meets the deadline of {duration_text(question.deadline_s)}")
    if question.energy_budget_j is not None:
        phrases.append(f"uses at most {energy_text(question.energy_budget_j)}")
    if question.max_gpu_hours is not None:
        phrases.append(f"uses at most {number(question.max_gpu_hours)} {worker}-hours")
    if question.max_slowdown is not None:
        phrases.append(f"is at most {100 * question.max_slowdown:g} % slower than the fastest")
    if question.max_gpus is not None:
        phrases.append(f"has at most {question.max_gpus} {worker}s")
    if question.max_global_batch is not None:
        phrases.append(f"has a global batch of at most {question.max_global_batch:g}")
    return " and ".join(phrases)


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
        spent = option.job_energy_j if by_energy else option.gpu_hours
        if spent is not None:
            points.append((upper(option.job_time_s, option), upper(spent, option), option))
    front: list[Option] = []
    least = float("inf")
    for _, amount, option in sorted(points, key=lambda point: point[:2]):
        if amount < least:
            front.append(option)
            least = amount
    return tuple(sorted(front, key=lambda option: option.job_time_s.mean))
