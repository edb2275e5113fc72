"""Which sections a page has, in which order, and what they contain.

The default page begins with the advice; its other sections are folded, and those without a result
are a line. The layout of an add-on has the sections that it names, unfolded.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import sentence
from wattlaw.common.scopes import OUTERMOST
from wattlaw.report.methods import citations, read_methods
from wattlaw.report.sections import (
    BulletList,
    Content,
    Layout,
    Parts,
    Section,
    State,
    added_sections,
)
from wattlaw.report.topics import (
    batch,
    caps,
    data_quality,
    energy,
    measured,
    prediction,
    scaling,
    utilisation,
    verdict,
)
from wattlaw.report.topics import (
    decision_course as decision,
)

#: A section below the first screen has at most this number of sentences; the screen this number of
#: caveats.
MAX_SENTENCES, MAX_CAVEATS = 8, 5


def layout(template: str | None, wanted: Iterable[str] = ()) -> Layout:
    """Return a layout by its name, the default for None, with the ``wanted`` sections of add-ons.

    Raises ``BadInput`` if the layout or a section is unknown.
    """
    added = added_sections()
    if missing := {*wanted} - {*added}:
        raise BadInput(f"report: no add-on with the section {', '.join(missing)} is installed")
    if template is None:
        return Layout(
            (
                "advice", "scaling", "energy", "caps", "batch", "prediction", "decision",
                "utilisation", *added, "data", "methods", "environment",
            ),
            wanted=frozenset(wanted),
        )  # fmt: skip
    templates = {name: chosen for each in added.values() for name, chosen in each.layouts.items()}
    if template not in templates:
        allowed = ", ".join([*templates, "proposal"])
        raise BadInput(f"--template: unknown {template!r}; allowed: {allowed}")
    return replace(templates[template], wanted=frozenset(wanted))


def figure_scope(figure: str) -> str:
    """Return what energies count in a figure: as in the layout that has it, if it is the only."""
    layouts = [each for added in added_sections().values() for each in added.layouts.values()]
    scopes = [each.energy_scope for each in layouts if figure in (each.figures or ())]
    return scopes[0] if len(scopes) == 1 else OUTERMOST


def sections(content: Content) -> tuple[Section, ...]:
    """Return the sections of the content's layout that have a sentence or a block."""
    added = added_sections()
    if taken := {*added} & {*_SECTIONS}:
        raise BadInput(f"report: an add-on's section has the name of another: {', '.join(taken)}")
    builders = _SECTIONS | {name: (each.title, each.build) for name, each in added.items()}
    folded: State = "folded" if content.layout.name is None else "open"
    shown = []
    for name in content.layout.sections:
        if content.findings.runs.empty and name in _SECTIONS_OF_RUNS:
            continue
        title, build = builders[name]
        section = Section.of(name, title, "screen" if name == "advice" else folded, build(content))
        sentences, blocks = [*section.sentences], section.blocks
        if blocks and not sentences:
            sentences = [sentence(getattr(blocks[0], "title", title))]
        # What stands on the first screen changes the answer: none of it is cut.
        if section.state != "screen" and (more := len(sentences) - MAX_SENTENCES) > 0:
            sentences[MAX_SENTENCES:] = [f"{more} more are in the tables."]
        if sentences:
            shown.append(replace(section, sentences=tuple(sentences)))
    return tuple(shown)


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
    if findings.energy is not None:
        yield from content.figures("energy")
        yield energy.factors(findings)
        yield energy.factor_terms(findings)
    if findings.footprint is not None:
        yield energy.totals(findings)
        yield BulletList("What carbon and cost include", energy.counted(findings))


def _caps(content: Content) -> Parts:
    findings = content.findings
    if findings.runs[list(LIMITS)].isna().all(axis=None):
        yield "No run has a power cap or a locked clock."
    yield from caps.limit_sentences(findings)
    yield from content.figures("caps")
    yield caps.effects(findings)
    yield caps.comparisons(findings)
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


def _prediction(content: Content) -> Parts:
    yield from prediction.sentences(content.findings)
    yield from content.figures("prediction")
    yield prediction.check(content.findings)


def _decision(content: Content) -> Parts:
    yield from decision.sentences(content.findings)
    yield from content.figures("decision")


def _utilisation(content: Content) -> Parts:
    yield from utilisation.sentences(content.findings)
    yield from content.figures("utilisation")


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
    "prediction": ("Settings that were not measured", _prediction),
    "decision": ("Decision", _decision),
    "utilisation": ("Utilisation", _utilisation),
    "data": ("Runs and data quality", _data),
    "methods": ("Methods", _methods),
    "environment": ("Environment", _environment),
}
