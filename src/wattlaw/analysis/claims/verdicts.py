"""What a claim is, and how numbers with errors become a verdict.

Every criterion is a range in which an effect has to lie, stated before the data are looked at.

- *supported*: one-sided tests at 5 % put the effect inside the range. For a claim of no effect,
  whose range is a margin around zero, these are the two one-sided tests of equivalence (Schuirmann
  1987, J. Pharmacokinetics and Biopharmaceutics 15, 657-680).
- *contradicted*: a one-sided test puts the effect outside.
- *not decidable*: neither, or what the claim is about was not measured.

A claim about several workloads is about every one of them: it is contradicted by one, and
supported if all that could be tested support it. Supporting needs no correction for the number of
tests, since all must agree (intersection-union; Berger 1982, Technometrics 24, 295-300);
contradicting does, and each test is made at 5 % over their number (Bonferroni). For a claim that
something differs somewhere, it is the other way round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from scipy import special

from wattlaw.analysis.levels import ERROR
from wattlaw.analysis.result import Result, plain
from wattlaw.errors import Refused

SUPPORTED, CONTRADICTED, NOT_DECIDABLE = "supported", "contradicted", "not decidable"
MIT, KIT = "mit-2022", "kit-2025"
#: So many workloads are told in the evidence of a claim; its parts have all.
_TOLD = 3

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Effect:
    """An estimate, its standard error, and the degrees of freedom of Student's t.

    ``about`` says in words what the error is for, where it is not for settings like these.

    Raises
    ------
    Refused
        Nothing says how sure the estimate is.
    """

    estimate: float
    se: float
    df: float
    about: str = ""

    def __post_init__(self) -> None:
        if self.df < 1 or not math.isfinite(self.estimate) or not math.isfinite(self.se):
            raise Refused("nothing tells how sure the numbers are: measure repeats")

    def bounds(self, level: float) -> tuple[float, float]:
        """Return the two one-sided bounds at ``level``: together an interval at 1 - 2 level."""
        half = float(special.stdtrit(self.df, 1 - level)) * self.se
        return self.estimate - half, self.estimate + half


class Check(Protocol):
    """One test of a claim on one workload."""

    def verdict(self, support: float, contradict: float) -> str:
        """Return the verdict at these two levels."""

    def evidence(self) -> str:
        """Return what was found, with numbers."""

    def numbers(self) -> Numbers:
        """Return the numbers by name."""


@dataclass(frozen=True)
class Within:
    """The effect has to lie between ``low`` and ``high``.

    ``show`` makes of the effect (often a logarithm or an exponent) what is told, and rises with it.
    """

    name: str  # of the number
    label: str  # in words
    effect: Effect
    low: float = -math.inf
    high: float = math.inf
    show: Callable[[float], float] = float
    shape: str = "{:.3g}"

    def verdict(self, support: float, contradict: float) -> str:
        """Return the verdict at these two levels."""
        low, high = self.effect.bounds(support)
        if self.low <= low and high <= self.high:
            return SUPPORTED
        low, high = self.effect.bounds(contradict)
        return CONTRADICTED if low > self.high or high < self.low else NOT_DECIDABLE

    def evidence(self) -> str:
        """Return the effect with its 90 % interval."""
        low, high = self.effect.bounds(ERROR)
        told = [self.shape.format(self.show(value)) for value in (self.effect.estimate, low, high)]
        about = f", {self.effect.about}" if self.effect.about else ""
        return f"{self.label}: {told[0]} (90 % interval {told[1]} to {told[2]}{about})"

    def numbers(self) -> Numbers:
        """Return the effect and its 90 % interval, as shown."""
        low, high = self.effect.bounds(ERROR)
        told = (self.effect.estimate, low, high)
        names = (self.name, f"{self.name}_low", f"{self.name}_high")
        return {name: plain(self.show(value)) for name, value in zip(names, told, strict=True)}


@dataclass(frozen=True)
class Outside:
    """The effect has to lie outside of a range."""

    inside: Within

    def verdict(self, support: float, contradict: float) -> str:
        """Return the verdict at these two levels."""
        turned = {SUPPORTED: CONTRADICTED, CONTRADICTED: SUPPORTED}
        found = self.inside.verdict(contradict, support)
        return turned.get(found, found)

    def evidence(self) -> str:
        """Return the effect with its 90 % interval."""
        return self.inside.evidence()

    def numbers(self) -> Numbers:
        """Return the effect and its 90 % interval, as shown."""
        return self.inside.numbers()


@dataclass(frozen=True)
class Tested:
    """What another analysis has tested: supported or not, else contradicted by a p value."""

    label: str
    holds: bool
    contradicting_p: float | None = None  # of the test that contradicts; None where there is none
    values: Mapping[str, Any] = field(default_factory=dict)

    def verdict(self, support: float, contradict: float) -> str:  # noqa: ARG002
        """Return the verdict at these two levels."""
        if self.holds:
            return SUPPORTED
        against = self.contradicting_p is not None and self.contradicting_p < contradict
        return CONTRADICTED if against else NOT_DECIDABLE

    def evidence(self) -> str:
        """Return what was found."""
        return self.label

    def numbers(self) -> Numbers:
        """Return the numbers by name."""
        return dict(self.values)


@dataclass(frozen=True)
class Case:
    """What one workload has to say to a claim: tests that all must agree, or why there are none."""

    workload: str
    label: str
    checks: tuple[Check, ...] = ()
    counted: str = ""
    refusal: str | None = None


@dataclass(frozen=True)
class WorkloadVerdict(Result):
    """The verdict of one workload."""

    workload: str
    label: str
    verdict: str
    evidence: str
    numbers: Numbers


@dataclass(frozen=True)
class Claim(Result):
    """A published finding, and what the data say to it."""

    properties = ("numbers",)
    rows_field = "workloads"

    name: str
    claim: str
    study: str
    criterion: str
    verdict: str
    evidence: str
    workloads: tuple[WorkloadVerdict, ...]

    @property
    def numbers(self) -> Numbers:
        """Return the numbers of each workload, by its label."""
        return {part.label: part.numbers for part in self.workloads if part.numbers}


@dataclass(frozen=True)
class ClaimDefinition:
    """A published finding, and the criterion for it.

    ``needs`` says what would have to be measured where nothing can be tested; ``remark`` is added
    to every evidence.
    """

    name: str
    claim: str
    study: str
    criterion: str
    needs: str
    about: Literal["every", "some"] = "every"
    remark: str = ""

    def evaluate(self, cases: Sequence[Case]) -> Claim:
        """Return the claim with the verdicts of the cases, and that of all together."""
        tests = max(1, sum(len(one.checks) for one in cases))
        levels = (ERROR, ERROR / tests) if self.about == "every" else (ERROR / tests, ERROR)
        parts = tuple(_part(one, *levels) for one in cases)
        tested = [part for part, one in zip(parts, cases, strict=True) if one.checks]
        verdict = _overall([part.verdict for part in tested], self.about)
        words = [self._summary(parts, tested, verdict), self.remark]
        return Claim(
            self.name, self.claim, self.study, self.criterion, verdict,
            " ".join(word for word in words if word), parts,
        )  # fmt: skip

    def _summary(
        self, parts: Sequence[WorkloadVerdict], tested: Sequence[WorkloadVerdict], verdict: str
    ) -> str:
        if not parts:
            return f"Nothing to test: {self.needs}."
        if not tested:
            return f"Nothing could be tested: {_listed(parts)}. Needed: {self.needs}."
        telling = [part for part in tested if part.verdict == verdict]
        words = _listed(telling)
        if len(tested) > 1:
            words = f"{len(telling)} of {len(tested)} {verdict}: {words}"
        if verdict == NOT_DECIDABLE:
            words += ". More repeats or a wider range would have to be measured"
        untested = len(parts) - len(tested)
        return f"{words}. {untested} more could not be tested." if untested else f"{words}."


def _part(one: Case, support: float, contradict: float) -> WorkloadVerdict:
    if not one.checks:
        return WorkloadVerdict(
            one.workload, one.label, NOT_DECIDABLE, one.refusal or "nothing measured", {}
        )
    verdicts = [check.verdict(support, contradict) for check in one.checks]
    numbers = {name: value for check in one.checks for name, value in check.numbers().items()}
    words = ", ".join(check.evidence() for check in one.checks)
    counted = f"; {one.counted}" if one.counted else ""
    return WorkloadVerdict(
        one.workload, one.label, _overall(verdicts, "every"), words + counted, numbers
    )


def _overall(verdicts: Sequence[str], about: Literal["every", "some"]) -> str:
    decisive, unanimous = (
        (CONTRADICTED, SUPPORTED) if about == "every" else (SUPPORTED, CONTRADICTED)
    )
    if decisive in verdicts:
        return decisive
    return unanimous if verdicts and set(verdicts) == {unanimous} else NOT_DECIDABLE


def _listed(parts: Sequence[WorkloadVerdict]) -> str:
    words = [f"{part.label}: {part.evidence}" for part in parts[:_TOLD]]
    more = len(parts) - len(words)
    return "; ".join([*words, f"and {more} more"] if more else words)
