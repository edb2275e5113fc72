"""Windows of a time series: of ``--window``, of a CSV file, or of the lines of a log.

The CSV file has the columns ``start`` and ``end``, and optionally ``phase`` (train, evaluate,
steps, run or another name), ``epoch``, ``steps``, ``samples``, ``loss``, ``metric`` and ``warmup``.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.text import quote
from wattlaw.importing.importer import Imported, Mark, Options
from wattlaw.importing.log_times import Stamp, days_are_first, find_stamp, stamp_ns
from wattlaw.importing.overlap import Span, overlapping
from wattlaw.importing.reading import NO_TIME, Source, count, headers_in, moment_ns, number
from wattlaw.importing.timeseries import are_pauses

_COUNTS = ("epoch", "steps", "samples")
_VALUES = ("loss", "metric")
_PHASE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")
_MAX_MARKS, _MAX_SEARCHED, _MAX_EPOCH = 100_000, 10_000, 10**7
#: Steps are whole numbers, so that "12,000" means one thing only.
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:,|$))")
_ALLOWED_TIMES = "2026-01-31T12:00:00, with or without a zone, or seconds since 1970"
#: The group of lines of evaluations, and words that they have without it.
_EVALUATED = "evaluation"
_EVALUATION = re.compile(
    r"(?<![a-z])(?:val|valid|validat(?:ion|ing|e)|eval|evaluat(?:ion|ing|e)|"
    r"test(?:ing)?[ _/](?:acc|loss|set|error|score|step|epoch|result)\w*)(?![a-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Line:
    row: int
    stamp: Stamp
    groups: Mapping[str, str | None]
    is_evaluation: bool  # it has such a word


class _Point(NamedTuple):
    row: int
    t_ns: int
    step: int | None
    epoch: int | None


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
        spans = [Span(line, mark.phase, mark.start_ns, mark.end_ns) for line, mark in marks.items()]
        for line, why in overlapping(spans).items():
            account.leave_out(why, line)
            del marks[line]
        if not marks:
            first = f"; line {account.rejected[0].line}: " if account.rejected else ""
            reason = account.rejected[0].reason if account.rejected else ""
            raise BadInput(f"{path}: no window{first}{reason}")
        text = f"{plural(len(marks), 'window')}, times in {options.zone_note}"
        return Imported(text, marks=list(marks.values()), notes=_with_evaluations(marks.values()))


def _mark(row: Mapping[str, str], zone: tzinfo) -> Mark | str:
    phase, columns = row.get("phase") or "run", dict[str, Any]()
    if not _PHASE.fullmatch(phase):
        return f"phase is {quote(phase)}; allowed: a name"
    for name in (*_COUNTS, *_VALUES):
        if text := row.get(name):
            value = count(text, most=2**53) if name in _COUNTS else number(text)
            if value is None:
                return f"{name} is {quote(text)}; allowed: a number"
            columns[name] = value
    if row.get("warmup"):
        columns["warmup"] = row["warmup"].lower() in ("1", "true", "yes")
    start_ns, end_ns = (moment_ns(row[name], zone) for name in ("start", "end"))
    for name, t_ns in (("start", start_ns), ("end", end_ns)):
        if t_ns is None:
            return f"{name} is {quote(row[name])}; allowed: {_ALLOWED_TIMES}"
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        return "the window ends before it starts"
    return Mark(start_ns, end_ns, phase, columns)


def _with_evaluations(marks: Iterable[Mark]) -> list[str]:
    evaluations = sorted(mark.start_ns for mark in marks if mark.phase == "evaluate")
    trained = [mark for mark in marks if mark.phase in ("train", "steps")]
    longer = sum(
        bisect_left(evaluations, mark.start_ns) < bisect_left(evaluations, mark.end_ns)
        for mark in trained
    )
    text = f"{plural(longer, 'window')} of training with an evaluation, which is included"
    return [text] if longer else []


class LogImporter:
    """Windows from lines of a log: from a line that matches ``--pattern`` to the next one."""

    name = "log"
    description = "log with times, with --pattern REGEX of the lines that end a window"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: with ``--pattern``, a log is the file that no other format has."""
        return False

    def read(self, source: Source, options: Options) -> Imported:
        """Return a window for each pair of neighbouring lines that match.

        With the named group ``step`` a window is a block of steps, with ``epoch`` it is an epoch.
        Lines of evaluations match the group ``evaluation``, or else have such a word.
        """
        path, account, pattern = source.path, source.account, _pattern(source.path, options)
        lines, evaluated = list[_Line](), list[int]()
        for row, line in source.lines():
            text = line[:_MAX_SEARCHED]
            found = pattern.search(text)
            stamp, groups = (find_stamp(text), found.groupdict()) if found else (None, {})
            if groups.get(_EVALUATED) is not None or (
                not found and _EVALUATED not in pattern.groupindex and _EVALUATION.search(text)
            ):
                evaluated.append(row)
                account.leave_out("a line of an evaluation", row)
            elif found and stamp is not None:
                lines.append(_Line(row, stamp, groups, bool(_EVALUATION.search(text))))
                if len(lines) > _MAX_MARKS:
                    raise BadInput(f"{path}: more than {_MAX_MARKS:,} lines match --pattern")
            else:
                why = (
                    f"matches --pattern but has {NO_TIME}" if found else "does not match --pattern"
                )
                account.leave_out(why, row)
        are_all_evaluations = all(line.is_evaluation for line in lines)
        # Where all lines have a word such as ``val_loss``, they are those of training.
        if _EVALUATED not in pattern.groupindex and not are_all_evaluations:
            results = [line.row for line in lines if line.is_evaluation]
            account.leave_out("a line of an evaluation", *results)
            evaluated = sorted([*evaluated, *results])
            lines = [line for line in lines if not line.is_evaluation]
        points, problem = _points(source, lines, options.timezone)
        marks, notes = _marks(source, points, evaluated, is_steps="step" in pattern.groupindex)
        if lines and are_all_evaluations:
            notes.append("every line has a word such as eval: the windows may include evaluations")
        if not marks:
            few = "fewer than two lines with a time match --pattern"
            why = problem or "; ".join(notes or [few, *account.texts()[:2]])
            raise BadInput(f"{path}: {why}")
        text = f"log: {plural(len(marks), 'window')}, times in {options.zone_note}"
        return Imported(text, marks=marks, notes=notes)


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


def _points(
    source: Source, lines: Sequence[_Line], zone: tzinfo
) -> tuple[list[_Point], str | None]:
    """Return the lines with a time that is certain, and what is wrong with the first other one."""
    day_first, points, problem = days_are_first(line.stamp for line in lines), list[_Point](), None
    for line in lines:
        t_ns = stamp_ns(line.stamp, zone, day_first=day_first)
        step, epoch = (
            count(_THOUSANDS.sub("", line.groups.get(name) or "")) for name in ("step", "epoch")
        )
        if isinstance(t_ns, str):
            source.account.leave_out(t_ns, line.row)
            problem = problem or (
                f"line {line.row} has {t_ns}: {quote(line.stamp.text)}; write times such as "
                "2026-01-31 12:00:00, or add the date, for instance with: sed 's/^/2026-01-31 /'"
            )
        elif "step" in line.groups and step is None:
            source.account.leave_out("a step that is no whole number", line.row)
        elif points and t_ns <= points[-1].t_ns and (step, epoch) != points[-1][2:]:
            source.account.leave_out("not later than the line before", line.row)
        elif points and (step, epoch) == points[-1][2:] and (step, epoch) != (None, None):
            source.account.leave_out("the same step or epoch as the line before", line.row)
        else:
            points.append(_Point(line.row, t_ns, step, epoch))
    return points, problem


def _marks(
    source: Source, points: Sequence[_Point], evaluated: Sequence[int], *, is_steps: bool
) -> tuple[list[Mark], list[str]]:
    whys = Counter[str]()
    pairs = list[tuple[_Point, _Point, int]]()
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
    are_long = are_pauses(durations_s, [length for _, _, length in pairs])
    marks = []
    for (before, point, length), is_pause in zip(pairs, are_long, strict=True):
        if is_pause:
            whys["with a pause"] += 1
            continue
        source.account.read(before.row, point.row)
        number = {} if point.epoch is None or point.epoch > _MAX_EPOCH else {"epoch": point.epoch}
        columns = {"steps": length} if is_steps else number
        phase = "steps" if is_steps else "train"
        marks.append(Mark(before.t_ns, point.t_ns, phase, columns))
    alone = [point.row for point in points if not source.account.is_read(point.row)]
    source.account.leave_out("not the start or end of a window", *alone)
    return marks, [f"{plural(times, 'interval')} left out: {why}" for why, times in whys.items()]


WINDOWS = WindowsImporter()
LOG = LogImporter()
