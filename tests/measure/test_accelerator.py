"""GPUs of each vendor: which ones a process may use, how a child sees them, torch's names."""

import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from conftest import setenv
from trees import IntelCards
from wattlaw.common import registry
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.inventory import accelerators, gpu_environment, visible_gpu_ids
from wattlaw.measure.devices.meter import GROUP, NO_GPU, Target
from wattlaw.running.instrumentation.hook._wattlaw.device_times import TORCH_GPUS
from wattlaw.running.training.ranks import available_device


def intel(request: pytest.FixtureRequest) -> list[str]:
    patch = request.getfixturevalue("monkeypatch")
    patch.delenv("ZE_AFFINITY_MASK", raising=False)
    root = request.getfixturevalue("tmp_path_factory").mktemp("sys")
    IntelCards(root, 3)
    patch.setenv("WATTLAW_SYSFS_ROOT", str(root))
    return [f"intel-0000:{0x18 + index:02x}:00.0" for index in range(3)]


#: A new vendor has a row: what makes a machine with three of its GPUs, and returns their ids.
VENDORS: dict[str, Callable[[pytest.FixtureRequest], list[str]]] = {
    "nvidia": lambda request: request.getfixturevalue("fake_gpus")(3).ids,
    "amd": lambda request: request.getfixturevalue("amd_machine")("MI210", 3, library=False).ids,
    "intel": intel,
}


@pytest.fixture
def machine_of(request):
    return lambda vendor: VENDORS[vendor](request)


def test_every_accelerator_of_a_registered_meter_is_tested():
    tested = [registry.load(GROUP, vendor).accelerator for vendor in VENDORS]
    assert sorted(tested, key=lambda accelerator: accelerator.order) == accelerators()


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_child_sees_exactly_the_gpus_that_it_is_given(vendor, machine_of, monkeypatch):
    ids = machine_of(vendor)
    accelerator = registry.load(GROUP, vendor).accelerator
    assert list(accelerator.visible()) == visible_gpu_ids() == ids
    assert all(device.startswith(accelerator.id_prefixes) for device in ids)
    environment = gpu_environment([ids[2], ids[0]])
    assert environment == accelerator.environment([ids[2], ids[0]])
    setenv(monkeypatch, environment)
    assert sorted(accelerator.visible()) == sorted(visible_gpu_ids()) == [ids[0], ids[2]]
    if vendor != "intel":  # of which torch has the order of the machine
        assert visible_gpu_ids() == [ids[2], ids[0]]
    meter = registry.load(GROUP, vendor).open(Target(os.getpid()))
    assert sorted(device.id for device in meter.devices()) == [ids[0], ids[2]]
    assert not any(device.facts["is_shared"] for device in meter.devices())
    meter.close()


def test_of_several_vendors_the_gpus_of_one_are_used(machine_of):
    intel, nvidia = machine_of("intel"), machine_of("nvidia")
    assert visible_gpu_ids() == nvidia
    with pytest.raises(NotAvailable, match="no vendor has all of the GPUs"):
        gpu_environment([nvidia[0], intel[0]])


@pytest.mark.parametrize("vendor", [*VENDORS, None])
def test_torch_has_the_kind_of_device_and_chooses_the_same_backend(vendor):
    accelerator = registry.load(GROUP, vendor).accelerator if vendor else NO_GPU
    assert accelerator in [*accelerators(), NO_GPU]
    assert torch.device(accelerator.torch_kind).type == accelerator.torch_kind
    assert dist.get_default_backend_for_device(accelerator.torch_kind) == accelerator.backend
    if vendor is not None:
        assert accelerator.torch_kind in TORCH_GPUS
        assert callable(getattr(torch, accelerator.torch_kind).is_available)


@pytest.mark.parametrize(
    ("usable", "expected"),
    [
        ({"cuda"}, torch.device("cuda", 3)),
        ({"cuda", "xpu"}, torch.device("cuda", 3)),
        ({"xpu"}, torch.device("xpu", 3)),
        (set(), torch.device("cpu")),
    ],
)
def test_training_is_on_the_first_kind_of_gpu_that_torch_can_use(usable, expected, monkeypatch):
    for kind in TORCH_GPUS:
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda kind=kind: kind in usable)
    assert available_device(3) == expected
