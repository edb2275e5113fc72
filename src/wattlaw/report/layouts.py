"""Which sections a page has, in which order, and what stands in each.

The plain layout has everything. Those of the studies keep to what a study shows, in its order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.claims.verdicts import Claim
from wattlaw.analysis.findings import Findings
from wattlaw.errors import BadInput
from wattlaw.formatting import sentence
from wattlaw.report.blocks import Block, Items, Missing, Section, Words
from wattlaw.report.citing import citations
from wattlaw.report.methods import METHODS
from wattlaw.report.narrative import sites
from wattlaw.report.narrative.running import shared
from wattlaw.report.pictures import Picture
from wattlaw.report.tables import (
    advice,
    batch,
    carbon,
    data_quality,
    energy,
    environment,
    limits,
    measured,
    papers,
    scaling,
    scheduler_energy,
    targets,
)
from wattlaw.report.tables import claims as claims_tables
from wattlaw.report.tables.measured import worker
from wattlaw.report.tables.table import those


@dataclass(frozen=True)
class Content:
    """What there is to lay out."""

    findings: Findings
    claims: Sequence[Claim]
    pictures: Sequence[Picture]

    def of(self, section: str) -> tuple[Picture, ...]:
        """Return the figures of a section."""
        return tuple(picture for picture in self.pictures if picture.section == section)


@dataclass(frozen=True)
class Layout:
    """The sections of a page, by name; and the GPU count that speedups are relative to."""

    sections: tuple[str, ...]
    study: str | None = None
    reference: int | None = None


PLAIN = Layout(
    (
        "advice", "scaling", "energy", "caps", "utilisation", "batch", "claims", "data", "carbon",
        "methods", "environment", "cite",
    )
)  # fmt: skip
#: By the name that --template takes.
TEMPLATES = {
    "mit-2022": Layout(
        ("environment", "utilisation", "energy", "caps", "scaling", "claims", "data", "methods",
         "cite"),
        "mit-2022",
        reference=2,
    ),
    "kit-2025": Layout(
        ("environment", "scaling", "energy", "batch", "claims", "data", "methods", "cite"),
        "kit-2025",
    ),
}  # fmt: skip


def layout(template: str | None) -> Layout:
    """Return a layout by its name; the plain one for None.

    Raises
    ------
    BadInput
        There is none of that name.
    """
    if template is None:
        return PLAIN
    if template not in TEMPLATES:
        raise BadInput(f"--template: given {template!r}; allowed: {', '.join(TEMPLATES)}")
    return TEMPLATES[template]


def sections(content: Content, chosen: Layout) -> tuple[Section, ...]:
    """Return the sections that have something to say."""
    made = (
        Section(name, title, tuple(make(content)))
        for name in chosen.sections
        for title, make in [SECTIONS[name]]
    )
    return tuple(section for section in made if section.blocks)


def _advice(content: Content) -> Iterable[Block]:
    findings = content.findings
    if findings.runs.empty:
        return
    yield from those([advice.recommended(findings)])
    told = [
        (one.workload, sentence(words))
        for one in findings.advice
        for words in (one.reason, f"Counted: {one.counted}", *one.warnings)
    ]
    told += [(workload, f"no advice: {why}") for workload, why in findings.advice_refusals]
    if told:
        yield Items("Why, and what to heed", tuple(shared(told, len(findings.advice))))
    yield from content.of("advice")
    yield from those([advice.doublings(findings), advice.front(findings)])


def _scaling(content: Content) -> Iterable[Block]:
    findings = content.findings
    if findings.runs.empty:
        return
    yield from those([papers.exponents(findings), papers.speedups(findings)])
    if not findings.fits.rows:
        yield Missing(f"No series has more than one number of {worker(findings)}s.")
    yield from content.of("scaling")
    tables = (
        scaling.exponents, scaling.breakpoints, scaling.alternatives, scaling.speedups,
        scaling.without_law, measured.settings,
    )  # fmt: skip
    yield from those(make(findings) for make in tables)


def _energy(content: Content) -> Iterable[Block]:
    findings = content.findings
    if findings.runs.empty:
        return
    if findings.energy is None:
        yield Missing(
            "Not available: no energy meter was found where this ran. A value that was not "
            "measured is missing here, not zero. measure.assume_cpu_w (watts per busy core) gives "
            "an estimate, marked as one."
        )
        yield from _scheduler_energy(findings)
        return
    yield Words(f"Counted: {findings.energy}. Evaluation is not in it.")
    yield from content.of("energy")
    tables = (
        energy.factors, energy.forms, energy.factor_terms, energy.drifts, energy.without_law,
        measured.efficiency,
    )  # fmt: skip
    yield from those(make(findings) for make in tables)
    if findings.factor_refusal:
        why = sentence(findings.factor_refusal)
        yield Words(f"What the factor depends on cannot be told from all runs together: {why}")
    yield from _scheduler_energy(findings)


def _scheduler_energy(findings: Findings) -> Iterable[Block]:
    yield from those([scheduler_energy.energies(findings)])
    if told := tuple(sites.agreement(findings)):
        yield Items("How far the two energies agree", told)


def _caps(content: Content) -> Iterable[Block]:
    findings = content.findings
    yield from those([limits.effects(findings)])
    yield from content.of("caps")
    yield from those(papers.by_limit(findings, kind) for kind in LIMITS)
    tables = (
        limits.comparisons, limits.exponents_by_limit, limits.best,
        limits.effects_by_setting,
    )  # fmt: skip
    yield from those(make(findings) for make in tables)
    if findings.comparison_refusals:
        told = tuple(f"{label}: {reason}" for label, reason in findings.comparison_refusals)
        yield Items("Exponents that could not be compared", told)


def _utilisation(content: Content) -> Iterable[Block]:
    yield from content.of("utilisation")
    yield from those([measured.utilisation(content.findings)])


def _batch(content: Content) -> Iterable[Block]:
    findings = content.findings
    if findings.runs.empty:
        return
    if not findings.has_quality:
        why = "The runs were not evaluated"
        if (findings.runs["launcher"] == "simulated").all():
            why = "Simulated runs have no accuracy"
        yield Missing(f"{why}, so nothing is known of their quality.")
        return
    yield from content.of("batch")
    tables = (batch.verdicts, batch.means, targets.critical, targets.settings)
    yield from those(make(findings) for make in tables)


def _claims(content: Content) -> Iterable[Block]:
    yield from content.of("claims")
    for study in claims_tables.STUDIES:
        yield from those([claims_tables.verdicts(content.claims, study)])
    yield from those([claims_tables.by_workload(content.claims)])


def _data(content: Content) -> Iterable[Block]:
    findings = content.findings
    total = sum(findings.statuses.values())
    told = ", ".join(f"{count:,} {status}" for status, count in sorted(findings.statuses.items()))
    yield Words(f"{total:,} runs: {told}." if total else "There is no run.")
    if findings.not_done.empty and total:
        yield Words("Every run is done.")
    yield from (Words(told) for told in sites.interruptions(findings))
    yield from (Words(told) for told in sites.clocks(findings))
    tables = (
        data_quality.reasons,
        data_quality.not_done,
        data_quality.verdicts,
        data_quality.repeats,
    )
    yield from those(make(findings) for make in tables)
    yield from content.of("data")
    if findings.notes:
        yield Items("What runs noted", findings.notes)


def _carbon(content: Content) -> Iterable[Block]:
    findings = content.findings
    yield from those([carbon.totals(findings)])
    if findings.footprint is None and not findings.runs.empty:
        yield Words(
            "Carbon and cost are not told: give --grid (g CO2e per kWh, or a region), --pue, "
            "--price (of a kWh) or --price-per-gpu-hour."
        )
    if counted := carbon.counted(findings):
        yield Items("What carbon and cost count", tuple(counted))
    yield from content.of("carbon")


def _methods(content: Content) -> Iterable[Block]:  # noqa: ARG001
    yield from METHODS


def _environment(content: Content) -> Iterable[Block]:
    yield from those([environment.facts(content.findings), environment.models(content.findings)])
    yield from content.of("environment")


def _cite(content: Content) -> Iterable[Block]:
    yield Items("", citations(content.findings))


SECTIONS: dict[str, tuple[str, Callable[[Content], Iterable[Block]]]] = {
    "advice": ("What to run", _advice),
    "scaling": ("Scaling", _scaling),
    "energy": ("Energy", _energy),
    "caps": ("Power caps and clocks", _caps),
    "utilisation": ("Utilisation", _utilisation),
    "batch": ("Batch effects", _batch),
    "claims": ("Published findings on these data", _claims),
    "data": ("Data quality", _data),
    "carbon": ("Carbon and cost", _carbon),
    "methods": ("Methods", _methods),
    "environment": ("What ran, and on what", _environment),
    "cite": ("How to cite", _cite),
}
