"""Limits of a Slurm job by its site's prolog, seen from within the job: no root is needed.

The job asks with a word in its comment (:func:`comment_of`), root's prolog limits its boards and
writes a report on each node, and :func:`granted` holds that against what the driver enforces.
"""

import glob
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from wattlaw.errors import BadInput, NotAvailable
from wattlaw.limits.requests import Limits
from wattlaw.limits.restore import SAME_W, limiters, that_have
from wattlaw.limits.site.job import Place
from wattlaw.limits.site.request import comment_of
from wattlaw.limits.site.state import SiteReport
from wattlaw.limits.trust import read_small
from wattlaw.store.record import LimitReport

__all__ = ["comment_of", "granted"]

#: Where a site's prolog leaves its reports, if not in the usual folder.
VARIABLE = "WATTLAW_SLURM_REPORTS"
_ASK = "ask the administrators (docs/slurm-admin.md)"
#: A report takes about 500 bytes for each board.
_MOST_BYTES = 65_536
#: What was written to three decimals.
_SAME_REQUEST = 0.001


def granted(
    limits: Limits, boards: Sequence[str], job_id: str, wait_s: float = 5.0
) -> tuple[LimitReport, ...]:
    """Return how the prolog has limited a job's boards on this node, having checked each.

    Parameters
    ----------
    limits
        What the job has asked for; with none, there is nothing to check.
    boards
        The ids of the job's boards on this node.
    job_id
        The job's id in Slurm (``SLURM_JOB_ID``).
    wait_s
        How long a report and the driver are waited for, in seconds.

    Raises
    ------
    NotAvailable
        The prolog is not there or has refused, or a board enforces something else. The text says
        what to do.
    """
    if limits.are_none:
        return ()
    if not boards:
        raise NotAvailable("a limit is asked for, and this job has no GPU on this node")
    end_s = time.monotonic() + wait_s
    while True:
        try:
            return _granted(limits, boards, job_id)
        except _NotYet:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


class _NotYet(NotAvailable):
    """It may be otherwise in a moment."""


def _granted(limits: Limits, boards: Sequence[str], job_id: str) -> tuple[LimitReport, ...]:
    folder = Path(os.environ.get(VARIABLE) or Place().reports)
    reports = list(_reports(folder, job_id))
    if not reports:
        raise _NotYet(f"no Slurm prolog of this site has limited job {job_id}: {_ASK}")
    for report in reports:
        _check_request(report, limits)
    told = {one.device: one for report in reports for one in report.limits}
    if missing := [board for board in boards if board not in told]:
        raise _NotYet(f"the site's prolog has not limited {', '.join(missing)}: {_ASK}")
    with limiters() as known:
        found = []
        for board in boards:
            ways = that_have(board, known)
            if not ways:
                raise NotAvailable(f"{board}: no driver here tells what it enforces")
            enforced_w = next(iter(ways.values())).read(board).enforced_w
            _check_enforced(board, limits.power_limit_w, enforced_w)
            changes = {"limiter": "slurm", "power_limit_enforced_w": enforced_w, "note": None}
            found.append(told[board].model_copy(update=changes))
    return tuple(found)


def _reports(folder: Path, job_id: str) -> Iterator[SiteReport]:
    """Yield the reports about a job; a machine that plays several nodes has several."""
    for path in sorted(folder.glob(f"{glob.escape(job_id)}.*.json")):
        try:
            found = read_small(path, _MOST_BYTES)
            if found is not None:
                yield SiteReport.model_validate_json(found[0])
        except BadInput as error:
            raise NotAvailable(f"{error}: {_ASK}") from None
        except ValidationError:
            raise NotAvailable(f"{path}: cannot be read: {_ASK}") from None


def _check_request(report: SiteReport, limits: Limits) -> None:
    if report.refused is not None:
        raise NotAvailable(f"the site's prolog on {report.node} has refused: {report.refused}")
    for asked, has in (
        (limits.power_limit_w, report.power_limit_w),
        (limits.clock_limit_mhz, report.clock_limit_mhz),
    ):
        if abs((asked or 0.0) - (has or 0.0)) > _SAME_REQUEST:
            wanted = comment_of(limits)
            told = f"job {report.job_id} was submitted with another request than {wanted}"
            raise NotAvailable(f"{told}; submit it with --comment={wanted}")


def _check_enforced(board: str, asked_w: float | None, enforced_w: float | None) -> None:
    if asked_w is None:
        return
    if enforced_w is None or abs(enforced_w - asked_w) > SAME_W:
        kept = "an unknown limit" if enforced_w is None else f"{enforced_w:g} W"
        told = f"{board} enforces {kept} instead of the {asked_w:g} W that the prolog has set"
        raise _NotYet(f"{told}: somebody else limits it, or it cannot be kept so")
