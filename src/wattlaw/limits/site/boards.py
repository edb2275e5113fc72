"""Which boards of a node are a job's: Slurm tells the minor numbers of their device files."""

import re

import pynvml

from wattlaw.devices.nvidia.driver import Driver, Gone, optional
from wattlaw.errors import NotAvailable, one_line

_LIST = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")


def job_boards(gpus: str) -> list[str]:
    """Return the UUIDs of the boards that ``SLURM_JOB_GPUS`` names (``0,2`` or ``0-3``), all.

    A prolog sees every board of the node, so, unlike a job, it never takes "all that there are".

    Raises
    ------
    NotAvailable
        The job has no GPU, or one of them is not a board of this node.
    """
    if not gpus:
        raise NotAvailable("the job has no GPU on this node")
    if not _LIST.fullmatch(gpus):
        told = f"SLURM_JOB_GPUS is {gpus[:80]!a}, not the numbers of boards"
        raise NotAvailable(f"{told}; parts of boards (MIG, shards) are not limited")
    minors: list[int] = []
    for part in gpus.split(","):
        first, _, last = part.partition("-")
        minors += range(int(first), int(last or first) + 1)
    found = _by_minor()
    for minor in minors:
        if minor not in found:
            raise NotAvailable(f"the driver lists no board /dev/nvidia{minor}, which the job has")
    return [found[minor] for minor in dict.fromkeys(minors)]


def _by_minor() -> dict[int, str]:
    driver = Driver.open()
    try:
        told = {
            b.uuid: optional(pynvml.nvmlDeviceGetMinorNumber, b.handle) for b in driver.boards()
        }
    except (pynvml.NVMLError, Gone) as error:
        raise NotAvailable(f"the NVIDIA driver does not answer: {one_line(error)}") from None
    finally:
        driver.close()
    return {minor: uuid for uuid, minor in told.items() if minor is not None}
