"""``wattlaw run``."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.api import studies
from wattlaw.api.studies import Preview, RunOutcome
from wattlaw.cli.common.console import Console
from wattlaw.cli.common.options import LaunchOption, StudyArgument, TableOption, option
from wattlaw.cli.common.progress_bars import observer_for
from wattlaw.common.formatting import number, plural
from wattlaw.report import tables
from wattlaw.running.planning import GpuHours, skipped_text
from wattlaw.study.sources import MEASURED, origin_of

#: The columns of the table of runs, with their headings.
_HEADINGS = {
    "run_id": "run", "workload": "workload", "gpus": "gpus", "global_batch": "global batch",
    "local_batch": "local batch", "power_limit_w": "power W", "clock_limit_mhz": "clock MHz",
    "power_profile": "profile", "precision": "precision", "dataset_fraction": "fraction",
    "emulated_gpus": "emulates", "nodes": "nodes", "repeat": "repeat",
    "status": "status",
}  # fmt: skip

_TEXT_COLUMNS = ("run_id", "workload", "power_profile", "precision", "status")

#: Columns that are left out where all runs have the same value: a terminal is narrow.
_OPTIONAL = (
    "workload", "power_limit_w", "clock_limit_mhz", "power_profile", "precision",
    "dataset_fraction", "emulated_gpus", "nodes", "repeat",
)  # fmt: skip


def run(
    study: StudyArgument,
    store: Annotated[Path, typer.Option(help="Results folder.")] = Path("wattlaw-store"),
    launch: LaunchOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs and their status. Run nothing.")
    ] = False,
    hardware: Annotated[str | None, option("NAME|FILE", "Cluster for --launch simulated.")] = None,
    table: TableOption = None,
    openmetrics: Annotated[
        Path | None, option("FILE", "A .prom file for node_exporter's textfile collector.")
    ] = None,
    notify: Annotated[
        str | None,
        option("COMMAND", "Run it with JSON on stdin when a run fails or the study ends."),
    ] = None,
) -> int:
    """Run the missing runs of a study."""
    loaded = studies.load_study(study, launch=launch, hardware=hardware, table=table)
    console = Console()
    if dry_run:
        _show(loaded.preview(store), console)
        return 0
    decides = loaded.plan.study.decide is not None
    forecast = loaded.forecast(store)
    for sentence in skipped_text(forecast.skipped.values(), len(loaded)):
        console.print(sentence, soft_wrap=True)
    for sentence in (*forecast.warnings, *loaded.earlier_versions(store)):
        print(f"warning: {sentence}", file=sys.stderr)
    with observer_for(console, len(loaded), decides=decides) as observer:
        outcome = studies.run(
            loaded, store, progress=observer, openmetrics=openmetrics, notify=notify
        )
    _print_outcome(outcome, console)
    return 0 if outcome.is_success else 1


def _show(preview: Preview, console: Console) -> None:
    runs = preview.to_frame()
    same = [name for name in _OPTIONAL if runs[name].nunique(dropna=False) == 1]
    columns = [
        tables.text(heading, name) if name in _TEXT_COLUMNS else tables.number(heading, name, 9)
        for name, heading in _HEADINGS.items()
        if name not in same
    ]
    of = f" of {runs['workload'].iloc[0]}" if "workload" in same else ""
    title = f"{preview.study.name}: planned runs{of}"
    table = tables.build("runs", title, columns, runs.to_dict("records"))
    console.show(table)
    if table is not None and table.omitted:
        console.print(f"... and {table.omitted} more")
    counts = ", ".join(f"{count:,} {status}" for status, count in preview.counts.items())
    console.print(f"{plural(len(runs), 'run')}: {counts}. Nothing was run.")
    for sentence in skipped_text(preview.skipped.values(), len(runs)):
        console.print(sentence, soft_wrap=True)
    for sentence in preview.warnings:
        print(f"warning: {sentence}", file=sys.stderr)
    if preview.study.plan.study.decide is not None:
        console.print("The runs are candidates of a decision (decide). Not all of them are needed.")
    if emulating := int(runs["emulated_gpus"].notna().sum()):
        console.print(f"{plural(emulating, 'run')} with the local batch of more GPUs (emulates).")
    measure = preview.study.plan.study.measure
    if measure.is_by_steps:
        console.print(f"Each run measures {measure}.")
    if (origin := origin_of(preview.study.launcher)) != MEASURED:
        console.print(f"{origin.capitalize()} runs use no GPU-hours.")
        return
    if preview.job is not None:
        console.print(f"Each run is a job, such as:\n  {preview.job}", soft_wrap=True)
    for line in _hours(preview.gpu_hours):
        console.print(f"GPU-hours left: {line}", soft_wrap=True)
    if any(preview.statuses[run_id] == "planned" for run_id in preview.skipped):
        console.print("The GPU-hours include runs that will be skipped on this machine.")


def _hours(hours: GpuHours) -> Iterator[str]:
    if hours.measured_runs:
        yield (
            f"{number(hours.measured)} for {plural(hours.measured_runs, 'run')}, from repeats in "
            "this store"
        )
    if hours.unknown_runs:
        yield f"unknown for {plural(hours.unknown_runs, 'run')} until each setting has a done run"


def _print_outcome(outcome: RunOutcome, console: Console) -> None:
    store, reason = outcome.store, outcome.interrupted_by
    text = f"{outcome.done} done, {outcome.failed} failed, {outcome.skipped} skipped"
    if outcome.out_of_memory:
        text += f", {outcome.out_of_memory} out of memory"
    if outcome.left:
        text += f", {outcome.left} left"
    if outcome.not_needed:
        text += f", {outcome.not_needed} not needed: {outcome.stopped_because}"
    if outcome.has_jobs:
        text += (
            f" (stopped by {reason}; the jobs continue. The same command watches them again; "
            f"'wattlaw cancel {store}' ends them)"
        )
    elif reason:
        text += f" (stopped by {reason}; the same command continues from here)"
    elif outcome.all_fail:
        text += (
            " (stopped: the command fails in every setting so far. Correct it, see wattlaw status "
            f"{store}. The same command then tries every run)"
        )
    elif not outcome.is_success:
        text += f" (reasons: wattlaw status {store}; the same command tries them again)"
    console.print(f"{text}. Results are in {store}", soft_wrap=True)
    for warning in outcome.warnings:
        console.print(f"Warning: {warning}", soft_wrap=True)
    from wattlaw.analysis.decide.next_runs import CERTAIN

    if outcome.done and outcome.is_success and outcome.stopped_because in (None, CERTAIN):
        console.print(f"Next: wattlaw advise {shlex.quote(str(store))}", soft_wrap=True)
