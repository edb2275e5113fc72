"""A bundle: a store's tables, decision and study files in one ZIP file, read as a store.

Of a bundle's members only those of known names are read. They are copied to a private temporary
folder, which is removed with the bundle's object, and never to a path that a member names.
"""

import json
import re
import shutil
import stat
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wattlaw.errors import BadInput, WattlawError, one_line
from wattlaw.store.parquet import checked
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.schema import TABLES, check_runs
from wattlaw.store.store import SCHEMA_VERSION, Store
from wattlaw.text import quote

#: The member with the versions of a bundle, and the version that is written and read.
MANIFEST, BUNDLE_VERSION = "bundle.json", 1
VERSIONS = {"bundle_version": BUNDLE_VERSION, "schema_version": SCHEMA_VERSION}
#: Members that are not tables and belong to a store: its decision and its study files.
DOCUMENT = re.compile(r"decision\.json|studies/[A-Za-z0-9_-][A-Za-z0-9._-]*\.yaml")
_MAX_MEMBERS, _MAX_DOCUMENT_BYTES = 10_000, 64 * 2**20
#: Above this size, bytes per compressed byte and bytes of values per byte of a table are limited.
_UNLIMITED_BYTES, _MAX_RATIO, _MAX_TABLE_RATIO = 100 * 2**20, 100, 1000
_DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, ValueError, LookupError, RuntimeError,
           EOFError, OverflowError, MemoryError, pa.ArrowException)  # fmt: skip

Value = TypeVar("Value")


class Bundle(Store):
    """A bundle, which is only read. Runs that were damaged when it was written stay damaged.

    Raises ``BadInput`` if the file is not a bundle, or is of another version.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        super().__init__(path, strict=strict)
        self._folder = Path(tempfile.mkdtemp(prefix="wattlaw-bundle-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._read(self._copy_documents)
        rows = self.arrow("runs").select(["run_id", "status", "reason"]).to_pylist()
        self.damaged = {row["run_id"]: row["reason"] for row in rows if row["status"] == "damaged"}
        self._done = sorted(row["run_id"] for row in rows if row["status"] == "done")
        self._run_ids = sorted(row["run_id"] for row in rows)
        if strict and self.damaged:
            raise BadInput(f"{path}: {next(iter(self.damaged.values()))}")

    @property
    def documents_path(self) -> Path:
        """The folder with copies of the decision and the study files."""
        return self._folder

    def arrow(
        self, table: str, *, validate: bool = False, run_ids: Collection[str] | None = None
    ) -> pa.Table:
        """Return a table, or its rows of some runs."""
        path = self._table(table)

        def read() -> pa.Table:
            rows = checked(pq.read_table(path), TABLES[table], validate=validate)
            if table == "runs":
                check_runs(rows)
            return rows if run_ids is None else rows.filter(pc.field("run_id").isin([*run_ids]))

        return self._read(read, f"{table}.parquet: ")

    def done(self) -> list[str]:
        """Return the sorted ids of the runs that are done."""
        return self._done

    def finished(self, table: str, run_ids: Collection[str] | None = None) -> list[Path]:  # noqa: ARG002 - of the store
        """Return the file with the table ``epochs`` or ``telemetry`` of all done runs."""
        return [self._table(table)]

    def folders(self, run_ids: Collection[str] | None = None) -> Iterator[RunFolder]:
        """Yield a folder for each run, sorted by run id. It has no files."""
        for run_id in self._run_ids:
            if run_ids is None or run_id in run_ids:
                yield RunFolder(self.path / run_id)

    def records(self) -> list[RunRecord]:
        """Return nothing: a bundle has no records, only tables."""
        return []

    def leave_out(self, path: Path, error: WattlawError) -> None:
        """Raise the error: a bundle is read as a whole."""
        raise BadInput(f"{self.path}: {path.name}: damaged: {error}")

    def _copy_documents(self) -> None:
        with zipfile.ZipFile(self.path) as file:
            names = _checked_names(file)
            try:
                manifest = json.loads(file.read(MANIFEST)) if MANIFEST in names else {}
                versions = {name: manifest[name] for name in VERSIONS}
            except (ValueError, TypeError, KeyError, RecursionError):
                raise ValueError(f"no member {MANIFEST} with its version") from None
            for name, version in versions.items():
                if version != VERSIONS[name]:
                    raise ValueError(f"its {name} is {quote(version)}; this wattlaw reads "
                                     f"{VERSIONS[name]}")  # fmt: skip
            for name in filter(DOCUMENT.fullmatch, names):
                if file.getinfo(name).file_size > _MAX_DOCUMENT_BYTES:
                    raise ValueError(f"{name} is larger than {_MAX_DOCUMENT_BYTES:,} bytes")
                self._copy(file, name)

    def _table(self, table: str) -> Path:
        """Return the copy of a table, which is made when it is first needed."""
        path = self._folder / f"{table}.parquet"

        def copy() -> None:
            with zipfile.ZipFile(self.path) as file:
                self._copy(file, path.name)
            metadata, size = pq.read_metadata(path), path.stat().st_size
            cells = metadata.num_rows * metadata.num_columns
            if cells * 8 > max(_UNLIMITED_BYTES, _MAX_TABLE_RATIO * size):
                raise ValueError(f"{cells:,} values in {size:,} bytes are no table of a store")

        if not path.exists():
            self._read(copy, f"{path.name}: ")
        return path

    def _copy(self, file: zipfile.ZipFile, name: str) -> None:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        with file.open(name) as member, path.open("xb") as copy:
            shutil.copyfileobj(member, copy)

    def _read(self, read: Callable[[], Value], what: str = "") -> Value:
        """Call a function; its errors are of the bundle."""
        try:
            return read()
        except _DAMAGE as error:
            reason = str(error) if type(error) is ValueError else one_line(error)
            raise BadInput(f"{self.path}: not a bundle: {what}{' '.join(reason.split())[:200]}"
                           ) from None  # fmt: skip


def open_store(path: Path, *, strict: bool = False) -> Store:
    """Return the store at ``path``: a folder, or a bundle if it is a file."""
    if path.is_file():
        return Bundle(path, strict=strict)
    return Store.existing(path, strict=strict)


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
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise ValueError("two of its members have the same name")
    return names
