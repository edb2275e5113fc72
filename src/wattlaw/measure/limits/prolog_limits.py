"""Limits that a site's Slurm prolog sets for a job, checked from within the job without root.

A job requests limits in its comment (``prolog_request``). The prolog, which runs as root, limits
the job's GPUs and writes a ``PrologReport`` on each node, which is compared here with the limits
that the driver enforces. The add-on ``wattlaw_site`` has such a prolog.
"""

import glob
import os
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.measure.limits.prolog_request import REPORTS, limit_comment
from wattlaw.measure.limits.requests import Limits, is_enforced, watts_text
from wattlaw.measure.limits.restore import limiters_for, open_limiters
from wattlaw.measure.limits.state_folder import read_small_file
from wattlaw.store.record import LimitReport

#: Names the folder of the prolog's reports if a site does not use the default folder.
VARIABLE = "WATTLAW_SLURM_REPORTS"
_ASK = "ask the administrators (docs/site.md)"
#: A report takes about 500 bytes for each GPU.
_MAX_BYTES = 65_536


class PrologReport(BaseModel):
    model_config = ConfigDict(frozen=True)

    job_id: str
    node: str
    power_limit_w: float | None = None  # requested
    clock_limit_mhz: float | None = None
    power_profile: str | None = None
    refused: str | None = None  # why nothing was limited
    limits: tuple[LimitReport, ...] = ()


def verify_prolog_limits(
    limits: Limits, gpus: Sequence[str], job_id: str, wait_s: float = 5.0
) -> tuple[LimitReport, ...]:
    """Wait some seconds for a report and for the driver, and return the limits that the prolog has
    set. ``NotAvailable``: no prolog, a refusal, or a GPU that enforces another limit."""
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
    folder = Path(os.environ.get(VARIABLE) or REPORTS)
    reports: dict[str, LimitReport] = {}
    # A machine that runs several Slurm nodes has several reports about a job.
    paths = sorted(folder.glob(f"{glob.escape(job_id)}.*.json"))
    for path in paths:
        try:
            report = PrologReport.model_validate_json(read_small_file(path, _MAX_BYTES) or b"")
        except BadInput as error:
            raise NotAvailable(f"{error}: {_ASK}") from None
        except ValidationError:
            raise NotAvailable(f"{path}: cannot be read: {_ASK}") from None
        if report.refused is not None:
            raise NotAvailable(f"the site's prolog on {report.node} has refused: {report.refused}")
        told = Limits(report.power_limit_w, report.clock_limit_mhz, report.power_profile)
        comment = limit_comment(limits)
        if limit_comment(told) != comment:
            raise NotAvailable(
                f"job {report.job_id} was submitted with another request than {comment}; "
                f"submit it with --comment={comment}"
            )
        reports |= {limit.device: limit for limit in report.limits}
    if not paths:
        raise _NotReady(f"no Slurm prolog of this site has limited job {job_id}: {_ASK}")
    if missing := [gpu for gpu in gpus if gpu not in reports]:
        raise _NotReady(f"the site's prolog has not limited {', '.join(missing)}: {_ASK}")
    verified, requested_w = [], limits.power_limit_w
    with open_limiters() as limiters:
        for gpu in gpus:
            usable = limiters_for(gpu, limiters)
            if not usable:
                raise NotAvailable(f"{gpu}: no driver on this machine reports its enforced limit")
            enforced_w = next(iter(usable.values())).read(gpu).enforced_w
            if requested_w is not None and not is_enforced(requested_w, enforced_w):
                raise _NotReady(
                    f"{gpu} enforces {watts_text(enforced_w)} instead of the {requested_w:g} W "
                    "that the prolog has set: another user limits it, or the GPU cannot keep it"
                )
            changes = {"limiter": "slurm", "power_limit_enforced_w": enforced_w, "note": None}
            verified.append(reports[gpu].model_copy(update=changes))
    return tuple(verified)
