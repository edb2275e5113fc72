"""The blocks that a section of the page consists of."""

from dataclasses import dataclass

from wattlaw.report.pictures import Picture
from wattlaw.report.tables import Table


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
class Method:
    """How a quantity is computed: formula as plain text, explanation and source."""

    name: str
    formula: str
    text: str
    source: str
    kind = "method"


@dataclass(frozen=True)
class Missing:
    """The reason why there is nothing to show."""

    text: str
    kind = "missing"


Block = Paragraph | BulletList | Method | Missing | Picture | Table


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading that the contents link to."""

    name: str
    title: str
    blocks: tuple[Block, ...]
