"""Public measurements for tests, and generated tables with the same columns and properties.

The public files are not part of the repository: ``docs/benchmarks.md`` lists them.
"""

import os
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ORIGINS = ("generated", "public")


def public_file(name: str) -> Path:
    """Return a file that another tool wrote; skip if it is absent."""
    return present(f"formats/{name}")


def present(name: str) -> Path:
    """Return a public file; skip if it is absent."""
    default = Path(__file__).parents[2] / "../shared/data"
    path = Path(os.environ.get("WATTLAW_PUBLIC_DATA") or default) / name
    if not path.exists():
        pytest.skip(f"no {name}; see docs/benchmarks.md")
    return path


def public_csv(name: str, origin: str) -> Path:
    """Return a public table's file, or one generated like it; skip if the public file is absent."""
    if origin == "generated":
        path = Path(tempfile.mkdtemp()) / name
        _GENERATED[name]().to_csv(path, index=False)
        return path
    return present(name)


def _power_caps() -> pd.DataFrame:
    """Return one run per cell: below its power limit a GPU slows its clock and lowers its voltage.

    Below 75 % of the full clock the voltage stays the same, so that energy has a minimum. The
    network ncf needs less power than any limit, and its times are noisy. One cell has three limits.
    """
    jobs = [  # data set, network, optimizer, samples, s per sample, s per step, W, noise, batches
        ("imagenet", "resnet50", "adadelta", 1_281_167, 2.7e-3, 0.012, 230, 0.01, (16, 64, 256)),
        ("squad", "bert_base_uncased", "adamw", 88_524, 1.7e-2, 0.02, 235, 0.01, (8, 16, 32, 56)),
        ("sentiment140", "bert_base_uncased", "adamw", 1_600_000, 2.5e-3, 0.01, 230, 0.01,
         (16, 32, 128)),
        ("movielens-1m", "ncf", "adam", 5_000_000, 1e-6, 0.004, 38, 0.05, (64, 1024, 8192)),
    ]  # fmt: skip
    idle_w, knee, dice, rows = 36.0, 0.75, np.random.default_rng(0), []
    for gpu, job in product(("V100", "RTX6000"), jobs):
        dataset, network, optimizer, samples, sample_s, step_s, full_w, noise, batches = job
        for batch, limit_w in product(batches, (*range(100, 251, 25), 260)[: 7 + (gpu != "V100")]):
            if (gpu, network, batch) == ("RTX6000", "ncf", 8192) and limit_w > 150:
                continue
            share = min(1.0, (limit_w - idle_w) / (full_w - idle_w))
            clock = share ** (1 / 3) if share > knee**3 else share / knee**2
            times, watts = np.exp(dice.normal(0, (noise, 0.005)))
            time_s = samples * (sample_s / clock + step_s / batch) * times
            power_w = (idle_w + share * (full_w - idle_w)) * watts
            rows.append((gpu, dataset, network, batch, optimizer, limit_w, time_s, power_w,
                         time_s * power_w))  # fmt: skip
    columns = ("gpu", "dataset", "network", "batch_size", "optimizer", "power_limit",
               "time_per_epoch", "average_power", "energy_per_epoch_J")  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _pollux() -> pd.DataFrame:
    """Return two workloads on nodes of 4 GPUs, by GPUs, placement and local batch.

    An all-reduce is far slower between nodes than in one, more so on exactly two, and the backward
    pass hides a part of it.
    """
    jobs = [  # workload, batches, s per sample, s of a step, s in and between nodes
        ("bert", (4, 8, 12), 0.058, 0.22, 0.1, 1.3),
        ("imagenet", (20, 81, 200), 0.0043, 0.07, 0.005, 0.35),
    ]
    places = [(1,), (2,), (3,), (4,), (1, 1), (2, 2), (1, 3), (4, 4), (4, 4, 4)]
    places += [(4,) * nodes for nodes in (4, 8, 16)]
    dice, rows = np.random.default_rng(0), []
    for (name, batches, sample_s, step_s, inside_s, between_s), place in product(jobs, places):
        gpus, nodes = sum(place), len(place)
        sync_s = inside_s * (max(place) > 1)
        if nodes > 1:
            pair = 1.6 if nodes == 2 else 1.0
            sync_s += between_s * pair * (gpus - 1) / gpus * (gpus / nodes) ** 0.2
        sync_s *= np.exp(dice.normal(0, 0.05))
        for batch in batches:
            compute_s = step_s + sample_s * batch
            time_s = compute_s / 3 + ((compute_s / 1.5) ** 3 + sync_s**3) ** (1 / 3)
            digits = "".join(map(str, place)) if nodes <= 4 else ""
            time_s *= float(np.exp(dice.normal(0, 0.01)))
            rows.append((name, nodes, gpus, digits, batch, time_s, max(0.0, time_s - compute_s)))
    columns = ("workload", "nodes", "gpus", "gpus_per_node", "local_batch", "step_time_s",
               "sync_time_s")  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


_GENERATED: dict[str, Callable[[], pd.DataFrame]] = {
    "power_caps.csv": _power_caps,
    "pollux_t4.csv": _pollux,
}
