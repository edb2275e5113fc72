"""The folder of one run: its record, its lock, its live streams, its finished tables."""

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from pydantic import ValidationError

from wattlaw.common.errors import BadInput, NotPermitted
from wattlaw.common.files import (
    locked,
    open_regular,
    read_text,
    remove_abandoned,
    write_parquet,
    write_text,
)
from wattlaw.store.live import read_live
from wattlaw.store.record import RunRecord

if TYPE_CHECKING:
    import pyarrow as pa

_NOT_A_FILE = {errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENXIO}
#: Two marks and the length of the footer.
_MIN_PARQUET_BYTES = 12
#: What to do about a file that is missing or cut.
_REPEAT = "restore the file, or repeat the run; 'wattlaw run' repeats it with its study"
#: What to do about damage with which ``wattlaw run`` does not repeat a run.
REPLACE = "restore the file, or remove the run's folder and repeat the run"


class RunFolder:
    """``STORE/runs/<run_id>``. Each attempt has its own folder for live files, so that a process of
    an abandoned attempt can never write into the data of the next one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.record_path = path / "run.json"
        self.log_path = path / "log.txt"
        self.epochs_path = path / "epochs.parquet"
        self.telemetry_path = path / "telemetry.parquet"
        self.checkpoint_path = path / "checkpoint.pt"
        self.model_path = path / "model.pt"
        self.data_cache_path = path.parent.parent / ".cache" / "data"

    def live(self, attempt: int) -> Path:
        return self.path / "live" / str(attempt)

    def read(self) -> RunRecord | None:
        try:
            record = RunRecord.model_validate_json(read_text(self.record_path))
            if record.run_id == self.run_id:
                return record
            reason = f"is of run {record.run_id!a}, not {self.run_id}"
        except FileNotFoundError:
            return None
        except PermissionError:
            raise NotPermitted(f"{self.record_path}: no permission to read it") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            reason = f"not a run record: {place!a}: {first['msg']}"
        except (OSError, UnicodeDecodeError) as error:
            reason = f"cannot be read: {getattr(error, 'strerror', error)}"
        raise BadInput(f"{self.record_path}: {reason}; {REPLACE}")

    def write(self, record: RunRecord, *, durable: bool = True) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.record_path, record.model_dump_json(indent=1) + "\n", durable=durable)

    def state(self, record: RunRecord) -> str:
        """A running run without a living owner is ``interrupted``. A scheduler's run has no owner
        here: only the scheduler knows its status."""
        if record.status == "running" and not record.site and not RunLock(self).is_locked():
            return "interrupted"
        return record.state

    def damage(self, record: RunRecord | None) -> str | None:
        """Return which finished file is missing or damaged, and what to do. Of the tables only the
        ends are read: a file that was cut or overwritten lacks them."""
        if record is None:
            is_missing = self.epochs_path.exists()
            return f"{self.record_path}: missing; {_REPEAT}" if is_missing else None
        if record.status == "done":
            for path in (self.epochs_path, self.telemetry_path):
                if (fault := table_fault(path)) is not None:
                    return f"{path}: {fault}; {_REPEAT}"
        return None

    def windows(self, attempt: int, damage: list[str] | None = None) -> "pa.Table":
        from wattlaw.store.schema import WINDOWS

        return self._streams(attempt, "windows", WINDOWS, damage)

    def samples(self, attempt: int, damage: list[str] | None = None) -> "pa.Table":
        from wattlaw.store.schema import SAMPLES

        return self._streams(attempt, "telemetry", SAMPLES, damage)

    def _streams(
        self, attempt: int, kind: str, schema: "pa.Schema", damage: list[str] | None
    ) -> "pa.Table":
        import pyarrow as pa

        tables = [schema.empty_table()]
        for path in sorted(self.live(attempt).glob(f"{kind}.*.csv")):
            host = path.name.removeprefix(f"{kind}.").removesuffix(".csv")
            try:
                tables.append(read_live(path, schema, host, damage))
            except OSError as error:
                if damage is not None:
                    damage.append(f"{path.name}: {error.strerror}")
        return pa.concat_tables(tables)

    def write_tables(self, epochs: "pa.Table", telemetry: "pa.Table") -> None:
        write_parquet(self.telemetry_path, telemetry)
        write_parquet(self.epochs_path, epochs)

    def remove_abandoned(self) -> None:
        for folder in (self.path, *(self.path / "live").glob("*")):
            remove_abandoned(folder)

    def remove_stale_live_files(self) -> None:
        if (self.path / "live").exists():
            with RunLock(self) as lock:
                if lock.acquire():
                    self.remove_live_files()

    def remove_live_files(self) -> None:
        """Remove the live files and the checkpoint; the finished tables must exist."""
        shutil.rmtree(self.path / "live", ignore_errors=True)
        self.checkpoint_path.unlink(missing_ok=True)


def table_fault(path: Path) -> str | None:
    """Return why a file cannot be a complete Parquet file; only its ends are read."""
    try:
        with open_regular(path) as file:
            start = file.read(4)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 8))
            end = file.read()
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    is_complete = size >= _MIN_PARQUET_BYTES and start == end[4:] == b"PAR1"
    if not is_complete or int.from_bytes(end[:4], "little") > size - _MIN_PARQUET_BYTES:
        return "truncated or overwritten"
    return None


class RunLock:
    """The lock of one process on one run; the kernel releases it when the process dies."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.path / "lock"
        self._file: BinaryIO | None = None

    def acquire(self) -> bool:
        """False if another process has locked the run; ``BadInput`` if the lock is no file."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = open_regular(self._path, append=True)
        except OSError as error:
            if error.errno not in _NOT_A_FILE:
                raise
            raise BadInput(f"{self._path}: cannot be locked: {error.strerror}") from None
        if not locked(file):
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def is_locked(self) -> bool:
        try:
            file = open_regular(self._path)
        except OSError as error:
            if error.errno in _NOT_A_FILE or isinstance(error, FileNotFoundError):
                return False
            raise
        with file:
            return not locked(file, fcntl.LOCK_SH)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
