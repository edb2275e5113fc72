"""The samples that lie in training windows, as streaming queries see them.

A sample counts when it lies in a training window of its run and host that is neither warm-up nor
interrupted, both ends included, on the host's clock: ``start_ns <= t_ns <= start_ns +
duration_s``, as for the energy of a window (``telemetry.energy``). However many windows it lies in,
it counts once.
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
# A sample is met with the windows of its stretch of time only, not with all of its run's. The
# stretches are 2^shift ns, no shorter than the mean window, so windows have three each at most.
_SHIFT = "select greatest(coalesce(ceil(log2(avg(end_ns - start_ns) + 1)), 0), 10) from windows"
_STRETCHES = """
create temp table stretches as
select *, unnest(range(start_ns >> {shift}, (end_ns >> {shift}) + 1)) as stretch from windows
"""
SAMPLES = """
from read_parquet($files, hive_partitioning = false) samples
join stretches on samples.run_id = stretches.run_id and samples.host = stretches.host
    and samples.t_ns >> {shift} = stretches.stretch
    and samples.t_ns between stretches.start_ns and stretches.end_ns
where samples.kind = 'gpu'
"""


@contextlib.contextmanager
def queries(
    store: Store, run_ids: Sequence[str] | None
) -> Iterator[tuple["duckdb.DuckDBPyConnection", list[str], int]]:
    """Give a database that knows the windows, the telemetry files, and the stretches' shift."""
    import duckdb

    tables = {"epochs": EPOCHS, "telemetry": TELEMETRY}
    paths = {name: _of(run_ids, store.finished(name)) for name in tables}
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
                database.execute(_STRETCHES.format(shift=int(shift)))
            yield database, files["telemetry"], int(shift)
        except (duckdb.Error, UnicodeDecodeError) as error:  # the latter of damaged names
            for name, schema in tables.items():
                for path in paths[name]:
                    read_validated([path], schema)  # names the file that is damaged
            words = one_line(error)[:300]
            raise BadInput(f"{store.path}: its telemetry cannot be read: {words}") from None


def _of(run_ids: Sequence[str] | None, paths: list[Path]) -> list[Path]:
    if run_ids is None:
        return paths
    known = {path.parent.name: path for path in paths}
    unknown = next((run_id for run_id in run_ids if run_id not in known), None)
    if unknown is not None:
        raise BadInput(f"run {unknown!a} is not a done run of this store")
    return [known[run_id] for run_id in dict.fromkeys(run_ids)]
