"""The device and the backend of each vendor, and torch's functions for it."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from trees import IntelCards
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.intel import IntelMeter, select_gpus
from wattlaw.measure.devices.inventory import gpu_environment, visible_gpu_ids
from wattlaw.measure.devices.meter import Target
from wattlaw.running.training.ranks import (
    BACKENDS,
    available_device,
    check_kernels,
    device_kind,
    gpu_functions,
)


@pytest.mark.parametrize(
    ("has_cuda", "has_xpu", "expected"),
    [
        (True, False, ("cuda", "nccl")),
        (True, True, ("cuda", "nccl")),
        (False, True, ("xpu", "xccl")),
        (False, False, ("cpu", "gloo")),
    ],
)
def test_the_backend_follows_the_device(has_cuda, has_xpu, expected):
    kind = device_kind(has_cuda=has_cuda, has_xpu=has_xpu)
    assert (kind, BACKENDS[kind]) == expected
    assert dist.get_default_backend_for_device(kind) == BACKENDS[kind]  # as torch chooses


def test_functions_of_a_gpu_are_those_of_its_vendor_and_the_processor_has_none():
    assert gpu_functions(torch.device("xpu", 1)) is torch.xpu
    assert gpu_functions(torch.device("cuda", 0)) is torch.cuda
    assert gpu_functions(torch.device("cpu")) is None
    for gpu in (torch.cuda, torch.xpu):  # what training calls
        for name in (
            "set_device", "synchronize", "get_device_name", "get_rng_state", "set_rng_state",
            "Event", "is_initialized", "max_memory_allocated",
        ):  # fmt: skip
            assert callable(getattr(gpu, name))


def test_without_a_gpu_training_is_on_the_processor():
    if torch.cuda.is_available() or torch.xpu.is_available():
        pytest.skip("this machine has a GPU")
    assert available_device(3) == torch.device("cpu")


def test_a_worker_sees_its_own_intel_cards_and_their_meter_reads_them(tmp_path, monkeypatch):
    IntelCards(tmp_path, 3)
    monkeypatch.setenv("WATTLAW_SYSFS_ROOT", str(tmp_path))
    monkeypatch.delenv("ZE_AFFINITY_MASK", raising=False)
    ids = visible_gpu_ids()
    assert ids == ["intel-0000:18:00.0", "intel-0000:19:00.0", "intel-0000:1a:00.0"]
    environ = gpu_environment([ids[2], ids[0]])
    assert select_gpus([2, 2, 2], environ) == {0: False, 2: False}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert visible_gpu_ids() == [ids[0], ids[2]]
    devices = IntelMeter.open(Target(1)).devices()
    assert [(d.id, d.facts["is_shared"]) for d in devices] == [(ids[0], False), (ids[2], False)]


def test_a_rank_whose_gpu_torch_has_no_kernels_for_says_which_build_has(monkeypatch):
    board = SimpleNamespace(name="Tesla V100-SXM2-32GB", major=7, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: board)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
    with pytest.raises(NotAvailable, match=r"no kernels for Tesla V100.*cu126"):
        check_kernels(torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_70"])
    check_kernels(torch.device("cuda", 0))
