"""Advice on tables, with the parts of the question as arguments."""

from wattlaw.analysis.advise.advice import advise as advise_on
from wattlaw.study.question import Question


def advise(
    table, windows, workload, /, *, baseline=None, any_batch=False, far=False, stored=None,
    decision=None, **asked,
):  # fmt: skip
    """Return the advice for a question; ``stored`` has all runs."""
    return advise_on(
        table, windows, workload, Question(**asked),
        baseline=baseline, any_batch=any_batch, far=far, stored=stored, decision=decision,
    )  # fmt: skip
