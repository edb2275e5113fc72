"""The scheduler energy of jobs, from the site's accounting.

``ConsumedEnergyRaw`` of sacct(1) comes from the site's energy plugin (``AcctGatherEnergyType``). It
counts whole nodes, and so is the energy of a job only if the job had them exclusively.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

from wattlaw.launch.slurm import commands
from wattlaw.launch.slurm.commands import Account
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store

#: The most job ids in one command line.
_BATCH = 1000
_SOURCE = "sacct ConsumedEnergyRaw"
_SCOPE = "all nodes of the job, from its last start to its end, including other jobs on them"


def record_energies(store: Store) -> int:
    """Add the scheduler energy to all done runs without it; return how many runs got it.

    Raises
    ------
    wattlaw.launch.slurm.commands.Unreachable
        The accounting does not respond.
    """
    if shutil.which("sacct") is None:
        return 0
    missing = {}
    for record in store.readable_records():
        site = record.site
        if record.status == "done" and site and site.job_id and site.energy_j is None:
            missing[site.job_id] = record
    job_ids, accounts = sorted(missing), list[Account]()
    for first in range(0, len(job_ids), _BATCH):
        accounts += commands.accounts(job_ids[first : first + _BATCH])
    recorded = 0
    for job_id, account in energy_accounts(accounts).items():
        if job_id in missing:
            record = missing[job_id]
            store.folder(record.run_id).write(_with_energy(record, account))
            recorded += 1
    return recorded


def energy_accounts(accounts: Iterable[Account]) -> dict[str, Account]:
    """Return the account with the energy of each job.

    This is the job's own row. If only its steps have an energy, it is the greatest of them, since
    the batch step and the steps within it cover the same time.
    """
    by_job: dict[str, list[Account]] = defaultdict(list)
    for account in accounts:
        if account.energy_j is not None and account.end_s is not None:
            by_job[account.id.split(".")[0]].append(account)
    return {
        job_id: max(rows, key=lambda row: (row.id == job_id, row.energy_j or 0.0))
        for job_id, rows in by_job.items()
    }


def _with_energy(record: RunRecord, account: Account) -> RunRecord:
    if record.site is None:
        return record
    site = record.site.model_copy(
        update={
            "energy_j": account.energy_j,
            "energy_source": _SOURCE,
            "energy_scope": _SCOPE,
            "energy_start_at": _datetime(account.start_s),
            "energy_end_at": _datetime(account.end_s),
        }
    )
    return record.model_copy(update={"site": site})


def _datetime(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
