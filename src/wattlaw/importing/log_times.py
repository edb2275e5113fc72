"""The times of lines of a log, in the forms that loggers write."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from wattlaw.importing.reading import moment_ns, ns_of_datetime

_CLOCK = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?:\s?(?P<half>[AP]M)\b)?(?:\s?(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d)(?![\d:]))?"
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = rf"(?P<name>{'|'.join(_MONTHS)})[a-z]*\.?"
_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?<!\d)(?P<year>\d{{4}})[-/.](?P<month>\d\d)[-/.](?P<day>\d\d)[ T_,-]+{_CLOCK}",
        r"(?<!\d)(?P<year>20\d\d)(?P<month>\d\d)(?P<day>\d\d)[ T_-]{0,2}"
        r"(?P<hour>\d\d):?(?P<minute>\d\d):?(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?(?!\d)",
        rf"\b(?P<day>\d{{1,2}})[ /-]{_MONTH}[ /,-]+(?P<year>\d{{4}})[ ,:T]+{_CLOCK}",
        rf"\b{_MONTH}\s+(?P<day>\d{{1,2}}),?\s+(?P<year>\d{{4}})[ ,]+{_CLOCK}",
        rf"\b{_MONTH}\s+(?P<day>\d{{1,2}})\s+{_CLOCK}\s+(?:[A-Z]{{3,4}}\s+)?(?P<year>\d{{4}})\b",
        rf"(?<!\d)(?P<day>\d{{1,2}})\.(?P<month>\d{{1,2}})\.(?P<year>\d{{4}})[ ,]+{_CLOCK}",
        # 02/01/2026 is of January in one country and of February in another.
        rf"(?<!\d)(?P<one>\d{{1,2}})[/-](?P<other>\d{{1,2}})[/-](?P<year>\d{{4}})[ ,-]+{_CLOCK}",
    )
)
_SECONDS = re.compile(r"^\W*(?:(?:time|ts|timestamp)\W{1,4})?(1\d{9}(?:\.\d+)?|1\d{12})(?![\d.])")
_WITHOUT = (
    ("year", re.compile(rf"\b{_MONTH}\s+\d{{1,2}}\s+{_CLOCK}", re.IGNORECASE)),
    ("year", re.compile(rf"\b[IWEFD]\d{{4}}\s+{_CLOCK}")),
    ("year", re.compile(rf"(?<![\d/-])\d\d[-/]\d\d\s+{_CLOCK}")),
    ("date", re.compile(rf"(?<![\d:]){_CLOCK}")),
)
AMBIGUOUS = "a date with an ambiguous month and day"


@dataclass(frozen=True)
class Stamp:
    """The time of a line; ``without`` says what it lacks: a year or a date."""

    text: str
    numbers: tuple[int, ...] = ()  # year, month, day, hour, minute, second
    fraction_ns: int = 0
    zone: tzinfo | None = None
    is_ambiguous: bool = False  # month and day may be the other way round
    t_ns: int | None = None  # of a time in seconds since 1970
    without: str = ""


def find_stamp(line: str) -> Stamp | None:
    for form in _FORMS:
        if match := form.search(line):
            return _stamp(match)
    if (match := _SECONDS.match(line)) and (t_ns := moment_ns(match[1], UTC)) is not None:
        return Stamp(match[1], t_ns=t_ns)
    for without, form in _WITHOUT:
        if match := form.search(line):
            return Stamp(match[0][:50], without=without)
    return None


def _stamp(match: re.Match[str]) -> Stamp:
    known = {name: value for name, value in match.groupdict().items() if value is not None}
    hour = int(known["hour"])
    if half := known.get("half"):
        hour = hour % 12 + 12 * (half.upper() == "PM")
    if "one" in known:
        month, day = int(known["one"]), int(known["other"])
    elif "name" in known:
        month, day = _MONTHS.index(known["name"].lower()) + 1, int(known["day"])
    else:
        month, day = int(known["month"]), int(known["day"])
    zone, text = None, known.get("zone", "")
    if text[:1] in "+-" and text:
        minutes = (int(text[1:3]) * 60 + int(text[-2:])) % 1440
        zone = timezone(timedelta(minutes=minutes if text[0] == "+" else -minutes))
    elif text:
        zone = UTC
    clock = (hour, int(known["minute"]), int(known["second"]))
    fraction_ns = int(known.get("fraction", "0").ljust(9, "0"))
    numbers = (int(known["year"]), month, day, *clock)
    return Stamp(match[0][:50], numbers, fraction_ns, zone, "one" in known)


def days_are_first(stamps: Iterable[Stamp]) -> bool | None:
    """Say whether ambiguous dates have the day first; None where no date of them shows it."""
    dates = [stamp.numbers for stamp in stamps if stamp.is_ambiguous]
    has_days = any(date[1] > 12 for date in dates)
    has_months = any(date[2] > 12 for date in dates)
    return None if has_days == has_months else has_days


def stamp_ns(stamp: Stamp, zone: tzinfo, *, day_first: bool | None) -> int | str:
    """Return the nanoseconds since 1970 of a time, or what is wrong with it."""
    if stamp.t_ns is not None:
        return stamp.t_ns
    if stamp.without:
        return f"a time without a {stamp.without}"
    if stamp.is_ambiguous and day_first is None:
        return AMBIGUOUS
    year, month, day, hour, minute, second = stamp.numbers
    if stamp.is_ambiguous and day_first:
        month, day = day, month
    try:
        whole = datetime(year, month, day, hour, minute, second, tzinfo=stamp.zone or zone)
        t_ns = ns_of_datetime(whole, stamp.fraction_ns)
    except (ValueError, OverflowError):
        return "a time that does not exist"
    return "a time that is not between 1970 and 2116" if t_ns is None else t_ns
