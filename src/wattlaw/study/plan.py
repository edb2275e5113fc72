"""From a study to the runs it asks for: sweeps expanded, duplicates merged, order drawn."""

import contextlib
import gc
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import NamedTuple

from wattlaw.errors import BadInput
from wattlaw.study.identity import around_setting, digest, encoded
from wattlaw.study.model import Measure, RunSpec, Setting, Study, Sweep, Train, WorkloadSpec
from wattlaw.study.rules import evaluate_fraction

MAX_RUNS = 200_000


class _Shared(NamedTuple):
    """What all runs of a workload in a sweep have in common."""

    workload: WorkloadSpec
    measure: Measure
    train: Train
    launch_kind: str
    hardware: str | None


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run and the identity under which a store keeps it."""

    run_id: str
    setting: Setting
    nodes: int
    repeat: int
    shared: _Shared

    @property
    def spec(self) -> RunSpec:
        """Return what the run is asked to be. A plan of 200,000 runs does not keep them."""
        shared = self.shared
        return RunSpec.from_valid(  # in the order of the fields, in which it is written
            workload=shared.workload, setting=self.setting, repeat=self.repeat,
            measure=shared.measure, train=shared.train, launch_kind=shared.launch_kind,
            hardware=shared.hardware, nodes=self.nodes,
        )  # fmt: skip


class _Grid(NamedTuple):
    """A sweep that is expanded: how its runs are measured, and its settings.

    Each setting comes with its node count and its canonical JSON.
    """

    measure: Measure
    points: list[tuple[Setting, int, str]]


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from going through a million new objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_collector_paused()
def expand(study: Study) -> list[PlannedRun]:
    """Return the distinct runs of a study, in the order in which they are to run.

    Repeats of random order are mixed over the whole study, so that drift of the machine does not
    hide in one setting. The order depends on ``order_seed`` alone.

    Raises
    ------
    BadInput
        The study asks for more than ``MAX_RUNS`` runs.
    """
    asked = study.repeats * _points_of_workloads(study)
    if asked > MAX_RUNS:
        raise BadInput(f"sweeps: given {asked:,} runs; allowed: at most {MAX_RUNS:,} in one study")
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


def _nodes(study: Study, setting: Setting) -> int:
    """Return how many machines a setting takes; the local launcher has one, whatever its size."""
    per_node = study.launch.gpus_per_node
    if study.launch.kind == "local" or per_node is None:
        return 1
    return ceil(setting.gpus / per_node)


def _points_of_workloads(study: Study) -> int:
    """Return how many points the sweeps have for all workloads, counted without expanding one."""
    of_all = sum(_points(sweep) for sweep in study.sweeps if sweep.workloads is None)
    of_name: Counter[str] = Counter()
    for sweep in study.sweeps:
        for name in {*(sweep.workloads or ())}:
            of_name[name] += _points(sweep)
    return sum(of_all + of_name[workload.name] for workload in study.workloads)


def _grids(study: Study) -> dict[str, list[_Grid]]:
    """Return the expanded sweeps of each workload, by name, in the order of the file."""
    grids: dict[str, list[_Grid]] = {workload.name: [] for workload in study.workloads}
    for sweep in study.sweeps:
        epochs = sweep.epochs or study.measure.epochs
        measure = study.measure.model_copy(update={"epochs": epochs})
        points = [(one, _nodes(study, one), encoded(one)) for one in _settings(sweep)]
        for name in grids if sweep.workloads is None else {*sweep.workloads}:
            grids[name].append(_Grid(measure, points))
    return grids


def _points(sweep: Sweep) -> int:
    lists = (
        sweep.gpus, sweep.local_batch or sweep.global_batch or (), sweep.power_limit_w,
        sweep.clock_limit_mhz, sweep.precision, sweep.dataset_fraction,
    )  # fmt: skip
    return prod(len(values) for values in lists)


def _settings(sweep: Sweep) -> Iterator[Setting]:
    rule = "local" if sweep.local_batch else "global"
    for batch, gpus, power, clock, precision, fraction in itertools.product(
        sweep.local_batch or sweep.global_batch or (), sweep.gpus, sweep.power_limit_w,
        sweep.clock_limit_mhz, sweep.precision, sweep.dataset_fraction,
    ):  # fmt: skip
        yield Setting.from_valid(
            gpus=gpus,
            global_batch=batch * gpus if rule == "local" else batch,
            local_batch=batch if rule == "local" else batch // gpus,
            power_limit_w=power,
            clock_limit_mhz=clock,
            precision=precision,
            dataset_fraction=evaluate_fraction(fraction, gpus),
        )
