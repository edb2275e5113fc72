"""The public data of the prediction benchmark: jobs, and the cases that are made of them.

The files are read from the folder that ``WATTLAW_PUBLIC_DATA`` names (docs/benchmarks.md). A job
has the observations of one workload on one machine. A case has runs to learn from and runs to
predict; its family is what is reported together, its origin what its priors must not be learned
from.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.predict import Observation
from wattlaw.study.setting import Setting

FOLDER = Path(os.environ.get("WATTLAW_PUBLIC_DATA") or Path(__file__).parents[1] / "../shared/data")
#: GPUs of a node in pollux_t4.csv.
T4_NODE = 4
#: Some values of scaling_series.csv are rounded to 5 decimals.
ROUNDED_BELOW = 0.005
#: Both families of MLPerf are of the same runs, and two tables have runs of one project.
ORIGINS = {
    "mlperf_s_per_epoch": "mlperf_ttt",
    "llm-foundry": "llmfoundry",
    "dlperf gpt": "dlperf_v100",
}
#: Families whose series have a constant local batch.
CONSTANT_BATCH = {"dlperf_v100", "llmfoundry", "pollux_T4_const_lbs"}
CAP_CELL = ["gpu", "dataset", "network", "batch_size", "optimizer"]
#: What families are called in tables; of the series of TensorFlow, by the cluster's first words.
NAMES = {
    "mlperf_s_per_epoch": "MLPerf, epochs",
    "mlperf_ttt": "MLPerf, time to train",
    "jubench_A100": "JUBench A100",
    "mxnet_k80": "MXNet K80",
    "Amazon EC2 (": "TensorFlow EC2 K80",
    "Amazon EC2 D": "TensorFlow EC2 K80, distributed",
    "Google": "TensorFlow Google K80",
    "NVIDIA": "TensorFlow DGX-1 P100",
    "internevo": "InternEvo",
    "vtrain_single": "vTrain",
    "dlperf gpt Megatron-LM": "DLPerf Megatron-LM",
    "dlperf gpt OneFlow": "DLPerf OneFlow",
}
T4_SEEN = ((1, 2, 4, 8), (1, 2, 4))
LAYOUT_CELL = ["source", "hardware", "model", "seq_len", "zero_or_fsdp", "act_ckpt", "tp"]
H100 = "H100, strong scaling, 8-32 to 64-256 GPUs"


@dataclass(frozen=True)
class Job:
    """The observations of a job; ``origin`` is where they come from."""

    family: str
    name: str
    origin: str
    observations: tuple[Observation, ...]
    is_exact: bool = True

    def split(self, family: str, last_seen: int, most: int = 10**9) -> "Case":
        """Return the case that predicts larger GPU counts from counts up to ``last_seen``."""
        train = [item for item in self.observations if item.setting.gpus <= last_seen]
        test = [item for item in self.observations if last_seen < item.setting.gpus <= most]
        return Case(family, self.origin, train, test)


@dataclass(frozen=True)
class Case:
    family: str
    origin: str
    train: list[Observation]
    test: list[Observation]


def cases() -> list[Case]:
    return [*t4_cases(), *series_cases(), *layout_cases(), *cap_cases()]


def t4_cases() -> Iterable[Case]:
    """Yield the cases of T4 GPUs, without and with the measured communication of each run."""
    for with_sync in (False, True):
        for job in pollux(with_sync=with_sync):
            packed = [item for item in job.observations if is_packed(item.setting)]
            for counts in T4_SEEN:
                train = [item for item in packed if item.setting.gpus in counts]
                test = [item for item in packed if item.setting.gpus in (16, 32, 64)]
                how = ", with parts" * with_sync
                name = f"T4 {job.name} from {', '.join(map(str, counts))}{how}"
                yield Case(name, job.origin, train, test)


def series_cases() -> Iterable[Case]:
    """Yield the cases of series, whose larger counts are predicted from the smaller ones."""
    for job in series():
        counts = sorted({item.setting.gpus for item in job.observations})
        if not job.is_exact or job.family == "pollux_T4_const_lbs" or len(counts) < 3:
            continue
        start = next((start for start in NAMES if job.name.startswith(start)), job.family)
        family = NAMES.get(start, start)
        yield job.split(f"{family}, all but the largest", counts[-2])
        yield job.split(f"{family}, smaller half", counts[(len(counts) + 1) // 2 - 1])


def layout_cases() -> Iterable[Case]:
    """Yield the cases of ``parallel_layouts.csv``, from each smaller half and all but the largest.

    Jobs are data parallel only. In the runs of the H100 family, that of a constant global batch, up
    to 4 GPUs of a node share each batch (tensor parallelism) and count as one.
    """
    table = pd.read_csv(FOLDER / "parallel_layouts.csv")
    step_s = table.global_batch * table.seq_len / (table.tokens_per_s_per_gpu * table.gpus)
    table["step_s"] = table.step_time_s.fillna(step_s)
    table["micro"] = table.micro_batch.where(
        ~table.source.str.startswith("dlperf gpt"), table.global_batch / table.gpus
    )
    is_h100 = table.source.str.startswith("nanotron")
    known = (table.status == "ok") & table.step_s.notna() & table.micro.notna()
    known &= (table[["pp", "cp"]].fillna(1) == 1).all(axis=1)
    known &= table.tp.fillna(1) <= np.where(is_h100, 4, 1)
    for cell, rows in table[known & (table.gpus <= 1024)].groupby(LAYOUT_CELL, dropna=False):
        source, hardware, *_, tensor_parallel = cell
        shared = int(tensor_parallel) if tensor_parallel > 1 else 1
        name = str(source).split("-ultra")[0]
        origin = next((ORIGINS[start] for start in ORIGINS if name.startswith(start)), name)
        runs = tuple(_layout(row, shared) for row in rows.itertuples())
        job = Job(f"{NAMES.get(name, name)} {str(hardware)[:4].upper()}", str(cell), origin, runs)
        counts = sorted({item.setting.gpus for item in runs})
        if name == "nanotron":
            yield job.split(H100, 32 // shared, 256 // shared)
        elif len(counts) >= 3:
            for seen in sorted({(len(counts) + 1) // 2, len(counts) - 1}):
                yield job.split(job.family, counts[seen - 1])


def _layout(row: Any, shared: int) -> Observation:
    gpus, node = int(row.gpus) // shared, 8 if np.isnan(row.gpus_per_node) else row.gpus_per_node
    parts = row.grad_acc if row.grad_acc > 0 else max(1, round(row.global_batch / gpus / row.micro))
    setting = Setting.packed(
        gpus,
        int(node) // shared,
        local_batch=float(row.micro * parts),
        gradient_accumulation=int(parts),
    )
    return Observation(setting, float(row.step_s))


def cap_cases() -> Iterable[Case]:
    """Yield the cells of power limits: the lowest, the middle and the highest give the others."""
    for job in caps():
        rows = job.observations
        if len(rows) >= 4:
            seen = (0, len(rows) // 2, len(rows) - 1)
            others = [row for index, row in enumerate(rows) if index not in seen]
            yield Case(job.family, job.origin, [rows[index] for index in seen], others)


def pollux(*, with_sync: bool = False) -> list[Job]:
    """Return BERT and ImageNet on T4 GPUs, one observation for each run.

    ``with_sync`` adds the exposed communication of each run, ``sync_time_s``.
    """
    table = pd.read_csv(FOLDER / "pollux_t4.csv", dtype={"gpus_per_node": str})
    jobs = []
    for workload, rows in table.groupby("workload"):
        found: dict[Setting, list[tuple[float, float]]] = {}
        for row in rows.itertuples():
            digits = row.gpus_per_node
            placement = tuple(int(digit) for digit in digits) if isinstance(digits, str) else None
            setting = Setting(
                int(row.gpus), int(row.nodes), placement, local_batch=float(row.local_batch)
            )
            found.setdefault(setting, []).append((float(row.step_time_s), float(row.sync_time_s)))
        observations = (
            Observation(
                setting,
                step_s,
                session=f"{index}:{setting.gpus_per_node}",
                communication_s=sync_s if with_sync else None,
            )
            for setting, times in found.items()
            for index, (step_s, sync_s) in enumerate(times)
        )
        jobs.append(Job("pollux_t4", str(workload), f"pollux {workload}", tuple(observations)))
    return jobs


def is_packed(setting: Setting) -> bool:
    """Return whether a setting of pollux_t4.csv uses the fewest nodes."""
    return setting.gpus_per_node == Setting.packed(setting.gpus, T4_NODE).gpus_per_node


def series() -> list[Job]:
    """Return every scaling series; a step is a constant amount of work for each GPU."""
    strong = pd.read_csv(FOLDER / "scaling_series.csv")
    weak = pd.read_csv(FOLDER / "scaling_series_weak.csv")
    return [*_series(strong, per_gpu=False), *_series(weak, per_gpu=True)]


def _series(table: pd.DataFrame, per_gpu: bool) -> Iterable[Job]:
    for (family, name, unit), rows in table.groupby(["family", "series", "unit"]):
        batch = 1.0 if per_gpu or family in CONSTANT_BATCH else None
        yield Job(
            str(family),
            f"{name} ({unit})",
            ORIGINS.get(str(family), str(family)),
            tuple(
                Observation(
                    Setting(int(gpus), local_batch=batch),
                    float(value) * (1 if per_gpu else int(gpus)),
                )
                for gpus, value in sorted(zip(rows["gpus"], rows["value"], strict=True))
            ),
            is_exact=per_gpu or rows["value"].min() >= ROUNDED_BELOW,
        )


def caps() -> list[Job]:
    """Return the cells of power_caps.csv: one network and batch by power limit, one epoch each."""
    table = pd.read_csv(FOLDER / "power_caps.csv")
    jobs = []
    for cell, rows in table.groupby(CAP_CELL):
        gpu, _, _, batch, _ = cell
        observations = (
            Observation(
                Setting(1, 1, (1,), float(batch), power_limit_w=float(row.power_limit)),
                float(row.time_per_epoch),
                float(row.average_power),
            )
            for row in rows.sort_values("power_limit").itertuples()
        )
        name = " ".join(str(part) for part in cell)
        jobs.append(Job(f"caps {gpu}", name, "caps", tuple(observations)))
    return jobs
