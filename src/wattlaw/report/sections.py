"""The sections of a report: one type for those of the core and for those of add-ons.

The core's are ``core_sections.SECTIONS``. An add-on registers a ``Section`` as an entry point of
``wattlaw.report_sections``, under the name that the section has in layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from wattlaw.common import registry
from wattlaw.common.scopes import OUTERMOST
from wattlaw.report.pictures import Figure, Picture
from wattlaw.report.tables import Column, Table

if TYPE_CHECKING:
    from wattlaw.analysis.findings import Findings

GROUP = "wattlaw.report_sections"


@dataclass(frozen=True)
class BulletList:
    title: str
    items: tuple[str, ...]
    kind = "list"


@dataclass(frozen=True)
class KeyFigure:
    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Answer:
    """What to run, in one line, and its figures; then what the figures refer to."""

    headline: str
    qualifier: str
    figures: tuple[KeyFigure, ...]
    reference: str
    command: str | None = None  # a line to copy
    kind = "answer"


@dataclass(frozen=True)
class Method:
    """How a quantity is computed: formula as plain text, explanation and source."""

    name: str
    formula: str
    text: str
    source: str
    kind = "method"


#: Sentences and blocks of a section; None is left out.
Block = Answer | BulletList | Method | Picture | Table
Parts = Iterable[str | Block | None]


@dataclass(frozen=True)
class Layout:
    sections: tuple[str, ...]  # in their order
    figures: tuple[str, ...] | None = None  # None: those of the default page
    name: str | None = None  # for ``--template``, of an add-on's layout
    source: str = ""  # which the page names
    reference: int | None = None  # the GPU count that speedups are relative to
    energy_scope: str = OUTERMOST


@dataclass(frozen=True)
class Content:
    """The content of a page, or of a section: then the pictures are those of its figures."""

    findings: Findings
    pictures: tuple[Picture, ...]
    layout: Layout
    energy_scope: str | None = None  # None unless the user asked for one


@dataclass(frozen=True)
class Section:
    title: str
    #: Yields the sentences, the most important first, the ``content.pictures``, and tables.
    build: Callable[[Content], Parts]
    figures: tuple[Figure, ...] = ()
    methods: tuple[Method, ...] = ()  # how its numbers are computed
    needs_runs: bool = False  # it is left out where no run is done
    layouts: Mapping[str, Layout] = field(default_factory=dict)  # by the name of ``--template``
    #: Columns of the table of power laws, whose rows are ``analysis.laws.fitting.Fit``.
    law_columns: tuple[Column, ...] = ()
    citations: tuple[str, ...] = ()  # sources, for the list of what to cite


def added_sections() -> dict[str, Section]:
    return registry.load_installed(GROUP)


#: How a section is shown: on the first screen; open or folded at first; ``plain`` if it cannot be
#: folded; ``page`` if it also begins a printed page.
State = Literal["screen", "open", "folded", "plain", "page"]


@dataclass(frozen=True)
class PageSection:
    name: str
    title: str
    sentences: tuple[str, ...]
    blocks: tuple[Block, ...]
    state: State

    @classmethod
    def of(cls, name: str, title: str, state: State, parts: Parts) -> PageSection:
        shown = [part for part in parts if part is not None]
        sentences = tuple(part for part in shown if isinstance(part, str))
        blocks = tuple(part for part in shown if not isinstance(part, str))
        return cls(name, title, sentences, blocks, state)
