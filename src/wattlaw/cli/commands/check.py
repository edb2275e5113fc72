"""``wattlaw check``."""

import typer

from wattlaw.cli.common.options import StudyArgument
from wattlaw.formatting import plural
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
    counts = {
        "run": len(planned.runs), "workload": len(names),
        "setting": len({*settings.values()}), "repeat": planned.study.repeats,
    }  # fmt: skip
    parts = ", ".join(plural(count, noun) for noun, count in counts.items())
    print(f"{study}: ok: {planned.study.name}: {parts}")
    return 0
