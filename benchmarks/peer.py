"""Runs another energy monitor until it is ended: ``python peer.py zeus|codecarbon|polling HZ``.

With 0 Hz, Zeus and CodeCarbon have their own default period. It runs in an environment of its own
(``make bench-peers``) and imports nothing of wattlaw.
"""

import contextlib
import csv
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


def main() -> None:
    """Start the monitor that the first argument names, print ``ready``, and keep it running."""
    kind, hz = sys.argv[1], float(sys.argv[2])
    if kind == "polling":
        print("ready", flush=True)
        polling(hz)
    with contextlib.redirect_stdout(sys.stderr):
        monitor = {"zeus": zeus, "codecarbon": codecarbon}[kind](hz)
    print("ready", flush=True)
    while monitor is not None and os.getppid() > 1:
        time.sleep(600)


if __name__ == "__main__":
    main()
