"""Imports: files of other tools as runs of a store."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, tzinfo
from os import PathLike
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from wattlaw.errors import BadInput
from wattlaw.formatting import plural
from wattlaw.importing.account import LeftOut
from wattlaw.importing.detection import importer_of, read_file, with_notes
from wattlaw.importing.importer import Options
from wattlaw.importing.mapping import parse_constants
from wattlaw.importing.marks import parse_window
from wattlaw.importing.runs import slug
from wattlaw.importing.timeseries import assemble
from wattlaw.store.imports import ImportedRun, write_runs
from wattlaw.store.store import Store
from wattlaw.text import join_names, quote

_TABLE = "table"
_MAX_FILES = 10_000


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


@dataclass(frozen=True)
class Import:
    """Files that were read, and the runs that they become. Nothing is written yet."""

    files: tuple[ImportedFile, ...]
    runs: tuple[ImportedRun, ...]
    notes: tuple[str, ...]  # how the windows of time series were marked

    def write(self, store: str | PathLike[str]) -> "ImportResult":
        """Write the runs into a store; runs that it has stay as they are.

        Raises ``BadInput`` if there is no run; nothing is written.
        """
        if not self.runs:
            rows = sum(len(file.rejected) for file in self.files)
            raise BadInput(f"{self.files[0].path}: none of its {rows} rows can be imported")
        target = Store(Path(store))
        target.create()
        counts = write_runs(target, self.runs)
        unit = "row" if self.files[0].path.suffix.lower() == ".parquet" else "line"
        changed = tuple(
            f"{unit} {row.line}: {row.reason}" if row.line else row.reason
            for row in counts.rejected
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

    @property
    def rejected(self) -> int:
        """The number of rows that were not imported."""
        return len(self.changed) + sum(len(file.rejected) for file in self.read.files)

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python, ready for JSON."""
        files = [asdict(file) | {"path": str(file.path)} for file in self.read.files]
        return {
            "store": str(self.store), "files": files, "notes": list(self.read.notes),
            "added": self.added, "unchanged": self.unchanged, "changed": list(self.changed),
            "rejected": self.rejected, "other_runs": self.other_runs,
        }  # fmt: skip

    def __str__(self) -> str:
        names = join_names([str(file.path) for file in self.read.files])
        return (
            f"{names}: {plural(self.added, 'run')} added to {self.store}, {self.unchanged} already "
            f"there, {self.rejected} rows skipped"
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
        One file or several. A file of windows, or a log of a training, marks the windows of the
        time series in the other files.
    store
        The results folder; it is created where there is none.
    **settings
        Those of ``read_import``.

    Raises
    ------
    wattlaw.errors.BadInput
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
        The format of all files, such as ``codecarbon``; None detects that of each.
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
    paths = [Path(files)] if isinstance(files, str | PathLike) else [Path(file) for file in files]
    if not paths or len(paths) > _MAX_FILES:
        raise BadInput(f"given {len(paths)} files; allowed: 1 to {_MAX_FILES:,}")
    if len({path.resolve() for path in paths}) < len(paths):
        raise BadInput("a file is named twice")
    if study is not None and (slug(study) != study or not study):
        raise BadInput(
            f"--study: {quote(study)} is not valid; expected at most 100 letters, digits, '.', '_' "
            "and '-'"
        )
    zone = _zone(timezone)
    options = Options(
        study=study or "imported",
        mapping=map,
        timezone=zone,
        timezone_is_assumed=timezone is None,
        windows=tuple(parse_window(text, zone) for text in windows),
        pattern=pattern,
        devices=tuple(devices),
    )
    importers = [importer_of(path, options, format) for path in paths]
    names = {"workload": workload, "hardware": hardware}
    has_table = any(importer.name == _TABLE for importer in importers)
    mapped = {field for importer in importers for field in getattr(importer, "mapped", ())}
    constants = parse_constants(None if has_table else map, names, mapped)
    parts = []
    for path, importer in zip(paths, importers, strict=True):
        own = replace(options, study=study or slug(path.stem) or "imported", constants=constants)
        parts.append((path, own, importer, *read_file(path, importer, own)))
    series = next((own for _, own, _, part, _ in parts if part.readings is not None), options)
    runs, notes = assemble([(path, part) for path, _, _, part, _ in parts], series)
    for path, _, _, part, account in parts:
        if not part.runs:  # its readings or windows are part of all runs
            runs = with_notes(runs, [f"{path.name}: {text}" for text in account.texts()])
    if len({run.record.run_id for run in runs}) < len(runs):
        raise BadInput("two of the files have one name and an equal run; rename one of them")
    read = tuple(
        ImportedFile(
            path,
            importer.name,
            part.description,
            tuple(part.notes),
            account.rows_read,
            account.left_out,
            tuple(
                f"{account.unit} {row.line}: {row.reason}"
                for row in sorted(account.rejected, key=lambda row: row.line)
            ),
        )
        for path, _, importer, part, account in parts
    )
    return Import(read, tuple(runs), tuple(notes))


def _zone(text: str | None) -> tzinfo:
    if text is None:
        return UTC
    try:
        if text[:1] in "+-":
            return datetime.strptime(text, "%z").tzinfo or UTC
        return ZoneInfo(text)
    except (ValueError, LookupError, OSError):
        raise BadInput(
            f"--timezone: {quote(text)} is no zone; allowed: one such as Europe/Berlin or +01:00"
        ) from None
