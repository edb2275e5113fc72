"""``wattlaw check``."""

import typer

from wattlaw.cli.common.options import StudyArgument
from wattlaw.launch import planning

app = typer.Typer()


@app.command()
def check(study: StudyArgument) -> int:
    """Validate a study file and count its runs."""
    planned = planning.plan_study(study)
    # Runs share their settings and workloads: of 100,000 runs each object is hashed once.
    settings = {id(run.spec.setting): run.spec.setting for run in planned.runs}
    workloads = {id(run.spec.workload): run.spec.workload for run in planned.runs}
    names = {workload.model_dump_json() for workload in workloads.values()}
    print(
        f"{study}: ok: {planned.study.name}: {len(planned.runs)} runs, {len(names)} workloads, "
        f"{len({*settings.values()})} settings, {planned.study.repeats} repeats"
    )
    return 0
