"""The boards that a process may use, by the variables of CUDA and Slurm."""

import os

import pytest

from conftest import parsed
from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.inventory import gpu_environment, visible_devices, visible_gpu_ids
from wattlaw.measure.devices.meter import Target
from wattlaw.measure.devices.nvidia.nvidia_meter import NvidiaMeter
from wattlaw.measure.devices.nvidia.nvml import NvidiaGpu, select_gpus
from wattlaw.running import local
from wattlaw.running.local import LocalLauncher
from wattlaw.running.training.environment import MIG_INSTANCES, take_device
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec
from wattlaw.study.plan import expand


def listed(count: int, **changes: object) -> list[NvidiaGpu]:
    """Return boards whose UUIDs differ in their first group only."""
    return [
        NvidiaGpu(
            **{
                "uuid": f"GPU-{place:08x}-1111-2222-3333-444444444444",
                "name": "NVIDIA H100",
                "minor": place,
                "mig_uuids": (),
            }
            | {name: told[place] for name, told in changes.items()}
        )
        for place in range(count)
    ]


def chosen(boards: list[NvidiaGpu], visible: str | None = None, **more: str) -> list[int]:
    environ = more if visible is None else more | {"CUDA_VISIBLE_DEVICES": visible}
    return [boards.index(board) for board in select_gpus(boards, environ).gpus]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0", [0]),
        ("2,0", [2, 0]),
        ("0,1,2,1", []),  # as for CUDA, a repeated GPU hides all
        ("3,03", []),
        ("1,9,0", [1]),  # as for CUDA, what does not exist ends the list
        ("0,-1,0", [0]),
        ("2, 3, 0", [2, 3, 0]),
        ("3,two,1", [3]),
        ("0,,1", [0]),
        ("", []),
        ("NoDevFiles", []),
        ("0x1", []),
        ("٣", []),
        ("9" * 5000, []),
    ],
)
def test_integers_are_read_as_cuda_reads_them(visible, expected):
    assert chosen(listed(4), visible) == expected


def test_a_uuid_in_cuda_visible_devices_selects_that_board():
    boards = listed(4)
    assert chosen(boards, boards[2].uuid) == [2]
    assert chosen(boards, f"{boards[3].uuid},{boards[0].uuid}") == [3, 0]
    assert chosen(boards, "GPU-00000002") == [2]
    assert chosen(boards, "GPU-00000001-1111,GPU-00000000") == [1, 0]
    eleven = listed(11)  # device 10 is not device 1
    assert chosen(eleven, "1,10") == [1, 10]
    assert chosen(eleven, SLURM_JOB_ID="1", SLURM_JOB_GPUS="10") == [10]


def test_a_uuid_that_fits_several_boards_or_none_ends_the_list():
    boards = listed(4)
    assert chosen(boards, "GPU-0000000,1") == []
    assert chosen(boards, "0,GPU-ffffffff,1") == [0]
    assert chosen(boards[:1], "GPU-") == [0]


def test_a_part_of_a_board_in_mig_mode_counts_as_its_board_once():
    parts = [("MIG-aaaa0000-1-5-1-1", "MIG-aaaa0001-1-5-1-1"), ("MIG-bbbb0000-1-5-1-1",), ()]
    boards = listed(3, mig_uuids=parts)
    assert chosen(boards, "MIG-bbbb0000-1-5-1-1") == [1]
    assert chosen(boards, "MIG-aaaa0001-1-5-1-1,MIG-aaaa0000-1-5-1-1") == [0]
    assert chosen(boards, "MIG-aaaa") == [0]
    assert chosen(boards, "MIG-") == []
    assert chosen(boards, f"MIG-{boards[1].uuid}/7/0") == [1]  # as drivers before 470 wrote it
    assert chosen(boards, f"MIG-{boards[2].uuid}/1/0,MIG-{boards[2].uuid}/2/0") == [2]
    assert chosen(boards, "MIG-GPU-ffffffff-1111-2222-3333-444444444444/1/0") == []
    assert chosen(boards, "MIG-bbbb0000-1-5-1-1,MIG-bbbb0000-1-5-1-1") == []


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [("3", [3]), ("4,5", [4, 5]), ("0-2", [0, 1, 2]), ("1,6-7", [1, 6, 7]), (" 2 , 5 ", [2, 5])],
)
def test_only_the_gpus_of_the_slurm_job_count_on_a_shared_node(gpus, expected):
    assert chosen(listed(8), SLURM_JOB_ID="7", SLURM_JOB_GPUS=gpus) == expected
    step = {"SLURM_JOB_GPUS": "0-7", "SLURM_STEP_GPUS": gpus}
    assert chosen(listed(8), SLURM_JOB_ID="7", **step) == expected


def test_a_slurm_job_knows_boards_by_their_device_files_not_by_their_place():
    boards = listed(4, minor=[3, 2, 1, 0])
    assert chosen(boards, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,1") == [2, 3]


def test_a_job_without_gpus_measures_none_with_a_note():
    found = select_gpus(listed(8), {"SLURM_JOB_ID": "7"})
    assert found.gpus == ()
    assert "has no GPU" in found.notes[0]
    assert chosen(listed(8), "NoDevFiles", SLURM_JOB_ID="7") == []
    assert chosen(listed(8), "2", SLURM_JOB_ID="7") == [2]  # said by the user


def test_the_boards_visible_in_a_cgroup_are_those_of_the_job():
    # The job holds minors 4 and 5, but sees them as 0 and 1.
    boards = listed(2, minor=[4, 5])
    assert chosen(boards, "0,1", SLURM_JOB_ID="7", SLURM_JOB_GPUS="4,5") == [0, 1]
    assert chosen(boards, "1", SLURM_JOB_ID="7", SLURM_JOB_GPUS="4,5") == [1]
    assert chosen(boards, SLURM_JOB_ID="7", SLURM_JOB_GPUS="4,5") == [0, 1]
    assert chosen(listed(2, minor=[0, 1]), SLURM_JOB_ID="7", SLURM_JOB_GPUS="4,5") == [0, 1]


def test_visible_boards_of_other_jobs_are_left_out_with_a_note():
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4,5", "CUDA_VISIBLE_DEVICES": "3,4,5"}
    found = select_gpus(listed(8), environ)
    assert [board.minor for board in found.gpus] == [4, 5]
    assert found.notes == (
        "CUDA_VISIBLE_DEVICES lists 1 GPU(s) that are not allocated to this Slurm job",
    )


def test_uuids_of_slurm_name_the_gpus_of_the_job():
    boards = listed(8)
    uuids = [board.uuid for board in boards]
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4,5"}
    assert chosen(boards, f"{uuids[4]},{uuids[5]}", **job) == [4, 5]
    # Slurm's numbers follow its configuration, which may not be the order of the device files.
    assert chosen(boards, f"{uuids[2]},{uuids[3]}", **job) == [2, 3]
    assert chosen(boards, ",".join(uuids[3:6]), **job) == [4, 5]  # more than the job has
    by_uuid = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": f"{uuids[6]},{uuids[1]}"}
    assert chosen(boards, **by_uuid) == [1, 6]
    assert chosen(boards, **by_uuid, SLURM_STEP_GPUS=uuids[1]) == [1]


def test_an_ordinal_on_a_machine_of_several_models_is_refused_and_not_taken_as_an_nvml_index():
    boards = listed(3, name=["NVIDIA A100", "NVIDIA A100", "NVIDIA T4"])
    with pytest.raises(NotAvailable, match="CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID"):
        chosen(boards, "0")
    assert chosen(boards, "2,0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [2, 0]
    assert chosen(boards, boards[2].uuid) == [2]
    with pytest.raises(NotAvailable):
        chosen(boards, "0", CUDA_DEVICE_ORDER="FASTEST_FIRST")


def test_a_mig_part_is_measured_as_its_board_and_marked_shared(fake_gpus, monkeypatch):
    boards = fake_gpus(2, mig_mode=[0, 1], mig_count=2, high_w=[100.0, 200.0])
    parts = [boards[1].mig_uuid[place].value.decode() for place in range(2)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(parts))
    meter = NvidiaMeter.open(Target(1))
    (device,) = meter.devices()
    assert device.id == boards[1].uuid.decode()
    assert device.facts["is_shared"] is True
    assert {sample.power_w for sample in meter.read()} - {None} == {200.0}


def spec_of(gpus: int, **setting: object) -> RunSpec:
    sweeps = [{"gpus": [gpus], "local_batch": [8], **setting}]
    (run,) = expand(parsed(sweeps=sweeps, workloads=[{"name": "command", "command": ["true"]}]))
    return run.spec


def test_an_instance_counts_as_one_gpu_of_the_local_launcher(fake_gpus, monkeypatch, tmp_path):
    """The tests' torch has no CUDA: without torch a command is given all visible devices."""
    monkeypatch.setenv("WATTLAW_LOCKS", str(tmp_path))
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda _: None)
    boards = fake_gpus(3, mig_mode=[1, 0, 1], mig_count=[2, 0, 1])
    mig = [[part.value.decode() for part in board.mig_uuid] for board in boards]
    ids = boards.ids

    def launcher(*visible: str) -> LocalLauncher:
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(visible))
        return LocalLauncher.open(Launch(), tmp_path)

    assert launcher().capacity == 4  # with the GPU that is not in MIG mode
    assert launcher(ids[0]).allocate(spec_of(2)).workers == mig[0][:2]
    own = launcher(mig[0][0], mig[0][1][:12], mig[2][0])
    assert own.capacity == 3
    assert own.unsupported_reason(spec_of(4)) is not None
    assert own.unsupported_reason(spec_of(3)) is None
    assert "instances of MIG" in own.unsupported_reason(spec_of(1, power_limit_w=[200]))
    allocation = own.allocate(spec_of(3))
    assert allocation.workers == [mig[0][0], mig[0][1], mig[2][0]]
    assert gpu_environment(allocation.workers) == {
        "CUDA_VISIBLE_DEVICES": f"{mig[0][0]},{mig[0][1]},{mig[2][0]}"
    }
    allocation.release()
    assert visible_devices() == {mig[0][0]: ids[0], mig[0][1]: ids[0], mig[2][0]: ids[2]}
    assert visible_gpu_ids() == [ids[0], ids[2]]


@pytest.mark.parametrize(
    ("visible", "by_torch", "expected"),
    [
        (["MIG-a", "MIG-b"], ["aaaa"], ["MIG-a", "MIG-b"]),
        (["GPU-aaaa", "MIG-b"], ["aaaa"], ["GPU-aaaa"]),  # CUDA prefers GPUs without MIG mode
        (["GPU-aaaa", "GPU-bbbb"], ["aaaa"], ["GPU-aaaa"]),
        (["MIG-a"], [], []),
        (["amd-a", "amd-b"], ["-"], ["amd-a"]),
    ],
)
def test_torch_sees_one_instance_and_the_launcher_has_all(visible, by_torch, expected):
    assert local._usable(visible, by_torch) == expected


@pytest.mark.parametrize(
    ("visible", "rank", "number", "left"),
    [
        ("MIG-a,MIG-b", 1, 0, "MIG-b"),
        ("MIG-a", 0, 0, "MIG-a"),
        ("GPU-a,GPU-b", 1, 1, "GPU-a,GPU-b"),
        ("0,1", 1, 1, "0,1"),
    ],
)
def test_a_rank_takes_its_own_instance(monkeypatch, visible, rank, number, left):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.delenv(MIG_INSTANCES, raising=False)
    assert take_device(rank) == number
    assert os.environ["CUDA_VISIBLE_DEVICES"] == left
    assert os.environ.pop(MIG_INSTANCES, None) == (visible if "MIG" in visible else None)
