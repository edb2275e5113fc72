"""Plans of study files, what is known of their runs before the start, and the GPU-hours of them."""

import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from wattlaw.common import registry
from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.processes import run_captured
from wattlaw.running.command_checks import check_own_ranks, command_warnings
from wattlaw.running.launcher import GROUP, Launcher
from wattlaw.running.training.layout_checks import check_layout
from wattlaw.store.record import RunRecord
from wattlaw.study.model import RunSpec, Study
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.plan import PlannedRun, expand, read_study
from wattlaw.workloads import catalogue

#: The most reasons of skipped runs that are shown before the start.
_MOST_REASONS = 5
_HOUR_S = 3600.0
#: Launchers that train, in any layout; others know data-parallel jobs.
_TRAINING = ("local", "slurm")


@dataclass(frozen=True)
class Planned:
    study: Study
    runs: list[PlannedRun]


def plan_study(
    path: Path,
    launch_kind: str | None = None,
    hardware: str | None = None,
    table: Path | None = None,
) -> Planned:
    """Read a study file, check everything that can be checked without running, and expand it.

    ``launch_kind`` replaces ``launch.kind``, ``hardware`` that of ``launch.simulation``, and
    ``table`` ``launch.table``, which is relative to the study file.
    """
    study = read_study(path)
    launch, kind = study.launch, launch_kind or study.launch.kind
    if kind not in registry.names(GROUP):
        where = "launch" if launch_kind else f"{path}: launch.kind"
        allowed = ", ".join(registry.names(GROUP))
        raise BadInput(f"{where}: unknown launcher {kind!r}; allowed: {allowed}")
    if hardware is not None and kind != "simulated":
        raise BadInput(f"run: --hardware requires the launcher simulated, not {kind}")
    if table is not None and kind != "replay":
        raise BadInput(f"run: --table requires the launcher replay, not {kind}")
    if table is None and launch.table is not None:
        table = path.parent / launch.table
    changes = {
        "kind": kind,
        "simulation": launch.simulation.model_copy(
            update={} if hardware is None else {"hardware": hardware}
        ),
        "table": None if table is None else str(table),
    }
    study = study.model_copy(update={"launch": launch.model_copy(update=changes)})
    launcher: type[Launcher] = registry.load(GROUP, kind)
    try:
        study = catalogue.checked(launcher.resolve(study))
        check_own_ranks(study)
        planned = Planned(study, expand(study))
        for run in planned.runs:
            if kind in _TRAINING:
                check_layout(run.spec)
            elif run.setting.layout:
                names = ", ".join(run.setting.layout)
                allowed = f"the launchers {' and '.join(_TRAINING)}"
                raise BadInput(f"{names}: given for the launcher {kind}; allowed: {allowed}")
        return planned
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _wide_layers(specs: Iterable[RunSpec]) -> list[str]:
    placed = {(spec.setting.tp, spec.setting.gpus // spec.nodes) for spec in specs}
    wide = [f"tp {tp} with {gpus} GPUs of a node" for tp, gpus in sorted(placed) if gpus % tp]
    text = "tensor parallelism between nodes exchanges data in every layer; most networks slow it"
    return [f"{', '.join(wide)}: {text}"] if wide else []


class Forecast(NamedTuple):
    """What is known of runs before they start.

    ``skipped`` has the reason of each run that will be skipped, by run id. ``warnings`` are
    sentences on what may be wrong, and ``missing`` those on what stops every run. If
    ``is_of_machine``, another machine may execute the runs that are skipped.
    """

    skipped: dict[str, str]
    warnings: list[str]
    missing: list[str]
    is_of_machine: bool


def forecast(planned: Planned, runs: Iterable[PlannedRun]) -> Forecast:
    study = planned.study
    launcher: type[Launcher] = registry.load(GROUP, study.launch.kind)
    examined = launcher.examine(study.launch)
    by_setting: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        by_setting[_setting(run.spec)].append(run)
    skipped, specs = dict[str, str](), [repeats[0].spec for repeats in by_setting.values()]
    for repeats in by_setting.values():
        if (reason := examined.unsupported_reason(repeats[0].spec)) is not None:
            skipped |= {run.run_id: reason for run in repeats}
    warnings = [*_wide_layers(specs), *command_warnings(study, planned.runs)]
    warnings += examined.warnings(specs)
    return Forecast(skipped, warnings, [*examined.missing(study)], examined.is_of_machine)


def skipped_text(reasons: Iterable[str], runs: int) -> list[str]:
    count = Counter(reasons)
    # One more reason takes no more space than the sentence on the others.
    shown = count.most_common(None if len(count) == _MOST_REASONS + 1 else _MOST_REASONS)
    sentences = [
        f"{plural(number, 'run')} of {runs:,} will be skipped: {reason}" for reason, number in shown
    ]
    if len(count) > len(shown):
        others = count.total() - sum(number for _, number in shown)
        sentences.append(
            f"{plural(others, 'run')} of {runs:,} will be skipped for "
            f"{len(count) - len(shown):,} other reasons ('wattlaw status' lists them later)"
        )
    return sentences


def count_statuses(statuses: Iterable[str]) -> dict[str, int]:
    order = (
        "done",
        OUT_OF_MEMORY,
        "failed",
        "skipped",
        "interrupted",
        "running",
        "queued",
        "planned",
        "damaged",
    )
    count = Counter(statuses)
    return {status: count[status] for status in order if count[status]}


def git_commit(directory: Path) -> str | None:
    """Return the commit of the user's code, with ``-dirty`` if it was changed since, or None."""
    # --dirty would start the program that a repository names as its file system monitor.
    line = ["git", "-c", "core.fsmonitor=false", "-C", str(directory)]
    line += ["describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
    try:
        described = run_captured(line, timeout_s=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None  # empty outside a repository


@dataclass(frozen=True)
class GpuHours:
    measured: float
    measured_runs: int
    unknown_runs: int


def gpu_hours(runs: Sequence[PlannedRun], done: Iterable[RunRecord]) -> GpuHours:
    """Estimate the GPU-hours of runs: each takes as long as the mean of its repeats in ``done``."""
    times_s: dict[str, list[float]] = defaultdict(list)
    for record in done:
        is_timed = record.status == "done" and record.attempts <= 1  # else only the last attempt is
        is_timed = is_timed and record.spec.launch_kind != "simulated"  # on the simulator's clock
        if is_timed and record.started_at and record.finished_at:
            duration = record.finished_at - record.started_at
            times_s[_setting(record.spec)].append(duration.total_seconds())
    measured = [
        run.setting.gpus * fmean(repeats_s) / _HOUR_S
        for run in runs
        if (repeats_s := times_s.get(_setting(run.spec)))
    ]
    return GpuHours(sum(measured, 0.0), len(measured), len(runs) - len(measured))


def _setting(spec: RunSpec) -> str:
    return spec.model_copy(update={"repeat": 0}).model_dump_json()
