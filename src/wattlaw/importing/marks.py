"""Windows of a time series: of ``--window``, or of a CSV file.

The CSV file has the columns ``start`` and ``end``, and optionally ``phase`` (train, evaluate,
steps, run or another name), ``epoch``, ``steps``, ``samples``, ``loss``, ``metric`` and ``warmup``.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from datetime import tzinfo
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.text import quote
from wattlaw.importing.importer import Imported, Mark, Options
from wattlaw.importing.reading import Source, count, headers_in, moment_ns, number
from wattlaw.importing.timeseries import overlapping

_COUNTS = ("epoch", "steps", "samples")
_VALUES = ("loss", "metric")
_PHASE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")
_MAX_MARKS = 100_000
_ALLOWED_TIMES = "2026-01-31T12:00:00, with or without a zone, or seconds since 1970"


def parse_window(text: str, zone: tzinfo) -> Mark:
    start, dots, end = text.partition("..")
    start_ns, end_ns = (moment_ns(part, zone) for part in (start, end))
    if not dots or start_ns is None or end_ns is None or end_ns <= start_ns:
        raise BadInput(
            f"--window {quote(text)}: allowed: START..END, times such as 2026-01-31T12:00:00 or "
            "seconds since 1970"
        )
    return Mark(start_ns, end_ns)


class WindowsImporter:
    name = "windows"
    description = "CSV file with start and end of the windows of a time series"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        allowed = {"start", "end", "phase", "warmup", *_COUNTS, *_VALUES}
        return any({"start", "end"} <= names <= allowed for names in headers_in(head))

    def read(self, source: Source, options: Options) -> Imported:
        path, account, marks = source.path, source.account, dict[int, Mark]()
        for line, row in source.rows(("start", "end")):
            mark = _mark(row, options.timezone)
            if isinstance(mark, str):
                account.reject(line, mark)
                continue
            account.read(line)
            marks[line] = mark
            if len(marks) > _MAX_MARKS:
                raise BadInput(f"{path}: more than {_MAX_MARKS:,} windows")
        spans = {line: (mark.phase, mark.start_ns, mark.end_ns) for line, mark in marks.items()}
        for line, why in overlapping(spans).items():
            account.leave_out(why, line)
            del marks[line]
        if not marks:
            first = "".join(f"; line {each.line}: {each.reason}" for each in account.rejected[:1])
            raise BadInput(f"{path}: no window{first or ''}")
        text = f"{plural(len(marks), 'window')}, times in {options.zone_note}"
        return Imported(text, marks=list(marks.values()), notes=_with_evaluations(marks.values()))


def _mark(row: Mapping[str, str], zone: tzinfo) -> Mark | str:
    phase, columns = row.get("phase") or "run", dict[str, Any]()
    if not _PHASE.fullmatch(phase):
        return f"phase is {quote(phase)}; allowed: a name"
    for name in (*_COUNTS, *_VALUES):
        if text := row.get(name):
            value = count(text) if name in _COUNTS else number(text)
            if value is None:
                return f"{name} is {quote(text)}; allowed: a number"
            columns[name] = value
    if row.get("warmup"):
        columns["warmup"] = row["warmup"].lower() in ("1", "true", "yes")
    times = []
    for name in ("start", "end"):
        if (t_ns := moment_ns(row[name], zone)) is None:
            return f"{name} is {quote(row[name])}; allowed: {_ALLOWED_TIMES}"
        times.append(t_ns)
    if times[1] <= times[0]:
        return "the window ends before it starts"
    return Mark(times[0], times[1], phase, columns)


def _with_evaluations(marks: Iterable[Mark]) -> list[str]:
    evaluations = sorted(mark.start_ns for mark in marks if mark.phase == "evaluate")
    longer = sum(
        bisect_left(evaluations, mark.start_ns) < bisect_left(evaluations, mark.end_ns)
        for mark in marks
        if mark.phase in ("train", "steps")
    )
    text = f"{plural(longer, 'window')} of training with an evaluation, which is included"
    return [text] if longer else []


WINDOWS = WindowsImporter()
