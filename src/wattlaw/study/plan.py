"""Reads a study file and expands it: sweeps multiplied out, duplicates merged, order shuffled."""

import contextlib
import gc
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

from wattlaw.common.errors import BadInput
from wattlaw.study.document import read_document
from wattlaw.study.identity import around_setting, digest, encode_setting
from wattlaw.study.model import Measure, RunSpec, Study, Train, WorkloadSpec
from wattlaw.study.setting import Setting
from wattlaw.study.sweep import Sweep, evaluate_fraction

MAX_RUNS = 200_000


class _Shared(NamedTuple):
    """What all runs of a workload in a sweep share."""

    workload: WorkloadSpec
    measure: Measure
    train: Train
    launch_kind: str
    hardware: str | None


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run and its id in a store."""

    run_id: str
    setting: Setting
    nodes: int
    repeat: int
    shared: _Shared

    @property
    def spec(self) -> RunSpec:
        """Return the specification; made on demand, since a plan may have 200,000 runs."""
        shared = self.shared
        return RunSpec.from_valid(  # in the order of the fields, which is that of its JSON
            workload=shared.workload, setting=self.setting, repeat=self.repeat,
            measure=shared.measure, train=shared.train, launch_kind=shared.launch_kind,
            hardware=shared.hardware, nodes=self.nodes,
        )  # fmt: skip


class _Grid(NamedTuple):
    """How runs are measured, and their settings, each with nodes and canonical JSON."""

    measure: Measure
    points: list[tuple[Setting, int, str]]


def read_study(path: Path) -> Study:
    """Read and validate a study file; ``BadInput`` names the file, the line and the key."""
    return read_document(path, Study, "study file")


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would repeatedly scan a million new objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_collector_paused()
def expand(study: Study) -> list[PlannedRun]:
    """Return the distinct runs of a study, in their order of execution.

    A random order mixes the repeats over the study, so that a drift of the machine does not affect
    one setting alone. The order depends only on ``order_seed``. More than ``MAX_RUNS`` runs are
    ``BadInput``.
    """
    count = study.repeats * _points_of_workloads(study)
    if count > MAX_RUNS:
        raise BadInput(f"sweeps: given {count:,} runs; allowed: at most {MAX_RUNS:,} in one study")
    grids = _grids(study)
    runs: dict[str, PlannedRun] = {}
    for repeat, workload in itertools.product(range(study.repeats), study.workloads):
        for grid in grids[workload.name]:
            shared = _Shared(
                workload, grid.measure, study.train, study.launch.kind, study.launch.hardware
            )
            around: dict[int, tuple[str, str]] = {}
            for setting, nodes, text in grid.points:
                if nodes not in around:
                    spec = PlannedRun("", setting, nodes, repeat, shared).spec
                    around[nodes] = around_setting(spec)
                before, after = around[nodes]
                run_id = digest(before + text + after)
                if run_id not in runs:
                    runs[run_id] = PlannedRun(run_id, setting, nodes, repeat, shared)
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


def _grids(study: Study) -> dict[str, list[_Grid]]:
    """Return the expanded sweeps of each workload, by name, in the order of the file."""
    grids: dict[str, list[_Grid]] = {workload.name: [] for workload in study.workloads}
    for sweep in study.sweeps:
        epochs = sweep.epochs or study.measure.epochs
        measure = study.measure.model_copy(update={"epochs": epochs})
        points = [
            (setting, nodes, text)
            for setting in _settings(sweep)
            for text in (encode_setting(setting),)
            for nodes in _nodes(study, sweep, setting)
        ]
        for name in grids if sweep.workloads is None else {*sweep.workloads}:
            grids[name].append(_Grid(measure, points))
    return grids


def _lists(sweep: Sweep) -> tuple[tuple[Any, ...], ...]:
    """Return the lists whose combinations are settings, the batch sizes first."""
    return (
        sweep.local_batch or sweep.global_batch or (), sweep.gpus, sweep.power_limit_w,
        sweep.clock_limit_mhz, sweep.power_profile, sweep.precision, sweep.dataset_fraction,
        (None,) if sweep.emulate is None else sweep.emulate.gpus,
    )  # fmt: skip


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
