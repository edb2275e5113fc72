"""Whole studies made by hand, like those of the two papers: every number from a seed.

They are laws plus noise, so that tests know the truth that an analysis has to find. They are no
model of any machine.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from made_tables import frames, run_row, window_row
from wattlaw.analysis.metrics.variation import PRIOR, variation

COUNTS = (2, 4, 8, 16, 32, 64, 128)
SAMPLES = 1_000_000


@dataclass(frozen=True)
class Made:
    """The tables of a store, and what its telemetry says."""

    runs: pd.DataFrame
    epochs: pd.DataFrame
    joint: pd.DataFrame  # run_id, sm_bin, mem_bin, samples


@dataclass(frozen=True)
class Model:
    """What is true of one workload: seconds per epoch are ``alpha_s * N ** -beta``."""

    alpha_s: float
    beta: float
    local_batch: int
    power_w: float = 200.0  # of one GPU without cap, at the smallest count
    breakpoint: int | None = None  # beyond it, more GPUs are no faster
    sm_util: float = 0.9
    mem_util: float = 0.5
    metric: str = "top1"


MIT = {
    "resnet50": Model(3000.0, 0.83, 256, metric="top1"),
    "vgg16": Model(6000.0, 0.64, 256, 230.0, metric="top1"),
    "bert-base": Model(4000.0, 0.87, 8, 220.0, metric="perplexity"),
    "dimenet": Model(2500.0, 0.82, 128, 150.0, metric="mae"),
    "schnet": Model(600.0, 0.60, 128, 90.0, breakpoint=64, metric="mae"),
}


#: What caps and clocks do: factors on time and power, by watts or megahertz.
CAPS = {100.0: (1.6, 0.5), 200.0: (1.0, 0.85)}
CLOCKS = {135.0: (6.0, 0.3), 735.0: (1.7, 0.55)}


def mit(
    *,
    models: dict[str, Model] | None = None,
    counts: tuple[int, ...] = COUNTS,
    repeats: int = 3,
    noise: float = 0.02,
    clocks: bool = True,
    power_falls: float = 0.05,
    energy: bool = True,
) -> Made:
    """Return a study of GPUs, power caps and clocks at constant local batch on a V100 cluster.

    Per ln N, ln power falls by ``power_falls``, ln utilisation by 0.08, and ln coefficient of
    variation rises by 0.15.
    """
    dice, made = np.random.default_rng(0), _Tables()
    limits: list[tuple[float | None, float | None]] = [(None, None)]
    limits += [(cap, None) for cap in CAPS]
    limits += [(None, clock) for clock in CLOCKS] if clocks else []
    for name, model in (MIT if models is None else models).items():
        for cap, clock in limits:
            slower, draws = (CAPS | CLOCKS).get(cap or clock, (1.0, 1.0))
            for gpus in counts:
                reach = min(gpus, model.breakpoint or gpus)
                time_s = model.alpha_s * slower * reach**-model.beta
                spread = (gpus / counts[0]) ** -0.08
                made.cell(
                    dice, repeats, noise, 3, name, model, gpus, time_s,
                    power_w=model.power_w * draws * (gpus / counts[0]) ** -power_falls,
                    sm_util=model.sm_util * spread, mem_util=model.mem_util * spread,
                    cv=0.1 * (gpus / counts[0]) ** 0.15, energy=energy,
                    power_limit_w=cap, clock_limit_mhz=clock,
                    global_batch=model.local_batch * gpus, local_batch=model.local_batch,
                    hardware="V100-32GB", nodes=max(1, gpus // 2),
                )  # fmt: skip
    return made.done()


def kit(
    *,
    counts: tuple[int, ...] = (1, 2, 4, 8, 16),
    watts: dict[str, float] | None = None,
    repeats: int = 5,
    growing: bool = True,
) -> Made:
    """Return a study of strong scaling, constant local batch and growing data sets on two boards.

    Quality is 0.76 up to a global batch of 512, and falls by 4 % per doubling beyond. Where the
    data set grows with N, at constant global batch every epoch has N times as many steps, each a
    little dearer.
    """
    dice, made = np.random.default_rng(0), _Tables()
    model = Model(5000.0, 0.97, 64)
    for board, watt in (watts or {"A100": 300.0, "H100": 480.0}).items():
        quick = 1.0 if board == "A100" else 0.55
        strong = [(n, batch, batch // n, 1.0) for batch in (256, 512, 1024) for n in counts]
        weak = [(n, 64 * n, 64, 1.0) for n in counts]
        settings = strong + weak
        if growing:
            settings += [(n, 256, 256 // n, n / counts[-1]) for n in counts]
            settings += [(n, 64 * n, 64, n / counts[-1]) for n in counts]
        for n, batch, local, fraction in dict.fromkeys(settings):
            steps = SAMPLES * fraction / batch
            scaled_s = fraction * model.alpha_s * n**-model.beta
            time_s = quick * (scaled_s + 0.0005 * steps * np.log2(2 * n))
            lost = max(0.0, float(np.log2(batch / 512)))
            made.cell(
                dice, repeats, 0.02, 3, "resnet50", model, n, time_s,
                power_w=watt * (batch / 256) ** 0.02 * n**-0.02, energy=True, cpu_w=80.0,
                sm_util=0.95, mem_util=0.6, cv=0.05, metric=0.76 * 0.96**lost,
                global_batch=batch, local_batch=local, dataset_fraction=fraction, hardware=board,
                nodes=-(-n // 4),
            )  # fmt: skip
    return made.done()


def placed(
    seed: int, *, slow: float = 0.25, repeats: int = 3, elsewhere: bool = False
) -> tuple[Made, dict[tuple[int, int, float | None], float]]:
    """Return a study on 8 nodes of 4 GPUs of which ``n3`` may be slower, and the true epoch times.

    18 settings: 4, 8 and 16 GPUs, three batches, with and without a cap. A job is as fast as its
    slowest node; it deviates by a run, a session and its nodes (1, 1 and 2 %). Repeats are on
    the same nodes in one session or, ``elsewhere``, on others of any day. The truth is the mean
    over sets of nodes without ``n3``, in any session.
    """
    dice, made, truth = np.random.default_rng(seed), _Tables(), {}
    of_node = dice.normal(0, 0.02, 8)
    equal = [node for node in range(8) if node != 3]
    of_node[3] += np.log1p(slow)
    model = Model(1000.0, 0.9, 64)
    for gpus, batch, cap in product((4, 8, 16), (32, 64, 128), (None, 200.0)):
        time_s = 1000 / gpus**0.9 * (1 + 3.2 * np.log2(gpus / 2) / batch) * (1.1 if cap else 1.0)
        sets = [dice.choice(equal, gpus // 4, replace=False) for _ in range(200)]
        truth[gpus, batch, cap] = time_s * float(np.exp(np.mean([of_node[s].max() for s in sets])))
        for repeat in range(repeats):
            if elsewhere or not repeat:
                hosts = dice.choice(8, gpus // 4, replace=False)
                day, of_session = int(dice.integers(5)), dice.normal(0, 0.01)
            first = len(made.epochs)
            took_s = time_s * float(np.exp(of_node[hosts].max() + of_session))
            made.cell(
                dice, 1, 0.01, 2, "job", model, gpus, took_s, power_w=240.0 if cap else 300.0,
                sm_util=0.9, mem_util=0.5, cv=0.1, energy=True, power_limit_w=cap,
                global_batch=batch * gpus, local_batch=batch, hardware="A100", nodes=gpus // 4,
            )  # fmt: skip
            made.runs[-1]["repeat"] = repeat
            windows = made.epochs[first:]
            of_hosts = {"start_ns": day * 86_400 * 10**9}
            energy = [window.get("gpu_energy_j") for window in windows]
            made.epochs[first:] = [
                {**window, **of_hosts, "host": f"n{host}", "gpu_energy_j": joules / len(hosts),
                 "samples": SAMPLES // len(hosts)}
                for window, joules in zip(windows, energy, strict=True) for host in hosts
            ]  # fmt: skip
    return made.done(), truth


class _Tables:
    def __init__(self) -> None:
        self.runs: list[dict[str, object]] = []
        self.epochs: list[dict[str, object]] = []
        self.joint: list[dict[str, object]] = []

    def cell(
        self, dice: np.random.Generator, repeats: int, noise: float, epochs: int, name: str,
        model: Model, gpus: int, time_s: float, *, power_w: float, sm_util: float,
        mem_util: float, cv: float, energy: bool, cpu_w: float | None = None,
        metric: float | None = None, **setting: object,
    ) -> None:  # fmt: skip
        fraction = float(setting.get("dataset_fraction", 1.0))  # type: ignore[arg-type]
        for repeat in range(repeats):
            run_id = f"{len(self.runs):016x}"
            took_s = time_s * float(np.exp(dice.normal(0, noise)))
            watts = power_w * float(np.exp(dice.normal(0, noise / 2)))
            sm, memory = (
                share * float(np.exp(dice.normal(0, noise))) for share in (sm_util, mem_util)
            )
            start = len(self.runs) * 10**12
            self.runs.append(
                run_row(
                    run_id, workload=name, gpus=gpus, repeat=repeat, metric_name=model.metric,
                    **setting,
                )
            )  # fmt: skip
            for epoch in range(epochs):
                window: dict[str, object] = {
                    "duration_s": took_s, "warmup": epoch == 0, "start_ns": start,
                    "samples": int(SAMPLES * fraction),
                    "steps": int(SAMPLES * fraction / int(setting["global_batch"])),  # type: ignore[call-overload]
                    "sm_util_mean": sm, "sm_util_cv": cv, "mem_util_mean": memory,
                    "mem_util_cv": 1.5 * cv, "sm_clock_mean_mhz": 1380.0,
                }  # fmt: skip
                if energy:
                    window |= {
                        "gpu_energy_j": watts * gpus * took_s, "gpu_power_mean_w": watts,
                        "energy_source": "counter", "energy_verdict": "ok",
                    }  # fmt: skip
                    if cpu_w is not None:
                        window["cpu_energy_j"] = cpu_w * gpus * took_s
                start += int(took_s * 1e9)
                self.epochs.append(window_row(run_id, epoch, **window))
                if metric is not None:
                    judged = metric * float(np.exp(dice.normal(0, 0.003)))
                    self.epochs.append(
                        window_row(run_id, epoch, phase="evaluate", duration_s=took_s / 20,
                                   start_ns=start, metric=judged, loss=1.0)
                    )  # fmt: skip
                    start += int(took_s / 20 * 1e9)
            counts, _, _ = np.histogram2d(
                np.clip(dice.normal(sm, cv * sm, 300), 0, 1),
                np.clip(dice.normal(memory, 1.5 * cv * memory, 300), 0, 1),
                bins=20,
                range=[[0, 1], [0, 1]],
            )
            self.joint += [
                {"run_id": run_id, "sm_bin": int(i), "mem_bin": int(j), "samples": counts[i, j]}
                for i, j in np.argwhere(counts > 0)
            ]

    def done(self) -> Made:
        runs, epochs = frames(self.runs, self.epochs)
        return Made(runs, epochs, pd.DataFrame(self.joint).astype({"samples": int}))


def coverage(
    noise: float, settings: int, repeats: int, noisier: float = 1.0, count: int = 1000
) -> tuple[float, float]:
    """Return the share of intervals with the time on another day: of the first setting, of others.

    The first setting is ``noisier``. Settings run on one machine in one session, which deviates as
    public repeats do.
    """
    dice, found = np.random.default_rng(0), []
    sds = noise * np.array([noisier, *[1.0] * (settings - 1)])
    setting = pd.Series(np.repeat(range(settings), repeats))
    place = {"hosts": "a", "session": 0, "slow_log": 0.0, "launcher": "local", "nodes": 1}
    rows = pd.DataFrame(place, index=setting.index)
    sd, freedom = PRIOR["session"]
    for _ in range(count):
        day = sd * dice.standard_t(freedom)
        logs = day + sds[:, None] * dice.standard_normal((settings, repeats))
        own = variation(pd.Series(np.exp(logs.ravel())), setting, rows)
        found.append(np.abs(logs.mean(1)) <= own.half)
    shares = np.mean(found, axis=0)
    return float(shares[0]), float(shares[1:].mean())
