"""Reads a study file and expands it: sweeps multiplied out, duplicates merged, order shuffled."""

import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.files import read_input, read_text
from wattlaw.common.text import quote
from wattlaw.study.base_model import LocatedError
from wattlaw.study.document import read_document, with_values
from wattlaw.study.model import RunSpec, Study, WorkloadSpec, run_id
from wattlaw.study.network import Network
from wattlaw.study.setting import LAYOUT, MODEL_SIZES, Setting
from wattlaw.study.sweep import Sweep, evaluate_fraction

MAX_RUNS = 20_000
_MAX_CONFIG_BYTES = 2**20
_SWEPT = (
    "power_limit_w", "clock_limit_mhz", "power_profile", "precision", "dataset_fraction", *LAYOUT,
)  # fmt: skip


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
    if not os.path.lexists(path):
        name = str(path) if str(path).isprintable() else quote(path)
        raise BadInput(
            f"{name}: no such file; 'wattlaw init -- COMMAND' writes a study of your command, "
            "'wattlaw examples' lists others"
        )

    def prepare(data: dict[str, Any]) -> dict[str, Any]:
        return _with_networks(_with_text_keys(data), path.parent)

    return read_document(path, Study, prepare)


def standalone_text(path: Path, study: Study) -> str:
    """Return the text of a study's file with the sizes of networks in place of other files."""
    models = {index: item.model for index, item in enumerate(study.workloads) if item.model}
    values = {index: model.model_dump(exclude_defaults=True) for index, model in models.items()}
    return with_values(
        read_text(path), {("workloads", index, "model"): value for index, value in values.items()}
    )


def _with_networks(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Replace each file that ``model`` names, alone or as ``config``, by the sizes in it."""
    workloads = data.get("workloads")
    for index, workload in enumerate(workloads if isinstance(workloads, list) else ()):
        model = workload.get("model") if isinstance(workload, dict) else None
        model = {"config": model} if isinstance(model, str) else model
        if not isinstance(model, dict) or not isinstance(model.get("config"), str):
            continue
        own = {key: value for key, value in model.items() if key != "config"}
        try:
            workload["model"] = _network(folder / model["config"], own.get("sequence")) | own
        except BadInput as error:
            raise LocatedError(str(error), "workloads", index, "model") from None
    return data


def _network(path: Path, sequence: object) -> dict[str, Any]:
    try:
        config = json.loads(read_input(path, _MAX_CONFIG_BYTES))
    except (ValueError, RecursionError):
        raise BadInput(f"{path}: not JSON; allowed: the config.json of a transformer") from None
    if not isinstance(config, dict):
        raise BadInput(f"{path}: not a JSON object; allowed: the config.json of a transformer")
    try:
        network = Network.of_config(config, sequence if isinstance(sequence, int) else None)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return network.model_dump(exclude_defaults=True)


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
    count = study.repeats * sum(
        prod(map(len, (*_axes(sweep).values(), sweep.nodes or (None,))))
        * len(_workloads_of(sweep, study))
        for sweep in study.sweeps
    )
    if count > MAX_RUNS:
        raise BadInput(f"sweeps: given {count:,} runs; allowed: at most {MAX_RUNS:,} in one study")

    grids: dict[str, list[dict[str, Any]]] = {workload.name: [] for workload in study.workloads}
    for sweep in study.sweeps:
        epochs = sweep.epochs or study.measure.epochs
        measure = study.measure.model_copy(update={"epochs": epochs})
        points_of_sweep = [
            {"setting": point[0], "nodes": point[1], "measure": measure}
            for point in _points(study, sweep) if not isinstance(point, str)
        ]  # fmt: skip
        for name in grids if sweep.workloads is None else {*sweep.workloads}:
            grids[name] += points_of_sweep
    runs: dict[str, PlannedRun] = {}
    for repeat, workload in itertools.product(range(study.repeats), study.workloads):
        for point in grids[workload.name]:
            if workload.model is not None and unfit(point["setting"], workload.model):
                continue
            spec = RunSpec(
                workload=workload, repeat=repeat, train=study.train,
                launch_kind=study.launch.kind, hardware=study.launch.hardware, **point,
            )  # fmt: skip
            planned = PlannedRun(run_id(spec), spec)
            runs.setdefault(planned.run_id, planned)
    ordered = list(runs.values())
    if not ordered:
        reasons = "; ".join(impossible(study)) or "no run"
        raise BadInput(f"sweeps: no layout can exist ({reasons}); allowed: one or more that can")
    if study.order == "random":
        random.Random(study.order_seed).shuffle(ordered)  # noqa: S311 - an order, not a secret
    return ordered


def impossible(study: Study) -> Counter[str]:
    """Return how many settings of the sweeps cannot exist, by the reason."""
    count = Counter[str]()
    for sweep in study.sweeps:
        of_sweep = _workloads_of(sweep, study)
        for point in _points(study, sweep):
            if isinstance(point, str):
                count[point] += len(of_sweep)
                continue
            faults = [unfit(point[0], item.model) for item in of_sweep if item.model is not None]
            count.update(fault for fault in faults if fault)
    return count


def _workloads_of(sweep: Sweep, study: Study) -> list[WorkloadSpec]:
    names = sweep.workloads
    return [item for item in study.workloads if names is None or item.name in names]


def unfit(setting: Setting, network: Network) -> str | None:
    """Return why a network cannot have a layout, or None."""
    kv_heads = network.kv_heads or network.heads
    faults = (
        (network.heads % setting.tp > 0, "tp does not divide the heads"),
        (min(kv_heads % setting.tp, setting.tp % kv_heads) > 0, "tp does not divide the kv_heads"),
        (network.layers < setting.pp * setting.virtual_stages,
         "pp x virtual_stages is above the layers"),
        (network.sequence % setting.cp > 0, "cp does not divide the sequence"),
        ((network.experts or 1) % setting.ep > 0, "ep does not divide the experts"),
    )  # fmt: skip
    return next((text for applies, text in faults if applies), None)


def _points(study: Study, sweep: Sweep) -> Iterator[tuple[Setting, int] | str]:
    """Yield each setting of a sweep with its nodes, or why it cannot exist."""
    per_node = None if study.launch.kind == "local" else study.launch.gpus_per_node
    names = list(_axes(sweep))
    for values in itertools.product(*_axes(sweep).values()):
        given = dict(zip(names, values, strict=True))
        batch, gpus, micro = given.pop("batch"), given["gpus"], given.pop("micro_batch")
        given["dataset_fraction"] = evaluate_fraction(given["dataset_fraction"], gpus)
        shared_by = given["emulated_gpus"] or gpus
        local = batch if sweep.local_batch else batch / shared_by
        given["local_batch"] = int(local) if local == int(local) else local
        try:
            setting = Setting(**given)
            if micro is not None:
                setting = setting.in_micro_batches(micro)
        except BadInput as error:
            if not sweep.has_layouts:
                raise
            yield _indivisible(given, str(error))
            continue
        if (setting.global_batch or 0) % (setting.dp * setting.gradient_accumulation):
            yield "the global batch is no multiple of dp x micro_batch"
            continue
        for nodes in sweep.nodes or (1 if per_node is None else ceil(gpus / per_node),):
            yield setting, nodes


def _indivisible(given: Mapping[str, Any], error: str) -> str:
    """Return which sizes of a layout do not divide what they share."""
    sizes = [(name, given[name]) for name in MODEL_SIZES if given[name] > 1]
    copies, rest = divmod(given["gpus"], prod(size for _, size in sizes))
    if rest:
        return f"{' x '.join(f'{name} {size}' for name, size in sizes)} does not divide the GPUs"
    if copies * given["cp"] % given["ep"]:
        return f"ep {given['ep']} does not divide dp x cp"
    return error.partition("; allowed")[0]


def _axes(sweep: Sweep) -> dict[str, Sequence[Any]]:
    """Return the values of each name of ``Setting``, of the batch and of the micro-batch."""
    return {
        "batch": sweep.local_batch or sweep.global_batch or (), "gpus": sweep.gpus,
        **{name: getattr(sweep, name) for name in _SWEPT},
        "emulated_gpus": (None,) if sweep.emulate is None else sweep.emulate.gpus,
        "micro_batch": sweep.micro_batch or (None,),
    }  # fmt: skip
