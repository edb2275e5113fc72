"""``STORE/.cache``: rows of finished runs in one file per table, so that no file is read twice.

The rows of a run count only while its files have the size, the times and the inodes that they had
when they were read. A cache that cannot be read or written is ignored, and it can be removed at any
time. Processes replace its files atomically.
"""

import contextlib
import math
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wattlaw.common.files import locked_temporary, open_regular
from wattlaw.common.progress import track

FOLDER = ".cache"
#: The files of a run whose state is part of its key.
_FILES = ("run.json", "epochs.parquet", "telemetry.parquet")
_KEY = pa.field("key", pa.int64())
#: A cache is written for at least this number of runs, and share of the store's runs.
_MIN_RUNS, _MIN_SHARE = 30, 0.01
#: A file that changed this recently may change again within the same tick of the file system.
_SETTLED_NS = 100_000_000
_READABLE = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
#: Runs that are read at once.
_BATCH = 500

#: Returns the rows of some runs; those of the ids in the second result are not kept.
Read = Callable[[Sequence[str]], tuple[pa.Table, Collection[str]]]


def folder_keys(runs: Path, run_ids: Collection[str] | None = None) -> dict[str, int]:
    """Return what the files of runs are, by run id in order: a hash of sizes, times and inodes."""
    return {name: key for name, (key, _) in _states(runs, run_ids).items()}


def _states(runs: Path, run_ids: Collection[str] | None) -> dict[str, tuple[int, float]]:
    """Return each run's key, and when its files last changed, in ns since 1970.

    The latter is infinite where a file is less readable than the folder of the runs.
    """
    try:
        folder = os.open(runs, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        if run_ids is None:
            with os.scandir(folder) as entries:
                run_ids = [entry.name for entry in entries if entry.is_dir()]
        readable = os.fstat(folder).st_mode & _READABLE
        return {run_id: _state(folder, run_id, readable) for run_id in sorted(run_ids)}
    finally:
        os.close(folder)


def _state(folder: int, run_id: str, readable: int) -> tuple[int, float]:
    state: list[int] = []
    last_ns = 0.0
    for name in _FILES:
        try:
            status = os.stat(f"{run_id}/{name}", dir_fd=folder)
        except OSError as error:
            state.append(error.errno or 0)
            continue
        changed_ns = status.st_ctime_ns
        state += (status.st_size, status.st_mtime_ns, changed_ns, status.st_ino, status.st_mode)
        last_ns = max(last_ns, math.inf if readable & ~status.st_mode else changed_ns)
    return hash(tuple(state)), last_ns


def read_through(
    store: Path, name: str, schema: pa.Schema, keys: Mapping[str, int], read: Read
) -> pa.Table:
    """Return the rows of runs, in order of run id: from the cache ``name`` or else as read.

    The runs are those of ``keys`` (``folder_keys``). ``read`` reads those that the cache lacks.
    """
    path = store / FOLDER / f"{name}.parquet"
    hits = _valid_rows(_load(path, schema), keys)
    known = set(hits["run_id"].unique().to_pylist())
    missing = [run_id for run_id in keys if run_id not in known]
    rows, kept = [hits.drop_columns("key")], [hits]
    batches = range(0, len(missing), _BATCH)
    for first in track(batches, f"reading {name}", len(batches)):
        table, left_out = read(missing[first : first + _BATCH])
        rows.append(table)
        if len(missing) >= max(_MIN_RUNS, _MIN_SHARE * len(keys)):
            kept.append(_keyed(table, _settled(store / "runs", keys, set(left_out), table)))
    if any(table.num_rows for table in kept[1:]):
        _replace(path, by_run(pa.concat_tables(kept)), store / "runs")
    return by_run(pa.concat_tables(rows)) if missing else rows[0]


def by_run(table: pa.Table) -> pa.Table:
    """Return a table in order of run id; the rows of a run keep their order."""
    ids = table["run_id"]
    if len(ids) < 2 or pc.all(pc.less_equal(ids[:-1], ids[1:])).as_py():
        return table
    return table.take(pc.sort_indices(table, [("run_id", "ascending")]))


def _load(path: Path, schema: pa.Schema) -> pa.Table:
    full = schema.append(_KEY)
    try:
        with open_regular(path, follow_links=False) as file:
            # read_table would import pyarrow.dataset and with it pandas
            table = pq.ParquetFile(file, page_checksum_verification=True).read()
        if table.schema == full:
            table.validate(full=True)
            return table
    except (OSError, pa.ArrowException, ValueError):
        pass
    return full.empty_table()


def _valid_rows(table: pa.Table, keys: Mapping[str, int]) -> pa.Table:
    if len(table) <= len(keys):  # pa.array and to_numpy would import pandas
        pairs = zip(*(table[name].to_pylist() for name in ("run_id", "key")), strict=True)
        if all(keys.get(run_id) == key for run_id, key in pairs):
            return by_run(table)
    ids = pa.array(keys, pa.string())
    now = pa.array(keys.values(), pa.int64()).take(pc.index_in(table["run_id"], ids))
    is_valid = pc.fill_null(pc.equal(now, table["key"]), fill_value=False)
    return by_run(table if pc.all(is_valid).as_py() else table.filter(is_valid))


def _settled(
    runs: Path, keys: Mapping[str, int], left_out: Collection[str], table: pa.Table
) -> dict[str, int]:
    """Return the keys of read runs whose files have not changed since, nor just before."""
    run_ids = set(table["run_id"].unique().to_pylist()) - set(left_out)
    limit_ns = time.time_ns() - _SETTLED_NS
    return {
        run_id: key
        for run_id, (key, last_ns) in _states(runs, run_ids).items()
        if key == keys[run_id] and last_ns < limit_ns
    }


def _keyed(table: pa.Table, keys: Mapping[str, int]) -> pa.Table:
    ids = pa.array(keys, pa.string())
    column = pa.array(keys.values(), pa.int64()).take(pc.index_in(table["run_id"], ids))
    table = table.append_column(_KEY, column)
    return table.filter(pc.is_valid(table["key"]))


def _replace(path: Path, table: pa.Table, runs: Path) -> None:
    """Write the file of a cache; a store that cannot be written stays without."""
    folder = path.parent
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(runs.stat().st_mode)
        if not folder.exists():
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode)
        if folder.is_symlink() or not folder.is_dir():
            return  # it would write elsewhere
        handle, temporary = locked_temporary(path)
        try:
            pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
            temporary.chmod(mode & 0o666)
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
            os.close(handle)
