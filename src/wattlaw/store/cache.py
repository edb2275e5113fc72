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


def folder_keys(runs: Path) -> dict[str, int]:
    try:
        with os.scandir(runs) as entries:
            run_ids = [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {run_id: key for run_id, (key, _) in _states(runs, run_ids).items()}


def _states(runs: Path, run_ids: Collection[str]) -> dict[str, tuple[int, float]]:
    """Return each run's key, and when its files last changed, in ns since 1970: infinite where a
    file is less readable than the folder of the runs."""
    states = {}
    folder = os.open(runs, os.O_RDONLY | os.O_DIRECTORY)
    try:
        readable = os.fstat(folder).st_mode & _READABLE
        for run_id in sorted(run_ids):
            state: list[int] = []
            last_ns = 0.0
            for name in _FILES:
                try:
                    now = os.stat(f"{run_id}/{name}", dir_fd=folder)
                except OSError as error:
                    state.append(error.errno or 0)
                    continue
                state += (now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_mode)
                last_ns = max(last_ns, math.inf if readable & ~now.st_mode else now.st_ctime_ns)
            states[run_id] = hash(tuple(state)), last_ns
    finally:
        os.close(folder)
    return states


def read_through(
    store: Path, name: str, schema: pa.Schema, keys: Mapping[str, int], read: Read
) -> pa.Table:
    """Return the rows of ``keys`` by run id; ``read`` reads those that the cache ``name`` lacks."""
    path = store / FOLDER / f"{name}.parquet"
    hits = _hits(path, schema.append(_KEY), keys)
    known = set(hits["run_id"].unique().to_pylist())
    missing = [run_id for run_id in keys if run_id not in known]
    rows, kept = [hits.drop_columns("key")], [hits]
    batches = range(0, len(missing), _BATCH)
    for first in track(batches, f"reading {name}", len(batches)):
        table, changing = read(missing[first : first + _BATCH])
        rows.append(table)
        if len(missing) >= max(_MIN_RUNS, _MIN_SHARE * len(keys)):
            # What has changed since, or just before, is read again the next time.
            run_ids = set(table["run_id"].unique().to_pylist()).difference(changing)
            states = _states(store / "runs", run_ids)
            limit_ns = time.time_ns() - _SETTLED_NS
            settled = {
                run_id: key
                for run_id, (key, last_ns) in states.items()
                if key == keys[run_id] and last_ns < limit_ns
            }
            table = table.append_column(_KEY, _keys_of(table, settled))
            kept.append(table.filter(pc.is_valid(table["key"])))
    if any(table.num_rows for table in kept[1:]):
        _replace(path, by_run(pa.concat_tables(kept)), store / "runs")
    return by_run(pa.concat_tables(rows)) if missing else rows[0]


def by_run(table: pa.Table) -> pa.Table:
    ids = table["run_id"]
    if len(ids) < 2 or pc.all(pc.less_equal(ids[:-1], ids[1:])).as_py():
        return table
    return table.take(pc.sort_indices(table, [("run_id", "ascending")]))


def _keys_of(table: pa.Table, keys: Mapping[str, int]) -> pa.ChunkedArray:
    places = pc.index_in(table["run_id"], pa.array(keys, pa.string()))
    return pa.array(keys.values(), pa.int64()).take(places)


def _hits(path: Path, schema: pa.Schema, keys: Mapping[str, int]) -> pa.Table:
    try:
        with open_regular(path, follow_links=False) as file:
            # read_table would import pyarrow.dataset and with it pandas
            table = pq.ParquetFile(file, page_checksum_verification=True).read()
        if table.schema != schema:
            return schema.empty_table()
        table.validate(full=True)
    except (OSError, pa.ArrowException, ValueError):
        return schema.empty_table()
    if len(table) <= len(keys):  # pa.array would import pandas
        pairs = zip(table["run_id"].to_pylist(), table["key"].to_pylist(), strict=True)
        if all(keys.get(run_id) == key for run_id, key in pairs):
            return by_run(table)
    is_valid = pc.fill_null(pc.equal(_keys_of(table, keys), table["key"]), fill_value=False)
    return by_run(table.filter(is_valid))


def _replace(path: Path, table: pa.Table, runs: Path) -> None:
    folder = path.parent
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(runs.stat().st_mode)
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
