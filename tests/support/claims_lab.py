"""Small stores of known truth, for tests of claims: laws plus noise, from seeds."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from made_tables import frames, run_row, window_row
from wattlaw.analysis.laws.batch_effects import quality_by_batch
from wattlaw.analysis.laws.series import scaling_series
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.common.scopes import OUTERMOST
from wattlaw.study.footprint import Footprint
from wattlaw_papers.claims.verdicts import Measurements

COUNTS = (2, 4, 8, 16, 32, 64, 128)
SAMPLES = 1_000_000
Of = Callable[[int], float]


def law(beta: float, alpha_s: float = 1000.0) -> Of:
    return lambda n: alpha_s * n**-beta


@dataclass
class Lab:
    """Runs to be made; each call of ``run`` adds the repeats of one GPU count after the other."""

    dice: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    runs: list[dict[str, object]] = field(default_factory=list)
    epochs: list[dict[str, object]] = field(default_factory=list)

    def run(
        self, workload: str = "resnet50", counts: Sequence[int] = COUNTS, *,
        time_s: Of | None = None, watts: Of | float | None = None,
        host_watts: float | None = None, util: Of | float | None = None,
        cv: Of | float | None = None, metric: float | None = None, metric_name: str = "top1",
        local_batch: int | None = 64, global_batch: int | None = None, grows: bool = False,
        repeats: int = 3, noise: float = 0.005, **setting: object,
    ) -> "Lab":  # fmt: skip
        for n in counts:
            for repeat in range(repeats):
                run_id = f"{len(self.runs):016x}"
                batch = global_batch or (local_batch or 0) * n
                share = n / max(counts) if grows else 1.0
                self.runs.append(
                    run_row(
                        run_id, workload=workload, gpus=n, repeat=repeat, metric_name=metric_name,
                        global_batch=batch, local_batch=max(1, batch // n), dataset_fraction=share,
                        **({"hardware": "V100-32GB"} | setting),
                    )
                )  # fmt: skip
                took_s = self._noisy((time_s or law(0.8))(n), noise)
                samples = int(SAMPLES * share)
                window: dict[str, object] = {"duration_s": took_s, "samples": samples}
                window["steps"] = int(SAMPLES * share / batch)
                if watts is not None:
                    power_w = self._noisy(_at(watts, n), noise / 2)
                    window |= {"gpu_energy_j": power_w * n * took_s, "energy_source": "counter",
                               "energy_verdict": "ok"}  # fmt: skip
                if host_watts is not None:
                    window |= {"cpu_energy_j": 0.9 * host_watts * n * took_s,
                               "dram_energy_j": 0.1 * host_watts * n * took_s}  # fmt: skip
                if util is not None:
                    mean = self._noisy(_at(util, n), noise)
                    window |= {"sm_util_mean": mean, "mem_util_mean": mean}
                if cv is not None:
                    window["sm_util_cv"] = self._noisy(_at(cv, n), noise)
                    window["mem_util_cv"] = self._noisy(_at(cv, n), noise)
                self.epochs.append(window_row(run_id, 0, **window))
                if metric is not None:
                    judged = self._noisy(metric, 0.002)
                    self.epochs.append(window_row(run_id, 0, phase="evaluate", metric=judged))
        return self

    def findings(self, footprint: Footprint | None = None) -> Measurements:
        return Measurements.of(*frames(self.runs, self.epochs), OUTERMOST, footprint=footprint)

    def _noisy(self, value: float, noise: float) -> float:
        return value * math.exp(self.dice.normal(0, noise))


def findings_of(labs: Sequence[Lab], footprint: Footprint) -> Iterator[Measurements]:
    """Yield what is measured in each lab; the metrics of all are computed at once."""
    rows = [(f"{i:03}", lab.runs, lab.epochs) for i, lab in enumerate(labs)]
    runs = [row | {"run_id": lab + row["run_id"]} for lab, of_lab, _ in rows for row in of_lab]
    epochs = [row | {"run_id": lab + row["run_id"]} for lab, _, of_lab in rows for row in of_lab]
    metrics = run_metrics(*frames(runs, epochs), OUTERMOST)
    for _, part in metrics.groupby(metrics["run_id"].str[:3]):
        table = part.reset_index(drop=True)
        yield Measurements(table, scaling_series(table), quality_by_batch(table), footprint)


def _at(value: Of | float, n: int) -> float:
    return value(n) if callable(value) else value


def capped(
    slower: Mapping[float, float], watts: Mapping[float, float] | None = None,
    turns: Mapping[float, float] | None = None, limit: str = "power_limit_w",
    workload: str = "resnet50", noise: float = 0.005,
    counts: Sequence[int] = COUNTS, host_watts: float | None = None,
) -> Lab:  # fmt: skip
    """Return runs without limit and under some: by the limit, a factor of time, watts, and beta."""
    lab = Lab()
    for value in (None, *slower):
        factor = 1.0 if value is None else slower[value]
        turned = 0.8 + (turns or {}).get(value or 0.0, 0.0)
        lab.run(
            workload, counts, time_s=law(turned, 1000.0 * factor),
            watts=(watts or {}).get(value or 0.0, 200.0), noise=noise,
            host_watts=host_watts,
            **{limit: value},
        )  # fmt: skip
    return lab
