"""Windows of a time series: of ``--window``, of a CSV file, or of the lines of a log.

The CSV file has the columns ``start`` and ``end``, and optionally ``phase`` (train, evaluate,
steps, run or another name), ``epoch``, ``steps``, ``samples``, ``loss``, ``metric`` and ``warmup``.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.text import quote
from wattlaw.importing.importer import Imported, Mark, Options
from wattlaw.importing.reading import NO_TIME, Source, count, headers_in, moment_ns, number
from wattlaw.importing.timeseries import are_pauses, overlapping

_COUNTS = ("epoch", "steps", "samples")
_VALUES = ("loss", "metric")
_PHASE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")
_MAX_MARKS, _MAX_SEARCHED, _MAX_EPOCH = 100_000, 10_000, 10**7
#: Steps are whole numbers, so that "12,000" means one thing only.
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:,|$))")
#: The time of a line: ``2026-01-31 12:00:00,5 UTC``, ``31.01.2026 12:00:00``, or seconds since 1970
#: at its beginning. Other orders of day and month are read differently from country to country.
_TIME = re.compile(
    r"(?<!\d)((?:\d{4}([-/])\d\d\2\d\d[ T]|\d\d\.\d\d\.\d{4} )\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    r"(?:\s?(Z|UTC|GMT|[+-]\d\d:?\d\d)(?![\d:]))?(?!\s?[AP]M\b)(?![.,]?\d)"
)
_SECONDS = re.compile(r"\W*(?:(?:time|ts|timestamp)\W{1,4})?(1\d{9}(?:\.\d+)?|1\d{12})(?![\d.])")
_ALLOWED_TIMES = "2026-01-31T12:00:00, with or without a zone, or seconds since 1970"
#: The group of lines of evaluations, and words that they have without it.
_EVALUATED = "evaluation"
_EVALUATION = re.compile(
    r"(?<![a-z])(?:val|valid|validat(?:ion|ing|e)|eval|evaluat(?:ion|ing|e)|"
    r"test(?:ing)?[ _/](?:acc|loss|set|error|score|step|epoch|result)\w*)(?![a-z])",
    re.IGNORECASE,
)


class _Point(NamedTuple):
    row: int
    t_ns: int
    step: int | None
    epoch: int | None
    is_evaluation: bool  # it has such a word


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


class LogImporter:
    """Windows from lines of a log: from a line that matches ``--pattern`` to the next one.

    With the named group ``step`` a window is a block of steps, with ``epoch`` it is an epoch. Lines
    of evaluations match the group ``evaluation``, or else have such a word.
    """

    name = "log"
    description = "log with times, with --pattern REGEX of the lines that end a window"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: with ``--pattern``, a log is the file that no other format has."""
        return False

    def read(self, source: Source, options: Options) -> Imported:
        path, account, pattern = source.path, source.account, _pattern(source.path, options)
        is_by_group, is_by_step = (name in pattern.groupindex for name in (_EVALUATED, "step"))
        found, evaluated = list[_Point](), list[int]()
        for row, line in source.lines():
            text = line[:_MAX_SEARCHED]
            match, has_word = pattern.search(text), bool(_EVALUATION.search(text))
            groups = match.groupdict() if match else {}
            t_ns = time_ns_of_line(text, options.timezone) if match else None
            step, epoch = (
                count(_THOUSANDS.sub("", groups.get(name) or "")) for name in ("step", "epoch")
            )
            if groups.get(_EVALUATED) is not None or (has_word and not (match or is_by_group)):
                evaluated.append(row)
                account.leave_out("a line of an evaluation", row)
            elif not match:
                account.leave_out("does not match --pattern", row)
            elif t_ns is None:
                account.leave_out(f"matches --pattern but has {NO_TIME}", row)
            elif is_by_step and step is None:
                account.leave_out("a step that is no whole number", row)
            else:
                found.append(_Point(row, t_ns, step, epoch, has_word))
                if len(found) > _MAX_MARKS:
                    raise BadInput(f"{path}: more than {_MAX_MARKS:,} lines match --pattern")
        are_all_evaluations = all(point.is_evaluation for point in found)
        # Where all lines have a word such as ``val_loss``, they are those of training.
        if not (is_by_group or are_all_evaluations):
            results = [point.row for point in found if point.is_evaluation]
            account.leave_out("a line of an evaluation", *results)
            evaluated = sorted([*evaluated, *results])
            found = [point for point in found if not point.is_evaluation]
        points = _later(source, found)
        marks, notes = _marks(source, points, evaluated, is_steps=is_by_step)
        if found and are_all_evaluations:
            notes.append("every line has a word such as eval: the windows may include evaluations")
        if not marks:
            few = "fewer than two lines with a time and a date match --pattern"
            raise BadInput(f"{path}: {'; '.join(notes or [few, *account.texts()[:2]])}")
        text = f"log: {plural(len(marks), 'window')}, times in {options.zone_note}"
        return Imported(text, marks=marks, notes=notes)


def _later(source: Source, found: Sequence[_Point]) -> list[_Point]:
    points = list[_Point]()
    for point in found:
        is_same = bool(points) and point[2:4] == points[-1][2:4]
        if points and point.t_ns <= points[-1].t_ns and not is_same:
            source.account.leave_out("not later than the line before", point.row)
        elif is_same and point[2:4] != (None, None):
            source.account.leave_out("the same step or epoch as the line before", point.row)
        else:
            points.append(point)
    return points


def time_ns_of_line(line: str, zone: tzinfo) -> int | None:
    if match := _TIME.search(line):
        of_line = {"UTC": "Z", "GMT": "Z", None: ""}.get(match[3], match[3])
        return moment_ns(f"{match[1]}{of_line}", zone)
    match = _SECONDS.match(line)
    return moment_ns(match[1], zone) if match else None


def _pattern(path: Path, options: Options) -> re.Pattern[str]:
    example = r"--pattern 'step (?P<step>\d+)' or 'epoch (?P<epoch>\d+)'"
    if not options.pattern:
        raise BadInput(f"{path}: a log needs a regular expression of its lines, such as {example}")
    try:
        pattern = re.compile(options.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(f"--pattern: not a regular expression: {error}") from None
    if not {"step", "epoch"} & {*pattern.groupindex}:
        raise BadInput(
            f"--pattern: has no group step or epoch; name the number of a line, such as {example}"
        )
    return pattern


def _marks(
    source: Source, points: Sequence[_Point], evaluated: Sequence[int], *, is_steps: bool
) -> tuple[list[Mark], list[str]]:
    whys, pairs = Counter[str](), list[tuple[_Point, _Point, int]]()
    for before, point in pairwise(points):
        first, last = (before.step, point.step) if is_steps else (before.epoch, point.epoch)
        length = 1 if first is None or last is None else last - first
        if bisect_left(evaluated, point.row) > bisect_left(evaluated, before.row):
            whys["with an evaluation"] += 1
        elif length <= 0:
            whys["in which the numbers go back"] += 1
        elif not is_steps and length > 1:
            whys["of several epochs"] += 1
        else:
            pairs.append((before, point, length))
    durations_s = [(point.t_ns - before.t_ns) * 1e-9 for before, point, _ in pairs]
    are_long, marks = are_pauses(durations_s, [length for _, _, length in pairs]), []
    for (before, point, length), is_pause in zip(pairs, are_long, strict=True):
        if is_pause:
            whys["with a pause"] += 1
            continue
        source.account.read(before.row, point.row)
        if is_steps:
            marks.append(Mark(before.t_ns, point.t_ns, "steps", {"steps": length}))
        else:
            is_number = point.epoch is not None and point.epoch <= _MAX_EPOCH
            epoch = {"epoch": point.epoch} if is_number else {}
            marks.append(Mark(before.t_ns, point.t_ns, "train", epoch))
    alone = [point.row for point in points if not source.account.is_read(point.row)]
    source.account.leave_out("not the start or end of a window", *alone)
    return marks, [f"{plural(times, 'interval')} left out: {why}" for why, times in whys.items()]


WINDOWS = WindowsImporter()
LOG = LogImporter()
