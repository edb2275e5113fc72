"""Runs of a study as it was before its file was changed, which its present version does not use."""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from wattlaw.common.errors import WattlawError
from wattlaw.common.formatting import plural
from wattlaw.common.text import quote
from wattlaw.store.store import Store
from wattlaw.study.model import RunSpec
from wattlaw.study.sources import EARLIER

if TYPE_CHECKING:
    import pandas as pd

#: Columns that differ where another version of a study has defined runs; the records say how.
_DEFINITION = (
    "workload", "options", "train", "network", "dataset_samples", "epochs", "warmup_epochs",
    "measure_steps", "measure_seconds", "warmup_steps", "sample_hz", "assume_cpu_w",
)  # fmt: skip


def earlier_runs(store: Store, study: str, present: Iterable[RunSpec]) -> dict[str, list[str]]:
    """Return the done runs of earlier versions of a study by what has changed since.

    Settings, repeats and where runs are made do not count: runs that differ in them are of one job.
    """
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    columns = ["run_id", "study", "status", *_DEFINITION]
    for row in store.snapshot().runs.select(columns).to_pylist():
        if row["study"] == study and row["status"] == "done":
            groups[tuple(row[name] for name in _DEFINITION)].append(row["run_id"])
    # Runs of a plan share these objects.
    known = {tuple(map(id, _parts(spec))): spec for spec in present} if groups else {}
    earlier: dict[str, list[str]] = defaultdict(list)
    for run_ids in groups.values():
        record = None
        with contextlib.suppress(WattlawError):
            record = store.folder(run_ids[0]).read()
        if record is not None:
            of_run = record.spec
            changes = min((_changes(of_run, spec) for spec in known.values()), key=len, default=[])
            if changes:
                earlier[", ".join(changes)] += run_ids
    return dict(earlier)


def mark_earlier(runs: "pd.DataFrame", earlier: Mapping[str, list[str]]) -> "pd.DataFrame":
    """Return the table of runs, where those of ``earlier_runs`` have the status EARLIER.

    Their reason is what has changed. A workload without a run of the present version keeps all.
    """
    of = "of an earlier version of the study:"
    changed = {run_id: f"{of} {changes}" for changes, ids in earlier.items() for run_id in ids}
    reasons, is_done = runs["run_id"].map(changed), runs["status"] == "done"
    is_present = (is_done & reasons.isna()).groupby(runs["workload"], dropna=False)
    is_earlier = is_done & reasons.notna() & is_present.transform("any")
    runs = runs.assign(reason=runs["reason"].mask(is_earlier, reasons))
    return runs.assign(status=runs["status"].mask(is_earlier, EARLIER))


def earlier_text(store: Store, earlier: Mapping[str, list[str]]) -> list[str]:
    """Return one sentence on runs of earlier versions; nothing without any."""
    if not earlier:
        return []
    runs = plural(sum(map(len, earlier.values())), "done run")
    text = f"{runs} of {store.path}: of an earlier version, not used ({'; '.join(earlier)})"
    if any("dataset_samples" in changes for changes in earlier):
        text += "; decide.total_samples states the length of a training and keeps all runs"
    return [text]


def _parts(spec: RunSpec) -> tuple[Any, ...]:
    return spec.workload, spec.measure, spec.train


def _changes(old: RunSpec, new: RunSpec) -> list[str]:
    changes = []
    for part in ("workload", "measure", "train"):
        for name in type(getattr(new, part)).model_fields:
            before, after = (getattr(getattr(spec, part), name) for spec in (old, new))
            if before == after:
                continue
            if isinstance(before, tuple) and isinstance(after, tuple):  # a command may be long
                parts = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
                ends = [part[1:] for part in parts if part[0] != "equal"]
                before = [word for start, end, _, _ in ends for word in before[start:end]]
                after = [word for _, _, start, end in ends for word in after[start:end]]
            changes.append(f"{part}.{name} {quote(before)}, now {quote(after)}")
    return changes
