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
from wattlaw.study.model import Measure, RunSpec, Study
from wattlaw.study.setting import Setting
from wattlaw.study.sweep import Sweep, evaluate_fraction

MAX_RUNS = 20_000
#: How runs are measured, and the settings of a sweep with their nodes.
_Grid = tuple[Measure, list[tuple[Setting, int]]]


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
    """Read and validate a study file; ``BadInput`` names the file, the line and the key."""
    return read_document(path, Study, "study file")


def expand(study: Study) -> list[PlannedRun]:
    """Return the distinct runs of a study, in their order of execution.

    A random order mixes the repeats over the study, so that a drift of the machine does not affect
    one setting alone. The order depends only on ``order_seed``. More than ``MAX_RUNS`` runs are
    ``BadInput``.
    """
    count = study.repeats * _points_of_workloads(study)
    if count > MAX_RUNS:
        raise BadInput(f"sweeps: given {count:,} runs; allowed: at most {MAX_RUNS:,} in one study")
    grids: dict[str, list[_Grid]] = {workload.name: [] for workload in study.workloads}
    for sweep in study.sweeps:
        epochs = sweep.epochs or study.measure.epochs
        measure = study.measure.model_copy(update={"epochs": epochs})
        settings = list(_settings(study, sweep))
        for name in grids if sweep.workloads is None else {*sweep.workloads}:
            grids[name].append((measure, settings))
    runs: dict[str, PlannedRun] = {}
    for repeat, workload in itertools.product(range(study.repeats), study.workloads):
        for measure, settings in grids[workload.name]:
            for setting, nodes in settings:
                spec = RunSpec(
                    workload=workload,
                    setting=setting,
                    repeat=repeat,
                    measure=measure,
                    train=study.train,
                    launch_kind=study.launch.kind,
                    hardware=study.launch.hardware,
                    nodes=nodes,
                )
                planned = PlannedRun(run_id(spec), spec)
                runs.setdefault(planned.run_id, planned)
    ordered = list(runs.values())
    if study.order == "random":
        random.Random(study.order_seed).shuffle(ordered)  # noqa: S311 - an order, not a secret
    return ordered


def _points_of_workloads(study: Study) -> int:
    """Return the number of points of all sweeps and workloads, without expanding them."""
    for_all, by_name = 0, Counter[str]()
    for sweep in study.sweeps:
        points = prod(len(values) for values in (*_lists(sweep), sweep.nodes or (None,)))
        if sweep.workloads is None:
            for_all += points
        else:
            by_name.update(dict.fromkeys(sweep.workloads, points))
    return sum(for_all + by_name[workload.name] for workload in study.workloads)


def _lists(sweep: Sweep) -> tuple[tuple[Any, ...], ...]:
    """Return the lists whose combinations are settings, the batch sizes first."""
    return (
        sweep.local_batch or sweep.global_batch or (), sweep.gpus, sweep.power_limit_w,
        sweep.clock_limit_mhz, sweep.power_profile, sweep.precision, sweep.dataset_fraction,
        (None,) if sweep.emulate is None else sweep.emulate.gpus,
    )  # fmt: skip


def _settings(study: Study, sweep: Sweep) -> Iterator[tuple[Setting, int]]:
    """Yield the settings of a sweep with their nodes: those of the sweep, else the fewest."""
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
