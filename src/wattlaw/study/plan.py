"""Reads a study file and expands it: sweeps multiplied out, duplicates merged, order shuffled."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

from wattlaw.common.errors import BadInput
from wattlaw.study.document import read_document
from wattlaw.study.identity import run_id
from wattlaw.study.model import Measure, RunSpec, Study
from wattlaw.study.setting import Setting
from wattlaw.study.sweep import Sweep, evaluate_fraction

MAX_RUNS = 20_000


class PlannedRun(NamedTuple):
    """A run and its id in a store."""

    run_id: str
    spec: RunSpec

    @property
    def setting(self) -> Setting:
        return self.spec.setting


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
    grids: dict[str, list[tuple[Sweep, Measure, list[Setting]]]]
    grids = {workload.name: [] for workload in study.workloads}
    for sweep in study.sweeps:
        epochs = sweep.epochs or study.measure.epochs
        measure = study.measure.model_copy(update={"epochs": epochs})
        settings = list(_settings(sweep))
        for name in grids if sweep.workloads is None else {*sweep.workloads}:
            grids[name].append((sweep, measure, settings))
    runs: dict[str, PlannedRun] = {}
    for repeat, workload in itertools.product(range(study.repeats), study.workloads):
        for sweep, measure, settings in grids[workload.name]:
            for setting in settings:
                for nodes in _nodes(study, sweep, setting):
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


def _nodes(study: Study, sweep: Sweep, setting: Setting) -> tuple[int, ...]:
    """Return the numbers of nodes on which a setting runs; without a sweep of them, the least."""
    if sweep.nodes is not None:
        return sweep.nodes
    per_node = study.launch.gpus_per_node
    if study.launch.kind == "local" or per_node is None:
        return (1,)
    return (ceil(setting.gpus / per_node),)


def _points_of_workloads(study: Study) -> int:
    """Return the number of points of all sweeps and workloads, without expanding them."""
    shared = sum(_points(sweep) for sweep in study.sweeps if sweep.workloads is None)
    by_name: Counter[str] = Counter()
    for sweep in study.sweeps:
        for name in {*(sweep.workloads or ())}:
            by_name[name] += _points(sweep)
    return sum(shared + by_name[workload.name] for workload in study.workloads)


def _lists(sweep: Sweep) -> tuple[tuple[Any, ...], ...]:
    """Return the lists whose combinations are settings, the batch sizes first."""
    return (
        sweep.local_batch or sweep.global_batch or (),
        sweep.gpus,
        sweep.power_limit_w,
        sweep.clock_limit_mhz,
        sweep.power_profile,
        sweep.precision,
        sweep.dataset_fraction,
        (None,) if sweep.emulate is None else sweep.emulate.gpus,
    )


def _points(sweep: Sweep) -> int:
    return prod(len(values) for values in (*_lists(sweep), sweep.nodes or (None,)))


def _settings(sweep: Sweep) -> Iterator[Setting]:
    for batch, gpus, power, clock, profile, precision, fraction, emulated in itertools.product(
        *_lists(sweep)
    ):
        local_batch = batch if sweep.local_batch else batch // (emulated or gpus)
        yield Setting(
            gpus,
            local_batch=local_batch,
            power_limit_w=power,
            clock_limit_mhz=clock,
            power_profile=profile,
            precision=precision,
            dataset_fraction=evaluate_fraction(fraction, gpus),
            emulated_gpus=emulated,
        )
