"""A small file of each format that ``wattlaw import`` reads, as its documentation shows it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sample:
    """A file of a format, what else its import needs, and the runs and windows of it."""

    format: str
    file: str
    content: Callable[[], bytes]
    settings: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 1

    def write(self, folder: Path) -> Path:
        path = folder / self.file
        path.write_bytes(self.content())
        return path


def nvidia_smi(seconds: int = 60, gpus: int = 2) -> bytes:
    """Return a log: 10 s idle, then 300 W and 90 % with a GPU, then 10 s idle."""
    lines = [
        "timestamp, index, name, power.draw [W], utilization.gpu [%], clocks.sm [MHz], "
        "power.limit [W]"
    ]
    for second in range(seconds):
        is_busy = 10 <= second < seconds - 10
        for gpu in range(gpus):
            watts, util = (300.0 + gpu, 90) if is_busy else (60.0, 0)
            lines.append(
                f"2026/01/31 12:{second // 60:02}:{second % 60:02}.{gpu:03}, {gpu}, NVIDIA A100, "
                f"{watts:.2f} W, {util} %, 1410 MHz, 400.00 W"
            )
    return ("\n".join(lines) + "\n").encode()


def zeus() -> bytes:
    rows = [f"{1769860000 + 40 * i}.5,epoch,{30 + i}.0,{6000 + i},{6100 + i}" for i in range(3)]
    return "\n".join(
        ["start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy", *rows, ""]
    ).encode()


def zeus_power() -> bytes:
    rows = [f"2026-01-31 12:00:{i:02}.708783111,{250_000 + i}" for i in range(30)]
    return "\n".join(["Time,Power", *rows, ""]).encode()


def codecarbon() -> bytes:
    head = (
        "timestamp,project_name,run_id,duration,emissions,emissions_rate,cpu_power,gpu_power,"
        "ram_power,cpu_energy,gpu_energy,ram_energy,energy_consumed,os,codecarbon_version,"
        "cpu_count,cpu_model,gpu_count,gpu_model,tracking_mode"
    )
    # Two ranks on one machine, each with the energy of the machine; a later run of one process.
    rows = [
        "2026-01-31T12:01:00,bert,a1,60.0,0.01,1e-4,50,500,10,0.0005,0.01,0.0001,0.0106,Linux,3.0,"
        "32,EPYC,2,2 x A100,machine",
        "2026-01-31T12:01:01,bert,a2,59.5,0.01,1e-4,50,500,10,0.0005,0.0099,0.0001,0.0105,Linux,3.0,"
        "32,EPYC,2,2 x A100,machine",
        "2026-01-31T13:00:00,bert,b1,120.0,0.02,1e-4,50,500,10,0.001,0.02,0.0002,0.0212,Linux,3.0,"
        "32,EPYC,2,2 x A100,machine",
    ]
    return "\n".join([head, *rows, ""]).encode()


def mllog(key: str, t_ms: int, value: Any = None, **metadata: Any) -> str:
    data = {"namespace": "", "time_ms": t_ms, "event_type": "POINT_IN_TIME", "key": key,
            "value": value, "metadata": metadata}  # fmt: skip
    return f":::MLLOG {json.dumps(data)}"


def mlperf() -> bytes:
    t = 1_769_860_000_000
    lines = [
        mllog("submission_benchmark", t, "resnet"),
        mllog("global_batch_size", t, 256),
        mllog("train_samples", t, 51_200),
        mllog("run_start", t + 1000),
        *(
            line
            for epoch in range(3)
            for line in (
                mllog("epoch_start", t + 1000 + 11_000 * epoch, epoch_num=epoch),
                mllog("epoch_stop", t + 11_000 + 11_000 * epoch, epoch_num=epoch),
                mllog("eval_start", t + 11_000 + 11_000 * epoch, epoch_num=epoch),
                mllog("eval_accuracy", t + 11_900 + 11_000 * epoch, 0.5 + epoch / 10),
                mllog("eval_stop", t + 11_950 + 11_000 * epoch, epoch_num=epoch),
            )
        ),
        mllog("run_stop", t + 34_000, status="success"),
    ]
    return ("\n".join(lines) + "\n").encode()


def mlperf_power(spacing_s: float = 1.0, efficiency: float = 0.9) -> bytes:
    t = 1_769_860_000_000
    times = np.arange(0, 40, spacing_s)
    lines = [
        mllog("power_measurement_start", t),
        mllog("conversion_eff", t, efficiency),
        *(mllog("power_reading", t + int(1000 * s), 5000.0, host="node_0") for s in times),
        mllog("power_measurement_stop", t + 40_000),
    ]
    return ("\n".join(lines) + "\n").encode()


def windows() -> bytes:
    return (
        b"start,end,phase,epoch,samples\n"
        b"2026-01-31T12:00:10,2026-01-31T12:00:30,train,0,1000\n"
        b"2026-01-31T12:00:30,2026-01-31T12:00:50,train,1,1000\n"
    )


def log() -> bytes:
    return b"".join(
        f"[2026-01-31 12:00:{second:02},500] INFO epoch {epoch} done loss=1.5\n".encode()
        for epoch, second in enumerate(range(10, 51, 10))
    )


SAMPLES = (
    Sample("nvidia-smi", "gpu.log", nvidia_smi),
    Sample("zeus", "zeus.csv", zeus),
    Sample("zeus-power", "power.csv", zeus_power),
    Sample("codecarbon", "emissions.csv", codecarbon, runs=2),
    Sample("mlperf", "result_0.txt", mlperf, {"map": "gpus=@8"}),
    Sample("mlperf-power", "node_0.txt", mlperf_power),
    Sample("windows", "windows.csv", windows),
    Sample("log", "train.log", log, {"pattern": r"epoch (?P<epoch>\d+) done"}),
    Sample(
        "table", "table.csv", lambda: b"n,t\n1,10\n2,6\n", {"map": "gpus=n,epoch_time_s=t"}, runs=2
    ),
)
