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
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from wattlaw.common.errors import BadInput, WattlawError
from wattlaw.common.text import collapse_whitespace, quote
from wattlaw.store.decoded_size import ENCODED, PACKED, check_decoded_size, unpacked_bytes
from wattlaw.store.schema import TABLES, check_runs
from wattlaw.store.snapshot import ImportFolder
from wattlaw.store.store import Store
from wattlaw.store.version import SCHEMA_VERSION

#: The member with the versions of a bundle, and the versions that are written and read.
MANIFEST = "bundle.json"
VERSIONS = {"bundle_version": 1, "schema_version": SCHEMA_VERSION}
#: Members that are not tables and belong to a store: its decision and its study files.
_DOCUMENT = re.compile(r"decision\.json|studies/[A-Za-z0-9_-][A-Za-z0-9._-]*\.yaml")
_MAX_MEMBERS = 10_000
#: Of the manifest, and of all documents together.
_MAX_MANIFEST_BYTES, _MAX_DOCUMENTS_BYTES = 2**16, 16 * 2**20
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
                documents = [name for name in _checked_names(file) if _DOCUMENT.fullmatch(name)]
                copies = {name: folder / name for name in documents}
                _copy(file, copies, _MAX_DOCUMENTS_BYTES)
                paths = [imported.table_path(table) for table in TABLES]
                most_bytes = unpacked_bytes(path.stat().st_size, PACKED)
                _copy(file, {each.name: each for each in paths}, most_bytes)
            columns = {name for schema in TABLES.values() for name in schema.names}
            size = sum(each.stat().st_size for each in paths)
            check_decoded_size(paths, columns, unpacked_bytes(size, ENCODED))
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


def _copy(file: zipfile.ZipFile, copies: Mapping[str, Path], most_bytes: int) -> None:
    left = most_bytes
    for name, path in copies.items():
        with file.open(name) as member, path.open("xb") as copy:
            while piece := member.read(min(2**20, left + 1)):
                left -= len(piece)
                if left < 0:
                    raise ValueError(f"it unpacks to more than {most_bytes:,} bytes")
                copy.write(piece)


def _checked_names(file: zipfile.ZipFile) -> list[str]:
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
        # zipfile decompresses others without a limit of memory.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"its member {quote(name)} is compressed in a way other than deflate")
        if member.file_size > unpacked_bytes(member.compress_size, PACKED):
            raise ValueError(f"its member {quote(name)} is compressed more than {PACKED} to 1")
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise ValueError("two of its members have the same name")
    try:
        with file.open(MANIFEST) as stream:
            manifest = json.loads(stream.read(_MAX_MANIFEST_BYTES))
        versions = {name: manifest[name] for name in VERSIONS}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"no member {MANIFEST} with its version") from None
    for name, version in versions.items():
        if version != VERSIONS[name]:
            raise ValueError(f"its {name} is {quote(version)}; this wattlaw reads {VERSIONS[name]}")
    return names
