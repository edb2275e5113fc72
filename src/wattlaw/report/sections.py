"""The sections of a report: one type for those of the core and for those of add-ons.

The core's are ``core_sections.SECTIONS``. An add-on registers a ``Section`` as an entry point of
``wattlaw.report_sections``, under the name that the section has in layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from wattlaw.common import registry
from wattlaw.common.errors import NotAvailable
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
class Method:
    """How a quantity is computed: formula as plain text, explanation and source."""

    name: str
    formula: str
    text: str
    source: str
    kind = "method"


#: Sentences and blocks of a section; None is left out.
Block = BulletList | Method | Picture | Table
Parts = Iterable[str | Block | None]


@dataclass(frozen=True)
class Layout:
    """The sections of a page in their order, and its figures.

    ``figures`` is None for those of the default page. The layout of an add-on has a ``name``, for
    ``--template``, and a ``source``, which the page names. ``reference`` is the GPU count that
    speedups are relative to, and ``energy_scope`` what energies count. ``wanted`` are the sections
    of add-ons to show even if they have no result.
    """

    sections: tuple[str, ...]
    figures: tuple[str, ...] | None = None
    name: str | None = None
    source: str = ""
    reference: int | None = None
    energy_scope: str = OUTERMOST
    wanted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Content:
    """The content of a page, or of a section: then the pictures are those of its figures.

    ``energy_scope`` is None unless the user asked for one.
    """

    findings: Findings
    pictures: tuple[Picture, ...]
    layout: Layout
    energy_scope: str | None = None


@dataclass(frozen=True)
class Section:
    """A section of the report.

    Parameters
    ----------
    title
        The title of the section.
    build
        Yields the sentences, the most important first, the ``content.pictures``, and tables.
    figures
        The figures of the section.
    methods
        How its numbers are computed.
    needs_runs
        Whether the section is left out where no run is done.
    layouts
        Layouts by the name that ``--template`` accepts.
    law_columns
        Columns of the table of power laws, whose rows are ``analysis.laws.fitting.Fit``.
    citations
        Sources, for the list of what to cite.
    """

    title: str
    build: Callable[[Content], Parts]
    figures: tuple[Figure, ...] = ()
    methods: tuple[Method, ...] = ()
    needs_runs: bool = False
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    law_columns: tuple[Column, ...] = ()
    citations: tuple[str, ...] = ()


def added_sections() -> dict[str, Section]:
    """Return the sections of the add-ons that are there, by name."""
    added = {}
    for name in registry.names(GROUP):
        try:
            added[name] = registry.load(GROUP, name)
        except NotAvailable as error:
            if not isinstance(error.__cause__, ModuleNotFoundError):
                raise
    return added


#: How a section is shown: on the first screen; open or folded at first; ``plain`` if it cannot be
#: folded; ``page`` if it also begins a printed page.
State = Literal["screen", "open", "folded", "plain", "page"]


@dataclass(frozen=True)
class PageSection:
    """A section as it is on a page."""

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
