"""The pages of a proposal, from the runs of stores."""

from os import PathLike
from pathlib import Path
from typing import Any

from wattlaw.api.results import Results
from wattlaw.api.store_reports import Report
from wattlaw.api.store_tables import checked_scope
from wattlaw.common.errors import BadInput
from wattlaw.common.scopes import OUTERMOST
from wattlaw.study.question import PRICES, asks
from wattlaw_proposal.planned_campaign import Campaign, propose
from wattlaw_proposal.proposal_pages import write_proposal


@asks(PRICES)
def proposal_of(
    results: Results,
    path: str | PathLike[str] = "proposal.html",
    *,
    nodes: int | None = None,
    workload: str | None = None,
    runs: int = 1,
    epochs: int | None = None,
    steps: float | None = None,
    samples: float | None = None,
    tokens: float | None = None,
    sequence_length: int | None = None,
    rule: float | None = None,
    energy_scope: str | None = None,
    **asked: Any,
) -> Report:
    """Write two pages for a compute-time proposal: scaling, planned campaign and method.

    Parameters
    ----------
    results
        The runs.
    path
        The page; Markdown where its name ends in ``.md``.
    nodes
        The number of nodes of a training, 1 by default where all runs were on one. Counts that
        did not run are predicted.
    workload
        The workload. It is not needed if the stores have a single one.
    runs, epochs
        The number of trainings, and epochs of each, by default those of most runs.
    steps, samples, tokens
        The length of a training instead of epochs; steps are of the planned global batch.
    sequence_length
        The tokens of a sample, for ``tokens``.
    rule
        The least speedup per doubling of GPUs that a centre asks for, such as 1.5.
    energy_scope, **asked
        As in ``Results.report``.

    Raises
    ------
    wattlaw.common.errors.Refused
        No run of the workload is done, or the time of a training is not known.
    wattlaw.common.errors.BadInput
        A number is out of range, or the runs do not name their nodes, or use several.
    """
    scope = checked_scope(energy_scope) or OUTERMOST
    findings, name = results._findings(asked, energy_scope=scope), results._workload(workload)
    most = findings.runs.loc[findings.runs["workload"] == name, "nodes"].max()
    if nodes is None and most > 1:
        raise BadInput(
            f"nodes: not given, and runs of {name} used up to {most:.0f}; name those of a "
            "training: --nodes N"
        )
    campaign = Campaign(nodes or 1, runs, epochs, steps, samples, tokens, sequence_length, rule)
    files = write_proposal(propose(findings, name, campaign), Path(path))
    return Report(files[0], tuple(files[1:]))
