"""Which importer reads a file, and the errors of files that none can read."""

import errno
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wattlaw.common import registry
from wattlaw.common.delimited import encoding_of
from wattlaw.common.errors import BadInput, WattlawError, one_line
from wattlaw.common.files import open_regular
from wattlaw.common.text import join_names, shorten
from wattlaw.importing.account import Account
from wattlaw.importing.importer import (
    FOREIGN_GROUP,
    GROUP,
    FolderImporter,
    Imported,
    Importer,
    Options,
)
from wattlaw.importing.reading import Source
from wattlaw.store.field_map import columns_of
from wattlaw.store.import_tables import ImportedRun

HEAD_BYTES, _SEARCHED_BYTES = 65_536, 4096
#: What readers raise for damaged content, apart from ``BadInput``.
_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, struct.error)
_PACKED = {
    b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}  # fmt: skip
_TABLES = (".csv", ".jsonl", ".parquet")


def importers() -> dict[str, Importer]:
    return {name: registry.load(GROUP, name) for name in registry.names(GROUP)}


def importer_of(path: Path, options: Options, name: str | None = None) -> Importer:
    """Return the importer of a format, or else the one that recognises a file.

    Raises ``BadInput`` if the file cannot be read, no importer recognises it, or several do.
    """
    if path.is_dir():
        if (training := folder_importer(path, name)) is not None:
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
    if not columns_of(options.mapping):
        if not head.strip():
            raise BadInput(f"{path}: the file is empty")
        _refuse_foreign(path, head)
    if path.suffix.lower() in _TABLES or columns_of(options.mapping):
        return known["table"]
    for magic, packer in _PACKED.items():
        if head.startswith(magic):
            raise BadInput(f"{path}: packed with {packer}; unpack it first")
    raise BadInput(
        f"{path}: no known format; allowed: {join_names(list(known))}, named with --from"
    )


def _refuse_foreign(path: Path, head: bytes) -> None:
    text = head[:_SEARCHED_BYTES].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    for name in registry.names(FOREIGN_GROUP):
        for pattern, what, remedy in registry.load(FOREIGN_GROUP, name):
            if pattern.match(text):
                raise BadInput(f"{path}: {what}: this format is not read; {remedy}")


def folder_importer(path: Path, name: str | None = None) -> FolderImporter | None:
    """Return the importer that reads a folder as one training; None if it is no such folder."""
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
    """Return the content of a file, and the account of its rows.

    What is left out of the file is in the notes of its runs. Damaged content is a ``BadInput`` that
    names the file.
    """
    source = Source(path)
    try:
        imported = importer.read(source, options)
        texts = source.account.texts()
        return replace(imported, runs=with_notes(imported.runs, texts)), source.account
    except WattlawError:
        raise
    except MemoryError:
        raise BadInput(f"{path}: there is not enough memory to read it") from None
    except (*_DAMAGE, OSError) as error:
        raise BadInput(
            f"{path}: not a readable file of format {importer.name}: {shorten(one_line(error))}"
        ) from error


def with_notes(runs: Sequence[ImportedRun], notes: Sequence[str]) -> list[ImportedRun]:
    if not notes:
        return [*runs]
    records = (run.record.model_copy(update={"notes": (*run.record.notes, *notes)}) for run in runs)
    return [replace(run, record=record) for run, record in zip(runs, records, strict=True)]
