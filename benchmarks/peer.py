"""Runs another energy monitor until it is ended: ``python peer.py MONITOR HZ [FILE]``.

MONITOR is zeus, codecarbon or polling; ``counter`` and ``zeus-windows`` write what they read of the
first GPU to FILE. With 0 Hz, Zeus and CodeCarbon have their own default period. It runs in an
environment of its own (``make bench-peers``) and imports nothing of wattlaw.
"""

import contextlib
import csv
import ctypes
import os
import sys
import tempfile
import time
from multiprocessing import synchronize


def zeus(hz: float) -> object:
    """Start Zeus' PowerMonitor as in its documentation."""
    from zeus.monitor.power import PowerMonitor

    # Its processes have 10 s to start, which is too short on a busy machine.
    wait = synchronize.Event.wait
    synchronize.Event.wait = lambda event, timeout=None: wait(event, max(120.0, timeout or 0.0))
    return PowerMonitor(update_period=1 / hz if hz else None)


def codecarbon(hz: float) -> object:
    """Start CodeCarbon's offline tracker at a rate; results go to a temporary folder."""
    from codecarbon import OfflineEmissionsTracker

    tracker = OfflineEmissionsTracker(
        country_iso_code="USA",
        **({"measure_power_secs": 1 / hz} if hz else {}),
        output_dir=tempfile.mkdtemp(),
        log_level="error",
        allow_multiple_runs=True,
    )
    tracker.start()
    return tracker


def polling(hz: float) -> None:
    """Poll the values that the sampler reads, with nvidia-ml-py; write a line per reading."""
    import pynvml as nvml

    nvml.nvmlInit()
    boards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    print("ready", flush=True)
    with tempfile.TemporaryFile("w", newline="") as file:
        rows = csv.writer(file)
        next_s = time.monotonic()
        while True:
            for number, board in enumerate(boards):
                use = nvml.nvmlDeviceGetUtilizationRates(board)
                rows.writerow(
                    (
                        time.time_ns(),
                        number,
                        nvml.nvmlDeviceGetPowerUsage(board),
                        nvml.nvmlDeviceGetTotalEnergyConsumption(board),
                        use.gpu,
                        use.memory,
                        nvml.nvmlDeviceGetMemoryInfo(board).used,
                        nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_SM),
                        nvml.nvmlDeviceGetTemperature(board, nvml.NVML_TEMPERATURE_GPU),
                    )
                )
            file.flush()
            next_s += 1 / hz
            time.sleep(max(0.0, next_s - time.monotonic()))


def counter(hz: float) -> None:
    """Read the energy counter with the driver's library alone; write ns and mJ."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")

    def call(name: str, *arguments: object) -> None:
        if code := getattr(nvml, name)(*arguments):
            raise SystemExit(f"{name}: NVML error {code}")

    board, energy_mj = ctypes.c_void_p(), ctypes.c_ulonglong()
    call("nvmlInit_v2")
    call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(board))
    print("ready", flush=True)
    with open(sys.argv[3], "w") as file:  # noqa: PTH123
        while os.getppid() > 1:
            before_ns = time.time_ns()
            call("nvmlDeviceGetTotalEnergyConsumption", board, ctypes.byref(energy_mj))
            file.write(f"{(before_ns + time.time_ns()) // 2},{energy_mj.value}\n")
            file.flush()
            time.sleep(1 / hz)


def zeus_windows(hz: float) -> None:
    """Measure windows of ``1 / hz`` seconds with ZeusMonitor; write start and end in ns, and J."""
    from zeus.monitor import ZeusMonitor

    monitor = ZeusMonitor(gpu_indices=[0], cpu_indices=[])
    print("ready", flush=True)
    with open(sys.argv[3], "w") as file:  # noqa: PTH123
        while os.getppid() > 1:
            start_ns = time.time_ns()
            monitor.begin_window("window", sync_execution=False)
            time.sleep(1 / hz)
            end_ns = time.time_ns()
            energy_j = monitor.end_window("window", sync_execution=False).gpu_energy[0]
            file.write(f"{start_ns},{end_ns},{energy_j}\n")
            file.flush()


def main() -> None:
    """Start the monitor that the first argument names, print ``ready``, and keep it running."""
    kind, hz = sys.argv[1], float(sys.argv[2])
    endless = {"polling": polling, "counter": counter, "zeus-windows": zeus_windows}
    if kind in endless:
        endless[kind](hz)
    with contextlib.redirect_stdout(sys.stderr):
        monitor = {"zeus": zeus, "codecarbon": codecarbon}[kind](hz)
    print("ready", flush=True)
    while monitor is not None and os.getppid() > 1:
        time.sleep(600)


if __name__ == "__main__":
    main()
