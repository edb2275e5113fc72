"""The windows of a run that took several attempts, each part of each epoch once."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder

if TYPE_CHECKING:
    import pyarrow as pa

#: A place in a run: epoch, whether it is of its evaluation, update. They are passed in this order.
Place = tuple[int, bool, int]


def merged_windows(
    record: RunRecord, folder: RunFolder, damage: list[str] | None = None
) -> tuple["pa.Table", list[int]]:
    """Return a run's windows, and the attempts that they are from, in order.

    An attempt that went on from a checkpoint, be it in the middle of an epoch, has what comes after
    it; what comes before is the last attempt's that made it. An attempt without any window changes
    nothing. What a command does when it is tried again is its own affair: the last time counts.
    What cannot be read is left out; ``damage`` gets a sentence for each file.
    """
    import pyarrow as pa

    tables, attempts = [folder.windows(record.attempts, damage)], [record.attempts]
    if record.attempts == 1 or record.spec.workload.command is not None:
        return tables[0], attempts
    begin = min(_places(tables[0]), default=None)
    for attempt in range(record.attempts - 1, 0, -1):
        older = folder.windows(attempt, damage)
        places = _places(older)
        kept = [begin is None or place < begin for place in places]
        if any(kept):
            tables.insert(0, older.filter(pa.array(kept)))
            attempts.insert(0, attempt)
            begin = min(places if begin is None else [*places, begin])
    return pa.concat_tables(tables), attempts


def _places(windows: "pa.Table") -> list[Place]:
    rows = windows.select(["epoch", "phase", "from_step"]).to_pylist()
    return [(row["epoch"], row["phase"] == "evaluate", row["from_step"] or 0) for row in rows]


def missing_windows(record: RunRecord, windows: "pa.Table") -> str | None:
    """Return which windows a run still lacks, in words; None if it has all.

    An epoch's training is there when parts follow each other without a gap from its first step
    on, each on every host, and are as many steps as the other epochs have.
    """
    measure, nodes = record.spec.measure, record.spec.nodes
    if record.spec.workload.command is not None:
        return None if len(windows) else "there is no window"
    columns = ["host", "epoch", "phase", "from_step", "steps"]
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in windows.select(columns).to_pylist():
        found.setdefault((row["epoch"], row["phase"]), []).append(row)
    phases = ("train", "evaluate") if measure.evaluate else ("train",)
    asked = [(epoch, phase) for epoch in range(measure.epochs) for phase in phases]
    steps = {one: _steps(found.get(one, []), nodes) for one in asked}
    most = max((count or 0 for (_, phase), count in steps.items() if phase == "train"), default=0)
    lacking = [
        (epoch, phase)
        for (epoch, phase), count in steps.items()
        if count is None or (phase == "train" and count < most)
    ]
    if not lacking:
        return None
    words = f"{len(lacking)} of {len(asked)} windows are missing"
    return f"{words} on some of {nodes} hosts" if nodes > 1 else words


def _steps(rows: Iterable[Mapping[str, Any]], nodes: int) -> int | None:
    """Return how many steps the parts of a window cover; None where one is missing somewhere."""
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
