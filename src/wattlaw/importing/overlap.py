"""Windows within other ones of their phase: their time would count twice."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")

#: Windows of these phases add up; those of other ones may lie within each other.
_COUNTED = ("train", "steps", "run", "evaluate")
OUTER = "a window that contains others of its phase"
TWICE = "a window that is in the file twice"
OVERLAPPING = "a window that overlaps the one before"


@dataclass(frozen=True)
class Span(Generic[Key]):
    """A window: what names it, its phase and its time."""

    key: Key
    phase: str
    start_ns: int
    end_ns: int


def overlapping(spans: Iterable[Span[Key]]) -> Mapping[Key, str]:
    """Return the windows to leave out, with the reasons; of two that are nested, the outer one."""
    reasons, before = dict[Key, str](), dict[str, list[Span[Key]]]()
    # Of two windows with one start the longer one is first.
    for span in sorted(spans, key=lambda each: (each.start_ns, -each.end_ns)):
        if span.phase not in _COUNTED:
            continue
        kept = before.setdefault(span.phase, [])
        while kept and kept[-1].end_ns > span.start_ns:
            last = kept[-1]
            if (last.start_ns, last.end_ns) == (span.start_ns, span.end_ns):
                reasons[span.key] = TWICE
            elif last.end_ns < span.end_ns:
                reasons[span.key] = OVERLAPPING
            else:
                reasons[last.key] = OUTER
                kept.pop()
                continue
            break
        if span.key not in reasons:
            kept.append(span)
    return reasons
