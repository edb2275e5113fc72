"""The fake NVML driver against values worked by hand, through the real pynvml."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from fake_nvml import COUNTER_ABSENT, COUNTER_BACK, COUNTER_RESTARTS, COUNTER_STILL, FakeGpus

pynvml = pytest.importorskip("pynvml")

Start = Callable[..., FakeGpus]
HOUR_NS = 3_600_000_000_000


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Give a function that creates boards and initialises this process's driver with them."""
    monkeypatch.setenv("WATTLAW_FAKE_NVML", "")
    started: list[FakeGpus] = []

    def create(count: int = 1, **changes: object) -> FakeGpus:
        boards = FakeGpus.create(tmp_path / f"boards{len(started)}", count, **changes)
        boards.load()
        pynvml.nvmlInit()
        started.append(boards)
        return boards

    yield create
    for boards in started:
        boards.clear_faults()
        pynvml.nvmlShutdown()


def handle(index: int = 0) -> object:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def counter_j() -> float:
    return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle()) / 1e3


def field(number: int, scope: int = 0) -> object:
    return pynvml.nvmlDeviceGetFieldValues(handle(), [(number, scope)])[0]


def refused(code: int, function: Callable[..., object], *arguments: object) -> bool:
    with pytest.raises(pynvml.NVMLError) as caught:
        function(*arguments)
    return caught.value.value == code


def run(boards: FakeGpus, code: str, **options: object) -> "subprocess.Popen[str]":
    line = [sys.executable, "-c", f"import os, time\nfrom pynvml import *\nnvmlInit()\n{code}"]
    return subprocess.Popen(
        line, env=os.environ | boards.environment(), stdout=subprocess.PIPE, text=True, **options
    )


def test_without_a_file_no_driver_is_loaded(start: Start, tmp_path: Path) -> None:
    boards = start(count=2)
    pynvml.nvmlShutdown()
    os.environ["WATTLAW_FAKE_NVML"] = str(tmp_path / "missing")
    assert refused(pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.nvmlInit)
    assert refused(pynvml.NVML_ERROR_UNINITIALIZED, pynvml.nvmlDeviceGetCount)
    boards.load()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2
    other = FakeGpus.create(tmp_path / "other", 3)
    pynvml.nvmlShutdown()
    other.load()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 3


def test_a_file_of_another_layout_is_refused(start: Start) -> None:
    boards = start()
    boards.header.board_size -= 8
    pynvml.nvmlShutdown()
    assert refused(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.nvmlInit)
    boards.header.board_size += 8
    pynvml.nvmlInit()


def test_boards_are_found_by_index_uuid_and_bus(start: Start) -> None:
    start(count=3, name=["one", "two", "three"])
    uuids = [pynvml.nvmlDeviceGetUUID(handle(i)) for i in range(3)]
    assert len({uuid[:12] for uuid in uuids}) == 3
    for i, uuid in enumerate(uuids):
        by_uuid = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        bus_id = pynvml.nvmlDeviceGetPciInfo(by_uuid).busId
        assert pynvml.nvmlDeviceGetIndex(by_uuid) == i
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)) == i
        assert pynvml.nvmlDeviceGetMinorNumber(by_uuid) == i
    assert pynvml.nvmlDeviceGetName(handle(1)) == "two"
    assert refused(pynvml.NVML_ERROR_NOT_FOUND, pynvml.nvmlDeviceGetHandleByUUID, "GPU-none")
    assert refused(pynvml.NVML_ERROR_INVALID_ARGUMENT, handle, 3)
    assert refused(pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.nvmlDeviceGetName, None)


def test_plain_values(start: Start) -> None:
    start(persistence=0, pstate=2, temperature_c=51, memory_used=3 << 30)
    assert pynvml.nvmlSystemGetDriverVersion().endswith("fake")
    assert pynvml.nvmlSystemGetNVMLVersion().startswith("13.")
    assert pynvml.nvmlDeviceGetPersistenceMode(handle()) == 0
    assert pynvml.nvmlDeviceGetPowerState(handle()) == 2
    assert pynvml.nvmlDeviceGetTemperature(handle(), pynvml.NVML_TEMPERATURE_GPU) == 51
    assert pynvml.nvmlDeviceGetTemperatureV(handle(), pynvml.NVML_TEMPERATURE_GPU) == 51
    for version in (None, pynvml.nvmlMemory_v2):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle(), version)
        assert (memory.total, memory.used, memory.free) == (40 << 30, 3 << 30, 37 << 30)
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle())
    assert (rates.gpu, rates.memory) == (95, 60)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle()) == []


def test_the_counter_is_the_integral_up_to_the_last_refresh(start: Start) -> None:
    # 1 h of constant 200 W is 720 kJ; the refreshes lie 500 ms = 100 J apart.
    boot_ns = time.time_ns() - HOUR_NS
    boards = start(high_w=200.0, refresh_ms=500, boot_ns=boot_ns)
    before_ns, counted_j, value, after_ns = time.time_ns(), counter_j(), field(83), time.time_ns()
    refreshes = [(ns - boot_ns) // 500_000_000 for ns in (before_ns, after_ns)]
    assert refreshes[0] * 100 <= counted_j <= refreshes[1] * 100
    assert counted_j == pytest.approx(720_000, abs=1000)
    assert (value.nvmlReturn, value.valueType) == (0, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
    refresh_ns = boot_ns + value.value.ullVal // 100_000 * 500_000_000
    assert value.timestamp == refresh_ns // 1000
    assert boards.energy_j(0, boot_ns, refresh_ns) == value.value.ullVal / 1e3


def test_a_square_wave_under_a_limit(start: Start) -> None:
    # 1/4 of the time 300 W, capped to 250 W, 3/4 of it 100 W: 137.5 W; capped 1/4 of the time.
    boot_ns = time.time_ns() - HOUR_NS
    wave = {"low_w": 100.0, "high_w": 300.0, "period_s": 0.5, "duty": 0.25}
    boards = start(**wave, limit_mw=250_000, boot_ns=boot_ns, refresh_ms=1)
    expected_j = boards.energy_j(0, boot_ns, boot_ns + HOUR_NS)
    assert expected_j == pytest.approx(137.5 * 3600, rel=1e-9)
    now_ns = time.time_ns()
    assert counter_j() == pytest.approx(boards.energy_j(0, boot_ns, now_ns), abs=10)
    assert field(185).value.uiVal == pytest.approx(137_500, abs=1)
    assert pynvml.nvmlDeviceGetPowerUsage(handle()) == pytest.approx(137_500, abs=1)
    capped_s = pynvml.nvmlDeviceGetViolationStatus(handle(), 0).violationTime / 1e9
    assert capped_s == pytest.approx(900, abs=0.3)
    assert field(74).value.ullVal / 1e9 == pytest.approx(capped_s, abs=0.1)
    seen = set()
    for _ in range(60):
        before_ns, power_mw = time.time_ns(), field(186).value.uiVal
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle())
        if power_mw == field(186).value.uiVal and time.time_ns() - before_ns < 100_000_000:
            seen.add((power_mw, reasons))
        time.sleep(0.01)
    assert seen == {(250_000, 4), (100_000, 0)}


def test_a_change_of_limit_keeps_the_energy_so_far(start: Start) -> None:
    boards = start(high_w=300.0, refresh_ms=50, limit_min_mw=50_000)
    start_ns, last_j = time.time_ns(), counter_j()
    for watts in (100, 400, 50, 350) * 10:
        pynvml.nvmlDeviceSetPowerManagementLimit(handle(), watts * 1000)
        boards[0].high_w = 280.0 + watts / 100
        value = field(83)
        now_j = value.value.ullVal / 1e3
        assert last_j <= now_j <= last_j + 400 * (time.time_ns() - start_ns) / 1e9 + 400 * 0.05
        last_j = now_j
        time.sleep(0.003)
    assert pynvml.nvmlDeviceGetViolationStatus(handle(), 0).violationTime > 0
    changed_ns = time.time_ns()
    boards[0].clamp_mw = 360_000
    boards[0].high_w = 500.0
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handle()) == 350_000
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle()) == field(190).value.uiVal == 360_000
    assert field(192).value.uiVal == 350_000
    time.sleep(0.06)
    value = field(83)
    used_j = boards.energy_j(0, changed_ns, value.timestamp * 1000)
    whole_s = (value.timestamp * 1000 - changed_ns) / 1e9
    assert used_j == pytest.approx(360 * whole_s, rel=0.1)
    assert value.value.ullVal / 1e3 - last_j >= used_j - 1


@pytest.mark.parametrize("mode", [COUNTER_STILL, COUNTER_BACK, COUNTER_RESTARTS])
def test_broken_counters(start: Start, mode: int) -> None:
    boards = start(refresh_ms=1)
    boot_ns, fault_ns = boards.header.boot_ns, time.time_ns()
    boards[0].fault_ns = fault_ns
    boards[0].counter_mode = mode
    time.sleep(0.02)
    for _ in range(2):
        value = field(83)
        at_fault_j = (fault_ns - boot_ns) / 1e9 * 250
        since_j = (value.timestamp * 1000 - fault_ns) / 1e9 * 250
        expected_j = {
            COUNTER_STILL: at_fault_j,
            COUNTER_BACK: at_fault_j + since_j - 50,
            COUNTER_RESTARTS: since_j,
        }[mode]
        assert value.value.ullVal / 1e3 == pytest.approx(expected_j, abs=0.002)
        time.sleep(0.05)
    assert counter_j() >= value.value.ullVal / 1e3
    boards[0].counter_mode = COUNTER_ABSENT
    assert refused(pynvml.NVML_ERROR_NOT_SUPPORTED, counter_j)
    assert field(83).nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_limits_and_clocks_are_checked_and_need_root(start: Start) -> None:
    boards = start()
    constraints = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle())
    assert constraints == [100_000, 400_000] == [field(n).value.uiVal for n in (187, 188)]
    set_limit = pynvml.nvmlDeviceSetPowerManagementLimit
    for outside_mw in (99_999, 400_001):
        assert refused(pynvml.NVML_ERROR_INVALID_ARGUMENT, set_limit, handle(), outside_mw)
    clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle(), 1215)
    assert (clocks[0], clocks[1], clocks[-1], len(clocks)) == (1410, 1395, 210, 81)
    assert pynvml.nvmlDeviceGetSupportedMemoryClocks(handle()) == [1215]
    pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 900, 1005)
    assert [pynvml.nvmlDeviceGetClockInfo(handle(), n) for n in range(3)] == [1005, 1005, 1215]
    pynvml.nvmlDeviceResetGpuLockedClocks(handle())
    assert pynvml.nvmlDeviceGetClockInfo(handle(), pynvml.NVML_CLOCK_SM) == 1410
    boards.header.root = 0
    no = pynvml.NVML_ERROR_NO_PERMISSION
    assert refused(no, set_limit, handle(), 200_000)
    assert refused(no, pynvml.nvmlDeviceSetGpuLockedClocks, handle(), 900, 1005)
    assert refused(no, pynvml.nvmlDeviceResetGpuLockedClocks, handle())


def test_a_limit_outlives_the_process_that_set_it(start: Start) -> None:
    boards = start()
    boards.header.root = 0
    code = "nvmlDeviceSetPowerManagementLimit(nvmlDeviceGetHandleByIndex(0), 200000)"
    child = run(
        boards,
        f"os.environ['FAKE_NVML_ROOT'] = '1'\n{code}\nprint('set', flush=True)\ntime.sleep(60)",
    )
    assert child.stdout.readline() == "set\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert boards[0].limit_mw == pynvml.nvmlDeviceGetPowerManagementLimit(handle()) == 200_000
    assert field(186).value.uiVal == 200_000


def test_faults_counts_and_lost_boards(start: Start) -> None:
    boards = start(count=2)
    power = pynvml.nvmlDeviceGetPowerUsage
    boards.fault("nvmlDeviceGetPowerUsage", board=1, code=pynvml.NVML_ERROR_UNKNOWN, after_calls=2)
    first, second = handle(0), handle(1)
    assert power(second) == power(second) == power(first) == 250_000
    assert refused(pynvml.NVML_ERROR_UNKNOWN, power, second)
    assert power(first) == 250_000
    assert boards.calls("nvmlDeviceGetPowerUsage") == 5
    boards.clear_faults()
    assert power(second) == 250_000
    boards[1].lost_ns = time.time_ns()
    assert refused(pynvml.NVML_ERROR_GPU_IS_LOST, power, second)
    assert refused(pynvml.NVML_ERROR_GPU_IS_LOST, handle, 1)
    assert power(first) == 250_000
    assert pynvml.nvmlDeviceGetCount() == 2


def test_a_call_can_hang_and_take_cpu_time(start: Start) -> None:
    boards = start(call_us=2000)
    cpu_s = time.thread_time()
    power = [pynvml.nvmlDeviceGetPowerUsage(handle()) for _ in range(10)]
    assert time.thread_time() - cpu_s > 20 * 0.002
    boards.header.call_us = 0
    boards.fault("nvmlDeviceGetPowerUsage", hang=True)
    thread = threading.Thread(
        target=lambda: power.append(pynvml.nvmlDeviceGetPowerUsage(handle())), daemon=True
    )
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    assert pynvml.nvmlDeviceGetTemperature(handle(), 0) == 45
    boards.clear_faults()
    thread.join(5)
    assert power == [250_000] * 11


def test_sample_buffers(start: Start) -> None:
    boards = start(low_w=50.0, period_s=0.4, buffers=0)
    get = pynvml.nvmlDeviceGetSamples
    assert refused(pynvml.NVML_ERROR_NOT_SUPPORTED, get, handle(), 0, 0)
    boards[0].buffers = 1
    kind, samples = get(handle(), pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
    times_us = [sample.timeStamp for sample in samples]
    assert (kind, len(samples)) == (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 120)
    assert {b - a for a, b in pairwise(times_us)} == {20_000}
    assert [sample.sampleValue.uiVal for sample in samples].count(250_000) == 60
    assert refused(pynvml.NVML_ERROR_NOT_FOUND, get, handle(), 0, times_us[-1] + 1_000_000)
    boards[0].high_w = 300.0
    later = get(handle(), 0, times_us[-10])[1]
    assert [sample.timeStamp for sample in later][:9] == times_us[-9:]
    assert 300_000 not in {sample.sampleValue.uiVal for sample in later[:9]}
    assert {sample.sampleValue.uiVal for sample in get(handle(), 1, 0)[1]} == {95, 5}
    assert {sample.sampleValue.uiVal for sample in get(handle(), 5, 0)[1]} == {1410}


def test_mig_devices(start: Start) -> None:
    boards = start(mig_mode=1, mig_count=2)
    assert pynvml.nvmlDeviceGetMigMode(handle()) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle()) == 7
    parts = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), i) for i in range(2)]
    assert refused(6, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle(), 2)
    uuids = [pynvml.nvmlDeviceGetUUID(part) for part in parts]
    assert uuids == [boards[0].mig_uuid[i].value.decode() for i in range(2)]
    part = pynvml.nvmlDeviceGetHandleByUUID(uuids[1])
    assert pynvml.nvmlDeviceIsMigDeviceHandle(part).value == 1
    assert pynvml.nvmlDeviceGetGpuInstanceId(part) == 8
    whole = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
    assert pynvml.nvmlDeviceGetUUID(whole) == boards[0].uuid.decode()
    assert refused(pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlDeviceGetPowerUsage, part)


def test_gpm_metrics_are_means_between_samples(start: Start) -> None:
    start(gpm=1, period_s=0.02, duty=0.5, refresh_ms=1)
    assert pynvml.nvmlGpmQueryDeviceSupport(handle()).isSupportedDevice == 1
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    pynvml.nvmlGpmSampleGet(handle(), samples[0])
    time.sleep(0.2)
    pynvml.nvmlGpmSampleGet(handle(), samples[1])
    wanted = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=3)
    wanted.sample1, wanted.sample2 = samples
    for metric, number in zip(wanted.metrics, (2, 10, 60), strict=False):
        metric.metricId = number
    found = pynvml.nvmlGpmMetricsGet(wanted).metrics
    assert found[0].value == pytest.approx(50, abs=5)
    assert found[1].value == pytest.approx(31, abs=4)
    assert [metric.nvmlReturn for metric in found[:3]] == [0, 0, pynvml.NVML_ERROR_NOT_SUPPORTED]
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)
