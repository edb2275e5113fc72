"""What a section of a page is made of."""

from dataclasses import dataclass

from wattlaw.report.pictures import Picture
from wattlaw.report.tables.table import Table


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str
    kind = "words"


@dataclass(frozen=True)
class Items:
    """A list of sentences under a line that says what they are."""

    title: str
    items: tuple[str, ...]
    kind = "items"


@dataclass(frozen=True)
class Method:
    """How one thing was computed: a formula in plain text, words, and the source."""

    name: str
    formula: str
    text: str
    source: str
    kind = "method"


@dataclass(frozen=True)
class Missing:
    """Why there is nothing to show."""

    text: str
    kind = "missing"


Block = Words | Items | Method | Missing | Picture | Table


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading that the contents link to."""

    name: str
    title: str
    blocks: tuple[Block, ...]
