"""Intel GPUs: their energy counters, as the i915 and xe drivers show them.

The hwmon chip ``i915`` or ``xe`` of a card has ``energyN_input`` in microjoules and the power limit
``powerN_max`` in microwatts. N is 1 for the card, and 2 for the package where xe has no counter or
limit of the card. The chips ``i915_gt0`` and ``i915_gt1`` count the tiles of a card, which are
parts of it (kernel documentation, ABI/testing/sysfs-driver-intel-i915-hwmon and -xe-hwmon).
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices import sysfs
from wattlaw.measure.devices.file_meter import FileMeter, FileSource, failed_device
from wattlaw.measure.devices.meter import Accelerator, Device, Facts, Target
from wattlaw.measure.devices.visible import job_entries

_ID_PREFIX, _VENDOR = "intel-", "0x8086"
_MIN_PERIOD_S = 0.05
_VISIBLE, _HIERARCHY = "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"
_ENTRY = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?")
_MODELS = {
    "0bd5": "Intel Data Center GPU Max 1550",
    "0bda": "Intel Data Center GPU Max 1100",
    "56c0": "Intel Data Center GPU Flex 170",
    "56c1": "Intel Data Center GPU Flex 140",
}


@dataclass(frozen=True)
class IntelGpu:
    id: str
    name: str
    facts: Facts
    tiles: int
    energy: Path | None
    is_shared: bool = False  # other processes may use other tiles of it

    def device(self) -> Device:
        return Device(self.id, "gpu", self.name, {**self.facts, "is_shared": self.is_shared})


def find_gpus() -> list[IntelGpu]:
    """Return the cards that have a hwmon chip, in the order of their PCI addresses."""
    gpus = [_gpu(folder) for folder in sysfs.gpu_folders(_VENDOR)]
    return sorted((gpu for gpu in gpus if gpu is not None), key=lambda gpu: gpu.id)


def _gpu(folder: Path) -> IntelGpu | None:
    chips = list(sysfs.hwmons(folder / "hwmon"))
    driver, chip = next((chip for chip in chips if chip[0] in ("i915", "xe")), ("", None))
    if chip is None:
        return None
    model = (sysfs.optional_text(folder / "device") or "unknown").removeprefix("0x")
    tiles = sum(name.startswith("i915_gt") for name, _ in chips)
    tiles = tiles or sum(path.name[4:].isdigit() for path in folder.glob("tile*")) or 1
    energy, limit = _sensor(chip, "energy", "input"), _sensor(chip, "power", "max")
    rated = None if limit is None else limit.with_name(limit.name.replace("max", "rated_max"))
    scope = "card with its memory"
    if (
        energy is not None
        and sysfs.optional_text(chip / f"{energy.name.removesuffix('_input')}_label") == "pkg"
    ):
        scope = "package of the card"
    facts: Facts = {
        "scope": scope,
        "energy_counter": None if energy is None else "hwmon",
        "pci_id": f"8086:{model}",
        "driver": driver,
        "tiles": float(tiles),
        "power_limit_w": _watts(limit) or None,  # 0: none is in force
        "max_power_limit_w": _watts(rated),
    }
    name = _MODELS.get(model, f"Intel GPU {model}")
    address = folder.resolve().name
    return IntelGpu(f"{_ID_PREFIX}{address}", name, facts, tiles, energy)


def _sensor(chip: Path, kind: str, attribute: str) -> Path | None:
    paths = (chip / f"{kind}{number}_{attribute}" for number in (1, 2))
    return next((path for path in paths if path.exists()), None)


def _watts(path: Path | None) -> float | None:
    microwatts = None if path is None else sysfs.read_optional(path)
    return None if microwatts is None else microwatts * 1e-6


def select_gpus(tiles: Sequence[int], environ: Mapping[str, str]) -> dict[int, bool]:
    """Return the cards that ``ZE_AFFINITY_MASK`` makes visible, with whether others may share each.

    An entry is a card or one of its tiles, such as ``0.1``. In the hierarchies FLAT, which is the
    default, and COMBINED a number counts tiles (Level Zero specification, "Affinity Mask" and
    "Device Hierarchy"). Entries that match no card are ignored. ``tiles`` are those of each card.

    >>> select_gpus([2, 2], {"ZE_AFFINITY_MASK": "0,1,2"})
    {0: False, 1: True}
    """
    mask = environ.get(_VISIBLE)
    if not mask:  # the driver treats an empty one as none
        return dict.fromkeys(range(len(tiles)), False)
    every = [(card, tile) for card, count in enumerate(tiles) for tile in range(count)]
    is_flat = environ.get(_HIERARCHY, "FLAT").upper() != "COMPOSITE"
    visible: set[tuple[int, int]] = set()
    for entry in mask.split(","):
        match = _ENTRY.fullmatch(entry.strip())
        numbers = [int(part) for part in match.groups() if part] if match else []
        if len(numbers) == 1 and is_flat:
            visible.update(every[numbers[0] : numbers[0] + 1])
        elif numbers:
            visible.update(place for place in every if [*place[: len(numbers)]] == numbers)
    cards = sorted({card for card, _ in visible})
    return {card: sum(c == card for c, _ in visible) < tiles[card] for card in cards}


def _environment(ids: Sequence[str]) -> dict[str, str]:
    """Each card is one device of torch."""
    cards = {gpu.id: str(card) for card, gpu in enumerate(find_gpus())}
    mask = ",".join(cards[gpu] for gpu in ids)
    return {_VISIBLE: mask, _HIERARCHY: "COMPOSITE", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}


def visible_gpus() -> list[IntelGpu]:
    """Raises ``NotAvailable`` in a Slurm job without GPUs that selects none itself."""
    gpus = find_gpus()
    is_in_job = "SLURM_JOB_ID" in os.environ and not os.environ.get(_VISIBLE)
    if gpus and is_in_job and job_entries(os.environ) is None:
        raise NotAvailable(f"this Slurm job has no GPU; set {_VISIBLE} to use GPUs anyway")
    selected = select_gpus([gpu.tiles for gpu in gpus], os.environ)
    return [replace(gpus[card], is_shared=shared) for card, shared in selected.items()]


class IntelMeter(FileMeter):
    accelerator = Accelerator(
        torch_kind="xpu",
        backend="xccl",
        id_prefixes=(_ID_PREFIX,),
        visible=lambda: {gpu.id: gpu.id for gpu in visible_gpus()},
        environment=_environment,
        order=2,
    )

    @classmethod
    def open(cls, target: Target) -> Self:
        gpus = visible_gpus()
        if not gpus:
            hidden = f" that {_VISIBLE} makes visible" if _VISIBLE in os.environ else ""
            raise NotAvailable(f"no Intel GPU{hidden} in {sysfs.root()}/class/drm (i915 or xe)")
        sources = [FileSource(gpu.device(), gpu.energy) for gpu in gpus if gpu.energy is not None]
        uncounted = [gpu.device() for gpu in gpus if gpu.energy is None]
        if not sources:
            raise NotAvailable(f"{uncounted[0].name} has no energy counter (an old driver)")
        reason = "it has no energy counter (an old driver)"
        failed = [failed_device(device, reason) for device in uncounted]
        return cls(sources, max(target.period_s, _MIN_PERIOD_S), failed=failed)
