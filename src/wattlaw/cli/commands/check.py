"""``wattlaw check``."""

import typer

from wattlaw.api import studies
from wattlaw.cli.common.options import StudyArgument
from wattlaw.formatting import plural

app = typer.Typer()


@app.command()
def check(study: StudyArgument) -> int:
    """Validate a study file and count its runs."""
    loaded = studies.load_study(study)
    parts = ", ".join(plural(count, noun) for noun, count in loaded.sizes.items())
    measure = loaded.plan.study.measure
    each = f"; each run measures {measure}" if measure.is_by_steps else ""
    print(f"{study}: ok: {loaded.name}: {parts}{each}")
    return 0
