"""The windows of a run over all its attempts; each part of an epoch is contained once."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder

if TYPE_CHECKING:
    import pyarrow as pa

#: A position in a run: epoch, whether it is in the epoch's evaluation, step. Tuples sort in order.
Position = tuple[int, bool, int]


def merged_windows(
    record: RunRecord, folder: RunFolder, damage: list[str] | None = None
) -> tuple["pa.Table", list[int]]:
    """Return a run's windows and the numbers of the attempts that they come from, in order.

    An attempt that starts from a checkpoint contributes the windows after the checkpoint. The
    windows before it come from earlier attempts. For a command only the last attempt counts.
    Files that cannot be read are ignored, and ``damage`` gets a sentence for each.
    """
    import pyarrow as pa

    tables, attempts = [folder.windows(record.attempts, damage)], [record.attempts]
    if record.attempts == 1 or record.spec.workload.command is not None:
        return tables[0], attempts
    begin = min(_positions(tables[0]), default=None)
    for attempt in range(record.attempts - 1, 0, -1):
        older = folder.windows(attempt, damage)
        positions = _positions(older)
        kept = [begin is None or position < begin for position in positions]
        if any(kept):
            tables.insert(0, older.filter(pa.array(kept)))
            attempts.insert(0, attempt)
            begin = min(positions if begin is None else [*positions, begin])
    return pa.concat_tables(tables), attempts


def _positions(windows: "pa.Table") -> list[Position]:
    rows = windows.select(["epoch", "phase", "from_step"]).to_pylist()
    return [(row["epoch"], row["phase"] == "evaluate", row["from_step"] or 0) for row in rows]


def missing_windows(record: RunRecord, windows: "pa.Table") -> str | None:
    """Return how many windows of a run are missing, as a message; None if it has all.

    The training of an epoch is complete if its parts cover all steps without a gap, on every host.
    Every epoch has as many steps as the longest one.
    """
    measure, nodes = record.spec.measure, record.spec.nodes
    if record.spec.workload.command is not None:
        return None if len(windows) else "there is no window"
    columns = ["host", "epoch", "phase", "from_step", "steps"]
    rows: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in windows.select(columns).to_pylist():
        rows.setdefault((row["epoch"], row["phase"]), []).append(row)
    phases = ("train", "evaluate") if measure.evaluate else ("train",)
    steps = {
        (epoch, phase): _covered_steps(rows.get((epoch, phase), []), nodes)
        for epoch in range(measure.epochs)
        for phase in phases
    }
    most = max((count or 0 for (_, phase), count in steps.items() if phase == "train"), default=0)
    missing = sum(
        count is None or (phase == "train" and count < most) for (_, phase), count in steps.items()
    )
    if not missing:
        return None
    message = f"{missing} of {len(steps)} windows are missing"
    return f"{message} on some of {nodes} hosts" if nodes > 1 else message


def _covered_steps(rows: Iterable[Mapping[str, Any]], nodes: int) -> int | None:
    """Return how many steps the parts of a window cover; None if a part is missing on a host."""
    parts: dict[tuple[int, int], set[str]] = {}
    for row in rows:
        part = (row["from_step"] or 0, row["steps"] or 0)
        parts.setdefault(part, set()).add(row["host"])
    reached = 0
    for (begin, count), hosts in sorted(parts.items()):
        if begin != reached or len(hosts) != nodes:
            return None
        reached = begin + count
    return reached if parts else None
