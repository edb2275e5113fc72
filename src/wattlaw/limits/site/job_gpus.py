"""Which GPUs of a node belong to a job. Slurm gives the minor numbers of their device files."""

import re

import pynvml

from wattlaw.devices.nvidia.driver import Driver, GpuLost, query_optional
from wattlaw.errors import NotAvailable, one_line

_LIST = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")


def job_gpu_uuids(gpus: str) -> list[str]:
    """Return the UUIDs of all GPUs that ``SLURM_JOB_GPUS`` names, as ``0,2`` or ``0-3``.

    A prolog sees every GPU of the node. So, unlike a job, it never uses all that are visible.

    Raises ``NotAvailable`` if the job has no GPU, or one of them is not on this node.
    """
    if not gpus:
        raise NotAvailable("the job has no GPU on this node")
    if not _LIST.fullmatch(gpus):
        raise NotAvailable(
            f"SLURM_JOB_GPUS is {gpus[:80]!a}, which is no list of GPU numbers; "
            "parts of GPUs (MIG, shards) are not limited"
        )
    minors: list[int] = []
    for part in gpus.split(","):
        first, _, last = part.partition("-")
        minors += range(int(first), int(last or first) + 1)
    uuids = _uuids_by_minor()
    for minor in minors:
        if minor not in uuids:
            raise NotAvailable(f"the driver lists no GPU /dev/nvidia{minor}, which the job has")
    return [uuids[minor] for minor in dict.fromkeys(minors)]


def _uuids_by_minor() -> dict[int, str]:
    driver = Driver.open()
    try:
        minors = {
            gpu.uuid: query_optional(pynvml.nvmlDeviceGetMinorNumber, gpu.handle)
            for gpu in driver.gpus()
        }
    except (pynvml.NVMLError, GpuLost) as error:
        raise NotAvailable(f"the NVIDIA driver does not answer: {one_line(error)}") from None
    finally:
        driver.close()
    return {minor: uuid for uuid, minor in minors.items() if minor is not None}
