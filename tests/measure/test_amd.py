"""AMD GPUs: which ones a process may use, what their meter says of odd machines, and faults."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import pytest

from fake_amdsmi import UNIT_J, AmdMachine, Gpu
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.amd import gpus as amd
from wattlaw.measure.devices.amd.amd_meter import AmdMeter
from wattlaw.measure.devices.inventory import gpu_environment, visible_gpu_ids
from wattlaw.measure.devices.meter import Device, Sample, Target
from wattlaw.measure.limits.guard import acquire
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.state_folder import StateFolder

Make = Callable[..., AmdMachine]


@contextlib.contextmanager
def opened() -> Iterator[AmdMeter]:
    with contextlib.closing(AmdMeter.open(Target(1))) as meter:
        yield meter


def devices(meter: AmdMeter) -> dict[str, Device]:
    return {device.id: device for device in meter.devices()}


def sample(meter: AmdMeter, gpu: Gpu) -> Sample | None:
    return next((one for one in meter.read() if one.device == gpu.id), None)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": "1,2"}, [1, 2]),
        ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"}, [1]),  # as HIP reads it
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "2"}, []),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "GPU-B45D0000DEADBEE2,0"}, [2, 0]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-b45d"}, []),  # of several
        ({"ROCR_VISIBLE_DEVICES": "1,-1,0"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "1,2,1,0"}, [1, 2]),  # ends where ROCr's list ends
        ({"HIP_VISIBLE_DEVICES": "1,1,0"}, [1, 0]),  # HIP ignores the repetition
        ({"GPU_DEVICE_ORDINAL": "1"}, [0, 1, 2, 3]),  # of OpenCL
        ({"SLURM_JOB_ID": "7"}, []),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1-2"}, [1, 2]),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1,2", "ROCR_VISIBLE_DEVICES": "0,1"}, [1]),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4,5,6,7", "ROCR_VISIBLE_DEVICES": "0,1"},
            [0, 1],  # the job's cgroup hides the other GPUs of the node
        ),
    ],
)
def test_the_visible_gpus_are_those_of_rocm_and_slurm(amd_machine, environ, expected):
    amd_machine("MI300X", 4, library=False)
    gpus = amd.all_gpus()
    selected = amd.select_gpus(gpus, environ)
    assert [gpus.index(gpu) for gpu in selected.gpus] == expected
    assert selected.notes or expected


def test_gpus_are_in_the_order_of_rocm_and_not_of_the_buses(amd_machine):
    machine = amd_machine("MI210", 3, library=False)
    nodes = machine.sys / "class/kfd/kfd/topology/nodes"
    for node, minor in ((1, 130), (2, 128), (3, 129)):
        (nodes / str(node) / "properties").write_text(f"drm_render_minor {minor}\n")
    assert [gpu.uuid for gpu in amd.all_gpus()] == [machine[i].id for i in (2, 0, 1)]


def test_a_container_has_only_the_gpus_whose_render_node_it_can_open(amd_machine):
    machine = amd_machine("MI210", 3, library=False)
    (machine.root / "dev/dri").mkdir(parents=True)
    with pytest.raises(NotAvailable, match="group render"):
        AmdMeter.open(Target(1))
    (machine.root / "dev/dri/renderD129").touch()
    assert visible_gpu_ids() == [machine[1].id]
    assert gpu_environment([machine[1].id])["ROCR_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize("model", ["MI210", "RX 7900 XTX"])
def test_on_a_machine_of_nvidia_an_integrated_gpu_is_not_counted(amd_machine, fake_gpus, model):
    machine = amd_machine(model, 1, library=False)
    assert visible_gpu_ids() == machine.ids
    (machine.sys / "module/nvidia").mkdir(parents=True)
    if model == "MI210":
        assert visible_gpu_ids() == machine.ids
    else:
        assert visible_gpu_ids() == []
        with pytest.raises(NotAvailable, match="integrated GPU is not counted"):
            AmdMeter.open(Target(1))
    fake_gpus(2)
    assert [uuid[:4] for uuid in visible_gpu_ids()] == ["GPU-", "GPU-"]  # of one vendor


def test_the_power_of_a_board_with_two_gpus_counts_once(amd_machine):
    machine = amd_machine("MI250X", 4)
    first, second = machine[0], machine[1]
    with opened() as meter:
        found = devices(meter)
        assert list(found) == [gpu.id for gpu in machine.gpus]
        assert found[first.id].facts["scope"] == f"the board with GPUs {first.id} and {second.id}"
        assert found[first.id].facts["is_shared"] is False
        assert first.id in str(found[second.id].facts["scope"])
        assert "failed" not in found[second.id].facts
        samples = {one.device: one for one in meter.read()}
        assert samples[first.id].power_w == 96
        assert samples[second.id].power_w is samples[second.id].energy_j is None
        assert (samples[second.id].power_source, samples[second.id].sm_util) == (None, 0.87)


@pytest.mark.parametrize(("ordinal", "measured"), [("2", True), ("3", False)])
def test_a_job_with_one_gpu_of_a_board(amd_machine, monkeypatch, ordinal, measured):
    machine = amd_machine("MI250X", 4, library=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", ordinal)
    with opened() as meter:
        ((device, facts),) = ((one.id, one.facts) for one in meter.devices())
        assert device == machine[int(ordinal)].id
        (read,) = meter.read()
        assert (read.power_w is not None) is measured
        if measured:
            assert facts["is_shared"] is True
        else:
            assert str(facts["failed"]).startswith(f"GPU {machine[2].id} reports the power of")


def test_a_limit_of_a_board_is_refused_for_one_of_its_gpus_and_restored_for_both(
    amd_machine, tmp_path
):
    machine = amd_machine("MI250X", 2)
    ids, folder = [gpu.id for gpu in machine.gpus], StateFolder(tmp_path / "limits")
    for one, other in (ids, ids[::-1]):
        with acquire([one], folder) as lease, pytest.raises(NotAvailable, match=f"with {other}"):
            lease.apply(Limits(power_limit_w=150))
        assert machine[0].limit_uw == 217_000_000
    with acquire(ids, folder) as lease:
        with pytest.raises(NotAvailable, match="outside 1 to 260 W"):
            lease.apply(Limits(power_limit_w=0))  # power1_cap_min is 0
        reports = lease.apply(Limits(power_limit_w=150))
        assert [report.power_limit_before_w for report in reports] == [217, 217]
        assert {report.limiter for report in reports} == {"amd-sysfs"}
        assert machine[0].limit_uw == 150_000_000
    assert machine[0].limit_uw == 217_000_000


def test_an_mi300a_contains_its_processor_and_memory(amd_machine):
    amd_machine("MI300X", 1)[0].set(device="0x74a0")
    with opened() as meter:
        (device,) = meter.devices()
        assert (device.name, device.contains) == ("AMD Instinct MI300A", ("cpu", "dram"))
        assert device.facts["scope"] == "socket: processor, GPU and memory"


def test_a_counter_of_32_bits_is_corrected_and_one_that_runs_backwards_is_not(amd_machine):
    gpu = amd_machine("MI210", 1)[0]
    gpu.set_smi(energy_accumulator=2**32 - 1000)
    with opened() as meter:
        first = sample(meter, gpu).energy_j
        gpu.set_smi(energy_accumulator=500)
        second = sample(meter, gpu).energy_j
        assert second - first == pytest.approx(1500 * UNIT_J)
        gpu.set_smi(energy_accumulator=400)  # 2**32 - 100 units more would be 65 kJ
        assert sample(meter, gpu).energy_j - second == pytest.approx(-100 * UNIT_J)


@pytest.mark.parametrize("library", [True, False])
def test_values_that_are_not_available_are_missing(amd_machine, library):
    gpu = amd_machine("MI210", 1, library=library)[0]
    gpu.set(gpu_busy_percent=65535, mem_busy_percent=None, pp_dpm_sclk="0: 500Mhz",
            pp_dpm_mclk="no clocks", temp1_input=None, temp2_input=None, mem_info_vram_used=2**64,
            power1_cap=0)  # fmt: skip
    with opened() as meter:
        found = sample(meter, gpu)
        assert found.power_w == 96
        missing = ("sm_util", "mem_util", "sm_clock_mhz", "mem_clock_mhz", "temperature_c",
                   "mem_used_bytes", "power_limit_w")  # fmt: skip
        assert [getattr(found, name) for name in missing] == [None] * len(missing)


@pytest.mark.parametrize(
    ("code", "reason"), [("raise SystemExit(1)", "cannot be loaded"), ("", "does not answer")]
)
def test_a_broken_package_of_the_library_leaves_the_files(
    amd_machine, tmp_path, monkeypatch, code, reason
):
    gpu = amd_machine("MI210", 1)[0]
    (tmp_path / "amdsmi.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    with opened() as meter:
        assert reason in str(devices(meter)[gpu.id].facts["amdsmi"])
        assert sample(meter, gpu).power_w == 96


@pytest.mark.parametrize(
    ("power", "reason"),
    [
        (None, "No such file"),
        (0, "is '0'"),
        ("N/A", "is 'N/A'"),
        (2**64 - 1, "is '18446744073709551615'"),
    ],
)
def test_a_gpu_that_reports_no_power_is_marked_as_failed(amd_machine, power, reason):
    machine = amd_machine("MI210", 2, library=False)
    machine[0].set(power1_average=power)
    with opened() as meter:
        assert reason in str(devices(meter)[machine[0].id].facts["failed"])
        assert [one.power_w for one in meter.read()] == [None, 96]
