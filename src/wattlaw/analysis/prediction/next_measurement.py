"""The single measurement that would narrow predictions most."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattlaw.analysis.prediction.posterior import Posterior
from wattlaw.analysis.prediction.results import NextMeasurement
from wattlaw.analysis.prediction.settings import TrainingSetting


def next_measurement(
    posterior: Posterior, settings: Sequence[TrainingSetting]
) -> list[NextMeasurement | None]:
    """Return, for each setting, the candidate whose measurement narrows its interval most.

    The variance that remains is (1 - rho^2) of the present one, with rho the correlation of the log
    times of future runs of both settings over the posterior's draws (linear regression). None if
    no candidate narrows it by 5 %.
    """
    options = _candidates(posterior, settings)
    if not options:
        return [None] * len(settings)
    targets = np.log(posterior.runs(settings)[1])
    # Another seed: the noise of the measurement is not that of the predicted run.
    measured = np.log(replace(posterior, seed=posterior.seed + 1).runs(options)[1])
    targets = (targets - targets.mean(0)) / targets.std(0)
    measured = (measured - measured.mean(0)) / measured.std(0)
    correlation = targets.T @ measured / targets.shape[0]
    ratios = np.sqrt(np.maximum(0.0, 1 - correlation**2))
    measurements: list[NextMeasurement | None] = []
    for setting, row in zip(settings, ratios, strict=True):
        order = [index for index in np.argsort(row, kind="stable") if options[index] != setting]
        best = int(order[0]) if order else -1
        is_useful = best >= 0 and row[best] < 0.95
        measurements.append(NextMeasurement(options[best], float(row[best])) if is_useful else None)
    return measurements


def _candidates(posterior: Posterior, settings: Sequence[TrainingSetting]) -> list[TrainingSetting]:
    """Return settings no larger than needed: one change of a measured setting at a time."""
    seen = {item.setting for item in posterior.observations}
    largest = max(seen, key=lambda item: item.gpus)
    most = max(item.gpus for item in settings)
    node = max((max(item.gpus_per_node or (1,)) for item in (*seen, *settings)), default=1)
    candidates: dict[TrainingSetting, None] = {}

    def add(base: TrainingSetting, gpus: int, nodes: int | None = None) -> None:
        placement = None if base.gpus_per_node is None else (1,) * gpus
        if placement and nodes is None:
            placement = TrainingSetting.packed(gpus, node).gpus_per_node
        candidates[replace(base, gpus=gpus, nodes=None, gpus_per_node=placement)] = None

    if most > 1:
        add(largest, 2)
        add(largest, 2, 2)
    for factor in (2, 4):
        if largest.gpus * factor < most:
            add(largest, largest.gpus * factor)
    for target in settings:  # the target's batch or limit on the largest measured placement
        changed = replace(
            largest, local_batch=target.local_batch, precision=target.precision,
            power_limit_w=target.power_limit_w, clock_limit_mhz=target.clock_limit_mhz,
            gradient_accumulation=target.gradient_accumulation,
        )  # fmt: skip
        candidates[changed] = None
    return [item for item in candidates if item not in seen]
