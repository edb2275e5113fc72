"""Plans of study files, and how much of a plan a store already has."""

import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wattlaw import registry
from wattlaw.errors import BadInput
from wattlaw.launch.launcher import GROUP, Launcher
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store
from wattlaw.study.model import Study
from wattlaw.study.plan import PlannedRun, expand, read_study
from wattlaw.workloads import catalogue


@dataclass(frozen=True)
class Planned:
    """A checked study and its runs in order."""

    study: Study
    runs: list[PlannedRun]


def plan_study(
    path: Path, launch_kind: str | None = None, simulation: Mapping[str, object] | None = None
) -> Planned:
    """Read a study file, check everything that can be checked without running, and expand it.

    Parameters
    ----------
    path
        The study file.
    launch_kind
        Replaces ``launch.kind`` of the file.
    simulation
        Replaces those values of ``launch.simulation`` that it names.

    Raises
    ------
    BadInput
        The study is invalid; the message names the file, the key and what is allowed.
    """
    study = read_study(path)
    if launch_kind is not None:
        launch = study.launch.model_copy(update={"kind": launch_kind})
        study = study.model_copy(update={"launch": launch})
    if study.launch.kind not in registry.names(GROUP):
        allowed = ", ".join(registry.names(GROUP))
        where = "--launch" if launch_kind else f"{path}: launch.kind"
        raise BadInput(f"{where}: unknown launcher {study.launch.kind!r}; allowed: {allowed}")
    study = _with_simulation(study, simulation or {})
    launcher: type[Launcher] = registry.load(GROUP, study.launch.kind)
    try:
        launch = launcher.resolve(study.launch)
        study = catalogue.checked(study.model_copy(update={"launch": launch}))
        return Planned(study, expand(study))
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _with_simulation(study: Study, changes: Mapping[str, object]) -> Study:
    launch = study.launch
    if not changes:
        return study
    if launch.kind != "simulated":
        option = next(iter(changes)).replace("_", "-")
        raise BadInput(f"run: --{option} requires the launcher simulated, not {launch.kind}")
    simulation = launch.simulation.model_copy(update=changes)
    return study.model_copy(update={"launch": launch.model_copy(update={"simulation": simulation})})


def statuses(
    store: Store, runs: Iterable[PlannedRun], records: Mapping[str, RunRecord | None]
) -> dict[str, str]:
    """Return the status of each run of a plan, by the records of its store."""
    planned = {run.run_id: "planned" for run in runs}
    return planned | {
        run_id: "damaged" if record is None else store.folder(run_id).status(record)
        for run_id, record in records.items()
    }


def count_statuses(statuses: Iterable[str]) -> dict[str, int]:
    """Return how many runs have each status, in the order of this table."""
    order = ("done", "failed", "skipped", "interrupted", "running", "queued", "planned", "damaged")
    count = Counter(statuses)
    return {status: count[status] for status in order if count[status]}


def git_commit(directory: Path) -> str | None:
    """Return the commit of the user's code, with ``-dirty`` if it was changed since, or None."""
    # --dirty would start the program that a repository names as its file system monitor.
    line = ["git", "-c", "core.fsmonitor=false", "-C", str(directory)]
    line += ["describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
    try:
        described = subprocess.run(
            line, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
