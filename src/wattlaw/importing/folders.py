"""The files of an import: those that are named, that match a pattern, or that are in a folder."""

import glob
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.importing.detection import folder_importer, importer_of
from wattlaw.importing.importer import Importer, Options
from wattlaw.store.field_map import columns_of
from wattlaw.store.version import version_path

MAX_FILES = 10_000
#: Most entries of the folders of an import, and how deep they are searched.
_MAX_ENTRIES, _MAX_DEPTH = 200_000, 40
#: In folders, the suffixes of files of formats that are not detected by their content.
_SUFFIXES = {"table": (".csv", ".tsv", ".jsonl", ".parquet"), "log": (".log", ".out", ".txt")}
_UNKNOWN = "no known format"


@dataclass(frozen=True)
class InputFile:
    """A file, or the folder of one training, that is imported."""

    path: Path
    #: What identifies it among others: its name, or its place below the folder that was named.
    source: str
    importer: Importer
    #: The folder in which it was found; None if it was named itself.
    folder: Path | None = None


def find_files(
    arguments: Sequence[Path], options: Options, name: str | None
) -> tuple[list[InputFile], list[str]]:
    """Return the files to import, and lines about what of folders is left out.

    A folder stands for its files of known formats. A pattern stands for the files and folders that
    match it. ``name`` is the format of all files; None detects it. Raises ``BadInput`` if there is
    no file, one is named twice, or one that is named is of no known format.
    """
    search = _Search(options, name)
    for argument in arguments:
        for path, root in _expanded(argument):
            if path.is_dir() and folder_importer(path, name) is None:
                search.add_folder(path, root or path)
            else:
                search.add(path, root, importer_of(path, options, name))
    files, left_out = search.files, search.left_out()
    if not files:
        raise BadInput("; ".join([f"{arguments[0]}: no file of a known format", *left_out[:5]]))
    return _with_sources(files), left_out


def _expanded(argument: Path) -> list[tuple[Path, Path | None]]:
    if os.path.lexists(argument) or not glob.has_magic(str(argument)):
        return [(argument, None)]
    fixed = next(i for i, part in enumerate(argument.parts) if glob.has_magic(part))
    # Path.glob takes no absolute pattern.
    matching = islice(glob.iglob(str(argument), recursive=True), _MAX_ENTRIES)  # noqa: PTH207
    found = sorted(Path(path) for path in matching)
    if "**" in argument.parts:  # it matches the files of its folders too
        found = [path for path in found if not path.is_dir()]
    if not found:
        raise BadInput(f"{argument}: no file matches")
    return [(path, Path(*argument.parts[:fixed])) for path in found]


@dataclass
class _Search:
    """Collects files, and those of folders that are left out, by reason."""

    options: Options
    name: str | None
    files: list[InputFile] = field(default_factory=list)
    _left_out: dict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))
    _named: set[Path] = field(default_factory=set)
    _seen: set[Path] = field(default_factory=set)  # files and folders, without links
    _parts: set[Path] = field(default_factory=set)  # files of trainings that are folders
    _entries: int = 0

    def add(self, path: Path, root: Path | None, importer: Importer) -> None:
        place = path.resolve()
        if place in self._named:
            raise BadInput(f"{path}: a file is named twice")
        if place in self._seen:  # in a folder that was named before
            self.files = [file for file in self.files if file.path.resolve() != place]
        self._named.add(place)
        self._append(path, root, importer)

    def add_folder(self, top: Path, root: Path) -> None:
        """Add the files of a folder and of those in it; a folder is read once, also by links."""
        pending = [(top, 0)]
        while pending:
            folder, depth = pending.pop()
            if depth > _MAX_DEPTH:
                self._left_out["nested in too many folders"].append(folder)
            elif version_path(folder).exists():
                self._left_out["a store of wattlaw"].append(folder)
            elif folder.resolve() in self._seen:
                self._left_out["a link to a folder that is read already"].append(folder)
            else:
                inner = list(self._read(folder, root))
                pending += [(path, depth + 1) for path in reversed(inner)]

    def left_out(self) -> list[str]:
        return [
            f"{plural(len(paths), 'file')} left out, such as {paths[0]}: {reason}"
            for reason, paths in self._left_out.items()
        ]

    def _read(self, folder: Path, root: Path) -> Iterator[Path]:
        self._seen.add(folder.resolve())
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            self._left_out[f"a folder that cannot be read: {error.strerror}"].append(folder)
            return
        self._entries += len(entries)
        if self._entries > _MAX_ENTRIES:
            raise BadInput(f"{folder}: more than {_MAX_ENTRIES:,} files in the folders")
        if (training := folder_importer(folder, self.name)) is not None:
            # Those of some folders in it may be its own, too.
            own = {path.resolve() for path in training.files_of(folder)}
            if not own <= self._parts and folder.resolve() not in self._named:
                self._append(folder, root, training)
            self._parts |= own
        for path in entries:
            if path.name.startswith("."):
                self._left_out["hidden"].append(path)
            elif path.is_dir():
                yield path
            else:
                self._add_found(path, root, training)

    def _add_found(self, path: Path, root: Path, training: Importer | None) -> None:
        try:
            importer = self._importer(path)
        except BadInput as error:
            why = str(error).removeprefix(f"{path}: ")
            self._left_out[_UNKNOWN if why.startswith(_UNKNOWN) else why].append(path)
            return
        place = path.resolve()
        if importer is training or place in self._parts or place in self._named:
            return
        if place in self._seen:
            self._left_out["a link to a file that is read already"].append(path)
            return
        self._seen.add(place)
        self._append(path, root, importer)

    def _importer(self, path: Path) -> Importer:
        is_by_suffix = self.name in _SUFFIXES
        importer = importer_of(path, self.options, self.name if is_by_suffix else None)
        suffix = path.suffix.lower()
        is_known = suffix in _SUFFIXES.get(importer.name, (suffix,))
        if not is_known or self.name not in (None, importer.name):
            raise BadInput(f"{path}: {_UNKNOWN}")
        if importer.name == "table" and not columns_of(self.options.mapping):
            raise BadInput(f"{path}: a table, which needs --map")
        return importer

    def _append(self, path: Path, root: Path | None, importer: Importer) -> None:
        if len(self.files) >= MAX_FILES:
            raise BadInput(f"{path}: more than {MAX_FILES:,} files; import them in parts")
        place = path.name if root in (None, path) else path.relative_to(str(root)).as_posix()
        self.files.append(InputFile(path, place, importer, root and path.parent))


def _with_sources(files: Sequence[InputFile]) -> list[InputFile]:
    """Return the files with unique sources: files of equal names get their path below a folder."""
    counts = Counter(file.source for file in files)
    twice = [file.path.absolute() for file in files if counts[file.source] > 1]
    if not twice:
        return [*files]
    folder = os.path.commonpath([path.parent for path in twice])
    return [
        replace(file, source=file.path.absolute().relative_to(folder).as_posix())
        if counts[file.source] > 1
        else file
        for file in files
    ]
