"""Streaming queries over the samples of training windows.

A sample counts if it is in a training window of its run and host that is neither warm-up nor
interrupted: ``start_ns <= t_ns <= start_ns + duration_s`` on the clock of the host, as for the
energy of a window (``telemetry.energy``). A sample that is in several windows counts once.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wattlaw.errors import BadInput, one_line
from wattlaw.store.parquet import connection, literal, same_types
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.store import Store, check_all, read_validated

if TYPE_CHECKING:
    import duckdb

# Windows that overlap or touch become one, so that no sample is counted twice.
_WINDOWS = """
create temp table windows as
with timed as (
    select run_id, host, start_ns,
           start_ns + cast(round_even(duration_s * 1e9, 0) as bigint) as end_ns
    from read_parquet($files, hive_partitioning = false)
    where phase = 'train' and warmup is not true and interrupted is not true
          and isfinite(duration_s) and start_ns is not null
),
marked as (
    select *, coalesce(start_ns > max(end_ns) over before, true) as is_new
    from timed
    window before as (partition by run_id, host order by start_ns, end_ns
                      rows between unbounded preceding and 1 preceding)
),
numbered as (
    select *, sum(is_new::int) over (partition by run_id, host order by start_ns, end_ns
                                     rows unbounded preceding) as island
    from marked
)
select run_id, host, min(start_ns) as start_ns, max(end_ns) as end_ns
from numbered group by run_id, host, island
"""
# A sample is joined with the windows of its time bucket only, not with all windows of its run. A
# bucket is 2^shift ns, at least the mean window, so that an average window is in at most three.
_SHIFT = "select greatest(coalesce(ceil(log2(avg(end_ns - start_ns) + 1)), 0), 10) from windows"
_BUCKETS = """
create temp table buckets as
select *, unnest(range(start_ns >> {shift}, (end_ns >> {shift}) + 1)) as bucket from windows
"""
SAMPLES = """
from read_parquet($files, hive_partitioning = false) samples
join buckets on samples.run_id = buckets.run_id and samples.host = buckets.host
    and samples.t_ns >> {shift} = buckets.bucket
    and samples.t_ns between buckets.start_ns and buckets.end_ns
where samples.kind = 'gpu'
"""


@contextlib.contextmanager
def queries(
    store: Store, run_ids: Sequence[str] | None
) -> Iterator[tuple["duckdb.DuckDBPyConnection", list[str], int]]:
    """Yield a database with the table of windows, the telemetry files, and the buckets' shift."""
    import duckdb

    tables = {"epochs": EPOCHS, "telemetry": TELEMETRY}
    paths = {name: _selected(run_ids, store.finished(name)) for name in tables}
    with connection() as database:
        try:
            files = {name: [literal(path) for path in paths[name]] for name in tables}
            for name, schema in tables.items():
                if files[name] and not same_types(database, files[name], schema):
                    check_all(paths[name], schema)
            shift = 0
            if files["epochs"]:
                database.execute(_WINDOWS, {"files": files["epochs"]})
                ((shift,),) = database.execute(_SHIFT).fetchall()
                database.execute(_BUCKETS.format(shift=int(shift)))
            yield database, files["telemetry"], int(shift)
        except (duckdb.Error, UnicodeDecodeError) as error:  # the latter for damaged names
            for name, schema in tables.items():
                for path in paths[name]:
                    read_validated([path], schema)  # names the file that is damaged
            raise BadInput(
                f"{store.path}: its telemetry cannot be read: {one_line(error)[:300]}"
            ) from None


def _selected(run_ids: Sequence[str] | None, paths: list[Path]) -> list[Path]:
    if run_ids is None:
        return paths
    known = {path.parent.name: path for path in paths}
    unknown = next((run_id for run_id in run_ids if run_id not in known), None)
    if unknown is not None:
        raise BadInput(f"run {unknown!a} is not a done run of this store")
    return [known[run_id] for run_id in dict.fromkeys(run_ids)]
