"""The sections of the core: title, text, tables, figures and methods of each, in one table.

The default page begins with the advice; its other sections are folded, those of sentences alone
are a line, and those without any are left out. The layout of an add-on has the sections that it
names, unfolded.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any

from wattlaw import __version__
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import sentence
from wattlaw.common.scopes import OUTERMOST
from wattlaw.common.text import quote
from wattlaw.report.pictures import Figure
from wattlaw.report.sections import (
    BulletList,
    Content,
    Layout,
    Method,
    PageSection,
    Parts,
    Section,
    State,
    added_sections,
)
from wattlaw.report.tables import Table
from wattlaw.report.topics import (
    batch,
    caps,
    data_quality,
    decision_course,
    energy,
    layout_table,
    measured,
    prediction,
    scaling,
    utilisation,
    verdict,
)
from wattlaw.study.labels import LIMIT_NAMES

#: Sentences of a section below the first screen.
MAX_SENTENCES = 8


def _advice(content: Content) -> Parts:
    findings = content.findings
    yield from verdict.answers(findings.advice, findings.advice_refusals)
    table, changing = verdict.table(findings.advice), verdict.what_changes(findings)
    several = len(findings.advice) > 1
    yield from (table, *content.pictures, changing) if several else (changing, *content.pictures)
    yield None if several else table


def _with_pictures(
    sentences: Callable[[Findings], Iterable[str]],
    table: Callable[[Findings], Table | None] = lambda _: None,
) -> Callable[[Content], Parts]:
    """Return ``Section.build`` for sentences, then the pictures, then a table."""

    def build(content: Content) -> Parts:
        yield from sentences(content.findings)
        yield from content.pictures
        yield table(content.findings)

    return build


def _scaling(content: Content) -> Parts:
    findings = content.findings
    yield from scaling.scaling_sentences(findings)
    yield from scaling.breakpoint_sentences(findings)
    if findings.speedups["gpus"].nunique() > 1:
        yield from content.pictures
    yield scaling.exponents(findings)
    yield scaling.speedups(findings)


def _energy(content: Content) -> Parts:
    findings = content.findings
    yield from energy.energy_sentences(findings)
    if findings.energy is not None:
        yield from content.pictures
        yield energy.factors(findings)
    if findings.footprint is not None:
        yield energy.totals(findings)
        yield BulletList("What carbon and cost include", energy.counted(findings))


def _caps(content: Content) -> Parts:
    findings = content.findings
    if findings.runs[list(LIMITS)].isna().all(axis=None):
        yield "No run has a power cap or a locked clock."
    yield from caps.limit_sentences(findings)
    yield from content.pictures
    yield caps.effects(findings)


def _batch(content: Content) -> Parts:
    findings = content.findings
    if findings.has_quality:
        yield from batch.quality_sentences(findings)
        yield from content.pictures
        yield batch.means(findings)
        yield batch.targets(findings)
    elif findings.origins_label:
        yield f"{findings.origins_label.capitalize()} runs have no accuracy."
    else:
        yield "The runs were not evaluated, so their quality is not known."


def _data(content: Content) -> Parts:
    findings = content.findings
    yield from data_quality.status_sentences(findings)
    yield from verdict.caveats(findings)[verdict.MAX_CAVEATS :]
    yield data_quality.reasons(findings)
    yield measured.settings(findings)
    yield data_quality.verdicts(findings)
    if findings.notes:
        yield BulletList("Notes of runs", findings.notes)


def _methods(content: Content) -> Parts:
    yield "Formulas and sources of each number, and how to cite them."
    for section in all_sections().values():
        yield from section.methods
    yield BulletList("How to cite", _citations(content.findings))


def _citations(findings: Findings) -> tuple[str, ...]:
    facts = findings.facts
    details = [facts[name] for name in ("Studies", "Hardware", "Ran") if name in facts]
    commit = f"; code at {facts['Git commit']}" if "Git commit" in facts else ""
    subject = "These measurements"
    if findings.origins_label:
        subject = f"These {findings.origins_label} runs (nothing was measured)"
    return (
        f"{subject}: {'; '.join(details) or 'no run is done'}{commit}. State what the energies "
        "count.",
        f"The tool: wattlaw {__version__}.",
        *(source for section in all_sections().values() for source in section.citations),
    )


def _environment(content: Content) -> Parts:
    facts = content.findings.facts
    if shown := [facts[name] for name in ("Hardware", "Software") if name in facts]:
        yield f"{'; '.join(shown)}."
    yield measured.facts(content.findings)


def _by_limit(name: str, title: str, draw: Callable[..., Any], caption: str) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            f"{name}_by_{short}",
            f"{title} by {LIMIT_NAMES[limit]}",
            partial(draw, limit=limit),
            caption,
        )
        for short, limit in (("cap", "power_limit_w"), ("clock", "clock_limit_mhz"))
    )


_METHODS_FILE = resources.files("wattlaw.report").joinpath("templates/methods.toml")
_METHODS = {
    name: tuple(Method(**method) for method in methods)
    for name, methods in tomllib.loads(_METHODS_FILE.read_text("utf-8")).items()
}

#: The sections by their names in layouts. ``Figure.is_extra``: another figure has the same data.
SECTIONS: dict[str, Section] = {
    "advice": Section(
        "What to run", _advice, methods=_METHODS["advice"],
        figures=(
            Figure(
                "pareto", "Settings by time and energy", verdict.pareto,
                "Lower left is better, and best on the Pareto front.",
            ),
        ),
    ),
    "layouts": Section(
        "Parallel layouts", _with_pictures(layout_table.sentences), needs_runs=True,
        figures=(
            Figure(
                "layouts", "Throughput by parallel layout", layout_table.figure,
                "A cell shows the fastest of the settings that share its sizes.",
            ),
        ),
    ),
    "scaling": Section(
        "Scaling", _scaling, methods=_METHODS["scaling"], needs_runs=True,
        figures=(
            Figure(
                "epoch_time", "Training time", scaling.epoch_time,
                "The axes are logarithmic, so a power law is a straight line. Runs with caps and "
                "clocks are left out. Points of different lines are shifted by a few pixels.",
            ),
            *_by_limit(
                "epoch_time", "Training time", scaling.epoch_time_by_limit,
                "A limit that changes alpha shifts a line; a limit that changes beta tilts it.",
            ),
            Figure(
                "speedup", "Speedup", scaling.speedup_figure,
                "The speedup is the ratio of geometric mean times to the reference count of "
                "workers.",
            ),
        ),
    ),
    "energy": Section(
        "Energy, carbon and cost", _energy, methods=_METHODS["energy"], needs_runs=True,
        figures=(
            Figure(
                "energy", "Training energy", energy.energy_figure,
                "The mean training energy is drawn against the workers.",
            ),
            Figure(
                "energy_speed", "Energy against speed", energy.energy_speed,
                "Both are relative to the reference count of workers: right is faster, down is "
                "less energy.", is_extra=True,
            ),
            Figure(
                "gpu_hours", "Energy against GPU-hours", energy.gpu_hours,
                "The axes are logarithmic: energy in proportion to GPU-hours is a line of slope 1.",
            ),
            Figure(
                "factor", "Power per GPU against samples and steps", energy.factor,
                "Energy per GPU-hour is a mean power: all counted energy, divided by the GPUs.",
                is_extra=True,
            ),
        ),
    ),
    "caps": Section(
        "Power caps and clocks", _caps, methods=_METHODS["caps"], needs_runs=True,
        figures=_by_limit(
            "effects", "Speed and energy", caps.effects_figure,
            "Shown are 2 and 128 workers, as in Frey et al. 2022, where both were run under "
            "limits; else the smallest and the largest count.",
        ),
    ),
    "batch": Section(
        "Batch size", _batch, methods=_METHODS["batch"], needs_runs=True,
        figures=(
            Figure(
                "strong_scaling", "Strong scaling: constant global batch",
                partial(batch.constant_batch, rule="global_batch"),
                "More workers share the same global batch, so each has less work in a step.",
                is_extra=True,
            ),
            Figure(
                "constant_local_batch", "Constant local batch",
                partial(batch.constant_batch, rule="local_batch"),
                "The global batch grows with the workers, so an epoch has fewer steps.",
                is_extra=True,
            ),
            Figure(
                "growing_data", "A data set that grows with N", batch.growing_data,
                "The number of samples grows with the workers: a horizontal line is ideal.",
            ),
            Figure(
                "quality", "Quality against global batch", batch.quality,
                "Points show the metric of the last evaluation. Above each panel is the verdict of "
                "the comparison with the best batch.",
            ),
        ),
    ),
    "prediction": Section(
        "Settings that were not measured",
        _with_pictures(prediction.sentences, prediction.check),
        figures=(
            Figure(
                "predictions", "Predicted training time", prediction.curves,
                "The model of a step knows nodes and batches, so it predicts beyond the runs, "
                "where a law of N alone does not hold.",
            ),
            Figure(
                "step_parts", "What a step consists of", prediction.step_parts,
                "The larger the share that is not compute, the less more GPUs help.",
            ),
        ),
    ),
    "decision": Section(
        "Decision", _with_pictures(decision_course.sentences, decision_course.expected),
        figures=(
            Figure(
                "decision", "The course of the decision", decision_course.course,
                "After each run, the expected regret of the leading setting is shown, and the "
                "probability that it is within the tolerance of the best.",
            ),
        ),
    ),
    "utilisation": Section(
        "Utilisation", _with_pictures(utilisation.sentences), methods=_METHODS["utilisation"],
        figures=(
            Figure(
                "utilisation", "GPU utilisation", utilisation.mean,
                "SM utilisation is the share of time with a kernel on the GPU, memory utilisation "
                "that in which device memory was read or written.",
            ),
            Figure(
                "joint", "Joint utilisation", utilisation.joint,
                "Colours show where the samples of both utilisations lie, at 2 and 128 workers, as "
                "in Frey et al. 2022, where both ran; else at the smallest and the largest count.",
            ),
            *_by_limit(
                "variation", "Variation of utilisation", utilisation.variation_by_limit,
                "The larger the variation, the less evenly the GPUs are used.",
            ),
        ),
    ),
    "data": Section("Runs and data quality", _data),
    "methods": Section("Methods", _methods),
    "environment": Section("Environment", _environment),
}  # fmt: skip
#: Sections at the end of the default page, after those of add-ons.
_LAST = ("data", "methods", "environment")
#: Sections that are never folded at first.
_STATES: dict[str, State] = {"advice": "screen", "layouts": "open"}


def all_sections() -> dict[str, Section]:
    added = added_sections()
    figures = Counter(one.name for each in (SECTIONS | added).values() for one in each.figures)
    if taken := {*added} & {*SECTIONS} | {name for name, count in figures.items() if count > 1}:
        raise BadInput(f"report: several sections or figures are named {', '.join(sorted(taken))}")
    return SECTIONS | added


def gallery() -> tuple[Figure, ...]:
    return tuple(figure for section in all_sections().values() for figure in section.figures)


def layout(template: str | None, wanted: Iterable[str] = ()) -> Layout:
    """The default for None, with the ``wanted`` sections of add-ons."""
    added = added_sections()
    if missing := {*wanted} - {*added}:
        raise BadInput(f"sections: no {quote(min(missing))}; allowed: {', '.join(added) or 'none'}")
    if template is None:
        first = (name for name in SECTIONS if name not in _LAST)
        return Layout((*first, *added, *_LAST), wanted=frozenset(wanted))
    templates = {name: chosen for each in added.values() for name, chosen in each.layouts.items()}
    if template not in templates:
        allowed = ", ".join(templates) or "those of add-ons"
        raise BadInput(f"template: unknown {template!r}; allowed: {allowed}")
    return replace(templates[template], wanted=frozenset(wanted))


def figures_of(layout: Layout) -> list[Figure]:
    names = layout.figures
    return [one for one in gallery() if (not one.is_extra if names is None else one.name in names)]


def figure_scope(figure: str) -> str:
    """Return what energies count in a figure: as in the layout that has it, if it is the only."""
    layouts = [each for added in added_sections().values() for each in added.layouts.values()]
    scopes = [each.energy_scope for each in layouts if figure in (each.figures or ())]
    return scopes[0] if len(scopes) == 1 else OUTERMOST


def sections(content: Content) -> tuple[PageSection, ...]:
    known = all_sections()
    folded: State = "folded" if content.layout.name is None else "open"
    shown = []
    for name in content.layout.sections:
        section = known[name]
        if section.needs_runs and content.findings.runs.empty:
            continue
        own = {figure.name for figure in section.figures}
        pictures = tuple(picture for picture in content.pictures if picture.name in own)
        parts = section.build(replace(content, pictures=pictures))
        state = _STATES.get(name, folded)
        on_page = PageSection.of(name, section.title, state, parts)
        sentences, blocks = [*on_page.sentences], on_page.blocks
        if blocks and not sentences and state != "screen":
            sentences = [sentence(getattr(blocks[0], "title", section.title))]
        # What stands on the first screen changes the answer: none of it is cut.
        if state != "screen" and (more := len(sentences) - MAX_SENTENCES) > 0:
            sentences[MAX_SENTENCES:] = [f"{more} more are in the tables."]
        if sentences or state == "screen":
            shown.append(replace(on_page, sentences=tuple(sentences)))
    return tuple(shown)
