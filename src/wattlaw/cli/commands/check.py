"""``wattlaw check``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.api import studies
from wattlaw.cli.common.options import StudyArgument
from wattlaw.common.formatting import percent, plural
from wattlaw.running.planning import skipped_text
from wattlaw.study.plan import impossible

#: The reasons that are named.
_MOST = 8


def check(
    study: StudyArgument,
    store: Annotated[
        Path, typer.Option(help="Results folder, which may have runs of an earlier version.")
    ] = Path("wattlaw-store"),
) -> int:
    """Validate a study file and count its runs."""
    loaded = studies.load_study(study)
    files = loaded.missing_files()
    forecast = loaded.forecast()
    for sentence in skipped_text(forecast.skipped.values(), len(loaded)):
        print(sentence)
    parts = ", ".join(plural(count, noun) for noun, count in loaded.sizes.items())
    measure = loaded.plan.study.measure
    each = f"; each run measures {measure}" if measure.is_by_steps else ""
    print(f"{study}: ok: {loaded.name}: {parts}{each}")
    left_out = impossible(loaded.plan.study)
    for reason, number in left_out.most_common(_MOST):
        print(f"left out: {plural(number, 'setting')} that cannot exist: {reason}")
    if len(left_out) > _MOST:
        rest = left_out.total() - sum(number for _, number in left_out.most_common(_MOST))
        print(f"left out: {plural(rest, 'other setting')} that cannot exist")
    if loaded.plan.study.decide is not None:
        from wattlaw.analysis.decide.decision import undecided
        from wattlaw.report.topics.decision_course import goal_text

        decision = undecided(loaded.plan.study)
        print(
            f"question: {goal_text(decision)}; measuring stops once a setting is within "
            f"{percent(decision.tolerance)} of the best with probability {decision.confidence:g}"
        )
    if len(forecast.skipped) == len(loaded):
        print("warning: every run will be skipped", file=sys.stderr)
    for sentence in [
        *forecast.missing,
        *files,
        *forecast.warnings,
        *loaded.earlier_versions(store),
    ]:
        print(f"warning: {sentence}", file=sys.stderr)
    return 0
