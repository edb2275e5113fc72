"""The blocks of a page, and which sections it has, in which order, with which blocks.

The default layout has all sections. The layout of a study has the sections that the study shows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.claims.verdicts import Claim
from wattlaw.analysis.findings import Findings
from wattlaw.errors import BadInput
from wattlaw.formatting import sentence
from wattlaw.reference.published import SOURCES
from wattlaw.report import tables
from wattlaw.report.methods import Method, citations, read_methods
from wattlaw.report.pictures import Picture
from wattlaw.report.topics import (
    advice,
    batch,
    carbon,
    claims,
    data_quality,
    decision,
    energy,
    environment,
    limits,
    measured,
    prediction,
    published,
    scaling,
    scheduler_energy,
)


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text."""

    text: str
    kind = "paragraph"


@dataclass(frozen=True)
class BulletList:
    """A list of sentences with a title."""

    title: str
    items: tuple[str, ...]
    kind = "list"


@dataclass(frozen=True)
class Missing:
    """The reason why there is nothing to show."""

    text: str
    kind = "missing"


Block = Paragraph | BulletList | Method | Missing | Picture | tables.Table


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading that the contents link to."""

    name: str
    title: str
    blocks: tuple[Block, ...]


#: Blocks of a section; None is left out.
Blocks = Iterable[Block | None]


@dataclass(frozen=True)
class Content:
    """The content of a page."""

    findings: Findings
    claims: Sequence[Claim]
    pictures: Sequence[Picture]

    def figures(self, section: str) -> tuple[Picture, ...]:
        """Return the figures of a section."""
        return tuple(picture for picture in self.pictures if picture.section == section)


@dataclass(frozen=True)
class Layout:
    """The names of a page's sections; and the GPU count that speedups are relative to."""

    sections: tuple[str, ...]
    study: str | None = None
    reference: int | None = None


DEFAULT = Layout(
    (
        "advice", "decision", "scaling", "prediction", "energy", "caps", "utilisation", "batch",
        "claims", "data", "carbon", "methods", "environment", "cite",
    )
)  # fmt: skip
#: By the name that ``--template`` accepts.
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
    """Return a layout by its name, or the default one for None.

    Raises
    ------
    BadInput
        The name is unknown.
    """
    if template is None:
        return DEFAULT
    if template not in TEMPLATES:
        raise BadInput(f"--template: unknown {template!r}; allowed: {', '.join(TEMPLATES)}")
    return TEMPLATES[template]


def sections(content: Content, layout: Layout) -> tuple[Section, ...]:
    """Return the sections of a layout that are not empty."""
    built = (
        Section(name, title, tuple(block for block in build(content) if block is not None))
        for name in layout.sections
        for title, build in [_SECTIONS[name]]
        if name not in _SECTIONS_OF_RUNS or not content.findings.runs.empty
    )
    return tuple(section for section in built if section.blocks)


def _advice(content: Content) -> Blocks:
    findings = content.findings
    yield advice.recommended(findings)
    if rationale := advice.rationale(findings):
        yield BulletList("Rationale and caveats", rationale)
    yield from content.figures("advice")
    yield advice.front(findings)


def _decision(content: Content) -> Blocks:
    yield decision.result(content.findings)
    yield from content.figures("decision")


def _scaling(content: Content) -> Blocks:
    findings = content.findings
    yield published.exponents(findings)
    yield published.speedups(findings)
    if not findings.fits.rows:
        noun = measured.worker_noun(findings)
        yield Missing(f"No series has more than one number of {noun}s.")
    yield from content.figures("scaling")
    yield scaling.exponents(findings)
    yield scaling.breakpoints(findings)
    yield scaling.alternatives(findings)
    yield scaling.speedups(findings)
    yield scaling.without_law(findings)
    yield measured.settings(findings)


def _prediction(content: Content) -> Blocks:
    yield from content.figures("prediction")
    yield prediction.check(content.findings)


def _energy(content: Content) -> Blocks:
    findings = content.findings
    if findings.energy is None:
        yield Missing(
            "Not available: no energy meter was available. A value that was not measured is "
            "missing here, not zero. measure.assume_cpu_w (watts per busy core) gives an "
            "estimate, marked as one."
        )
    else:
        yield Paragraph(f"Counted: {findings.energy}, without evaluation.")
        yield from content.figures("energy")
        yield energy.factors(findings)
        yield energy.forms(findings)
        yield energy.factor_terms(findings)
        yield energy.drifts(findings)
        yield energy.without_law(findings)
        yield measured.efficiency(findings)
        if findings.factor_refusal:
            reason = sentence(findings.factor_refusal)
            yield Paragraph(f"There is no regression of the factor over all runs: {reason}")
    yield scheduler_energy.energies(findings)
    if agreements := tuple(scheduler_energy.agreement_sentences(findings)):
        yield BulletList("Agreement of the two energies", agreements)


def _caps(content: Content) -> Blocks:
    findings = content.findings
    yield limits.effects(findings)
    yield from content.figures("caps")
    yield from (published.by_limit(findings, kind) for kind in LIMITS)
    yield limits.comparisons(findings)
    yield limits.exponents_by_limit(findings)
    yield limits.best(findings)
    yield limits.effects_by_setting(findings)
    if findings.comparison_refusals:
        reasons = tuple(f"{label}: {reason}" for label, reason in findings.comparison_refusals)
        yield BulletList("Exponents that could not be compared", reasons)


def _utilisation(content: Content) -> Blocks:
    yield from content.figures("utilisation")
    yield measured.utilisation(content.findings)


def _batch(content: Content) -> Blocks:
    findings = content.findings
    if not findings.has_quality:
        reason = "The runs were not evaluated"
        if findings.origins_label:
            reason = f"{findings.origins_label.capitalize()} runs have no accuracy"
        yield Missing(f"{reason}, so their quality is not known.")
        return
    yield from content.figures("batch")
    yield batch.verdicts(findings)
    yield batch.means(findings)
    yield batch.critical_batches(findings)
    yield batch.targets(findings)


def _claims(content: Content) -> Blocks:
    yield from content.figures("claims")
    yield from (claims.verdicts(content.claims, study) for study in SOURCES)
    yield claims.by_workload(content.claims)


def _data(content: Content) -> Blocks:
    findings = content.findings
    yield from map(Paragraph, data_quality.status_sentences(findings))
    yield data_quality.reasons(findings)
    yield data_quality.not_done(findings)
    yield data_quality.verdicts(findings)
    yield data_quality.repeats(findings)
    yield from content.figures("data")
    if findings.notes:
        yield BulletList("Notes of runs", findings.notes)


def _carbon(content: Content) -> Blocks:
    findings = content.findings
    yield carbon.totals(findings)
    if findings.footprint is None and not findings.runs.empty:
        yield Paragraph(
            "Carbon and cost are not computed: pass --grid (g CO2e per kWh, or a region), --pue, "
            "--price (per kWh) or --price-per-gpu-hour."
        )
    if counted := carbon.counted(findings):
        yield BulletList("What carbon and cost count", counted)
    yield from content.figures("carbon")


def _methods(content: Content) -> Blocks:  # noqa: ARG001
    yield from read_methods()


def _environment(content: Content) -> Blocks:
    yield environment.facts(content.findings)
    yield environment.models(content.findings)
    yield from content.figures("environment")


def _cite(content: Content) -> Blocks:
    yield BulletList("", citations(content.findings))


#: Sections that are left out where no run is done.
_SECTIONS_OF_RUNS = ("advice", "scaling", "energy", "batch")
_SECTIONS: dict[str, tuple[str, Callable[[Content], Blocks]]] = {
    "advice": ("What to run", _advice),
    "decision": ("Decision", _decision),
    "scaling": ("Scaling", _scaling),
    "prediction": ("Settings that were not measured", _prediction),
    "energy": ("Energy", _energy),
    "caps": ("Power caps and clocks", _caps),
    "utilisation": ("Utilisation", _utilisation),
    "batch": ("Batch effects", _batch),
    "claims": ("Published claims on these data", _claims),
    "data": ("Data quality", _data),
    "carbon": ("Carbon and cost", _carbon),
    "methods": ("Methods", _methods),
    "environment": ("Environment", _environment),
    "cite": ("How to cite", _cite),
}
