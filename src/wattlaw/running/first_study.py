"""The first study of a script, from what one short run of it has shown and from the machine."""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import yaml

from wattlaw.common.errors import BadInput
from wattlaw.common.files import read_bytes
from wattlaw.common.formatting import number, plural
from wattlaw.common.text import collapse_whitespace, shorten
from wattlaw.running.boards import NEAR
from wattlaw.running.first_machine import Machine
from wattlaw.running.first_run import Seen, seen_text
from wattlaw.study.base_model import OwnPrecision
from wattlaw.study.command import Argument, arguments, epochs_argument
from wattlaw.study.document import Dumper
from wattlaw.study.model import Measure, Study, WorkloadSpec
from wattlaw.study.plan import PlannedRun, expand

#: Batches of the study, in multiples of the one that was seen, and nodes: a first study is small.
_BATCHES, _MOST_NODES = (1, 2, 4), 4
#: A run measures steps for about this time.
_RUN_S, _LEAST_STEPS, _MOST_STEPS = 10.0, 20, 500
#: A run with steps so unsteady that it needs more than this has a note.
_MOST_NEEDED = 4 * _MOST_STEPS
_REPEATS = 2
#: Of runs of a study, beside their steps, relative to the short run: they have processes of wattlaw
#: of their own, and workers that start together (1.6 to 2.2 on two busy cores).
_BESIDE = 2.5
#: Runs with GPUs differ by about 1 %, those on cores of a virtual machine by 10 to 20 %.
_TOLERANCE = {True: "2%", False: "10%"}
_SHARDED = ("fsdp", "deepspeed", "tensor", "pipeline")
#: What a script names that trains on several GPUs.
_PARALLEL = re.compile(
    rb"torch\.distributed|DistributedDataParallel|fully_shard|[Aa]ccelerat|[Ll]ightning|Fabric"
    rb"|[Dd]eep[Ss]peed|Trainer|[Hh]orovod"
)


@dataclass(frozen=True)
class FirstStudy:
    text: str  # of the study file
    settings: int
    gpu_hours: float  # of all runs, at most
    notes: tuple[str, ...] = field(default=())


def names_parallel_training(command: Sequence[str]) -> bool:
    """Say whether the script names a way to train on several GPUs, or cannot be read."""
    script = next((word for word in command if word.endswith(".py")), None)
    try:
        return script is None or _PARALLEL.search(read_bytes(Path(script))) is not None
    except (OSError, ValueError):
        return True


def first_study(seen: Seen, batch: Argument | None, machine: Machine) -> FirstStudy:
    """Propose a study file: which settings to choose from, and what measuring them costs.

    Without an argument for the batch, every worker of every setting has the batch that was seen.
    """
    is_global = batch is not None and bool(re.search("global|total", batch.name, re.IGNORECASE))
    value = int((batch.value if batch else seen.local_batch) or 1)
    if seen.global_batch is None:
        seen = replace(seen, global_batch=value * (1 if is_global else seen.ranks))
    elif seen.ranks > 1:
        is_global = value not in (seen.local_batch, seen.micro_batch)
    base = seen.global_batch or 1
    sweeps = _sweeps(seen, base, machine, is_fixed=batch is None)
    largest = max(
        size * (1 if batch else max(counts)) for counts, sizes in sweeps for size in sizes
    )
    carried = {name: each for name, each in seen.carriers.items()
               if batch is not None and each.index != batch.index}  # fmt: skip
    if not (is_global or "gradient_accumulation" in carried):
        carried.pop("micro_batch", None)
    layouts = _layouts(seen, carried, machine.per_node)
    steps, why, notes = _steps_of_runs(seen, base, largest)
    warmup = Measure().warmup_steps
    of_one = "{micro_batch}" if seen.model_gpus > 1 else "{local_batch}"
    words = _with_batch(seen, batch, "{global_batch}" if is_global else of_one)
    for name, each in carried.items():
        words[each.index] = f"{each.prefix}{{{name}}}"
    measured = f"{{steps: {steps}}}  # of each run, after {warmup} of warm-up: {why}"
    name = "local_batch" if batch is None else "global_batch"
    settings = [{"gpus": [*counts], name: sizes} for counts, sizes in sweeps]
    text = _text(seen, machine, words, settings, largest, layouts, measured)
    runs = expand(Study.model_validate_json(json.dumps(yaml.safe_load(text))))
    gpu_hours = sum(_gpu_hours(seen, run, base, warmup + steps, machine) for run in runs)
    digits = 1 - math.floor(math.log10(gpu_hours))
    gpu_hours = round(math.ceil(gpu_hours * 10.0**digits) / 10.0**digits, digits)  # two, rounded up
    text += (
        f"  {'# ' * _ran_elsewhere(seen, machine)}"
        f"budget: {{gpu_hours: {gpu_hours:.12g}}}"
        "  # at most this much measuring\n"
    )
    if machine.caps_w == () and machine.has_gpus:
        notes.append(f"no power caps: {machine.no_caps_reason or 'the range is unknown'}")
    if _ran_elsewhere(seen, machine):
        notes.append("the run used no GPU: cost and memory are not known; the budget is a comment")
    if seen.network is None and (others := carried.keys() & seen.layout.keys()):
        notes.append(
            f"only the layout that ran: to sweep {', '.join(sorted(others))}, state the sizes of "
            "the network as model of the workload"
        )
    if not seen.is_parallel:
        notes.append(
            "one worker only: the script names neither torch.distributed nor another way to train "
            "on several; if it does train on several, add counts to gpus"
        )
    return FirstStudy(text, len(runs) // _REPEATS, gpu_hours, tuple(notes))


def _steps_of_runs(seen: Seen, base: int, largest: int) -> tuple[int, str, list[str]]:
    """Return how many steps a run measures, why, and notes; batches are from ``base`` on."""
    usual = round(min(max(_RUN_S / seen.step_s, _LEAST_STEPS), _MOST_STEPS))
    wanted = steps = max(usual, min(seen.needed_steps, _MOST_NEEDED))
    warmup, notes = Measure().warmup_steps, list[str]()
    why = f"about {number(steps * seen.step_s, 2)} s"
    if steps < seen.needed_steps:
        why += f", though steps so unsteady need {seen.needed_steps:,}"
    elif steps > usual:
        why += ", which its unsteady steps need"
    if seen.training_steps is None:
        why += (
            f"; how long it trains is unknown: a batch of {largest:,} needs {steps + warmup} steps"
        )
        return steps, why, notes
    fewest = seen.training_steps * base // largest
    steps = max(min(steps, fewest - warmup), min(steps, _LEAST_STEPS))
    why = why if steps == wanted else f"all of a training with a batch of {largest:,}"
    if steps > fewest - warmup:
        notes.append(
            f"with a batch of {largest:,} the training has {plural(fewest, 'step')}, too few "
            f"for {steps} after {warmup} of warm-up: let it train for more epochs"
        )
    elif steps < seen.needed_steps:
        notes.append(
            f"a run of {steps} steps is too short to be sure by: its steps vary, so that it needs "
            f"{seen.needed_steps:,}; let it train for more epochs"
        )
    return steps, "; ".join([why, *notes]), notes


def _sweeps(
    seen: Seen, base: int, machine: Machine, *, is_fixed: bool
) -> list[tuple[tuple[int, ...], list[int]]]:
    """Return worker counts, and the global batches that all of them divide and that fit on them.

    With ``is_fixed``, the batch is that of each worker.
    """
    node, counts = machine.per_node, {machine.per_node}
    counts |= {2**power for power in range(node.bit_length()) if 2**power <= node}
    counts |= {seen.ranks} if seen.ranks <= node * machine.nodes else set()
    across = (2**power for power in range(1, _MOST_NODES.bit_length()))
    counts |= {node * nodes for nodes in across if nodes <= min(machine.nodes, _MOST_NODES)}
    if not seen.is_parallel:
        counts = {1}
    elif seen.parallelism in _SHARDED:  # fewer ranks may not have the memory
        counts = {count for count in counts if count >= seen.ranks}
    if machine.nodes > 1:  # a run has the same number of workers on each of its nodes
        counts = {count for count in counts if count % math.ceil(count / node) == 0}
    if is_fixed:
        return [(tuple(sorted(counts)), [base // seen.ranks])]
    # Memory grows at most as the batch does, since weights and optimizer do not grow.
    most_growth = NEAR * (machine.memory_gb or math.inf) * 1e9 / (seen.peak_memory_bytes or 1)
    most_batch = max(1, most_growth) * base / seen.ranks  # of a worker
    sweeps: dict[tuple[int, ...], list[int]] = {}
    for batch in (base * multiple for multiple in _BATCHES):
        fitting = tuple(
            count for count in sorted(counts) if batch % count == 0 and batch / count <= most_batch
        )
        if fitting:
            sweeps.setdefault(fitting, []).append(batch)
    if not sweeps:
        raise BadInput(
            f"no number of workers divides the global batch of {base:,} and has the "
            "memory for it; train with another batch"
        )
    return [*sweeps.items()]


def _layouts(seen: Seen, carried: Mapping[str, Argument], node: int) -> dict[str, list[Any]]:
    """Return what of a layout a sweep has: what ran, and half and twice of what is an argument.

    Tensor parallel sizes stay within a node. Other sizes need those of the network: decisions
    predict them.
    """
    values: dict[str, list[Any]] = {}
    has_sizes = seen.model_gpus > 1 or "ep" in seen.layout
    for name, ran in seen.layout.items():
        if name in carried and name != "sharding" and seen.network is not None:
            around = {max(1, ran // 2), ran, 2 * ran}
            values[name] = sorted(v for v in around if v == ran or name != "tp" or v <= node)
        elif has_sizes or name in carried:
            values[name] = [ran]
    if seen.micro_batch is not None and "micro_batch" in carried:
        size = int(seen.micro_batch)
        values["micro_batch"] = sorted({max(1, size // 2), size, 2 * size})
    return values


def _gpu_hours(seen: Seen, run: PlannedRun, base: int, steps: int, machine: Machine) -> float:
    """Return the most GPU-hours of a run; ``base`` is the global batch that was seen.

    More GPUs are no faster, a batch takes as long as its samples, and a cap cuts the clock as it
    cuts the power. Workers have as many threads as the seen one had.
    """
    workers, cap_w = run.setting.gpus, run.setting.power_limit_w
    growth = (run.spec.global_batch or base) / base
    most = max(1.0, growth * seen.ranks / workers, growth)
    if cap_w is not None:
        most *= (machine.default_w or cap_w) / cap_w
    return workers * (_BESIDE * seen.beside_s + steps * seen.step_s * most) / 3600


def _with_batch(seen: Seen, batch: Argument | None, placeholder: str) -> list[str]:
    words = [word.replace("{", "{{").replace("}", "}}") for word in seen.command]
    if batch is not None:
        words[batch.index] = f"{batch.prefix}{placeholder}"
    precisions = [each for each in arguments(seen.command) if each.value == seen.precision]
    if len(precisions) == 1:
        words[precisions[0].index] = f"{precisions[0].prefix}{{precision}}"
    return words


def _text(
    seen: Seen,
    machine: Machine,
    words: list[str],
    sweeps: list[dict[str, Any]],
    largest: int,
    layouts: dict[str, list[Any]],
    measured: str,
) -> str:
    """Return the study file without its last line, the budget, which follows from the runs."""
    workload = WorkloadSpec(command=tuple(words))  # type: ignore[call-arg]
    precision = seen.precision if seen.precision in get_args(OwnPrecision) else None
    lines = [
        f"# From a run of: {shorten(collapse_whitespace(shlex.join(seen.command)), 150)}",
        f"# {seen_text(seen)}",
        _flow({"name": workload.name})[1:-1],
        "workloads:",
        f"  - command: {_flow(words)}",
    ]
    if seen.launch_with != "auto":
        lines.append(f"    launch_with: {seen.launch_with}")
    if seen.dataset_samples is not None:
        lines.append(f"    dataset_samples: {seen.dataset_samples}")
    if layouts and seen.network is not None:
        lines.append(f"    model: {_flow(dict(seen.network))}")
    lines.append("sweeps:  # the settings to choose from: add or remove values")
    for sizes in sweeps:
        sweep = sizes | layouts
        if machine.caps_w:
            sweep["power_limit_w"] = [None, *machine.caps_w]
        if precision not in (None, "fp32"):
            sweep["precision"] = [precision]
        note = "  # a batch that no argument of the command sets" if "local_batch" in sweep else ""
        lines.append(f"  - {_flow(sweep)}{note}")
    has_energy = seen.has_energy or machine.has_gpus
    layout = {name: value for name, value in seen.layout.items() if name in layouts}
    if "micro_batch" in layouts:
        layout["micro_batch"] = int(seen.micro_batch or 1)
    baseline = _flow({"gpus": seen.ranks, "global_batch": seen.global_batch} | layout)
    lines += [
        f"repeats: {_REPEATS}  # they show how much runs vary",
        f"measure: {measured}",
        f"launch: {_flow(machine.launch)}",
        "decide:  # measuring ends when the answer is certain enough, or the budget is spent",
        "  minimize: edp  # energy x time, or energy, time, gpu_hours"
        if has_energy
        else "  minimize: time  # or gpu_hours; no meter: assume_cpu_w in measure estimates energy",
        f"  max_global_batch: {largest}  # larger batches may need more epochs; "
        f"{seen.global_batch} is the one that ran",
        f"  baseline: {baseline}  # what you run today; savings are against it",
        *_epochs(seen),
        f"  tolerance: {_TOLERANCE[machine.has_gpus]}  # an answer so near the best is good enough",
    ]
    return "\n".join(lines) + "\n"


def _epochs(seen: Seen) -> Iterator[str]:
    """Yield the length of a training, which the command says; it needs the samples of an epoch."""
    if not seen.dataset_samples:
        yield "  # total_samples: 1000000  # of a training; may be changed at any time: runs stay"
    elif (found := epochs_argument(seen.command)) is not None:
        yield f"  epochs: {found.value}  # of a training, as {found.name} of the command says"


def _ran_elsewhere(seen: Seen, machine: Machine) -> bool:
    return machine.has_gpus and seen.peak_memory_bytes is None


def _flow(value: Any) -> str:
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**9, sort_keys=False)
    return str(text).strip()
