"""Limits that a site's Slurm prolog sets for a job, checked from within the job without root.

A job requests limits in its comment (:func:`limit_comment`). The prolog, which runs as root, limits
the job's GPUs and writes a report on each node. :func:`verify_prolog_limits` compares the report
with the limits that the driver enforces.
"""

import glob
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.restore import LIMIT_TOLERANCE_W, limiters_for, open_limiters
from wattlaw.measure.limits.trust import read_small_file
from wattlaw.store.record import LimitReport
from wattlaw_site.job import SitePaths, limit_comment
from wattlaw_site.node_state import SiteReport

__all__ = ["limit_comment", "verify_prolog_limits"]

#: Names the folder of the prolog's reports if a site does not use the default folder.
VARIABLE = "WATTLAW_SLURM_REPORTS"
_ASK = "ask the administrators (docs/site.md)"
#: A report takes about 500 bytes for each GPU.
_MAX_BYTES = 65_536
#: Requests are written with three decimals.
_REQUEST_TOLERANCE = 0.001


def verify_prolog_limits(
    limits: Limits, gpus: Sequence[str], job_id: str, wait_s: float = 5.0
) -> tuple[LimitReport, ...]:
    """Check the limits that the prolog has set on a job's GPUs of this node, and return them.

    It waits some seconds for a report and for the driver. Raises ``NotAvailable`` if there is no
    prolog, it has refused the request, or a GPU enforces another limit.
    """
    if limits.are_none:
        return ()
    if not gpus:
        raise NotAvailable("a limit was requested, but this job has no GPU on this node")
    end_s = time.monotonic() + wait_s
    while True:
        try:
            return _verify(limits, gpus, job_id)
        except _NotReady:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


class _NotReady(NotAvailable):
    """The limits are not as requested, but may be in a moment."""


def _verify(limits: Limits, gpus: Sequence[str], job_id: str) -> tuple[LimitReport, ...]:
    folder = Path(os.environ.get(VARIABLE) or SitePaths().reports)
    site_reports = list(_read_reports(folder, job_id))
    if not site_reports:
        raise _NotReady(f"no Slurm prolog of this site has limited job {job_id}: {_ASK}")
    for site_report in site_reports:
        _check_request(site_report, limits)
    reports = {report.device: report for site in site_reports for report in site.limits}
    if missing := [gpu for gpu in gpus if gpu not in reports]:
        raise _NotReady(f"the site's prolog has not limited {', '.join(missing)}: {_ASK}")
    verified = []
    with open_limiters() as limiters:
        for gpu in gpus:
            usable = limiters_for(gpu, limiters)
            if not usable:
                raise NotAvailable(f"{gpu}: no driver on this machine reports its enforced limit")
            enforced_w = next(iter(usable.values())).read(gpu).enforced_w
            _check_enforced(gpu, limits.power_limit_w, enforced_w)
            changes = {"limiter": "slurm", "power_limit_enforced_w": enforced_w, "note": None}
            verified.append(reports[gpu].model_copy(update=changes))
    return tuple(verified)


def _read_reports(folder: Path, job_id: str) -> Iterator[SiteReport]:
    """Yield the reports about a job. A machine that runs several Slurm nodes has several."""
    for path in sorted(folder.glob(f"{glob.escape(job_id)}.*.json")):
        try:
            content = read_small_file(path, _MAX_BYTES)
            if content is not None:
                yield SiteReport.model_validate_json(content[0])
        except BadInput as error:
            raise NotAvailable(f"{error}: {_ASK}") from None
        except ValidationError:
            raise NotAvailable(f"{path}: cannot be read: {_ASK}") from None


def _check_request(report: SiteReport, limits: Limits) -> None:
    if report.refused is not None:
        raise NotAvailable(f"the site's prolog on {report.node} has refused: {report.refused}")
    numbers = (
        (limits.power_limit_w, report.power_limit_w),
        (limits.clock_limit_mhz, report.clock_limit_mhz),
    )
    differs = limits.power_profile != report.power_profile or any(
        abs((requested or 0.0) - (reported or 0.0)) > _REQUEST_TOLERANCE
        for requested, reported in numbers
    )
    if differs:
        comment = limit_comment(limits)
        raise NotAvailable(
            f"job {report.job_id} was submitted with another request than {comment}; "
            f"submit it with --comment={comment}"
        )


def _check_enforced(gpu: str, requested_w: float | None, enforced_w: float | None) -> None:
    if requested_w is None:
        return
    if enforced_w is None or abs(enforced_w - requested_w) > LIMIT_TOLERANCE_W:
        enforced = "an unknown limit" if enforced_w is None else f"{enforced_w:g} W"
        raise _NotReady(
            f"{gpu} enforces {enforced} instead of the {requested_w:g} W that the prolog has set: "
            "another user limits it, or the GPU cannot keep this limit"
        )
