"""NVIDIA boards on the fake driver: what is found out, what is read, what may fail, what it adds up
to. The energies are compared with exact integrals of what the boards drew.
"""

import itertools
import time

import pynvml
import pytest

from fake_nvml import COUNTER_ABSENT, COUNTER_BACK, COUNTER_RESTARTS, COUNTER_STILL, FakeGpus
from recording import errors, record
from wattlaw.common.errors import NotAvailable, NotPermitted
from wattlaw.measure.devices.meter import Sample, Target
from wattlaw.measure.devices.nvidia.nvidia_meter import NvidiaMeter

S = 1_000_000_000
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION


def opened(boards: FakeGpus, *places: int, period_s: float = 0.1) -> NvidiaMeter:
    uuids = ",".join(boards.ids[place] for place in places)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", uuids) if places else None
        return NvidiaMeter.open(Target(1, period_s))


def facts_of(meter: NvidiaMeter) -> list[dict[str, object]]:
    return [dict(device.facts) for device in meter.devices()]


def of(boards: FakeGpus, place: int, samples: list[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.device == boards.ids[place]]


def told(samples: list[Sample], column: str) -> list[float]:
    return [value for sample in samples if (value := getattr(sample, column)) is not None]


def test_the_refresh_period_of_each_counter_is_exact_to_a_fifth(fake_gpus):
    boards = fake_gpus(4, refresh_ms=[20, 100, 50, 400], counter_mode=[0, 0, 0, COUNTER_ABSENT])
    meter = opened(boards)
    found = [facts["counter_refresh_s"] for facts in facts_of(meter)]
    assert found[:3] == [pytest.approx(s, rel=0.2) for s in (0.02, 0.1, 0.05)]
    assert found[3] is None
    assert [facts["energy_counter"] for facts in facts_of(meter)] == [*["field"] * 3, None]


def test_a_driver_without_field_values_is_read_by_single_calls(fake_gpus):
    boards = fake_gpus(2, refresh_ms=100, average_power=[1, 0])
    boards.fault("nvmlDeviceGetFieldValues", code=NOT_SUPPORTED)
    meter = opened(boards)
    for facts in facts_of(meter):
        assert (facts["energy_counter"], facts["power"]) == ("call", "usage")
        assert facts["counter_refresh_s"] == pytest.approx(0.1, rel=0.2)
    samples = meter.read(last=True)
    assert told(samples, "power_w") == [250.0, 250.0]
    counted = [sample for sample in samples if sample.energy_j is not None]
    assert len(counted) == 2
    for sample in counted:  # 100 s and longer of 250 W
        since_s = (sample.t_ns - boards.header.boot_ns) * 1e-9
        assert sample.energy_j == pytest.approx(250 * since_s, abs=50)
    assert told(samples, "power_throttle_s") == [0.0, 0.0]


def test_the_best_source_of_power_of_a_board_is_used_and_recorded(fake_gpus):
    boards = fake_gpus(
        6,
        buffers=[1, 1, 0, 0, 0, 1],
        instant_power=[1, 1, 1, 0, 0, 0],
        average_power=[1, 1, 1, 1, 0, 1],
        buffer_period_ms=[20, 500, 20, 20, 20, 20],
        buffer_length=[120, 120, 120, 120, 120, 20],
    )
    meter = opened(boards)
    found = facts_of(meter)
    power = [facts["power"] for facts in found]
    # The buffer of the second is too coarse for 10 Hz, that of the last too short for one second.
    assert power == ["buffer", "instant", "instant", "average", "usage", "average"]
    assert found[0]["buffers"] == "power_w,sm_util,mem_util"
    assert found[0]["power_buffer_spacing_s"] == pytest.approx(0.02)
    assert found[0]["power_buffer_span_s"] == pytest.approx(119 * 0.02)
    assert found[1]["buffers"] == "sm_util,mem_util"
    assert found[2]["buffers"] is None
    assert all(facts["power_limit_w"] == 400.0 for facts in found)
    time.sleep(0.1)
    samples = meter.read(last=True)
    for place in range(6):
        assert {*told(of(boards, place, samples), "power_w")} == {250.0}


def test_boards_are_read_as_rarely_as_their_driver_buffers(fake_gpus):
    boards = fake_gpus(4, buffers=[1, 1, 0, 1], buffer_length=[120, 120, 120, 1000])
    periods = []
    for places in ((0, 1), (0, 2), (2,), (0, 3), (3,)):
        meter = opened(boards, *places, period_s=0.05)
        periods.append(meter.period_s)
        meter.close()
    assert periods == [2.0, 0.05, 0.05, 2.0, 4.0]
    slow = opened(boards, 0, period_s=5.0)
    assert slow.period_s == 5.0
    slow.close()


@pytest.mark.parametrize("buffers", [0, 1])
def test_every_column_has_the_values_of_the_board(fake_gpus, buffers):
    boards = fake_gpus(2, buffers=buffers, memory_used=3 << 30, temperature_c=51)
    meter = opened(boards)
    begun_ns = time.time_ns()
    meter.read(last=True)
    time.sleep(0.15)
    samples = meter.read(last=True)
    meter.close()
    expected = {
        "power_w": 250.0, "power_average_w": 250.0, "power_limit_w": 400.0, "sm_util": 0.95,
        "mem_util": 0.6, "mem_used_bytes": 3 << 30, "sm_clock_mhz": 1410, "mem_clock_mhz": 1215,
        "temperature_c": 51, "throttle": 0, "power_throttle_s": 0.0, "power_source": "measured",
        "kind": "gpu",
    }  # fmt: skip
    for place in range(2):
        mine = of(boards, place, samples)
        for column, value in expected.items():
            found = {round(one, 9) if isinstance(one, float) else one for one in told(mine, column)}
            assert found == {value}, column
        for sample in mine:
            assert begun_ns - 3 * S < sample.t_ns < time.time_ns()
            if sample.energy_j is not None:  # true at the moment that it stands at
                true_j = boards.energy_j(place, boards.header.boot_ns, sample.t_ns)
                assert sample.energy_j == pytest.approx(true_j, abs=0.01)
        assert told(mine, "energy_j")
        assert told(mine, "cpu_cores") == []


@pytest.mark.parametrize("by_field", [True, False])
def test_throttle_seconds_grow_only_while_the_power_limit_binds(fake_gpus, by_field):
    boards = fake_gpus(2, limit_mw=[200_000, 400_000])
    if not by_field:
        boards.fault("nvmlDeviceGetFieldValues", code=NOT_SUPPORTED)
    meter = opened(boards)
    begin_s = time.monotonic()
    first = meter.read(last=True)
    time.sleep(0.3)
    second = meter.read(last=True)
    passed_s = time.monotonic() - begin_s
    for place, (least_s, most_s, bit) in enumerate([(0.3, passed_s, 4), (0.0, 0.0, 0)]):
        before, after = (of(boards, place, samples) for samples in (first, second))
        grown_s = told(after, "power_throttle_s")[0] - told(before, "power_throttle_s")[0]
        assert least_s - 0.001 <= grown_s <= most_s + 0.001
        assert told(after, "throttle") == [bit]
    boards[0].limit_mw = 400_000
    begun_s = told(of(boards, 0, meter.read(last=True)), "power_throttle_s")[0]
    time.sleep(0.1)
    assert told(of(boards, 0, meter.read(last=True)), "power_throttle_s")[0] == begun_s


def test_a_board_that_fails_ten_times_in_a_row_is_given_up_with_the_reason(fake_gpus):
    boards = fake_gpus(2)
    meter = opened(boards)
    boards.fault("nvmlDeviceGetFieldValues", board=0, code=UNKNOWN)
    samples = [sample for _ in range(10) for sample in meter.read()]
    assert of(boards, 0, samples) == []
    (problem,) = meter.problems()
    assert problem.startswith(f"{boards.ids[0]}: no longer read: ")
    assert f"NVML error {UNKNOWN}" in problem
    boards.clear_faults()
    asked = boards.calls("nvmlDeviceGetFieldValues")
    samples = meter.read(last=True)
    assert of(boards, 0, samples) == []
    assert of(boards, 1, samples)
    assert boards.calls("nvmlDeviceGetFieldValues") == asked + 1


def test_a_board_that_cannot_be_opened_has_a_reason_and_others_are_measured(fake_gpus):
    boards = fake_gpus(3)
    boards.fault("nvmlDeviceGetFieldValues", board=1, code=LOST)
    meter = opened(boards)
    ids = [device.id for device in meter.devices() if "failed" not in device.facts]
    assert ids == boards.ids[::2]
    (failed,) = (device for device in meter.devices() if "failed" in device.facts)
    assert failed.id == boards.ids[1]  # ours all the same: the sum lacks it
    (problem,) = meter.problems()
    assert problem.startswith(f"{boards.ids[1]}: cannot be read: ")
    assert {sample.device for sample in meter.read()} == {*ids}


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetUtilizationRates",
    ],
)
def test_a_failing_optional_call_loses_only_its_own_value(fake_gpus, function):
    boards = fake_gpus(1)
    boards.fault(function, code=UNKNOWN)
    meter = opened(boards)
    samples = [sample for _ in range(12) for sample in meter.read(last=True)]
    assert told(samples, "power_w") == [250.0] * 12
    assert told(samples, "mem_used_bytes") == [2 << 30] * 12
    assert meter.problems() == []


@pytest.mark.parametrize(
    ("function", "code", "error", "reason"),
    [
        ("nvmlInitWithFlags", NO_PERMISSION, NotPermitted, "answer: Insufficient Permissions"),
        ("nvmlInitWithFlags", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, NotAvailable, "reboot"),
        ("nvmlDeviceGetCount_v2", UNKNOWN, NotAvailable, "the NVIDIA driver does not answer"),
    ],
)
def test_a_driver_that_cannot_be_used_says_why(fake_gpus, function, code, error, reason):
    boards = fake_gpus(1)
    boards.fault(function, code=code)
    with pytest.raises(error, match=reason):
        opened(boards)


# What it adds up to. Two machines of eight boards are recorded at once by real samplers.

CONSTANT, CAPPED, SQUARE, SLOW_SQUARE, STILL, BACK, RESTARTS, ABSENT = range(8)
FAULT_S = 4.2  # after sampling began
SECONDS = 9.3
MACHINES = {"polled": 0, "buffered": 1}
#: So long after a change its effect has been read: readings of buffers of 2.4 s are 2 s apart.
READ_S = {"polled": 1.0, "buffered": 2.0}
#: Its counter goes back by 50 J. A reader sees that only if the board draws less than 50 J between
#: two readings; otherwise the counter has passed its old value.
BACK_W = {"polled": 40.0, "buffered": 20.0}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Record every kind of board, polled at 10 Hz and by the driver's buffers."""
    folder = tmp_path_factory.mktemp("recordings")
    faults = {STILL: COUNTER_STILL, BACK: COUNTER_BACK, RESTARTS: COUNTER_RESTARTS}
    boards = {
        name: FakeGpus.create(
            folder / f"{name}.boards",
            8,
            buffers=buffers,
            refresh_ms=[20, 100] * 4,
            low_w=60.0,
            high_w=[*[250.0] * 5, BACK_W[name], 250.0, 250.0],
            period_s=[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0],
            limit_mw=[400_000, 200_000, *[400_000] * 6],
            counter_mode=[(faults | {ABSENT: COUNTER_ABSENT}).get(place, 0) for place in range(8)],
            fault_ns=2**62,
        )
        for name, buffers in MACHINES.items()
    }

    def plan_the_faults() -> None:
        fault_ns = time.time_ns() + round(FAULT_S * S)
        for board in itertools.chain(*boards.values()):
            board.fault_ns = fault_ns

    folders = {folder / name: made for name, made in boards.items()}
    return dict(zip(boards, record(folders, SECONDS, begun=plan_the_faults), strict=True))


@pytest.fixture(params=MACHINES)
def machine_name(request):
    return request.param


@pytest.fixture
def recording(recordings, machine_name):
    return recordings[machine_name]


def verdicts(rows) -> set[tuple[object, ...]]:
    return {(row["energy_source"], row["energy_verdict"]) for row in rows}


@pytest.mark.parametrize("board", [CONSTANT, CAPPED])
def test_constant_power_is_exact_to_a_thousandth_in_windows_of_a_second(recording, board):
    rows = recording.random_windows(board, 1.0, 100)
    assert max(errors(rows, "gpu_energy_counter_j")) < 1e-3
    assert max(errors(rows, "gpu_energy_integral_j")) < 1e-3
    assert verdicts(rows) == {("counter", "ok")}
    assert rows[0]["gpu_power_mean_w"] == pytest.approx({CONSTANT: 250, CAPPED: 200}[board])


@pytest.mark.parametrize("board", [SQUARE, SLOW_SQUARE])
def test_a_square_wave_of_one_hertz_is_found_to_a_hundredth_in_windows_of_three_seconds(
    recording, board
):
    rows = recording.random_windows(board, 3.0, 100)
    found = sorted(errors(rows, "gpu_energy_counter_j"))
    assert found[89] < 0.01
    assert found[-1] < 0.02  # where a window ends between two late samples
    if recording.facts(board)["power"] == "buffer":  # polled power may fall on the very edges
        assert sorted(errors(rows, "gpu_energy_integral_j"))[89] < 0.01


@pytest.mark.parametrize(
    ("board", "reason"),
    [
        (STILL, "the counter stands still"),
        (BACK, "the counter went back"),
        (RESTARTS, "the counter went back"),
    ],
)
def test_a_counter_at_fault_is_recognised_and_the_power_is_used(
    recording, machine_name, board, reason
):
    fault_ns = recording.boards[board].fault_ns
    across = [fault_ns - S + place * S // 10 for place in range(-3, 4)]
    rows = recording.windows(board, across, 1.5 + READ_S[machine_name])
    if board == STILL:  # each second, once it was read
        read_ns = fault_ns + round(READ_S[machine_name] * S)
        rows += recording.windows(board, [read_ns + n * S // 5 for n in range(1, 6)], 1.0)
    for row in rows:
        assert (row["energy_source"], row["energy_verdict"]) == ("integral", "suspect")
        assert row["energy_reason"] == f"{recording.boards.ids[board]}: {reason}"
        assert row["gpu_energy_counter_j"] is None
        assert row["gpu_energy_j"] == pytest.approx(row["true_j"], rel=1e-3)


@pytest.mark.parametrize("board", [BACK, RESTARTS])
def test_a_counter_is_trusted_again_after_its_fault(recording, machine_name, board):
    after_ns = recording.boards[board].fault_ns + round((READ_S[machine_name] + 0.5) * S)
    rows = recording.windows(board, [after_ns + n * S // 10 for n in range(10)], 1.0)
    assert verdicts(rows) == {("counter", "ok")}
    assert max(errors(rows, "gpu_energy_j")) < 1e-3


def test_a_board_without_a_counter_is_integrated_and_not_zero(recording):
    rows = recording.random_windows(ABSENT, 1.0, 50)
    assert verdicts(rows) == {("integral", "ok")}
    assert {row["gpu_energy_counter_j"] for row in rows} == {None}
    assert max(errors(rows, "gpu_energy_j")) < 1e-3


def test_a_buffer_without_new_samples_is_replaced_by_polling(fake_gpus):
    boards = fake_gpus(1, buffers=1)
    meter = opened(boards)
    boards[0].buffers = 0
    (reader,) = meter._readers
    for _ in range(4):
        reader._second_ns = 0  # as if its period had passed
        found = meter.read()
    assert any(sample.power_w == 250.0 for sample in found)
    assert any("has no new samples" in problem for problem in meter.problems())
    assert meter.period_s == 0.1  # from now on it is polled


@pytest.mark.parametrize("buffers", [0, 1])
def test_a_vgpu_has_utilisation_and_a_reason_for_having_no_energy(fake_gpus, buffers):
    meter = opened(fake_gpus(1, virtualization=2, buffers=buffers))
    (facts,) = facts_of(meter)
    assert (facts["virtualization"], facts["is_shared"]) == ("vgpu", True)
    assert (facts["energy_counter"], facts["power"]) == (None, None)
    assert "vGPU" in facts["failed"]
    time.sleep(0.1)
    samples = meter.read(last=True)
    assert {round(share, 9) for share in told(samples, "sm_util")} == {0.95}
    assert told(samples, "power_w") == told(samples, "energy_j") == []


@pytest.mark.parametrize(
    ("changes", "is_shared", "virtualization"),
    [
        ({}, False, None),
        ({"virtualization": 1}, False, "passthrough"),
        ({"virtualization": 3}, True, "host-vgpu"),
        ({"mig_mode": 1, "mig_count": 2}, True, None),
    ],
)
def test_a_gpu_with_several_users_says_that_its_energy_is_that_of_all(
    fake_gpus, changes, is_shared, virtualization
):
    meter = opened(fake_gpus(1, **changes))
    (facts,) = facts_of(meter)
    assert (facts["is_shared"], facts["virtualization"]) == (is_shared, virtualization)
    assert facts["scope"].startswith("all ") == is_shared
    assert {*told(meter.read(last=True), "power_w")} == {250.0}


def test_gpus_whose_power_sensor_is_on_for_a_quarter_of_the_time_say_so(fake_gpus):
    meter = opened(fake_gpus(5, capability=[70, 80, 86, 90, 100]))
    assert [facts["power_duty"] for facts in facts_of(meter)] == [None, 0.25, None, 0.25, None]


@pytest.mark.parametrize("counts_module", [0, 1])
def test_a_gpu_on_a_grace_hopper_module_has_its_own_power_alone(fake_gpus, counts_module):
    boards = fake_gpus(1, capability=90, module_mw=150_000, module_counter=counts_module, buffers=1)
    meter = opened(boards, period_s=0.05)
    (facts,) = facts_of(meter)
    assert (facts["energy_counter"], facts["power"]) == (None, "instant")
    samples = meter.read(last=True)
    assert {*told(samples, "power_w")} == {250.0}
    assert told(samples, "energy_j") == []
    assert {sample.device for sample in samples} == {*boards.ids}


@pytest.mark.parametrize(
    ("capability", "power"),
    [(80, {}), (90, {"period_s": 0.5}), (90, {"average_power": 0}), (100, {})],
)
def test_a_module_that_only_repeats_its_gpu_is_none(fake_gpus, capability, power):
    boards = fake_gpus(2, capability=capability, module_repeats=1, buffers=1, **power)
    meter = opened(boards, period_s=0.05)
    assert [device.kind for device in meter.devices()] == ["gpu", "gpu"]
    for facts in facts_of(meter):
        assert facts["energy_counter"] == "field"
        assert facts["power"] == "buffer"  # of the GPU, since there is no module
    samples = meter.read(last=True)
    time.sleep(0.3)
    samples += meter.read(last=True)
    assert {sample.kind for sample in samples} == {"gpu"}
    assert told(samples, "energy_j")
    assert {sample.device for sample in samples} == set(boards.ids)
