"""Imports: files of other tools as runs of a store."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, tzinfo
from os import PathLike
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from wattlaw.api.arguments import listed, path_of
from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.text import join_names, quote, short_repr
from wattlaw.importing.detection import MAX_FILES, InputFile, find_files, read_file, with_notes
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.marks import parse_window
from wattlaw.importing.reading import Account, LeftOut
from wattlaw.importing.runs import slug
from wattlaw.importing.timeseries import assemble
from wattlaw.store.field_map import parse_constants
from wattlaw.store.import_tables import ImportedRun, write_runs
from wattlaw.store.store import Store

#: At most this number of files is named in the last line of an import.
_NAMED_FILES = 5


@dataclass(frozen=True)
class ImportedFile:
    """One file of an import: its format, what it contains, and what is left out of it."""

    path: Path
    format: str
    description: str
    notes: tuple[str, ...]
    rows_read: int  # lines, records or jobs, without headers and blank lines
    left_out: tuple[LeftOut, ...]
    rejected: tuple[str, ...]  # such as "line 3: gpus is missing"

    __repr__ = short_repr


@dataclass(frozen=True)
class Import:
    """Files that were read, and the runs that they become. Nothing is written yet."""

    files: tuple[ImportedFile, ...]
    runs: tuple[ImportedRun, ...]
    notes: tuple[str, ...]  # how the windows of time series were marked
    #: Files of folders, readings and phases; a line for each reason.
    left_out: tuple[str, ...] = ()

    __repr__ = short_repr

    def write(self, store: str | PathLike[str]) -> "ImportResult":
        """Write the runs into a store; runs that it has stay as they are.

        Raises ``BadInput`` if there is no run; nothing is written.
        """
        first = self.files[0].path
        if not self.runs:
            left_out = [each for file in self.files for each in file.left_out]
            rejected = [row for file in self.files for row in file.rejected]
            rows = len(rejected) + sum(each.count for each in left_out)
            why = "; ".join([*map(str, left_out[:3]), *rejected[:1]])
            what = "its" if len(self.files) == 1 else f"the {len(self.files):,} files'"
            text = f"{first}: none of {what} {rows:,} rows can be imported"
            raise BadInput(f"{text}: {why}" if why else text)
        target = Store(Path(store))
        target.create()
        counts = write_runs(target, self.runs)
        changed = tuple(
            f"line {row.line}: {row.reason}" if row.line else row.reason for row in counts.rejected
        )
        return ImportResult(
            Path(store), self, counts.added, counts.unchanged, changed, counts.other_runs
        )


@dataclass(frozen=True)
class ImportResult:
    """What an import has written, as numbers of runs."""

    store: Path
    read: Import
    added: int
    unchanged: int
    changed: tuple[str, ...]  # runs that the store has with other values, and their reasons
    other_runs: int  # runs of the store from files of these names that are not in the import

    __repr__ = short_repr

    @property
    def rejected(self) -> int:
        """The number of rows that were not imported."""
        return len(self.changed) + sum(len(file.rejected) for file in self.read.files)

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python, ready for JSON."""
        files = [asdict(file) | {"path": str(file.path)} for file in self.read.files]
        return {
            "store": str(self.store), "files": files, "notes": list(self.read.notes),
            "left_out": list(self.read.left_out),
            "added": self.added, "unchanged": self.unchanged, "changed": list(self.changed),
            "rejected": self.rejected, "other_runs": self.other_runs,
        }  # fmt: skip

    def __str__(self) -> str:
        files = self.read.files
        names = join_names([str(file.path) for file in files])
        names = names if len(files) <= _NAMED_FILES else f"{len(files):,} files"
        return (
            f"{names}: {plural(self.added, 'run')} added to {self.store}, {self.unchanged} already "
            f"there, {self.rejected} rows rejected"
        )


def import_files(
    files: str | PathLike[str] | Sequence[str | PathLike[str]],
    store: str | PathLike[str] = "wattlaw-store",
    **settings: Any,
) -> ImportResult:
    r"""Import files of other tools into a store.

    Parameters
    ----------
    files
        Files, and folders, which stand for their files of known formats. A file of windows, or a
        log of a training, marks the windows of the time series in the other files that are named,
        or of its folder if there are several.
    store
        The results folder; it is created where there is none.
    **settings
        Those of ``read_import``.

    Raises
    ------
    wattlaw.common.errors.BadInput
        A file is not of a known format, or lacks something; nothing is written.

    Examples
    --------
    >>> _ = Path("steps.csv").write_text("n,step_ms\n1,250\n2,130\n")
    >>> wattlaw.import_files("steps.csv", "imported", map="gpus=n,step_time=step_ms").added
    2
    """
    return read_import(files, **settings).write(store)


def read_import(
    files: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    format: str | None = None,
    map: str | None = None,
    workload: str | None = None,
    hardware: str | None = None,
    study: str | None = None,
    timezone: str | None = None,
    windows: Sequence[str] = (),
    pattern: str | None = None,
    devices: Sequence[str] = (),
) -> Import:
    """Read files of other tools, and return the runs that they become.

    Parameters
    ----------
    files
        As for ``import_files``.
    format
        The format of all files, such as ``nvidia-smi``; None detects that of each.
    map
        ``FIELD=COLUMN,...`` of a table; ``FIELD=@VALUE`` sets a value that a file does not have.
    workload, hardware
        Names, where the files have none.
    study
        The name of the study; None takes the name of each file.
    timezone
        The zone of times without one, such as ``Europe/Berlin`` or ``+01:00``; None is UTC.
    windows
        Windows of a time series, each ``START..END``.
    pattern
        A regular expression of the lines of a log that end a window.
    devices
        The devices of a time series that count; none: all.
    """
    paths = [path_of("files", file) for file in listed(files)]
    if not paths or len(paths) > MAX_FILES:
        raise BadInput(f"files: given {len(paths)} files; allowed: 1 to {MAX_FILES:,}")
    if study is not None and (slug(study) != study or not study):
        raise BadInput(
            f"study: {quote(study)} is not valid; expected at most 100 letters, digits, '.', '_' "
            "and '-'"
        )
    zone = _zone(timezone)
    options = Options(
        study=study or "imported", mapping=map, timezone=zone, timezone_is_assumed=timezone is None,
        windows=tuple(parse_window(text, zone) for text in windows), pattern=pattern,
        devices=tuple(devices),
    )  # fmt: skip
    found, left_out = find_files(paths, options, format)
    has_table = any(file.importer.name == "table" for file in found)
    mapped = {field for file in found for field in getattr(file.importer, "mapped", ())}
    names = {"workload": workload, "hardware": hardware}
    constants = parse_constants(None if has_table else map, names, mapped)
    parts = []
    for file in found:
        stem = slug(file.source.removesuffix(file.path.suffix))
        own = replace(
            options, study=study or stem or "imported", constants=constants, source=file.source
        )
        if has_table and file.importer.name != "table":
            own = replace(own, mapping=None)  # the columns are those of the table
        parts.append(_read_part(file, own))
    # Readings and windows belong together if they are in one folder or were named themselves.
    folders = {part.file.folder for part in parts} - {None}
    groups: dict[Path | None, list[_Part]] = {}
    for part in parts:
        groups.setdefault(part.file.folder if len(folders) > 1 else None, []).append(part)
    runs, notes = list[ImportedRun](), list[str]()
    for group in groups.values():
        of_group, marked, of_series = _assembled(group, options)
        runs += of_group
        notes += marked
        left_out += of_series
    if len({run.record.run_id for run in runs}) < len(runs):
        raise BadInput("two of the files have one name and an equal run; rename one of them")
    return Import(
        tuple(_summary(part) for part in parts), tuple(runs), tuple(notes), tuple(left_out)
    )


@dataclass(frozen=True)
class _Part:
    """What was read of one file; ``fault`` says why nothing was."""

    file: InputFile
    options: Options
    imported: Imported
    account: Account
    fault: str | None = None


def _read_part(file: InputFile, options: Options) -> _Part:
    """Return what a file contains; one of a folder that cannot be read is rejected as a whole."""
    try:
        return _Part(file, options, *read_file(file.path, file.importer, options))
    except BadInput as error:
        if file.folder is None:
            raise
        fault = str(error).removeprefix(f"{file.path}: ")
        return _Part(file, options, Imported("not imported"), Account(), fault)


def _summary(part: _Part) -> ImportedFile:
    account = part.account
    rejected = [] if part.fault is None else [part.fault]
    if part.fault is None:
        rows = sorted(account.rejected, key=lambda row: row.line)
        rejected = [f"{account.unit} {row.line}: {row.reason}" for row in rows]
    return ImportedFile(
        part.file.path, part.file.importer.name, part.imported.description,
        tuple(part.imported.notes), account.rows_read, account.left_out, tuple(rejected),
    )  # fmt: skip


def _assembled(
    group: Sequence[_Part], options: Options
) -> tuple[list[ImportedRun], list[str], list[str]]:
    series = next((part.options for part in group if part.imported.readings), options)
    runs, marked, left_out = assemble([(part.file.path, part.imported) for part in group], series)
    notes = [*marked, *left_out]
    for part in group:
        if not part.imported.runs:  # its readings or windows are part of all runs
            texts = (*part.imported.notes, *part.account.texts())
            notes += [f"{part.file.path.name}: {text}" for text in texts]
    return with_notes(runs, notes), marked, left_out


def _zone(text: str | None) -> tzinfo:
    if text is None:
        return UTC
    try:
        if text[:1] in "+-":
            return datetime.strptime(text, "%z").tzinfo or UTC
        return ZoneInfo(text)
    except (ValueError, LookupError, OSError):
        raise BadInput(
            f"timezone: {quote(text)} is no zone; allowed: one such as Europe/Berlin or +01:00"
        ) from None
