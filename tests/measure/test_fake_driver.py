"""The fake NVML driver against values worked by hand, through the real pynvml."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_nvml import COUNTER_ABSENT, COUNTER_BACK, COUNTER_RESTARTS, COUNTER_STILL, FakeGpus

pynvml = pytest.importorskip("pynvml")

Start = Callable[..., FakeGpus]
HOUR_NS = 3_600_000_000_000


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
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
