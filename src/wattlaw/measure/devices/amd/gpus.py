"""The AMD GPUs of this machine and those that this process may use, from the kernel's files.

The files are those of the driver amdgpu (kernel documentation, gpu/amdgpu/thermal and
driver-misc). An MI250 or MI250X is one board with two GPUs (GCDs). Its driver reports power and
limits of the board on the first GCD and 0 on the other (``aldebaran_is_primary`` in the driver).
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices import sysfs
from wattlaw.measure.devices.meter import Accelerator
from wattlaw.measure.devices.visible import GpuSelection, parse_ordinal, select
from wattlaw.store.streams import Kind

#: Ids are AMD-<unique id of the chip>, or AMD-<PCI bus id> of a GPU that has none.
_ID_PREFIX = "AMD-"
_VENDOR = "0x1002"
#: PCI ids of Instinct boards, by the driver's table (``amdgpu_drv.c``) and the PCI ID database.
_INSTINCT = {
    "0x738c": "AMD Instinct MI100",
    "0x7408": "AMD Instinct MI250X",
    "0x740c": "AMD Instinct MI250X/MI250",
    "0x740f": "AMD Instinct MI210",
    "0x74a0": "AMD Instinct MI300A",
    "0x74a1": "AMD Instinct MI300X",
    "0x74a5": "AMD Instinct MI325X",
    "0x75a0": "AMD Instinct MI350X",
    "0x75a3": "AMD Instinct MI355X",
}
_TWO_GPUS = frozenset({"0x7408", "0x740c"})
#: The limits of a board, which are 0 on its second GPU.
_LIMITS = ("power1_cap_default", "power1_cap")
_MI300A = "0x74a0"
#: Devices of DRM's render nodes have the minor numbers 128 and above.
_FIRST_RENDER_MINOR = 128


@dataclass(frozen=True)
class AmdGpu:
    uuid: str
    name: str
    model: str  # PCI device id
    bus_id: str
    folder: Path
    unique_id: str | None = None  # 16 hexadecimal digits, as in ROCm's GPU-<unique id>
    render_minor: int | None = None
    partition: str | None = None  # how it is divided into several (DPX, CPX); None: it is not
    #: The GPUs that share a board and its power; the first one reports it.
    board: tuple[str, ...] = ()

    @property
    def minor(self) -> int | None:
        return None if self.render_minor is None else self.render_minor - _FIRST_RENDER_MINOR

    @property
    def reporter(self) -> str:
        return self.board[0] if self.board else self.uuid

    @property
    def hwmon(self) -> Path | None:
        chips = sysfs.hwmons(self.folder / "hwmon")
        return next((path for name, path in chips if name == "amdgpu"), None)

    @property
    def contains(self) -> tuple[Kind, ...]:
        """Return what its power includes besides a GPU, as that of APUs does."""
        if self.model == _MI300A:
            return ("cpu", "dram")
        is_apu = self.hwmon is not None and (self.hwmon / "in1_input").exists()  # of a northbridge
        return ("cpu",) if is_apu else ()


def all_gpus() -> list[AmdGpu]:
    """In the order of ROCm if the kernel states it, else of PCI; unreadable files hide no GPU."""
    gpus = [_gpu(folder.resolve()) for folder in sysfs.gpu_folders(_VENDOR)]
    nodes = _rocm_order()
    gpus.sort(key=lambda gpu: (nodes.get(gpu.render_minor, len(nodes)), gpu.bus_id))
    return _with_boards(gpus)


def usable_gpus() -> list[AmdGpu]:
    """Return the GPUs whose render node this process can open, as ROCm does; all of a tree of files
    that was copied without its devices."""
    devices = sysfs.root().parent / "dev/dri"
    gpus = all_gpus()
    if not devices.exists() and sysfs.is_copy():
        return gpus
    return [gpu for gpu in gpus if _can_open(devices / f"renderD{gpu.render_minor}")]


def visible_gpus() -> GpuSelection[AmdGpu]:
    if not all_gpus():
        raise NotAvailable(f"no AMD GPU in {sysfs.root() / 'class/drm'}")
    gpus = usable_gpus()
    if gpus and (sysfs.root() / "module/nvidia").exists():
        # They would halve the mean utilisation and power of the GPUs that compute.
        gpus = [gpu for gpu in gpus if gpu.model in _INSTINCT]
        if not gpus:
            raise NotAvailable("on a machine with NVIDIA GPUs, AMD's integrated GPU is not counted")
    if not gpus:
        raise NotAvailable(
            "no permission to open the AMD GPUs (/dev/dri/renderD*): add these devices to the "
            "container, or the user to the group render"
        )
    selection = select_gpus(gpus, os.environ)
    if not selection.gpus:
        raise NotAvailable((*selection.notes, "no AMD GPU that this process may use")[0])
    return selection


def select_gpus(gpus: Sequence[AmdGpu], environ: Mapping[str, str]) -> GpuSelection[AmdGpu]:
    """ROCR_VISIBLE_DEVICES selects from all GPUs, and HIP_VISIBLE_DEVICES from those that remain.
    HIP uses CUDA_VISIBLE_DEVICES in place of an empty HIP_VISIBLE_DEVICES; GPU_DEVICE_ORDINAL is of
    OpenCL. Raises ``NotAvailable`` for ordinals of GPUs that are divided into several."""
    hip = "HIP_VISIBLE_DEVICES" if environ.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    return select(gpus, environ, {"ROCR_VISIBLE_DEVICES": "ROCr", hip: "HIP"}, _find)


def _find(gpus: Sequence[AmdGpu], entry: str) -> tuple[AmdGpu, str] | None:
    ordinal = parse_ordinal(entry)
    if ordinal is not None:
        if any(gpu.partition for gpu in gpus):
            raise NotAvailable(
                f"the ordinal {entry} selects a partition of an AMD GPU (current_compute_partition "
                "is not SPX); select GPUs by their ids (GPU-<unique id>)"
            )
        return (gpus[ordinal], gpus[ordinal].uuid) if ordinal < len(gpus) else None
    kind, _, digits = entry.partition("-")
    matches = [gpu for gpu in gpus if (gpu.unique_id or "").startswith(digits.lower())]
    is_found = kind == "GPU" and digits and len(matches) == 1
    return (matches[0], matches[0].uuid) if is_found else None


def _gpu(folder: Path) -> AmdGpu:
    unique_id = sysfs.optional_text(folder / "unique_id")
    if unique_id is not None:
        unique_id = None if set(unique_id) <= {"0"} else unique_id.lower().zfill(16)
    model = sysfs.optional_text(folder / "device") or "unknown"
    render = next((folder / "drm").glob("renderD*"), None)
    partition = sysfs.optional_text(folder / "current_compute_partition")
    return AmdGpu(
        uuid=f"{_ID_PREFIX}{unique_id or folder.name}",
        name=_INSTINCT.get(model)
        or sysfs.optional_text(folder / "product_name")
        or f"AMD GPU {model}",
        model=model,
        bus_id=folder.name,
        folder=folder,
        unique_id=unique_id,
        render_minor=parse_ordinal(render.name.removeprefix("renderD")) if render else None,
        partition=None if partition == "SPX" else partition,
    )


def _rocm_order() -> dict[int | None, int]:
    places: dict[int | None, int] = {}
    nodes = (sysfs.root() / "class/kfd/kfd/topology/nodes").glob("*")
    for node in sorted((n for n in nodes if n.name.isdigit()), key=lambda node: int(node.name)):
        text = sysfs.optional_text(node / "properties") or ""
        minor = re.search(r"^drm_render_minor (\d{2,4})$", text, re.MULTILINE)  # 0: a processor
        if minor is not None:
            places[int(minor[1])] = len(places)
    return places


def _with_boards(gpus: list[AmdGpu]) -> list[AmdGpu]:
    """Add both GPUs of their board to those of MI250 boards: the second one follows the first on
    the PCI buses. Older drivers show the chip's serial number instead of the board's."""
    boards: list[list[str]] = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.bus_id):
        if gpu.model in _TWO_GPUS:
            folder = gpu.hwmon or gpu.folder
            limits = [sysfs.optional_text(folder / name) for name in _LIMITS]
            reports_power = any(limit not in (None, "0") for limit in limits)
            is_second = boards and len(boards[-1]) == 1 and not reports_power
            boards[-1].append(gpu.uuid) if is_second else boards.append([gpu.uuid])
    ids = {uuid: tuple(board) for board in boards for uuid in board}
    return [dataclasses.replace(gpu, board=ids.get(gpu.uuid, ())) for gpu in gpus]


def _can_open(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _environment(ids: Sequence[str]) -> dict[str, str]:
    usable = {gpu.uuid: index for index, gpu in enumerate(usable_gpus())}
    ordinals = ",".join(str(place) for place in range(len(ids)))
    # HIP counts the GPUs that ROCm lists. It would use CUDA_VISIBLE_DEVICES without its own list.
    return {
        "ROCR_VISIBLE_DEVICES": ",".join(str(usable[gpu]) for gpu in ids),
        "HIP_VISIBLE_DEVICES": ordinals,
        "CUDA_VISIBLE_DEVICES": ordinals,
    }


AMD = Accelerator(
    torch_kind="cuda",  # of a torch for ROCm
    backend="nccl",
    id_prefixes=(_ID_PREFIX,),
    visible=lambda: {gpu.uuid: gpu.uuid for gpu in visible_gpus().gpus},
    environment=_environment,
    driver_files=("/dev/kfd",),
    order=1,
)
