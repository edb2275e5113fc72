"""What root does on a node when a job begins and ends: limit its GPUs, and restore them.

As in ``wattlaw.measure.limits.guard``, the previous limits are on disk before anything is changed,
and a watchdog runs. The owner of a limit is the job, not a process.
"""

import secrets
from collections.abc import Sequence

from wattlaw.common.errors import BadInput, NotAvailable, WattlawError, one_line
from wattlaw.measure.devices.nvidia.nvml import open_driver
from wattlaw.measure.devices.visible import parse_job_gpus
from wattlaw.measure.limits import requests
from wattlaw.measure.limits.prolog_limits import PrologReport
from wattlaw.measure.limits.prolog_request import parse_limit_comment, requests_limit
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.state_folder import SavedState
from wattlaw.store.record import LimitReport
from wattlaw_site import node_state
from wattlaw_site.node_state import SiteStateFolder
from wattlaw_site.site_file import SiteFile
from wattlaw_site.site_job import NodeJob, SitePaths, is_over, log
from wattlaw_site.watch import Watch


def prolog(paths: SitePaths, job: NodeJob, comment: str) -> None:
    """Restore the limits that earlier jobs have left, and limit a job's GPUs if it requests that. A
    prolog that fails drains the node: failures are in the job's report and in the log."""
    node_state.remove_report(paths, job.job_id, job.node)
    folder = SiteStateFolder(paths)
    try:
        states = folder.of_this_host()
        earlier = [
            saved for saved in states if (saved.job_id, saved.node) == (job.job_id, job.node)
        ]
        stale = [saved for saved in states if saved not in earlier and _is_stale(saved, job)]
        _restore_all(folder, earlier, is_stale=False)
        _restore_all(folder, stale, is_stale=True)
    except WattlawError as error:
        log(f"job {job.job_id}: {error}")
    if not requests_limit(comment):
        return
    report = PrologReport(job_id=job.job_id, node=job.node)
    try:
        limits = parse_limit_comment(comment)
        report = report.model_copy(update=vars(limits))
        _apply_limits(paths, job, limits, report)
    except (WattlawError, OSError) as error:
        reason = one_line(error)
        log(f"job {job.job_id} of {job.user}: its limit is refused: {reason}")
        node_state.write_report(paths, report.model_copy(update={"refused": reason}))


def _is_over(saved: SavedState) -> bool | None:
    return not saved.is_from_this_boot or is_over(saved.job_id or "", saved.node or "")


def _is_stale(saved: SavedState, job: NodeJob) -> bool:
    over = _is_over(saved)
    if over is not None:
        return over
    try:  # the controller does not answer, but Slurm has given this job that GPU
        return saved.device in job_gpu_uuids(job.gpus)
    except NotAvailable:
        return False


def _restore_all(folder: SiteStateFolder, states: Sequence[SavedState], *, is_stale: bool) -> None:
    """Restore all states; raise ``NotAvailable`` with the reasons if some cannot be restored."""
    if not states:
        return
    reasons = []
    with node_state.open_nvidia_limiter() as limiters:
        for saved in states:
            try:
                folder.restore(saved.device, limiters, saved.token, is_stale=is_stale)
                log(f"restored the limits of {saved.device}, of job {saved.job_id}", is_error=False)
            except (WattlawError, OSError) as error:
                reasons.append(f"{one_line(error)} (of job {saved.job_id})")
    if reasons:
        raise NotAvailable("; ".join(reasons))


def _apply_limits(paths: SitePaths, job: NodeJob, limits: Limits, report: PrologReport) -> None:
    """Limit all of a job's GPUs and write the report, or limit none."""
    try:
        site = SiteFile.read(paths.config)
    except BadInput as error:  # jobs may not see the content of the file
        log(str(error))
        raise NotAvailable("this node's site file has an error; its log says which") from None
    site.check(limits)
    site.check_user(job.user, job.account() if site.accounts else "")
    folder = SiteStateFolder(paths)
    folder.create()
    devices = job_gpu_uuids(job.gpus)
    with node_state.open_nvidia_limiter() as limiters, folder.locked(devices):
        limiter = limiters.get("nvidia")
        if limiter is None:
            raise NotAvailable("the NVIDIA driver does not answer")
        states = [limiter.read(device) for device in devices]
        for state in states:
            requests.check_range(state, limits, devices)
            saved = folder.read(state.device)
            if saved is not None:
                raise NotAvailable(
                    f"{state.device} is limited for job {saved.job_id}, and has not been restored"
                )
        token = secrets.token_hex(8)
        watchdog = Watch(paths, job, token, devices, site.grace_s).start()  # first, as in the guard
        try:
            reports: list[LimitReport] = []
            for state in states:
                owner = {"job_id": job.job_id, "node": job.node, "token": token, "user": job.user}
                folder.write(requests.state_to_save(state, limits, owner_pid=0, **owner))
                for change in requests.changes(state.device, limits).values():
                    change(limiter)
                reports.append(requests.report_applied_limits(state, limits, "nvidia", limiter))
            node_state.write_report(paths, report.model_copy(update={"limits": tuple(reports)}))
        except BaseException:
            for device in devices:  # the epilog restores what cannot be restored now
                try:
                    folder.restore_locked(device, limiters, token)
                except (WattlawError, OSError) as error:
                    log(one_line(error))
            raise
        finally:
            watchdog.close()


def epilog(paths: SitePaths, job: NodeJob) -> None:
    """Restore the limits from before a job; ``NotAvailable`` (drain the node) if one stays."""
    folder = SiteStateFolder(paths)
    try:
        states = folder.of_this_host()
        own = [saved for saved in states if (saved.job_id, saved.node) == (job.job_id, job.node)]
        _restore_all(folder, own, is_stale=False)
        if damaged := folder.survey()[1]:
            raise NotAvailable("; ".join(damaged))
    finally:
        node_state.remove_report(paths, job.job_id, job.node)


def restore(paths: SitePaths, *, also_running: bool) -> None:
    """Restore limits of jobs that have left this node, or of all; ``NotAvailable`` if one stays."""
    folder = SiteStateFolder(paths)
    over = [(saved, also_running or _is_over(saved)) for saved in folder.of_this_host()]
    stale = [saved for saved, is_stale in over if is_stale]
    unknown = [saved for saved, is_stale in over if is_stale is None]
    reasons = []
    try:
        _restore_all(folder, stale, is_stale=True)
    except NotAvailable as error:
        reasons.append(str(error))
    for saved in stale:
        node_state.remove_report(paths, saved.job_id or "", saved.node or "")
    advice = "Slurm does not say whether it is over; 'restore --all' restores its limits"
    reasons += [f"{saved.device}: job {saved.job_id}: {advice}" for saved in unknown]
    reasons += folder.survey()[1]
    if reasons:
        raise NotAvailable("; ".join(reasons))


def show(paths: SitePaths) -> list[str]:
    lines = []
    job_states = {True: "over", False: "active", None: "unknown to Slurm"}
    for saved in SiteStateFolder(paths).of_this_host():
        before = [] if saved.power_limit_w is None else [f"{saved.power_limit_w:g} W"]
        before += ["no clock lock"] if saved.unlock_clock else []
        if saved.power_profiles is not None:
            before.append(f"power profiles {', '.join(saved.power_profiles) or 'none'}")
        job = f"job {saved.job_id} of {saved.user} on {saved.node}"
        state = job_states[_is_over(saved)]
        lines.append(f"{saved.device}: limited for {job}, {state}; before: {', '.join(before)}")
    return lines


def job_gpu_uuids(gpus: str) -> list[str]:
    """Return the UUIDs of all GPUs that ``SLURM_JOB_GPUS`` names, as ``0,2``, ``0-3`` or UUIDs.

    A prolog sees every GPU of the node. So, unlike a job, it never uses all that are visible.

    Raises ``NotAvailable`` if the job has no GPU, or one of them is not on this node.
    """
    if not gpus:
        raise NotAvailable("the job has no GPU on this node")
    entries = parse_job_gpus(gpus)
    if entries is None or any(str(entry).startswith("MIG-") for entry in entries):
        given = f"SLURM_JOB_GPUS is {gpus[:80]!a}, no list of GPU numbers or UUIDs"
        raise NotAvailable(f"{given}; parts of GPUs (MIG, shards) are not limited")
    with open_driver() as listed:
        names = [(gpu.minor, gpu.uuid) for gpu in listed]
    uuids: dict[str, None] = {}
    for entry in entries:
        found = [
            uuid
            for minor, uuid in names
            if minor == entry or (isinstance(entry, str) and uuid.startswith(entry))
        ]
        if len(found) != 1:
            device = entry if isinstance(entry, str) else f"/dev/nvidia{entry}"
            raise NotAvailable(f"the driver lists no GPU {device}, which the job has")
        uuids.setdefault(found[0])
    return list(uuids)
