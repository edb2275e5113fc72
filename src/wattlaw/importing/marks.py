"""Windows of a time series: of ``--window``, of a CSV file, or of the lines of a log.

The CSV file has the columns ``start`` and ``end``, and optionally ``phase`` (train, evaluate,
steps, run or another name), ``epoch``, ``steps``, ``samples``, ``loss``, ``metric`` and ``warmup``.
"""

import re
from datetime import tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.importing.importer import Imported, Mark, Options
from wattlaw.importing.reading import (
    Source,
    count,
    headers_in,
    moment,
    moment_ns,
    number,
)
from wattlaw.text import quote

_COUNTS = ("epoch", "steps", "samples")
_VALUES = ("loss", "metric")
_PHASE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")
_TIME = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?")
_MAX_MARKS = 100_000


def parse_window(text: str, zone: tzinfo) -> Mark:
    """Return the window of ``--window START..END``; raise ``BadInput`` where the text is none."""
    start, dots, end = text.partition("..")
    start_ns, end_ns = (moment_ns(part, zone) for part in (start, end))
    if not dots or start_ns is None or end_ns is None or end_ns <= start_ns:
        raise BadInput(
            f"--window {quote(text)}: allowed: START..END, times such as 2026-01-31T12:00:00 or "
            "seconds since 1970"
        )
    return Mark(start_ns, end_ns)


class WindowsImporter:
    """Windows from a CSV file."""

    name = "windows"
    description = "CSV file with start and end of the windows of a time series"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether the header has ``start`` and ``end``, and other columns of windows only."""
        allowed = {"start", "end", "phase", "warmup", *_COUNTS, *_VALUES}
        return any({"start", "end"} <= names <= allowed for names in headers_in(head))

    def read(self, source: Source, options: Options) -> Imported:
        """Return the windows."""
        path, marks = source.path, list[Mark]()
        for line, row in source.rows(("start", "end")):
            source.account.read(line)
            phase = row.get("phase") or "run"
            if not _PHASE.fullmatch(phase):
                raise BadInput(f"{path}: line {line}: phase is {quote(phase)}; allowed: a name")
            columns: dict[str, Any] = {}
            for name in (*_COUNTS, *_VALUES):
                if row.get(name):
                    value = count(row[name], most=2**53) if name in _COUNTS else number(row[name])
                    if value is None:
                        raise BadInput(f"{path}: line {line}: {name} is {quote(row[name])}")
                    columns[name] = value
            if row.get("warmup"):
                columns["warmup"] = row["warmup"].lower() in ("1", "true", "yes")
            start_ns, end_ns = (
                moment(path, line, row[name], options.timezone) for name in ("start", "end")
            )
            if end_ns <= start_ns:
                raise BadInput(f"{path}: line {line}: the window ends before it starts")
            marks.append(Mark(start_ns, end_ns, phase, columns))
            if len(marks) > _MAX_MARKS:
                raise BadInput(f"{path}: more than {_MAX_MARKS:,} windows")
        if not marks:
            raise BadInput(f"{path}: no window")
        return Imported(f"{len(marks)} windows, times in {options.zone_note}", marks=marks)


class LogImporter:
    """Windows from lines of a log: from a line that matches ``--pattern`` to the next one."""

    name = "log"
    description = "log with times, with --pattern REGEX of the lines that end a window"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: with ``--pattern``, a log is the file that no other format has."""
        return False

    def read(self, source: Source, options: Options) -> Imported:
        """Return a window for each pair of neighbouring lines that match.

        With the named group ``step`` a window is a block of steps, otherwise it is an epoch, of the
        number in the group ``epoch``.
        """
        path = source.path
        try:
            pattern = re.compile(options.pattern or "")
        except (re.error, RecursionError, OverflowError) as error:
            raise BadInput(f"--pattern: not a regular expression: {error}") from None
        if not options.pattern:
            raise BadInput(f"{path}: a log needs --pattern, a regular expression of its lines")
        account, matches = source.account, list[tuple[int, int, dict[str, str | None]]]()
        for row, line in source.lines():
            found, time = pattern.search(line[:10_000]), _TIME.search(line[:10_000])
            t_ns = moment_ns(time[0], options.timezone) if found and time else None
            if found and t_ns is not None:
                matches.append((row, t_ns, found.groupdict()))
                if len(matches) > _MAX_MARKS:
                    raise BadInput(f"{path}: more than {_MAX_MARKS:,} lines match --pattern")
            else:
                why = "matches --pattern but has no time" if found else "does not match --pattern"
                account.leave_out(why, row)
        marks = []
        for (first, before_ns, before), (line_number, t_ns, groups) in pairwise(matches):
            account.read(first)
            if t_ns <= before_ns:
                account.leave_out("not later than the line before", line_number)
                continue
            account.read(line_number)
            steps = [count(each.get("step")) for each in (before, groups)]
            if steps[0] is not None and steps[1] is not None and steps[1] > steps[0]:
                marks.append(Mark(before_ns, t_ns, "steps", {"steps": steps[1] - steps[0]}))
            elif "step" not in groups:
                epoch = count(groups.get("epoch"), most=10**7)
                columns = {} if epoch is None else {"epoch": epoch}
                marks.append(Mark(before_ns, t_ns, "train", columns))
        if not marks:
            raise BadInput(f"{path}: fewer than two lines with a time match --pattern")
        return Imported(f"log: {len(marks)} windows, times in {options.zone_note}", marks=marks)


WINDOWS = WindowsImporter()
LOG = LogImporter()
