"""Facts about a host of a run: hardware, devices, software versions, size of the model."""

from pathlib import Path

import torch
from torch import nn

from wattlaw import machine
from wattlaw.files import write_text
from wattlaw.store.record import Facts
from wattlaw.training.ranks import Ranks

_PACKAGES = (
    "wattlaw", "torch", "torchvision", "transformers", "tokenizers", "torch-geometric",
    "nvidia-physicsnemo", "tfrecord", "h5py", "pillow", "numpy", "scikit-learn",
    "nvidia-nccl-cu13",
)  # fmt: skip


def write_facts(
    folder: Path,
    ranks: Ranks,
    model: nn.Module,
    metric: str,
    *,
    flops_per_sample: float | None = None,
    loader_workers: int | None = None,
) -> None:
    """Write this host's facts into the live folder of an attempt."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    facts = Facts(
        hosts=(ranks.host,),
        hardware=_hardware(ranks),
        device_ids=_device_ids(ranks),
        parameters=sum(parameter.numel() for parameter in trained),
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in trained),
        flops_per_sample=flops_per_sample,
        loader_workers=loader_workers,
        metric=metric,
        threads_per_worker=torch.get_num_threads(),
        software=_software(),
    )
    write_text(folder / f"facts.{ranks.host}.json", facts.model_dump_json())


def _hardware(ranks: Ranks) -> str:
    if ranks.device.type == "cuda":
        return torch.cuda.get_device_name(ranks.device)
    return machine.hardware()


def _device_ids(ranks: Ranks) -> tuple[str, ...]:
    if ranks.device.type != "cuda":
        return ("host",)
    return tuple(
        f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(ranks.local_world)
    )


def _software() -> dict[str, str]:
    cuda = {"cuda": torch.version.cuda} if torch.version.cuda else {}
    return machine.software(_PACKAGES) | cuda
