"""``run`` and ``check``."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from wattlaw import registry
from wattlaw.cli.progress import observer_for
from wattlaw.launch import planning
from wattlaw.launch.campaign import Campaign, Outcome
from wattlaw.launch.launcher import GROUP
from wattlaw.store.store import Store
from wattlaw.study.plan import PlannedRun

_ROWS = 60


def check(study_file: Path) -> int:
    """Check a study file."""
    planned = planning.plan_study(study_file)
    study = planned.study
    settings = {run.spec.setting for run in planned.runs}
    workloads = {run.spec.workload.model_dump_json() for run in planned.runs}
    print(
        f"{study_file}: ok: {study.name}: {len(planned.runs)} runs = "
        f"{len(workloads)} workload(s) x {len(settings)} settings x {study.repeats} repeats"
    )
    return 0


def run(study_file: Path, store_path: Path, launch: str | None, *, dry_run: bool) -> int:
    """Run a study, or show what it would run."""
    planned = planning.plan_study(study_file, launch)
    store = Store(store_path)
    console = Console()
    if dry_run:
        _show(planned, planning.statuses(store, planned.runs), console)
        return 0
    launcher = registry.load(GROUP, planned.study.launch.kind).open(planned.study.launch)
    store.create()
    commit = planning.git_commit(Path.cwd())
    with observer_for(console, len(planned.runs)) as observer:
        campaign = Campaign(planned.study, planned.runs, store, launcher, observer, commit)
        outcome = campaign.run()
    _conclude(outcome, store_path, console)
    return 0 if outcome.failed == 0 and outcome.left == 0 else 1


def _show(planned: planning.Planned, statuses: dict[str, str], console: Console) -> None:
    table = Table(title=f"{planned.study.name}: the runs in their order", title_justify="left")
    for column in ("run", "workload", "gpus", "global batch", "local batch", "power W"):
        table.add_column(column, justify="left" if column in ("run", "workload") else "right")
    for column in ("clock MHz", "precision", "fraction", "repeat", "status"):
        table.add_column(column, justify="right")
    for run in planned.runs[:_ROWS]:
        spec, setting = run.spec, run.spec.setting
        table.add_row(
            run.run_id,
            spec.workload.name,
            *(str(n) for n in (setting.gpus, setting.global_batch, setting.local_batch)),
            *("-" if n is None else f"{n:g}" for n in _limits(run)),
            setting.precision,
            f"{setting.dataset_fraction:g}",
            str(spec.repeat),
            statuses[run.run_id],
        )
    console.print(table)
    if len(planned.runs) > _ROWS:
        console.print(f"... and {len(planned.runs) - _ROWS} more")
    counts = planning.counted(statuses.values())
    words = ", ".join(f"{count} {status}" for status, count in counts.items())
    console.print(f"{len(planned.runs)} runs: {words}. Nothing was run.", highlight=False)


def _limits(run: PlannedRun) -> tuple[float | None, float | None]:
    return run.spec.setting.power_limit_w, run.spec.setting.clock_limit_mhz


def _conclude(outcome: Outcome, store: Path, console: Console) -> None:
    words = f"{outcome.done} done, {outcome.failed} failed, {outcome.skipped} skipped"
    if outcome.left:
        words += f", {outcome.left} left"
    if outcome.interrupted_by:
        words += f" (stopped by {outcome.interrupted_by}; the same command goes on from here)"
    elif outcome.failed:
        words += f" (reasons: wattlaw status {store}; the same command tries them again)"
    console.print(f"{words}. Results are in {store}", highlight=False, markup=False, soft_wrap=True)
