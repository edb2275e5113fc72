"""What a picture says and where: the texts of an SVG with the boxes that they take."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np

_SVG = "{http://www.w3.org/2000/svg}"
#: Advance widths of DejaVu Sans in ems, to 0.05; bold is wider by a tenth.
_WIDTHS = {
    0.3: "'ijlIJ,. ", 0.4: "f-/:;\\|rt!()[]", 0.5: "\"sz*_`", 0.6: "cL?aekovxyFPTY",
    0.65: "0123456789bdghnpquEKS${}", 0.75: "ABCRVXZDGHNU", 0.85: "wOQ&M#+<=>^~", 1.0: "m%W@",
}  # fmt: skip
_EMS = {letter: ems for ems, letters in _WIDTHS.items() for letter in letters}
_STEP = re.compile(r"(\w+)\(([^)]*)\)")


@dataclass(frozen=True)
class Text:
    """A text, and its box in the picture's pixels."""

    words: str
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Text") -> bool:
        """Say whether two boxes overlap, each smaller by 1 on all sides."""
        wide = min(other.right - self.left, self.right - other.left)
        high = min(other.bottom - self.top, self.bottom - other.top)
        return wide > 2 and high > 2

    def outside(self, width: float, height: float) -> bool:
        return self.left < 0 or self.top < 0 or self.right > width or self.bottom > height


def size(svg: str) -> tuple[float, float]:
    root = ElementTree.fromstring(svg)  # noqa: S314 - drawn by ourselves
    return float(root.attrib["width"]), float(root.attrib["height"])


def texts(svg: str) -> list[Text]:
    """Return all texts that can be seen."""
    return list(_texts(ElementTree.fromstring(svg), np.eye(3)))  # noqa: S314


def _texts(node: ElementTree.Element, place: np.ndarray) -> Iterator[Text]:
    place = place @ _matrix(node.attrib.get("transform", ""))
    if node.tag == f"{_SVG}text":
        high, below = float(node.attrib["font-size"].removesuffix("px")), 0.0
        bold = 1.1 if node.attrib.get("font-weight") in ("bold", "700") else 1.0
        anchor = {"start": 0.0, "middle": 0.5, "end": 1.0}[node.attrib.get("text-anchor", "start")]
        is_seen = float(node.attrib.get("opacity", 1)) > 0
        for line in node.findall(f"{_SVG}tspan") or [node] if is_seen else ():
            below += float(line.attrib.get("dy", 0))
            if words := (line.text or "").strip():
                wide = high * bold * sum(_EMS.get(letter, 0.7) for letter in words)
                sides, ends = (-anchor * wide, (1 - anchor) * wide), (-0.75 * high, 0.2 * high)
                corners = np.array([[x, below + y, 1] for x in sides for y in ends]) @ place.T
                yield Text(words, *corners[:, :2].min(axis=0), *corners[:, :2].max(axis=0))
        return
    for child in node:
        yield from _texts(child, place)


def _matrix(transform: str) -> np.ndarray:
    whole = np.eye(3)
    for name, text in _STEP.findall(transform):
        numbers = [float(number) for number in re.split("[ ,]+", text.strip())]
        step = np.eye(3)
        if name == "translate":
            step[:2, 2] = [*numbers, 0.0][:2]
        elif name == "rotate":
            turn = np.radians(numbers[0])
            step[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
        else:
            raise ValueError(f"no such step in the pictures so far: {name}")
        whole = whole @ step
    return whole
