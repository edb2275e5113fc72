"""``run`` and ``check``."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from rich.table import Table

from wattlaw import registry
from wattlaw.cli.console import Console
from wattlaw.cli.progress import observer_for
from wattlaw.errors import BadInput
from wattlaw.launch import planning
from wattlaw.launch.campaign import Campaign, Outcome
from wattlaw.launch.gpu_hours import GpuHours, gpu_hours
from wattlaw.launch.launcher import GROUP, Launcher
from wattlaw.launch.stop import CANCELLED
from wattlaw.store.store import Store
from wattlaw.study.plan import PlannedRun

_ROWS = 60
_IF_THEY_DIFFER = ("power W", "clock MHz", "precision", "fraction")


def check(study_file: Path) -> int:
    """Check a study file."""
    planned = planning.plan_study(study_file)
    study = planned.study
    # Runs share their parts: of hundreds of thousands each part is looked at once.
    settings = {id(run.spec.setting): run.spec.setting for run in planned.runs}
    workloads = {id(run.spec.workload): run.spec.workload for run in planned.runs}
    names = {workload.model_dump_json() for workload in workloads.values()}
    print(
        f"{study_file}: ok: {study.name}: {len(planned.runs)} runs of {len(names)} workload(s), "
        f"{len({*settings.values()})} settings, {study.repeats} repeats"
    )
    return 0


def run(
    study_file: Path,
    store_path: Path,
    launch: str | None,
    simulation: Mapping[str, object],
    *,
    dry_run: bool,
    assume_tflops: float,
) -> int:
    """Run a study, or show what it would run.

    ``simulation`` names what replaces the study's ``launch.simulation``; None leaves it.
    """
    if not 0 < assume_tflops < float("inf"):
        raise BadInput(f"run: --assume-tflops {assume_tflops:g}; allowed: a number > 0")
    changes = {key: value for key, value in simulation.items() if value is not None}
    fail_share = changes.get("fail_share", 0.0)
    if not isinstance(fail_share, float) or not 0 <= fail_share <= 1:
        raise BadInput(f"run: --fail-share {fail_share}; allowed: 0 to 1")
    planned = planning.plan_study(study_file, launch, changes)
    store = Store(store_path)
    kind: type[Launcher] = registry.load(GROUP, planned.study.launch.kind)
    console = Console()
    if dry_run:
        records = store.records_by_id({run.run_id for run in planned.runs})
        statuses = planning.statuses(store, planned.runs, records)
        _show(planned, statuses, console)
        left = [run for run in planned.runs if statuses[run.run_id] != "done"]
        if planned.study.launch.kind == "simulated":
            console.print("Simulated runs take no GPU-hours; on real GPUs it would be:")
        elif kind.queue is not None and left:
            shown = kind.queue.shown(planned.study.launch, left[0], store)
            told = f"Each run is a job, such as:\n  {shown}"
            console.print(told, soft_wrap=True)
        known = [record for record in records.values() if record is not None]
        for line in _hours(gpu_hours(left, known, assume_tflops * 1e12), assume_tflops):
            console.print(line, soft_wrap=True)
        return 0
    launcher = kind.open(planned.study.launch, store_path)
    store.create()
    commit = planning.git_commit(Path.cwd())
    with closing(launcher), observer_for(console, len(planned.runs)) as observer:
        campaign = Campaign(planned.study, planned.runs, store, launcher, observer, commit)
        outcome = campaign.run()
    leaves_jobs = launcher.queue is not None and outcome.interrupted_by != CANCELLED
    _conclude(outcome, store_path, console, leaves_jobs=leaves_jobs)
    return 0 if outcome.failed == 0 and outcome.left == 0 else 1


def _show(planned: planning.Planned, statuses: dict[str, str], console: Console) -> None:
    columns: dict[str, Callable[[PlannedRun], str]] = {
        "run": lambda run: run.run_id,
        "workload": lambda run: run.spec.workload.name,
        "gpus": lambda run: str(run.spec.setting.gpus),
        "global batch": lambda run: str(run.spec.setting.global_batch),
        "local batch": lambda run: str(run.spec.setting.local_batch),
        "power W": lambda run: _number(run.spec.setting.power_limit_w),
        "clock MHz": lambda run: _number(run.spec.setting.clock_limit_mhz),
        "precision": lambda run: run.spec.setting.precision,
        "fraction": lambda run: _number(run.spec.setting.dataset_fraction),
        "repeat": lambda run: str(run.spec.repeat),
        "status": lambda run: statuses[run.run_id],
    }
    for name in _IF_THEY_DIFFER:  # a terminal is narrow
        if len({columns[name](run) for run in planned.runs}) == 1:
            del columns[name]
    table = Table(title=f"{planned.study.name}: the runs in their order", title_justify="left")
    for name in columns:
        words = name in ("run", "workload", "status")
        table.add_column(name, justify="left" if words else "right", no_wrap=words)
    for run in planned.runs[:_ROWS]:
        table.add_row(*(tell(run) for tell in columns.values()))
    console.print(table)
    if len(planned.runs) > _ROWS:
        console.print(f"... and {len(planned.runs) - _ROWS} more")
    counts = planning.counted(statuses.values())
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    console.print(f"{len(planned.runs)} runs: {told}. Nothing was run.")


def _hours(hours: GpuHours, assume_tflops: float) -> list[str]:
    """Return lines that tell what is left to do, in GPU-hours, and from where that is known."""
    lines = []
    if hours.measured_runs:
        lines.append(
            f"GPU-hours left: {_short(hours.measured)} for {hours.measured_runs} runs, "
            "by the repeats in this store"
        )
    if hours.counted_runs:
        lines.append(
            f"GPU-hours left: {_short(hours.counted)} for {hours.counted_runs} runs, estimated: "
            f"training's operations at {assume_tflops:g} TFLOP/s per GPU (--assume-tflops); "
            "evaluation, input and gradient communication come on top"
        )
    if hours.unknown_runs:
        lines.append(
            f"GPU-hours left: not known for {hours.unknown_runs} runs until one of each setting "
            "is done"
        )
    return lines


def _short(hours: float) -> str:
    """Return a number of three digits, or all that stand before the point."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _conclude(outcome: Outcome, store: Path, console: Console, *, leaves_jobs: bool) -> None:
    words = f"{outcome.done} done, {outcome.failed} failed, {outcome.skipped} skipped"
    if outcome.left:
        words += f", {outcome.left} left"
    if outcome.interrupted_by and leaves_jobs:
        words += (
            f" (stopped by {outcome.interrupted_by}; jobs go on, and the same command takes them "
            f"up; 'wattlaw cancel {store}' ends them)"
        )
    elif outcome.interrupted_by:
        words += f" (stopped by {outcome.interrupted_by}; the same command goes on from here)"
    elif outcome.failed:
        words += f" (reasons: wattlaw status {store}; the same command tries them again)"
    console.print(f"{words}. Results are in {store}", soft_wrap=True)
