"""What a claim is, and how numbers with errors become a verdict.

Every criterion is a range in which an effect has to lie, stated before the data are looked at.

- *supported*: one-sided tests at 5 % put the effect inside the range. For a claim of no effect,
  whose range is a margin around zero, these are the two one-sided tests of equivalence (Schuirmann
  1987, J. Pharmacokinetics and Biopharmaceutics 15, 657-680).
- *contradicted*: a one-sided test puts the effect outside.
- *not decidable*: neither, or what the claim is about was not measured.
- *simulated*: only simulated runs could be tested. They show what the simulator's model says, not
  whether the claim is true.

A claim about several workloads is about every one of them: it is contradicted by one, and
supported if all that could be tested support it. Supporting needs no correction for the number of
tests, since all must agree (intersection-union; Berger 1982, Technometrics 24, 295-300);
contradicting does, and each test is made at 5 % over their number (Bonferroni). For a claim that
something differs somewhere, it is the other way round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd
from scipy import special

from wattlaw.analysis.laws.batch_effects import BatchQuality, quality_by_batch
from wattlaw.analysis.laws.series import scaling_series
from wattlaw.analysis.metrics.estimates import ERROR
from wattlaw.analysis.metrics.metrics import run_metrics, with_sampled_utilisation
from wattlaw.analysis.metrics.result import Result, plain
from wattlaw.common.errors import Refused
from wattlaw.common.scopes import DEVICES
from wattlaw.study.footprint import Footprint

SUPPORTED, CONTRADICTED, NOT_DECIDABLE = "supported", "contradicted", "not decidable"
SIMULATED = "simulated"
MIT, KIT = "mit-2022", "kit-2025"
#: What the energies of each study count: GPUs alone; GPUs, processors and memory of all nodes.
SCOPES = {MIT: "gpu", KIT: DEVICES}
#: The evidence of a claim names at most this number of workloads; ``workloads`` has all.
_MAX_LISTED = 3
#: A larger change has so wide an interval that its digits say nothing.
_MOST_CHANGE = 10.0

Numbers = dict[str, Any]


@dataclass(frozen=True, eq=False)  # a key of caches, by identity
class Measurements:
    """What claims are tested on; the energies have one scope."""

    runs: pd.DataFrame  # metrics.metrics.run_metrics
    series: pd.DataFrame  # laws.series.scaling_series
    quality: tuple[BatchQuality, ...]
    footprint: Footprint | None

    @classmethod
    def of(
        cls, runs: pd.DataFrame, epochs: pd.DataFrame, energy_scope: str,
        statistics: pd.DataFrame | None = None, footprint: Footprint | None = None,
    ) -> "Measurements":  # fmt: skip
        table = with_sampled_utilisation(run_metrics(runs, epochs, energy_scope), statistics)
        return cls(table, scaling_series(table), quality_by_batch(table), footprint)


@dataclass(frozen=True)
class Effect:
    """An estimate, its standard error, and the degrees of freedom of Student's t; refused if the
    uncertainty is unknown. ``about`` says what the error is for, if not for settings like these."""

    estimate: float
    se: float
    df: float
    about: str = ""

    def __post_init__(self) -> None:
        if self.df < 1 or not math.isfinite(self.estimate) or not math.isfinite(self.se):
            raise Refused("the uncertainty is unknown: measure repeats")

    def bounds(self, level: float) -> tuple[float, float]:
        """Return the two one-sided bounds at ``level``: together an interval at 1 - 2 level."""
        half = float(special.stdtrit(self.df, 1 - level)) * self.se
        return self.estimate - half, self.estimate + half


@dataclass(frozen=True)
class Within:
    """The effect has to lie between ``low`` and ``high`` or, without ``inside``, elsewhere;
    ``show``, an increasing function, converts it to the reported number."""

    name: str  # of the number
    label: str  # of the number, as text
    effect: Effect
    low: float = -math.inf
    high: float = math.inf
    show: Callable[[float], float] = float
    shape: str = "{:.3g}"
    inside: bool = True

    def verdict(self, support: float, contradict: float) -> str:
        levels = (support, contradict) if self.inside else (contradict, support)
        verdicts = (SUPPORTED, CONTRADICTED) if self.inside else (CONTRADICTED, SUPPORTED)
        low, high = self.effect.bounds(levels[0])
        if self.low <= low and high <= self.high:
            return verdicts[0]
        low, high = self.effect.bounds(levels[1])
        return verdicts[1] if low > self.high or high < self.low else NOT_DECIDABLE

    def evidence(self) -> str:

        def text(value: float) -> str:
            if self.shape.endswith("%}") and value > _MOST_CHANGE:
                return f"more than {self.shape.format(_MOST_CHANGE)}"
            return self.shape.format(value)

        estimate, low, high = map(text, self._shown())
        about = f", {self.effect.about}" if self.effect.about else ""
        return f"{self.label}: {estimate} (90 % interval {low} to {high}{about})"

    def numbers(self) -> Numbers:
        names = (self.name, f"{self.name}_low", f"{self.name}_high")
        return dict(zip(names, map(plain, self._shown()), strict=True))

    def _shown(self) -> list[float]:
        return [self.show(value) for value in (self.effect.estimate, *self.effect.bounds(ERROR))]


@dataclass(frozen=True)
class Tested:
    """What another analysis has tested: supported or not, else contradicted by a p value."""

    label: str
    holds: bool
    contradicting_p: float | None = None  # of the test that contradicts; None where there is none
    values: Mapping[str, Any] = field(default_factory=dict)

    def verdict(self, support: float, contradict: float) -> str:  # noqa: ARG002
        if self.holds:
            return SUPPORTED
        against = self.contradicting_p is not None and self.contradicting_p < contradict
        return CONTRADICTED if against else NOT_DECIDABLE

    def evidence(self) -> str:
        return self.label

    def numbers(self) -> Numbers:
        return dict(self.values)


#: One test of a claim on one workload.
Check = Within | Tested


@dataclass(frozen=True)
class Case:
    """The tests of a claim on one workload, which all must agree, or why there are none."""

    workload: str
    label: str
    checks: tuple[Check, ...] = ()
    counted: str = ""
    refusal: str | None = None
    simulated: bool = False  # any of the runs is simulated


@dataclass(frozen=True)
class WorkloadVerdict(Result):
    workload: str
    label: str
    verdict: str
    evidence: str
    numbers: Numbers


@dataclass(frozen=True)
class Claim(Result):
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
        return {part.label: part.numbers for part in self.workloads if part.numbers}


#: The tests of a claim on each workload of the measurements.
Cases = Callable[[Measurements], Sequence[Case]]


@dataclass(frozen=True)
class ClaimDefinition:
    """A published finding, its criterion, and its tests on each workload. ``needs`` is what to
    measure where nothing can be tested; every evidence ends with ``remark``."""

    name: str
    claim: str
    study: str
    criterion: str
    needs: str
    cases: Cases
    about: Literal["every", "some"] = "every"
    remark: str = ""

    def evaluate(self, measured: Measurements) -> Claim:
        cases = self.cases(measured)
        tests = max(1, sum(len(case.checks) for case in cases if not case.simulated))
        levels = (ERROR, ERROR / tests) if self.about == "every" else (ERROR / tests, ERROR)
        parts = tuple(_workload_verdict(case, *levels) for case in cases)
        tested = [part for part, case in zip(parts, cases, strict=True) if case.checks]
        real = [part for part in tested if part.verdict != SIMULATED]
        verdict = _overall([part.verdict for part in real], self.about)
        verdict = SIMULATED if tested and not real else verdict
        evidence = f"{self._summary(parts, tested, verdict)} {self.remark}".strip()
        return Claim(self.name, self.claim, self.study, self.criterion, verdict, evidence, parts)

    def _summary(
        self, parts: Sequence[WorkloadVerdict], tested: Sequence[WorkloadVerdict], verdict: str
    ) -> str:
        if not parts:
            return f"Nothing to test: {self.needs}."
        if not tested:
            return f"Nothing could be tested: {_evidence_list(parts)}. Needed: {self.needs}."
        decisive_parts = [part for part in tested if part.verdict == verdict]
        text = _evidence_list(decisive_parts)
        if len(tested) > 1:
            text = f"{len(decisive_parts)} of {len(tested)} {verdict}: {text}"
        if verdict == NOT_DECIDABLE:
            text += ". Measure more repeats or a wider range"
        untested = len(parts) - len(tested)
        return f"{text}. {untested} more could not be tested." if untested else f"{text}."


def _workload_verdict(case: Case, support: float, contradict: float) -> WorkloadVerdict:
    verdict, text = NOT_DECIDABLE, case.refusal or "nothing measured"
    if case.checks:
        verdict = _overall([check.verdict(support, contradict) for check in case.checks], "every")
        verdict = SIMULATED if case.simulated else verdict
        text = ", ".join(check.evidence() for check in case.checks)
        text += f"; {case.counted}" if case.counted else ""
    numbers = {name: value for check in case.checks for name, value in check.numbers().items()}
    return WorkloadVerdict(case.workload, case.label, verdict, text, numbers)


def _overall(verdicts: Sequence[str], about: Literal["every", "some"]) -> str:
    decisive, unanimous = CONTRADICTED, SUPPORTED
    if about == "some":
        decisive, unanimous = unanimous, decisive
    if decisive in verdicts:
        return decisive
    return unanimous if verdicts and set(verdicts) == {unanimous} else NOT_DECIDABLE


def _evidence_list(parts: Sequence[WorkloadVerdict]) -> str:
    text = [f"{part.label}: {part.evidence}" for part in parts[:_MAX_LISTED]]
    hidden = len(parts) - len(text)
    return "; ".join([*text, f"and {hidden} more"] if hidden else text)
