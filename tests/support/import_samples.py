"""A small file of each format that ``wattlaw import`` reads, as its documentation shows it."""

import json
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import program_logs
import real_runs
from soak import mutate
from wattlaw.common.delimited import encoding_of


def count_lines(content: bytes) -> int:
    text = content.decode(encoding_of(content[:1024])).replace("\r\n", "\n").replace("\r", "\n")
    return sum(bool(line.strip()) for line in text.split("\n"))


@dataclass(frozen=True)
class Sample:
    """A file of a format, what else its import needs, and the runs and windows of it."""

    format: str
    file: str
    content: Callable[[], bytes]
    settings: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 1
    #: Counts the rows of a changed file; None: only a reader of the format can.
    count_rows: Callable[[bytes], int] | None = count_lines

    def write(self, folder: Path) -> Path:
        path = folder / self.file
        path.write_bytes(self.content())
        return path


def damaged(dice: random.Random, content: bytes) -> bytes:
    """Return content with bytes, words, lines or values of JSON changed."""
    if content[:1] == b"{" and dice.random() < 0.6:
        tree = mutate.data(dice, json.loads(content), dice.choice([1, 2, 5]))
        return json.dumps(tree, default=str, skipkeys=True).encode("utf-8", "surrogatepass")
    if dice.random() < 0.55:
        return mutate.raw(dice, content)
    text = mutate.text(dice, content.decode("utf-8", "surrogateescape"), dice.choice([1, 2, 8]))
    return text.encode("utf-8", "surrogateescape")


class MlflowSample(Sample):
    """``meta.yaml`` of a run, beside which its other files are written."""

    def write(self, folder: Path) -> Path:
        for name, content in real_runs.mlflow_files().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder / self.file


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


def nvidia_dmon() -> bytes:
    """Return ``nvidia-smi dmon -s pu -o DT``, with its header again in the middle."""
    head = [
        "#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem",
        "#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %",
    ]
    rows = [f" 20260131   12:00:{second:02}    {gpu}   300     45      -     90     40"
            for second in range(30) for gpu in range(2)]  # fmt: skip
    return "\n".join([*head, *rows[:30], *head, *rows[30:], ""]).encode()


def zeus() -> bytes:
    head = "start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy"
    rows = [f"{1769860000 + 40 * i}.5,epoch,{30 + i}.0,{6000 + i},{6100 + i}" for i in range(3)]
    return "\n".join([head, *rows, ""]).encode()


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


def mlperf_power(spacing_s: float = 1.0) -> bytes:
    t = 1_769_860_000_000
    times = np.arange(0, 40, spacing_s)
    lines = [
        mllog("power_measurement_start", t),
        mllog("conversion_eff", t, 0.9),
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


def dcgm_text() -> bytes:
    """Return scrapes with times, as ``promtool`` and a textfile of the exporter have them."""
    lines = [
        "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).",
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge",
    ]
    for second in range(60):
        for gpu in range(2):
            labels = (
                f'{{gpu="{gpu}",UUID="GPU-{gpu}",device="nvidia{gpu}",modelName="NVIDIA A100",'
                f'Hostname="n1",DCGM_FI_DRIVER_VERSION="550"}}'
            )
            time_ms, energy_mj = 1_769_860_000_000 + 1000 * second, 10**9 + 300_500 * second
            util = "9223372036854775794" if second == 3 else "90"
            lines += [
                f"DCGM_FI_DEV_POWER_USAGE{labels} 300.5 {time_ms}",
                f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{labels} {energy_mj} {time_ms}",
                f"DCGM_FI_DEV_GPU_UTIL{labels} {util} {time_ms}",
            ]
    return ("\n".join(lines) + "\n").encode()


def dcgm_json() -> bytes:
    values = [[1_769_860_000 + second, "300.5"] for second in range(60)]
    labels = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "Hostname": "n1", "modelName": "NVIDIA A100"}
    result = [{"metric": labels | {"UUID": f"GPU-{gpu}"}, "values": values} for gpu in range(2)]
    data = {"resultType": "matrix", "result": result}
    return json.dumps({"status": "success", "data": data}).encode()


def dcgm_values(content: bytes) -> int:
    data = json.loads(content)
    results = data.get("data", data)["result"]
    values = [each.get("values", 0) if isinstance(each, dict) else 0 for each in results]
    return sum(len(each) if isinstance(each, list) else 1 for each in values)


def amd_smi() -> bytes:
    """Return ``amd-smi metric -puE --csv --watch 1``: its energy is in J, its time in s."""
    head = (
        "timestamp,gpu,gfx_activity,umc_activity,socket_power,gfx_voltage,soc_voltage,mem_voltage,"
        "throttle_status,power_management,total_energy_consumption"
    )
    rows = [
        f"{1_769_860_000 + second},{gpu},95,30,500,N/A,N/A,N/A,UNTHROTTLED,ENABLED,"
        f"{1000 + 500 * second}.0"
        for second in range(60)
        for gpu in range(2)
    ]
    return "\n".join([head, *rows, ""]).encode()


def slurm_text() -> bytes:
    head = (
        "JobID|JobName|Partition|Account|State|Elapsed|ElapsedRaw|Start|End|NNodes|AllocTRES|"
        "ConsumedEnergyRaw|"
    )
    tres = "billing=64,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=1000G,node=2"
    rows = [
        f"101|resnet|gpu|ml|COMPLETED|1-01:00:00|90000|2026-01-30T12:00:00|2026-01-31T13:00:00|2|"
        f"{tres}|0|",
        f"101.batch|batch||ml|COMPLETED|1-01:00:00|90000|2026-01-30T12:00:00|2026-01-31T13:00:00|1|"
        f"{tres}|300000000|",
        f"102|resnet|gpu|ml|COMPLETED|00:30:00||2026-02-01T12:00:00|2026-02-01T12:30:00|2|{tres}|0|",
    ]
    return "\n".join([head, *rows, ""]).encode()


def tensorboard() -> bytes:
    """Return an event file that tensorboardX writes: a loss every 10 steps, two validations."""
    from tensorboardX import SummaryWriter

    with tempfile.TemporaryDirectory() as folder:
        time_s = 1_769_860_000.0
        with SummaryWriter(folder) as writer:
            for step in range(10, 101, 10):
                writer.add_scalar("train/loss", 2 - step / 100, step, walltime=time_s + step / 10)
                if step % 50 == 0:
                    time_s += 5
                    accuracy = 0.5 + step / 1000
                    writer.add_scalar("val/acc", accuracy, step, walltime=time_s + step / 10)
        (path,) = Path(folder).iterdir()
        return path.read_bytes()


def huggingface() -> bytes:
    log = [
        {"epoch": 1.0, "loss": 0.7, "step": 10},
        {"epoch": 1.0, "eval_accuracy": 0.6, "eval_loss": 0.65, "eval_runtime": 1.0, "step": 10},
        {"epoch": 2.0, "eval_accuracy": 0.7, "eval_loss": 0.6, "eval_runtime": 1.0, "step": 20},
        {"epoch": 2.0, "step": 20, "train_loss": 0.65, "train_runtime": 10.0,
         "train_samples_per_second": 16.0, "train_steps_per_second": 2.0},
    ]  # fmt: skip
    return json.dumps({"global_step": 20, "max_steps": 20, "log_history": log}, indent=1).encode()


def perun(wrap_uj: int = 2**32) -> bytes:
    """Return a file as perun's ``io/hdf5.py`` writes it: 3 epochs, a RAPL counter that wraps."""
    import h5py

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "app.hdf5"
        with h5py.File(path, "w") as file:
            run = file.create_group("app/nodes/2026-01-31T12:00:00")
            run.attrs["execution_dt"] = "2026-01-31T12:00:00.000000"
            one = run.create_group("nodes/0")
            runtime = one.create_group("metrics/RUNTIME")
            runtime.attrs["value"] = np.float32(60)
            regions = one.create_group("regions/epoch")
            regions.attrs["id"] = "epoch"
            edges = np.array([1, 19, 20, 39, 40, 59], np.float32)
            regions.create_dataset("raw_data/0", data=edges)
            regions.create_dataset("raw_data/1", data=edges + np.float32(0.5))
            seconds = np.arange(61, dtype=np.float32)
            counter = (4 * 10**9 + 100_000_000 * np.arange(61, dtype=np.uint64)) % wrap_uj
            for device, name, kind, unit, mag, most, values in (
                ("cpu", "CPU_package-0", "cpu", "J", 1e-6, wrap_uj, counter),
                ("cpu", "CPU_core_0", "cpu", "J", 1e-6, wrap_uj, counter),
                ("gpu", "CUDA:0_POWER", "gpu", "W", 1e-3, 400_000, np.full(61, 300_000, np.uint32)),
                ("cpu", "CPU_USAGE_0", "cpu", "%", 1.0, 100, np.full(61, 50, np.float32)),
            ):
                sensor = one.create_group(f"nodes/host1/nodes/{device}/nodes/{name}")
                sensor.attrs["device_type"] = kind
                for key, data, of, by, greatest in (
                    ("timesteps", seconds, "s", 1.0, 3e38),
                    ("values", values, unit, mag, most),
                ):
                    dataset = sensor.create_dataset(f"raw_data/{key}", data=data)
                    dataset.attrs["unit"] = of
                    dataset.attrs["mag"] = by
                    dataset.attrs.create("valid_max", greatest, dtype=np.float64)
        return path.read_bytes()


def count_log_entries(content: bytes) -> int:
    return len(json.loads(content)["log_history"])


def table() -> bytes:
    """Return a table of people: a row of units, a quoted cell, a mean, a run out of memory."""
    rows = ["n,t,w", "[],[s],", "1,10,a", '2,"6.5","b c"', "Average,7.5,", "4,OOM,a"]
    return "\n".join([*rows, "# the last one", "8,1234.5,a", ""]).encode()


def history_csv() -> bytes:
    """Return what ``wandb.Api().run(...).history().to_csv(...)`` writes."""
    return pd.DataFrame(real_runs.history()).to_csv().encode()


def mlflow_meta() -> bytes:
    return real_runs.mlflow_files()["meta.yaml"]


TWO = {"map": "gpus=@2"}
SAMPLES = (
    Sample("nvidia-smi", "dmon.log", nvidia_dmon),
    Sample("nvidia-smi", "gpu.log", nvidia_smi),
    Sample("amd-smi", "amd.csv", amd_smi),
    Sample("dcgm", "dcgm.prom", dcgm_text),
    Sample("dcgm", "dcgm.json", dcgm_json, count_rows=dcgm_values),
    Sample("huggingface", "trainer_state.json", huggingface, TWO, count_rows=count_log_entries),
    Sample("perun", "app.hdf5", perun, count_rows=None),
    Sample("slurm", "jobs.txt", slurm_text, runs=2),
    Sample("training-log", "megatron.log", lambda: program_logs.megatron().encode()),
    Sample("tensorboard", "events.out.tfevents.1.h", tensorboard, TWO, count_rows=None),
    Sample("wandb", "run-1.wandb", real_runs.wandb_log, TWO, count_rows=None),
    Sample("wandb", "history.csv", history_csv, TWO),
    MlflowSample("mlflow", "meta.yaml", mlflow_meta, TWO, count_rows=lambda _: 41),
    Sample("zeus", "zeus.csv", zeus),
    Sample("zeus-power", "power.csv", zeus_power),
    Sample("codecarbon", "emissions.csv", codecarbon, runs=2),
    Sample("mlperf", "result_0.txt", mlperf, {"map": "gpus=@8"}),
    Sample("mlperf-power", "node_0.txt", mlperf_power),
    Sample("windows", "windows.csv", windows),
    Sample("log", "train.log", log, {"pattern": r"epoch (?P<epoch>\d+) done"}),
    Sample("table", "table.csv", table, {"map": "gpus=n,epoch_time_s=t,workload=w"}, runs=4),
)
