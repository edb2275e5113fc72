"""Synthetic tables of a store, for tests of analyses and reports."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa

from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.store.schema import EPOCHS, RUNS
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting

Rows = tuple[list[dict[str, object]], list[dict[str, object]]]
Tables = tuple[pd.DataFrame, pd.DataFrame]

NETWORK = Network(layers=8, hidden=512, heads=8, vocabulary=1000, sequence=256).model_dump_json(
    exclude_defaults=True
)
#: tp, pp, micro-batch, seconds of a step of 32 samples on 8 GPUs.
LAYOUTS = ((1, 1, 4, 1.0), (2, 1, 4, 1.15), (4, 1, 4, 1.5), (1, 2, 4, 1.2), (2, 2, 4, 1.3))


def run_row(run_id: str, **changes: object) -> dict[str, object]:
    row: dict[str, object] = {
        "run_id": run_id, "study": "s", "workload": "digits-cnn", "options": "{}",
        "metric_name": "accuracy", "gpus": 1, "global_batch": 64, "local_batch": 64,
        "precision": "fp32", "dataset_fraction": 1.0, "nodes": 1, "repeat": 0, "launcher": "local",
        "hardware": "board", "software": '{"torch": "2"}', "status": "done", "notes": [],
        "device_ids": ["host"], "attempts": 1,
    }  # fmt: skip
    return row | changes


def window_row(run_id: str, epoch: int, **changes: object) -> dict[str, object]:
    """Return a training window without energy."""
    row: dict[str, object] = {
        "run_id": run_id, "host": "a", "epoch": epoch, "phase": "train", "warmup": False,
        "start_ns": epoch, "duration_s": 1.0, "samples": 100, "steps": 10, "loss": 0.1,
        "energy_source": "none", "energy_verdict": "unavailable",
    }  # fmt: skip
    return row | changes


def frames(runs: list[dict[str, object]], epochs: list[dict[str, object]]) -> Tables:
    return (
        pa.Table.from_pylist(runs, schema=RUNS).to_pandas(),
        pa.Table.from_pylist(epochs, schema=EPOCHS).to_pandas(),
    )


def runs_of(
    setting: dict[str, object], times_s: list[float], watts: float | None = 100.0,
    epochs: int = 1, **window: object,
) -> Rows:  # fmt: skip
    """Return the runs of a setting, one for each time of an epoch, and their windows."""
    runs, windows = [], []
    names = "-".join(f"{value}" for value in setting.values())
    gpus = int(setting.get("gpus", 1))  # type: ignore[call-overload]
    batch = {"global_batch": 64, "local_batch": 64 // gpus}
    known = {} if watts is None else {"energy_source": "counter", "energy_verdict": "ok"}
    for repeat, time_s in enumerate(times_s):
        run_id = f"{names}-{repeat}"
        runs.append(run_row(run_id, repeat=repeat, **(batch | setting)))
        energy_j = None if watts is None else watts * gpus * time_s
        told = {"duration_s": time_s, "gpu_energy_j": energy_j} | known | window
        windows += [window_row(run_id, epoch, **told) for epoch in range(epochs)]
    return runs, windows


def tables_of(*parts: Rows) -> Tables:
    return frames(
        [run for runs, _ in parts for run in runs],
        [window for _, windows in parts for window in windows],
    )


def near(mean_s: float, share: float = 0.01) -> list[float]:
    return [mean_s * float(np.exp(step)) for step in (-share, 0.0, share)]


def study(
    counts: tuple[int, ...] = (1, 2, 4), source: str = "estimated", beta: float = 0.8
) -> Tables:
    """Return a study of three global batches, three repeats each, with noise from a seed."""
    dice = np.random.default_rng(0)
    runs, epochs = [], []
    for batch in (32, 64, 128):
        for gpus in counts:
            for repeat in range(3):
                run_id = f"{batch:04}{gpus:04}{repeat:08}"
                runs.append(
                    run_row(run_id, gpus=gpus, global_batch=batch, local_batch=batch // gpus,
                            repeat=repeat)
                )  # fmt: skip
                for epoch in range(3):
                    time_s = 100 / batch * gpus**-beta * float(np.exp(dice.normal(0, 0.03)))
                    energy = {"cpu_energy_j": 15 * gpus * time_s, "energy_source": source,
                              "energy_verdict": "ok"} if source != "none" else {}  # fmt: skip
                    epochs.append(
                        window_row(run_id, epoch, duration_s=time_s, warmup=epoch == 0, **energy)
                    )
                    epochs.append(
                        window_row(run_id, epoch, phase="evaluate", duration_s=99.0,
                                   metric=0.9 + epoch / 50 - batch / 4000)
                    )  # fmt: skip
    return frames(runs, epochs)


def layouts(network: str | None = NETWORK) -> Tables:
    """Return runs of ``LAYOUTS``, and one of tp 8 that was out of memory."""
    runs, windows = [], []
    for number, (tp, pp, micro, seconds) in enumerate((*LAYOUTS, (8, 1, 4, 0))):
        name = f"r{number}"
        parts = 32 // (8 // (tp * pp) * micro)
        layout = Setting(8, tp=tp, pp=pp, sharding="zero1", gradient_accumulation=parts).layout
        failed = {} if seconds else {"status": "out of memory", "out_of_memory": "device"}
        runs.append(
            run_row(name, gpus=8, global_batch=32, local_batch=4, network=network,
                    parallelism="tensor", layout=json.dumps(layout), **failed)
        )  # fmt: skip
        if seconds:
            windows.append(window_row(name, 1, duration_s=10 * seconds, samples=320, steps=10))
    return frames(runs, windows)


def energy_table(
    watts: float = 300.0, base_j: float = 0.0, noise: float = 0.01, *,
    batches: tuple[int, ...] = (256, 1024), repeats: int = 3, drift: float = 0.0,
    counts: tuple[int, ...] = (1, 2, 4, 8, 16), seed: int = 0,
    epochs: dict[str, object] | None = None, **row: object,
) -> pd.DataFrame:  # fmt: skip
    """Return metrics of runs whose GPUs draw ``watts * N ** drift``, plus energy per epoch."""
    dice = np.random.default_rng(seed)
    runs, windows = [], []
    for batch in batches:
        for gpus in counts:
            for repeat in range(repeats):
                run_id = f"{seed:02}{batch:06}{gpus:04}{repeat:04}"
                time_s = 1000 * gpus**-0.8 * math.exp(dice.normal(0, 0.02))
                energy_j = watts * gpus**drift * gpus * time_s * math.exp(dice.normal(0, noise))
                runs.append(run_row(run_id, gpus=gpus, global_batch=batch,
                                    local_batch=batch // gpus, repeat=repeat, **row))  # fmt: skip
                measured = {"gpu_energy_j": energy_j + base_j, "energy_source": "counter",
                            "energy_verdict": "ok", "samples": 100_000,
                            "steps": 100_000 // batch}  # fmt: skip
                windows.append(
                    window_row(run_id, 0, duration_s=time_s, **(measured | (epochs or {})))
                )
    return run_metrics(*frames(runs, windows))
