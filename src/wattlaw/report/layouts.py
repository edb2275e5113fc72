"""The blocks of a page, and which sections it has, in which order, with which blocks.

The default page begins with the advice; its other sections are folded, and those without a result
are a line. The layout of a study has the sections that the study shows, unfolded.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import sentence
from wattlaw.report import tables
from wattlaw.report.methods import Method, citations, read_methods
from wattlaw.report.pictures import Picture
from wattlaw.report.topics import (
    batch,
    data_quality,
    decision,
    energy,
    limits,
    measured,
    prediction,
    scaling,
    scheduler_energy,
    verdict,
)
from wattlaw_papers import section as claims
from wattlaw_papers.claims.verdicts import CONTRADICTED, SUPPORTED, Claim
from wattlaw_papers.published import SOURCES

#: A section below the first screen has at most this number of sentences; the screen this number of
#: caveats.
MAX_SENTENCES, MAX_CAVEATS = 8, 5


@dataclass(frozen=True)
class BulletList:
    """A list of sentences with a title."""

    title: str
    items: tuple[str, ...]
    kind = "list"


State = Literal["screen", "open", "folded", "plain", "page"]
Block = BulletList | Method | Picture | tables.Table
#: Sentences and blocks of a section; None is left out.
Parts = Iterable[str | Block | None]


@dataclass(frozen=True)
class Section:
    """A part of the page: its results as sentences, the most important first, and its blocks.

    ``state`` is how it is shown: ``screen`` for the first screen; ``open`` or ``folded`` at first;
    ``plain`` if it cannot be folded; ``page`` if it also begins a printed page.
    """

    name: str
    title: str
    sentences: tuple[str, ...]
    blocks: tuple[Block, ...]
    state: State

    @classmethod
    def of(cls, name: str, title: str, state: State, *parts: "str | Block | None") -> "Section":
        """Return a section of sentences and blocks; None is left out."""
        sentences = tuple(part for part in parts if isinstance(part, str))
        blocks = tuple(part for part in parts if part is not None and not isinstance(part, str))
        return cls(name, title, sentences, blocks, state)


@dataclass(frozen=True)
class Content:
    """The content of a page; ``all_claims`` shows claims even if none is decided."""

    findings: Findings
    claims: Sequence[Claim]
    pictures: Sequence[Picture]
    all_claims: bool = False

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
        "advice", "scaling", "energy", "caps", "batch", "prediction", "decision", "utilisation",
        "claims", "data", "methods", "environment",
    )
)  # fmt: skip
#: The layouts of studies, by the name that ``--template`` accepts.
TEMPLATES = {
    "mit-2022": Layout(
        ("environment", "utilisation", "energy", "caps", "scaling", "claims", "data", "methods"),
        "mit-2022",
        reference=2,
    ),
    "kit-2025": Layout(
        ("environment", "scaling", "energy", "batch", "claims", "data", "methods"), "kit-2025"
    ),
}


def layout(template: str | None) -> Layout:
    """Return a layout by its name, the default for None; ``BadInput`` if it is unknown."""
    if template is None:
        return DEFAULT
    if template not in TEMPLATES:
        allowed = ", ".join([*TEMPLATES, "proposal"])
        raise BadInput(f"--template: unknown {template!r}; allowed: {allowed}")
    return TEMPLATES[template]


def sections(content: Content, layout: Layout) -> tuple[Section, ...]:
    """Return the sections of a layout that have a sentence or a block."""
    has_runs = not content.findings.runs.empty
    built = (
        _section(name, content, layout)
        for name in layout.sections
        if has_runs or name not in _SECTIONS_OF_RUNS
    )
    return tuple(section for section in built if section.sentences or section.blocks)


def _section(name: str, content: Content, layout: Layout) -> Section:
    title, build = _SECTIONS[name]
    shown: State = "folded" if layout.study is None else "open"
    section = Section.of(name, title, "screen" if name == "advice" else shown, *build(content))
    sentences, blocks = [*section.sentences], section.blocks
    if blocks and not sentences:
        sentences = [sentence(getattr(blocks[0], "title", title))]
    # What stands on the first screen changes the answer: none of it is cut.
    if section.state != "screen" and (more := len(sentences) - MAX_SENTENCES) > 0:
        sentences[MAX_SENTENCES:] = [f"{more} more are in the tables."]
    return replace(section, sentences=tuple(sentences))


def _advice(content: Content) -> Parts:
    findings, figures = content.findings, content.figures("advice")
    yield from verdict.sentences(findings)
    yield from decision.in_brief(findings)
    table, several = verdict.table(findings), len(findings.advice) > 1
    yield from (table, *figures) if several else figures
    if caveats := verdict.caveats(findings)[:MAX_CAVEATS]:
        yield BulletList("Caveats", tuple(caveats))
    yield None if several else table


def _scaling(content: Content) -> Parts:
    findings = content.findings
    yield from scaling.scaling_sentences(findings)
    yield from scaling.breakpoint_sentences(findings)
    if findings.speedups["gpus"].nunique() > 1:
        yield from content.figures("scaling")
    yield scaling.exponents(findings)
    yield scaling.speedups(findings)


def _energy(content: Content) -> Parts:
    findings = content.findings
    yield from energy.energy_sentences(findings)
    yield from scheduler_energy.agreement_sentences(findings)
    if findings.energy is not None:
        yield from content.figures("energy")
        yield energy.factors(findings)
        yield energy.factor_terms(findings)
    yield scheduler_energy.energies(findings)
    if findings.footprint is not None:
        yield energy.totals(findings)
        yield BulletList("What carbon and cost include", energy.counted(findings))


def _caps(content: Content) -> Parts:
    findings = content.findings
    if findings.runs[list(LIMITS)].isna().all(axis=None):
        yield "No run has a power cap or a locked clock."
    yield from limits.limit_sentences(findings)
    yield from content.figures("caps")
    yield limits.effects(findings)
    yield limits.comparisons(findings)
    if findings.comparison_refusals:
        reasons = tuple(f"{label}: {reason}" for label, reason in findings.comparison_refusals)
        yield BulletList("Exponents that could not be compared", reasons)


def _batch(content: Content) -> Parts:
    findings = content.findings
    if findings.has_quality:
        yield from batch.quality_sentences(findings)
        yield from content.figures("batch")
        yield batch.means(findings)
        yield batch.targets(findings)
    elif findings.origins_label:
        yield f"{findings.origins_label.capitalize()} runs have no accuracy."
    else:
        yield "The runs were not evaluated, so their quality is not known."


def _standard(
    section: str,
    sentences: Callable[[Findings], Iterable[str]],
    table: Callable[[Findings], tables.Table | None] = lambda _: None,
) -> Callable[[Content], Parts]:
    """Return a builder of sentences, the figures of the section, and a table."""
    return lambda content: (
        *sentences(content.findings),
        *content.figures(section),
        table(content.findings),
    )


def _claims(content: Content) -> Parts:
    verdicts = {claim.verdict for claim in content.claims}
    if content.all_claims or verdicts & {SUPPORTED, CONTRADICTED}:
        yield from claims.claim_sentences(content.findings, content.claims)
        yield from (claims.verdicts(content.claims, study) for study in SOURCES)
        yield claims.by_workload(content.claims)


def _data(content: Content) -> Parts:
    findings = content.findings
    yield from data_quality.status_sentences(findings)
    yield from verdict.caveats(findings)[MAX_CAVEATS:]
    yield data_quality.reasons(findings)
    yield measured.settings(findings)
    yield data_quality.verdicts(findings)
    if findings.notes:
        yield BulletList("Notes of runs", findings.notes)


def _methods(content: Content) -> Parts:
    yield "Formulas and sources of each number, and how to cite them."
    yield from read_methods()
    yield BulletList("How to cite", citations(content.findings))


def _environment(content: Content) -> Parts:
    facts = content.findings.facts
    if shown := [facts[name] for name in ("Hardware", "Software") if name in facts]:
        yield f"{'; '.join(shown)}."
    yield measured.facts(content.findings)


#: Sections that are left out where no run is done.
_SECTIONS_OF_RUNS = ("scaling", "energy", "caps", "batch")
#: Title, and sentences with blocks, of each section. One without blocks is its first sentence.
_SECTIONS: dict[str, tuple[str, Callable[[Content], Parts]]] = {
    "advice": ("What to run", _advice),
    "scaling": ("Scaling", _scaling),
    "energy": ("Energy, carbon and cost", _energy),
    "caps": ("Power caps and clocks", _caps),
    "batch": ("Batch size", _batch),
    "prediction": (
        "Settings that were not measured",
        _standard("prediction", prediction.sentences, prediction.check),
    ),
    "decision": ("Decision", _standard("decision", decision.sentences, decision.result)),
    "utilisation": ("Utilisation", _standard("utilisation", measured.utilisation_sentences)),
    "claims": ("Published claims on these data", _claims),
    "data": ("Runs and data quality", _data),
    "methods": ("Methods", _methods),
    "environment": ("Environment", _environment),
}
