"""What a page consists of: sections of sentences and blocks, in a layout; and those of add-ons.

An add-on registers its section as an entry point of ``wattlaw.report_sections``, under the name
that the section has in layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from wattlaw.common import registry
from wattlaw.common.errors import NotAvailable
from wattlaw.common.scopes import OUTERMOST
from wattlaw.report.charts import Spec
from wattlaw.report.tables import Column, Table

if TYPE_CHECKING:
    from wattlaw.analysis.findings import Findings

GROUP = "wattlaw.report_sections"


@dataclass(frozen=True)
class BulletList:
    """A list of sentences with a title."""

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


@dataclass(frozen=True)
class Picture:
    """A figure of a page: as an image, for a phone too where it is ``narrow``; or as ``spec``."""

    name: str
    title: str
    caption: str
    section: str
    spec: Spec = field(repr=False)
    address: str = ""
    narrow: str = ""
    width: int = 0
    height: int = 0
    kind = "picture"


#: How a section is shown: on the first screen; open or folded at first; ``plain`` if it cannot be
#: folded; ``page`` if it also begins a printed page.
State = Literal["screen", "open", "folded", "plain", "page"]
Block = BulletList | Method | Picture | Table
#: Sentences and blocks of a section; None is left out.
Parts = Iterable[str | Block | None]


@dataclass(frozen=True)
class Section:
    """A part of the page: its results as sentences, the most important first, and its blocks."""

    name: str
    title: str
    sentences: tuple[str, ...]
    blocks: tuple[Block, ...]
    state: State

    @classmethod
    def of(cls, name: str, title: str, state: State, parts: Parts) -> Section:
        shown = [part for part in parts if part is not None]
        sentences = tuple(part for part in shown if isinstance(part, str))
        blocks = tuple(part for part in shown if not isinstance(part, str))
        return cls(name, title, sentences, blocks, state)


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
    """The content of a page; ``energy_scope`` is None unless the user asked for one."""

    findings: Findings
    pictures: tuple[Picture, ...]
    layout: Layout
    energy_scope: str | None = None

    def figures(self, section: str) -> tuple[Picture, ...]:
        return tuple(picture for picture in self.pictures if picture.section == section)


@dataclass(frozen=True)
class AddedSection:
    """What an add-on adds to the report.

    Parameters
    ----------
    title
        The title of its section.
    build
        Yields the sentences and blocks of the section.
    layouts
        Layouts by the name that ``--template`` accepts.
    law_columns
        Columns of the table of power laws, whose rows are ``analysis.laws.fitting.Fit``.
    citations
        Sources, for the list of what to cite.
    """

    title: str
    build: Callable[[Content], Parts]
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    law_columns: tuple[Column, ...] = ()
    citations: tuple[str, ...] = ()


def added_sections() -> dict[str, AddedSection]:
    """Return the sections of the add-ons that are there, by name."""
    added = {}
    for name in registry.names(GROUP):
        try:
            added[name] = registry.load(GROUP, name)
        except NotAvailable as error:
            if not isinstance(error.__cause__, ModuleNotFoundError):
                raise
    return added
