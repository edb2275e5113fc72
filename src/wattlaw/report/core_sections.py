"""The sections of the core in the order of the page, and what a layout shows of them.

Topics build their sections. Texts of figures are in ``figures.toml``, methods in ``methods.toml``.

The default page begins with the advice; its other sections are folded, those of sentences alone
are a line, and those without any are left out. The layout of an add-on has the sections that it
names, unfolded.
"""

import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import resources

from wattlaw import __version__
from wattlaw.analysis.findings import Findings
from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import sentence
from wattlaw.report.charts import Spec
from wattlaw.report.pictures import Draw, Figure
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
from wattlaw.report.topics import (
    batch,
    caps,
    decision_course,
    energy,
    layout_table,
    measured,
    prediction,
    scaling,
    utilisation,
    verdict,
)

#: Sentences of a section below the first screen.
MAX_SENTENCES = 8


def _data(content: Content) -> Parts:
    findings = content.findings
    yield from measured.status_sentences(findings)
    yield from verdict.caveats(findings)[verdict.MAX_CAVEATS :]
    yield measured.reasons(findings)
    yield measured.settings(findings)
    yield measured.verdicts(findings)
    if findings.notes:
        yield BulletList("Notes of runs", findings.notes)


def _methods(content: Content) -> Parts:
    yield "Formulas and sources of each number, and how to cite them."
    for name, section in all_sections().items():
        yield from (Method(**method) for method in _METHODS.get(name, ()))
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


def _section(
    title: str,
    build: Callable[[Content], Parts],
    draws: dict[str, Draw],
    *,
    needs_runs: bool = True,
) -> Section:
    figures = (Figure(name, draw=draw, **_FIGURES[name]) for name, draw in draws.items())
    return Section(title, build, tuple(figures), needs_runs=needs_runs)


def _by_limit(name: str, draw: Callable[..., Spec | None]) -> dict[str, Draw]:
    limits = {"cap": "power_limit_w", "clock": "clock_limit_mhz"}
    return {f"{name}_by_{short}": partial(draw, limit=limit) for short, limit in limits.items()}


_TEMPLATES = resources.files("wattlaw.report").joinpath("templates")
_FIGURES, _METHODS = (
    tomllib.loads(_TEMPLATES.joinpath(name).read_text("utf-8"))
    for name in ("figures.toml", "methods.toml")
)
#: The sections by their names in layouts.
SECTIONS: dict[str, Section] = {
    "advice": _section("What to run", verdict.build, {"pareto": verdict.pareto}, needs_runs=False),
    "layouts": _section("Parallel layouts", layout_table.build, {"layouts": layout_table.figure}),
    "scaling": _section(
        "Scaling", scaling.build,
        {
            "epoch_time": scaling.epoch_time, **_by_limit("epoch_time", scaling.epoch_time),
            "speedup": scaling.speedup_figure,
        },
    ),
    "energy": _section(
        "Energy, carbon and cost", energy.build,
        {
            "energy": energy.energy_figure, "energy_speed": energy.energy_speed,
            "gpu_hours": energy.gpu_hours, "factor": energy.factor,
        },
    ),
    "caps": _section(
        "Power caps and clocks", caps.build, _by_limit("effects", caps.effects_figure)
    ),
    "batch": _section(
        "Batch size", batch.build,
        {
            "strong_scaling": partial(batch.constant_batch, rule="global_batch"),
            "constant_local_batch": partial(batch.constant_batch, rule="local_batch"),
            "growing_data": batch.growing_data, "quality": batch.quality,
        },
    ),
    "prediction": _section(
        "Settings that were not measured", prediction.build,
        {"predictions": prediction.curves, "step_parts": prediction.step_parts}, needs_runs=False,
    ),
    "decision": _section(
        "Decision", decision_course.build, {"decision": decision_course.course}, needs_runs=False
    ),
    "utilisation": _section(
        "Utilisation", utilisation.build,
        {
            "utilisation": utilisation.mean, "joint": utilisation.joint,
            **_by_limit("variation", utilisation.variation_by_limit),
        },
        needs_runs=False,
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


def layout(template: str | None) -> Layout:
    """The default for None."""
    added = added_sections()
    if template is None:
        first = (name for name in SECTIONS if name not in _LAST)
        return Layout((*first, *added, *_LAST))
    templates = {name: chosen for each in added.values() for name, chosen in each.layouts.items()}
    if template not in templates:
        allowed = ", ".join(templates) or "those of add-ons"
        raise BadInput(f"template: unknown {template!r}; allowed: {allowed}")
    return templates[template]


def figures_of(layout: Layout) -> list[Figure]:
    names = layout.figures
    return [one for one in gallery() if (not one.is_extra if names is None else one.name in names)]


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
        if state != "screen" and len(sentences) > MAX_SENTENCES:
            sentences[MAX_SENTENCES:] = ["The tables have more."]
        if sentences or state == "screen":
            shown.append(replace(on_page, sentences=tuple(sentences)))
    return tuple(shown)
