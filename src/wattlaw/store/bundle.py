"""A bundle: a store's tables, decision and study files in one ZIP file, read as a store.

Of a bundle's members only those of known names are read. They are copied to a private temporary
folder, as a store with one import. The folder is removed with the bundle's object.
"""

import json
import re
import shutil
import stat
import tempfile
import weakref
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from wattlaw.errors import BadInput, WattlawError
from wattlaw.store.import_folder import ImportFolder
from wattlaw.store.schema import TABLES, check_runs
from wattlaw.store.store import Store
from wattlaw.store.version import SCHEMA_VERSION
from wattlaw.text import collapse_whitespace, quote

#: The member with the versions of a bundle, and the versions that are written and read.
MANIFEST = "bundle.json"
VERSIONS = {"bundle_version": 1, "schema_version": SCHEMA_VERSION}
#: Members that are not tables and belong to a store: its decision and its study files.
_DOCUMENT = re.compile(r"decision\.json|studies/[A-Za-z0-9_-][A-Za-z0-9._-]*\.yaml")
_MAX_MEMBERS, _MAX_DOCUMENT_BYTES = 10_000, 64 * 2**20
#: Above this size, bytes per compressed byte and bytes of values per byte of a table are limited.
_UNLIMITED_BYTES, _MAX_RATIO, _MAX_TABLE_RATIO = 100 * 2**20, 100, 1000
_REPAIR = "copy it again, or write it again with 'wattlaw export STORE bundle'"
_DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, ValueError, LookupError, RuntimeError,
           EOFError, OverflowError, MemoryError, pa.ArrowException)  # fmt: skip


class Bundle(Store):
    """A bundle, which is only read. Runs that were damaged when it was written stay damaged.

    Raises ``BadInput`` if the file is not a bundle, or is of another version.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        folder = Path(tempfile.mkdtemp(prefix="wattlaw-bundle-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        super().__init__(folder, strict=strict)
        self._file = path
        imported = ImportFolder(folder / "imports" / "bundle")
        for made in (imported.path, folder / "runs", folder / "studies"):
            made.mkdir(parents=True)
        try:
            with zipfile.ZipFile(path) as file:
                for name in _checked_names(file):
                    if _DOCUMENT.fullmatch(name):
                        _copy(file, name, folder / name)
                for table in TABLES:
                    _copy_table(file, imported.table_path(table))
            check_runs(imported.runs)
        except BadInput as error:
            raise self._named(error) from None
        except _DAMAGE as error:
            raise self._named(BadInput(collapse_whitespace(_reason(error))[:200])) from None
        rows = imported.runs.select(["run_id", "status", "reason"]).to_pylist()
        self.damaged = {row["run_id"]: row["reason"] for row in rows if row["status"] == "damaged"}
        if strict and self.damaged:
            raise BadInput(f"{path}: {next(iter(self.damaged.values()))}")

    def leave_out(self, path: Path, error: WattlawError) -> None:  # noqa: ARG002 - of the store
        """Raise the error: a bundle is read as a whole."""
        raise self._named(error)

    def _named(self, error: WattlawError) -> BadInput:
        reason = str(error).rsplit("; ", 1)[0].replace(f"{self.path}/imports/bundle/", "")
        return BadInput(f"{self._file}: not a bundle: {reason}; {_REPAIR}")


def _reason(error: BaseException) -> str:
    """Return what is wrong with the file, in terms of the file."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, KeyError):  # of zipfile: its text has the name
        return str(error.args[0])
    return str(error) or "it cannot be read"


def open_store(path: Path, *, strict: bool = False) -> Store:
    """Return the store at ``path``: a folder, or a bundle if it is a file."""
    if path.is_file():
        return Bundle(path, strict=strict)
    return Store.existing(path, strict=strict)


def _copy_table(file: zipfile.ZipFile, path: Path) -> None:
    _copy(file, path.name, path)
    metadata, size = pq.read_metadata(path), path.stat().st_size
    cells = metadata.num_rows * metadata.num_columns
    if cells * 8 > max(_UNLIMITED_BYTES, _MAX_TABLE_RATIO * size):
        raise ValueError(f"{path.name}: {cells:,} values in {size:,} bytes are no table of a store")


def _copy(file: zipfile.ZipFile, name: str, path: Path) -> None:
    with file.open(name) as member, path.open("xb") as copy:
        shutil.copyfileobj(member, copy)


def _checked_names(file: zipfile.ZipFile) -> list[str]:
    """Return the names of the members; raise ValueError where one is not as a bundle has it."""
    members = file.infolist()
    if len(members) > _MAX_MEMBERS:
        raise ValueError(f"more than {_MAX_MEMBERS:,} members")
    for member in members:
        name = member.orig_filename
        parts = name.removesuffix("/").split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or re.search(r"[\\:\0]", name):
            raise ValueError(f"its member {quote(name)} has a path outside of it")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ValueError(f"its member {quote(name)} is not a regular file")
        if member.file_size > max(_UNLIMITED_BYTES, _MAX_RATIO * member.compress_size):
            raise ValueError(f"its member {quote(name)} is compressed more than {_MAX_RATIO} to 1")
        if _DOCUMENT.fullmatch(name) and member.file_size > _MAX_DOCUMENT_BYTES:
            raise ValueError(f"{name} is larger than {_MAX_DOCUMENT_BYTES:,} bytes")
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise ValueError("two of its members have the same name")
    try:
        manifest = json.loads(file.read(MANIFEST)) if MANIFEST in names else {}
        versions = {name: manifest[name] for name in VERSIONS}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"no member {MANIFEST} with its version") from None
    for name, version in versions.items():
        if version != VERSIONS[name]:
            raise ValueError(f"its {name} is {quote(version)}; this wattlaw reads {VERSIONS[name]}")
    return names
