"""``wattlaw check``."""

import sys

from wattlaw.api import studies
from wattlaw.cli.common.options import StudyArgument
from wattlaw.formatting import plural
from wattlaw.workloads import catalogue


def check(study: StudyArgument) -> int:
    """Validate a study file, count its runs, and warn of scripts that do not exist."""
    loaded = studies.load_study(study)
    parts = ", ".join(plural(count, noun) for noun, count in loaded.sizes.items())
    measure = loaded.plan.study.measure
    each = f"; each run measures {measure}" if measure.is_by_steps else ""
    print(f"{study}: ok: {loaded.name}: {parts}{each}")
    for sentence in catalogue.missing_files(loaded.plan.study):
        print(f"warning: {sentence}", file=sys.stderr)
    return 0
