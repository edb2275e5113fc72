"""Predictions as plain rows for tables and files, with their scaling."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import log
from typing import Any

from wattlaw.simulator.job import Prediction, Split

HOUR_S = 3600.0
#: Names of the parts of a step in a row: ``compute_s`` and so on.
PARTS = tuple(part.name for part in fields(Split))


def prediction_row(prediction: Prediction, epochs: int = 1) -> dict[str, Any]:
    """Return a prediction as a flat row.

    Parameters
    ----------
    prediction
        The prediction.
    epochs
        The number of epochs to train.

    Returns
    -------
    dict
        The setting; of an epoch T = ``epoch_time_s``, energies by part and their sum; of all epochs
        ``train_time_s``, energies and ``gpu_hours`` = N T epochs / 3600; time and energy of an
        evaluation, which the totals exclude; the parts of a step, ``PARTS`` in seconds, which add
        up to ``step_time_s``, and ``roofline_s``. A value that is not known is None.
    """
    job, train = prediction.job, prediction.train
    energy_j = train.gpu_energy_j + train.cpu_energy_j + train.dram_energy_j
    evaluation = prediction.evaluation
    return {
        "workload": job.profile.workload,
        "options": dict(job.profile.options),
        "hardware": job.cluster.name,
        "gpus": job.gpus,
        "nodes": job.nodes,
        "local_batch": job.local_batch,
        "global_batch": job.global_batch,
        "precision": job.precision,
        "power_limit_w": job.power_limit_w,
        "clock_limit_mhz": job.clock_limit_mhz,
        "dataset_fraction": job.dataset_fraction,
        "epochs": epochs,
        "memory_gb": prediction.memory_gb,
        "fits_memory": prediction.memory_gb <= job.cluster.gpu.memory_gb,
        "epoch_time_s": train.duration_s,
        "train_time_s": train.duration_s * epochs,
        "samples_per_s": train.samples / train.duration_s,
        "steps_per_epoch": train.steps,
        "power_per_gpu_w": train.gpu_power_w,
        "gpu_energy_per_epoch_j": train.gpu_energy_j,
        "cpu_energy_per_epoch_j": train.cpu_energy_j,
        "dram_energy_per_epoch_j": train.dram_energy_j,
        "energy_per_epoch_j": energy_j,
        "gpu_energy_j": train.gpu_energy_j * epochs,
        "cpu_energy_j": train.cpu_energy_j * epochs,
        "dram_energy_j": train.dram_energy_j * epochs,
        "energy_j": energy_j * epochs,
        "gpu_hours": job.gpus * train.duration_s * epochs / HOUR_S,
        "eval_time_s": evaluation.duration_s if evaluation else None,
        "eval_gpu_energy_j": evaluation.gpu_energy_j if evaluation else None,
        "sm_util": train.sm_util,
        "mem_util": train.mem_util,
        "sm_clock_mhz": prediction.clock_mhz,
        "limited_by": train.limited_by,
        "power_throttle_share": prediction.power_throttle_share,
        "step_time_s": prediction.split.step_s,
        **{part: getattr(prediction.split, part) for part in PARTS},
        "step_time_cv": prediction.step_cv,
        "roofline_s": prediction.roofline_s,
        "startup_s": prediction.startup_s,
        "bottleneck": prediction.bottleneck,
        "warnings": list(prediction.warnings),
    }


def add_scaling(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with their speedups, in series of equal limits and with GPUs ascending.

    ``speedup`` is T(n) / T(N) of an epoch with n the least count of the series, and
    ``parallel_efficiency`` is speedup over N / n; ``beta`` is -ln(T(N) / T(M)) / ln(N / M) with M
    the next smaller count. They are None in a series of one count; ``beta`` also at the least.
    """
    series: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        series.setdefault((row["power_limit_w"], row["clock_limit_mhz"]), []).append(row)
    scaled = []
    for group in series.values():
        ordered = sorted(group, key=lambda row: int(row["gpus"]))
        for smaller, row in zip([None, *ordered[:-1]], ordered, strict=True):
            speedup = ordered[0]["epoch_time_s"] / row["epoch_time_s"] if len(group) > 1 else None
            ratio = row["gpus"] / ordered[0]["gpus"]
            scaled.append(
                {
                    **row,
                    "speedup": speedup,
                    "parallel_efficiency": None if speedup is None else speedup / ratio,
                    "beta": None if smaller is None else _beta(smaller, row),
                }
            )
    return scaled


def _beta(smaller: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    return -log(row["epoch_time_s"] / smaller["epoch_time_s"]) / log(row["gpus"] / smaller["gpus"])
