"""The energy that a site's accounting has measured of jobs: a second opinion, not ours.

What it is of: ``ConsumedEnergyRaw`` of sacct(1) comes from the site's energy plugin
(``AcctGatherEnergyType``), counts whole nodes, and is a job's own only if it had them to itself.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

from wattlaw.launch.slurm import commands
from wattlaw.launch.slurm.commands import Account
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store

#: No command line is longer than this many jobs' ids.
_AT_ONCE = 1000
_SOURCE = "sacct ConsumedEnergyRaw"
_SCOPE = (
    "all nodes of the job as a whole, from its last start to its end, "
    "with whatever else ran on them"
)


def record_energies(store: Store) -> int:
    """Ask the accounting for all done runs without its energy at once; return how many got it.

    Raises
    ------
    wattlaw.launch.slurm.commands.Unreachable
        It does not answer.
    """
    if shutil.which("sacct") is None:
        return 0
    lacking = {}
    for record in store.readable_records():
        site = record.site
        if record.status == "done" and site and site.job_id and site.energy_j is None:
            lacking[site.job_id] = record
    ids, found = sorted(lacking), list[Account]()
    for first in range(0, len(ids), _AT_ONCE):
        found += commands.accounts(ids[first : first + _AT_ONCE])
    energies, noted = energy_accounts(found), 0
    for job_id, account in energies.items():
        if job_id in lacking:
            record = lacking[job_id]
            store.folder(record.run_id).write(_with(record, account))
            noted += 1
    return noted


def energy_accounts(accounts: Iterable[Account]) -> dict[str, Account]:
    """Return of each job the account that has its energy.

    That is the job's own line; where only its steps tell one, the greatest of them, since the
    batch step and the steps within it are over the same time.
    """
    by_job: dict[str, list[Account]] = defaultdict(list)
    for one in accounts:
        if one.energy_j is not None and one.end_s is not None:
            by_job[one.id.split(".")[0]].append(one)
    return {
        job_id: next(
            (one for one in found if one.id == job_id),
            max(found, key=lambda one: one.energy_j or 0.0),
        )
        for job_id, found in by_job.items()
    }


def _with(record: RunRecord, account: Account) -> RunRecord:
    if record.site is None:
        return record
    site = record.site.model_copy(
        update={
            "energy_j": account.energy_j,
            "energy_source": _SOURCE,
            "energy_scope": _SCOPE,
            "energy_start_at": _moment(account.start_s),
            "energy_end_at": _moment(account.end_s),
        }
    )
    return record.model_copy(update={"site": site})


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
