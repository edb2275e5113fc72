"""The files of an import, which importer reads each, and the errors of files that none can read."""

import errno
import os
import struct
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wattlaw.common import registry
from wattlaw.common.delimited import encoding_of
from wattlaw.common.errors import BadInput, WattlawError, one_line
from wattlaw.common.files import open_regular
from wattlaw.common.formatting import plural
from wattlaw.common.text import join_names, shorten
from wattlaw.importing.importer import GROUP, FolderImporter, Imported, Importer, Options
from wattlaw.importing.reading import Account, Source
from wattlaw.store.field_map import columns_of
from wattlaw.store.fields import InvalidCell
from wattlaw.store.import_tables import ImportedRun
from wattlaw.store.version import version_path

HEAD_BYTES = 65_536
MAX_FILES = 10_000
#: Most entries of the folders of an import, and how deep they are searched.
_MAX_ENTRIES, _MAX_DEPTH = 200_000, 40
#: What readers raise for damaged content, apart from ``BadInput``.
_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, struct.error)
_PACKED = {
    b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}  # fmt: skip
#: In folders, the suffixes of files of formats that are not detected by their content.
_SUFFIXES = {"table": (".csv", ".tsv", ".jsonl"), "log": (".log", ".out", ".txt")}
_UNKNOWN = "no known format"


def importers() -> dict[str, Importer]:
    return {name: registry.load(GROUP, name) for name in registry.names(GROUP)}


def importer_of(path: Path, options: Options, name: str | None = None) -> Importer:
    """Raises ``BadInput`` if no importer recognises the file, or several do."""
    if path.is_dir():
        if (training := _folder_importer(path, name)) is not None:
            return training
        raise BadInput(f"{path}: is a folder; name its files")
    head = _head(path)
    if (encoding := encoding_of(head)) != "utf-8":
        head = head.decode(encoding, "replace").encode()
    if name is not None:
        loaded: Importer = registry.load(GROUP, name)
        return loaded
    known = importers()
    matching = [each for each in known.values() if each.detect(path, head)]
    if len(matching) > 1:
        names = join_names([each.name for each in matching])
        raise BadInput(f"{path}: more than one format: {names}; name one with --from")
    if matching:
        return matching[0]
    if options.pattern is not None and "log" in known:
        return known["log"]
    is_mapped = bool(columns_of(options.mapping))
    if not (is_mapped or head.strip()):
        raise BadInput(f"{path}: the file is empty")
    if path.suffix.lower() in _SUFFIXES["table"] or is_mapped:
        return known["table"]
    for magic, packer in _PACKED.items():
        if head.startswith(magic):
            raise BadInput(f"{path}: packed with {packer}; unpack it first")
    raise BadInput(f"{path}: {_UNKNOWN}; allowed: {join_names(list(known))}, named with --from")


def _folder_importer(path: Path, name: str | None = None) -> FolderImporter | None:
    for each in importers().values():
        is_named = name in (None, each.name)
        if is_named and isinstance(each, FolderImporter) and each.files_of(path):
            return each
    return None


def _head(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(HEAD_BYTES)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        is_special = isinstance(error, OSError) and error.errno == errno.EINVAL
        why = "not a plain file" if is_special else getattr(error, "strerror", None) or error
        raise BadInput(f"{path}: cannot be read: {why}") from None


def read_file(path: Path, importer: Importer, options: Options) -> tuple[Imported, Account]:
    """What is left out is in the notes of the runs; damaged content is a ``BadInput``."""
    source = Source(path)
    try:
        imported = importer.read(source, options)
        texts = source.account.texts()
        return replace(imported, runs=with_notes(imported.runs, texts)), source.account
    except WattlawError:
        raise
    except InvalidCell as error:  # of the one run of a file
        raise BadInput(f"{path}: {error}") from None
    except MemoryError:
        raise BadInput(f"{path}: there is not enough memory to read it") from None
    except (*_DAMAGE, OSError) as error:
        raise BadInput(
            f"{path}: not a readable file of format {importer.name}: {shorten(one_line(error))}"
        ) from error


def with_notes(runs: Sequence[ImportedRun], notes: Sequence[str]) -> list[ImportedRun]:
    noted = []
    for run in runs:
        record = run.record.model_copy(update={"notes": (*run.record.notes, *notes)})
        noted.append(replace(run, record=record))
    return noted


@dataclass(frozen=True)
class InputFile:
    path: Path
    #: What identifies it among others: its name, or its place below the folder that was named.
    source: str
    importer: Importer
    #: The folder in which it was found; None if it was named itself.
    folder: Path | None = None


def find_files(
    arguments: Sequence[Path], options: Options, name: str | None
) -> tuple[list[InputFile], list[str]]:
    """Return the files to import, and lines about what of folders is left out. A folder stands for
    its files of known formats. Raises ``BadInput`` if there is no file, one is named twice, or one
    that is named is of no known format."""
    search = _Search(options, name)
    for argument in arguments:
        if argument.is_dir() and _folder_importer(argument, name) is None:
            search.add_folder(argument)
        else:
            search.add_named(argument)
    left_out = [
        f"{plural(len(paths), 'file')} left out, such as {paths[0]}: {reason}"
        for reason, paths in search.left_out.items()
    ]
    files = [*search.files.values()]
    if not files:
        raise BadInput("; ".join([f"{arguments[0]}: no file of a known format", *left_out[:5]]))
    if len(files) > MAX_FILES:
        raise BadInput(f"{arguments[0]}: more than {MAX_FILES:,} files; import them in parts")
    # Files of equal names are told apart by their path below a folder.
    counts = Counter(file.source for file in files)
    twice = [file.path.absolute() for file in files if counts[file.source] > 1]
    folder = os.path.commonpath([path.parent for path in twice]) if twice else ""
    for place, file in enumerate(files):
        if counts[file.source] > 1:
            below = file.path.absolute().relative_to(folder)
            files[place] = replace(file, source=below.as_posix())
    return files, left_out


class _Search:
    """Collects files by their place without links, and those of folders that are left out."""

    def __init__(self, options: Options, name: str | None) -> None:
        self._options, self._name = options, name
        self.files: dict[Path, InputFile] = {}
        self.left_out: dict[str, list[Path]] = defaultdict(list)  # by reason
        self._parts: set[Path] = set()  # files of trainings that are folders
        self._entries = 0

    def add_named(self, path: Path) -> None:
        importer, place = importer_of(path, self._options, self._name), path.resolve()
        known = self.files.pop(place, None)  # of a folder that was named before
        if known is not None and known.folder is None:
            raise BadInput(f"{path}: a file is named twice")
        self._add(path, None, importer)

    def add_folder(self, top: Path) -> None:
        """Add the files of a folder and of those in it, but not of links to folders."""
        if version_path(top).exists():
            self.left_out["a store of wattlaw"].append(top)
            return

        def refuse(error: OSError) -> None:
            why = f"a folder that cannot be read: {error.strerror}"
            self.left_out[why].append(Path(error.filename))

        for place, inner, names in os.walk(top, onerror=refuse):
            folder = Path(place)
            self._entries += len(inner) + len(names)
            if self._entries > _MAX_ENTRIES:
                raise BadInput(f"{folder}: more than {_MAX_ENTRIES:,} files in the folders")
            training = _folder_importer(folder, self._name)
            if training is not None:
                # Those of some folders in it may be its own, too.
                own = {path.resolve() for path in training.files_of(folder)}
                if not own <= self._parts:
                    self._add(folder, top, training)
                self._parts |= own
            is_deep = len(folder.parts) - len(top.parts) >= _MAX_DEPTH
            followed = []
            for path in sorted(folder / name for name in (*inner, *names)):
                if path.name.startswith("."):
                    self.left_out["hidden"].append(path)
                elif not path.is_dir():
                    self._add_found(path, top, training)
                elif version_path(path).exists():
                    self.left_out["a store of wattlaw"].append(path)
                elif path.is_symlink():
                    self.left_out["a link to a folder; name the folder"].append(path)
                elif is_deep:
                    self.left_out["nested in too many folders"].append(path)
                else:
                    followed.append(path.name)
            inner[:] = followed

    def _add_found(self, path: Path, top: Path, training: Importer | None) -> None:
        try:
            importer = self._importer(path)
        except BadInput as error:
            why = str(error).removeprefix(f"{path}: ")
            self.left_out[_UNKNOWN if why.startswith(_UNKNOWN) else why].append(path)
            return
        place = path.resolve()
        known = self.files.get(place)
        if importer is training or place in self._parts:
            return
        if known is None:
            self._add(path, top, importer)
        elif known.folder is not None:
            self.left_out["a link to a file that is read already"].append(path)

    def _importer(self, path: Path) -> Importer:
        is_by_suffix = self._name in _SUFFIXES
        importer = importer_of(path, self._options, self._name if is_by_suffix else None)
        suffix = path.suffix.lower()
        is_known = suffix in _SUFFIXES.get(importer.name, (suffix,))
        if not is_known or self._name not in (None, importer.name):
            raise BadInput(f"{path}: {_UNKNOWN}")
        if importer.name == "table" and not columns_of(self._options.mapping):
            raise BadInput(f"{path}: a table, which needs --map")
        return importer

    def _add(self, path: Path, top: Path | None, importer: Importer) -> None:
        source = path.name if top in (None, path) else path.relative_to(str(top)).as_posix()
        file = InputFile(path, source, importer, top and path.parent)
        self.files.setdefault(path.resolve(), file)
