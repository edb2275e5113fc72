"""``wattlaw check``."""

import typer

from wattlaw.cli.common.options import StudyArgument
from wattlaw.launch import planning

app = typer.Typer()


@app.command()
def check(study: StudyArgument) -> int:
    """Validate a study file and count its runs."""
    planned = planning.plan_study(study)
    asked = planned.study
    # Runs share their parts: of hundreds of thousands each part is looked at once.
    settings = {id(run.spec.setting): run.spec.setting for run in planned.runs}
    workloads = {id(run.spec.workload): run.spec.workload for run in planned.runs}
    names = {workload.model_dump_json() for workload in workloads.values()}
    print(
        f"{study}: ok: {asked.name}: {len(planned.runs)} runs of {len(names)} workload(s), "
        f"{len({*settings.values()})} settings, {asked.repeats} repeats"
    )
    return 0
