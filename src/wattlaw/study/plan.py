"""From a study to the runs it asks for: sweeps expanded, duplicates merged, order drawn."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from wattlaw.errors import BadInput
from wattlaw.study.identity import run_id
from wattlaw.study.model import RunSpec, Setting, Study, Sweep, WorkloadSpec
from wattlaw.study.rules import fraction_of

MAX_RUNS = 200_000


@dataclass(frozen=True)
class PlannedRun:
    """A run and the identity under which a store keeps it."""

    run_id: str
    spec: RunSpec


def expand(study: Study) -> list[PlannedRun]:
    """Return the distinct runs of a study, in the order in which they are to run.

    Repeats of random order are mixed over the whole study, so that drift of the machine does not
    hide in one setting. The order depends on ``order_seed`` alone.

    Raises
    ------
    BadInput
        The study asks for more than ``MAX_RUNS`` runs.
    """
    asked = study.repeats * sum(
        _points(sweep) for workload in study.workloads for sweep in _sweeps(study, workload)
    )
    if asked > MAX_RUNS:
        raise BadInput(f"sweeps: given {asked:,} runs; allowed: at most {MAX_RUNS:,} in one study")
    runs: dict[str, PlannedRun] = {}
    for repeat, workload in itertools.product(range(study.repeats), study.workloads):
        points = ((sweep, one) for sweep in _sweeps(study, workload) for one in _settings(sweep))
        for sweep, setting in points:
            epochs = sweep.epochs or study.measure.epochs
            spec = RunSpec(
                workload=workload,
                setting=setting,
                repeat=repeat,
                measure=study.measure.model_copy(update={"epochs": epochs}),
                train=study.train,
                launch_kind=study.launch.kind,
                hardware=study.launch.hardware,
                nodes=_nodes(study, setting),
            )
            identity = run_id(spec)
            runs.setdefault(identity, PlannedRun(identity, spec))
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


def _sweeps(study: Study, workload: WorkloadSpec) -> list[Sweep]:
    """Return the grids that are for a workload."""
    return [sweep for sweep in study.sweeps if sweep.is_for(workload.name)]


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
        yield Setting(
            gpus=gpus,
            global_batch=batch * gpus if rule == "local" else batch,
            local_batch=batch if rule == "local" else batch // gpus,
            power_limit_w=power,
            clock_limit_mhz=clock,
            precision=precision,
            dataset_fraction=fraction_of(fraction, gpus),
        )
