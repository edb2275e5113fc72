"""Reads a study file and expands it: sweeps multiplied out, duplicates merged, order shuffled."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.study.document import read_document
from wattlaw.study.identity import run_id
from wattlaw.study.model import RunSpec, Study
from wattlaw.study.setting import Setting
from wattlaw.study.sweep import Sweep, evaluate_fraction

MAX_RUNS = 20_000


@dataclass(frozen=True, slots=True)
class PlannedRun:
    run_id: str
    spec: RunSpec

    @property
    def setting(self) -> Setting:
        return self.spec.setting

    @property
    def nodes(self) -> int:
        return self.spec.nodes


def read_study(path: Path) -> Study:
    return read_document(path, Study, _with_text_keys)


def _with_text_keys(data: dict[str, Any]) -> dict[str, Any]:
    """Return a study in which the batches of ``decide.epochs_by_batch`` are texts, as in JSON."""
    decide = data.get("decide")
    if isinstance(decide, dict) and isinstance(decide.get("epochs_by_batch"), dict):
        epochs = decide["epochs_by_batch"].items()
        decide["epochs_by_batch"] = {
            str(batch) if type(batch) is int else batch: value for batch, value in epochs
        }
    return data


def expand(study: Study) -> list[PlannedRun]:
    """Return the distinct runs of a study, in their order of execution.

    A random order mixes the repeats over the study, so that a drift of the machine does not affect
    one setting alone. The order depends only on ``order_seed``. More than ``MAX_RUNS`` runs are
    ``BadInput``.
    """
    # The points of each workload, without expanding them.
    for_all, by_name = 0, Counter[str]()
    for sweep in study.sweeps:
        points = prod(map(len, (*_lists(sweep), sweep.nodes or (None,))))
        if sweep.workloads is None:
            for_all += points
        else:
            by_name.update(dict.fromkeys(sweep.workloads, points))
    count = study.repeats * sum(for_all + by_name[workload.name] for workload in study.workloads)
    if count > MAX_RUNS:
        raise BadInput(f"sweeps: given {count:,} runs; allowed: at most {MAX_RUNS:,} in one study")

    grids: dict[str, list[dict[str, Any]]] = {workload.name: [] for workload in study.workloads}
    for sweep in study.sweeps:
        epochs = sweep.epochs or study.measure.epochs
        measure = study.measure.model_copy(update={"epochs": epochs})
        points_of_sweep = [
            {"setting": setting, "nodes": nodes, "measure": measure}
            for setting, nodes in _settings(study, sweep)
        ]
        for name in grids if sweep.workloads is None else {*sweep.workloads}:
            grids[name] += points_of_sweep
    runs: dict[str, PlannedRun] = {}
    for repeat, workload in itertools.product(range(study.repeats), study.workloads):
        for point in grids[workload.name]:
            spec = RunSpec(
                workload=workload, repeat=repeat, train=study.train,
                launch_kind=study.launch.kind, hardware=study.launch.hardware, **point,
            )  # fmt: skip
            planned = PlannedRun(run_id(spec), spec)
            runs.setdefault(planned.run_id, planned)
    ordered = list(runs.values())
    if study.order == "random":
        random.Random(study.order_seed).shuffle(ordered)  # noqa: S311 - an order, not a secret
    return ordered


def _lists(sweep: Sweep) -> tuple[tuple[Any, ...], ...]:
    return (
        sweep.local_batch or sweep.global_batch or (), sweep.gpus, sweep.power_limit_w,
        sweep.clock_limit_mhz, sweep.power_profile, sweep.precision, sweep.dataset_fraction,
        (None,) if sweep.emulate is None else sweep.emulate.gpus,
    )  # fmt: skip


def _settings(study: Study, sweep: Sweep) -> Iterator[tuple[Setting, int]]:
    per_node = None if study.launch.kind == "local" else study.launch.gpus_per_node
    for batch, gpus, power, clock, profile, precision, fraction, emulated in itertools.product(
        *_lists(sweep)
    ):
        setting = Setting(
            gpus,
            local_batch=batch if sweep.local_batch else batch // (emulated or gpus),
            power_limit_w=power,
            clock_limit_mhz=clock,
            power_profile=profile,
            precision=precision,
            dataset_fraction=evaluate_fraction(fraction, gpus),
            emulated_gpus=emulated,
        )
        for nodes in sweep.nodes or (1 if per_node is None else ceil(gpus / per_node),):
            yield setting, nodes
