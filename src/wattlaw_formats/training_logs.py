"""Text logs of Megatron-LM, Megatron-Bridge, nanotron, torchtitan, NeMo and DeepSpeed.

Each line of steps states a time, so that pauses between lines do not count. The first line of each
training, and others within its first steps, are warm-up: they include compilation and the first
allocations. A file may have several trainings, such as restarts; each is a run.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.marks import time_ns_of_line
from wattlaw.importing.reading import MAX_BYTES, Source, count, number
from wattlaw.importing.runs import NOT_CHECKED, RunMaker, checked_energy, workload_of
from wattlaw.importing.timeseries import are_pauses, measure_of
from wattlaw.store.fields import MODEL, InvalidCell
from wattlaw.store.import_tables import ImportedRun
from wattlaw.store.record import Facts
from wattlaw_formats.training_programs import PROGRAMS, Program

_ANSI = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
#: What torchrun and srun write before a line.
_RANK = re.compile(r"^\s{0,9}(?:\[(?:default|rank)(\d{1,6})\]:|(\d{1,6}): )")
_MONTH_FIRST = re.compile(r"(?<!\d)(\d\d)/(\d\d)/(\d{4}) (?=\d\d:\d\d:\d\d)")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|\b(?:CUDA|HIP|XPU)\b[^|]{0,40}\bout of memory\b")
_UNITS = {"K": 1e3, "M": 1e6, "G": 1e9}
_MAX_SEARCHED, _MAX_POINTS, _MAX_STEP = 20_000, 2_000_000, 10**9
#: Steps that are warm-up: in logs of each step, those after the first two take the usual time.
_WARMUP = 3
#: Lines of steps follow each other if the time between them is that of the steps within this.
_SLACK_S, _SLACK = 1.0, 0.05
_OTHER_RANK = "a line of steps of another rank"
_ZERO = ("none", "zero1", "zero2", "zero3")
_TITAN_SHARDINGS = {"HSDP": "hsdp", "DDP": "none"}
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LAYOUT = ("tp", "pp", "cp", "ep", "virtual_stages", "micro_batch", "sharding",
           "checkpointing", "precision")  # fmt: skip


@dataclass(frozen=True)
class _Point:
    """A line of steps. ``step_s`` is the time of one of its last ``steps`` steps."""

    row: int
    step: int
    value: float
    total: int | None
    batch: int | None
    energy_j: float | None  # of a GPU and a step
    t_ns: int | None
    steps: int = 1
    step_s: float = 0.0

    @property
    def duration_s(self) -> float:
        return self.steps * self.step_s


@dataclass
class _Training:
    printed: dict[str, str] = field(default_factory=dict)
    points: list[_Point] = field(default_factory=list)
    peak_bytes: float = 0.0
    rank: str | None = None  # whose lines of steps count
    failure: str | None = None
    row: int = 0


class TrainingLogImporter:
    name = "training-log"
    description = "log of Megatron-LM, Megatron-Bridge, torchtitan, nanotron, DeepSpeed or NeMo"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        text = head.decode("utf-8", "replace")
        is_log = "\0" not in text and ":::MLLOG" not in text
        return is_log and any(hint in text for program in PROGRAMS for hint in program.hints)

    def read(self, source: Source, options: Options) -> Imported:
        path, text = source.path, source.head(MAX_BYTES)
        program = next((each for each in PROGRAMS if each.words[0] in text), None)
        if program is None:
            raise BadInput(f"{path}: no line of steps of a known program")
        maker, runs, whys = RunMaker(path, options), list[ImportedRun](), list[str]()
        for training in _trainings(source, program, options):
            try:
                run = _run(source, maker, program, training, options)
            except InvalidCell as error:
                whys.append(str(error))
                source.account.reject(training.row, whys[-1])
                continue
            if isinstance(run, str):
                whys.append(run)
                source.account.leave_out(run, *(point.row for point in training.points))
            else:
                runs.append(run)
        if not runs:
            raise BadInput(f"{path}: {whys[0]}")
        steps = sum(row["steps"] for run in runs for row in run.windows)
        several = f"{len(runs)} trainings, " if len(runs) > 1 else ""
        return Imported(f"{program.name} log: {several}{steps:,} steps", runs)


def _trainings(source: Source, program: Program, options: Options) -> list[_Training]:
    account, trainings, points = source.account, [_Training()], 0
    for row, line in source.lines(only_complete=True):
        text = _ANSI.sub("", line[:_MAX_SEARCHED])
        match = _RANK.match(text)
        rank = None if match is None else match[1] or match[2]
        training = trainings[-1]
        if (training.points or training.failure) and program.launch.search(text):
            trainings.append(training := _Training())
        training.row = training.row or row
        peaks = [
            unit * (number(found) or 0.0)
            for pattern, unit in program.memory
            for found in pattern.findall(text)
        ]
        training.peak_bytes = max([training.peak_bytes, *peaks])
        if any(word in text for word in program.words):
            point = _point(program, row, text, options)
            points += 1
            if points > _MAX_POINTS:
                raise BadInput(f"{source.path}: more than {_MAX_POINTS:,} lines of steps")
            if isinstance(point, str):
                account.leave_out(point, row)
            elif training.points and rank != training.rank:
                account.leave_out(_OTHER_RANK, row)
            elif training.points and point.step <= training.points[-1].step:
                account.leave_out("a step that is not after the one before", row)
            else:
                training.points.append(point)
                training.rank, training.failure = rank, None
            continue
        printed = program.printed(text)
        training.printed = printed | training.printed
        if _OUT_OF_MEMORY.search(text):
            training.failure = "out of memory"
        if printed or peaks:
            account.read(row)
        else:
            account.leave_out("not a line of steps or of settings", row)
    return trainings


def _point(program: Program, row: int, text: str, options: Options) -> _Point | str:
    matches = list(program.step.finditer(text))
    if len(matches) != 1:
        return "a line of steps that is damaged, or of another form"
    found = matches[0].groupdict()
    step, value = count(found["step"], 0, _MAX_STEP), _number(found["value"])
    if step is None or value is None or not value > 0:
        return "a line of steps without a time > 0"
    batch = _number(found.get("batch"))
    return _Point(
        row=row,
        step=step + program.is_from_0,
        value=value,
        total=count(found.get("total")),
        batch=None if batch is None else count(batch, 1, 10**7),
        energy_j=_number(found.get("energy")),
        t_ns=time_ns_of_line(_MONTH_FIRST.sub(r"\3-\1-\2 ", text), options.timezone),
    )


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    unit = _UNITS.get(text[-1:])
    value = number((text[:-1] if unit else text).replace(",", ""))
    return None if value is None else value * (unit or 1.0)


def _run(
    source: Source, maker: RunMaker, program: Program, training: _Training, options: Options
) -> ImportedRun | str:
    values, notes = _values(source.path, training)
    batches = Counter(point.batch for point in training.points if point.batch)
    if batches:
        values["global_batch"] = batches.most_common(1)[0][0]
    all_values = {**values, **options.constants}
    facts = Facts(
        parameters=count((training.printed.get("parameters") or "").replace(",", ""), 1),
        tokens_per_sample=all_values.get(f"{MODEL}sequence"),
        peak_memory_bytes=round(training.peak_bytes) or None,
        software={
            name: training.printed[name]
            for name in ("torchtitan", "deepspeed")
            if name in training.printed
        },
    )
    if training.failure is not None:
        after = f" after step {training.points[-1].step:,}" if training.points else " at its start"
        source.account.read(*(point.row for point in training.points))
        failure = training.failure + after
        measure = measure_of([{"phase": "steps", "steps": 1}])
        return maker.run(values, (), measure, notes=notes, facts=facts, failure=failure)
    timed = _timed(program, training, all_values)
    if isinstance(timed, str):
        return timed
    windows, own_notes = _windows(source, timed, all_values)
    if all(window["warmup"] for window in windows):
        return "a training whose lines of steps are all of its warm-up"
    notes += own_notes
    last = training.points[-1]
    if last.total is not None and last.step < last.total:
        notes.append(f"the log ends at step {last.step:,} of {last.total:,}")
    if program.is_reserved:
        notes.append("peak memory is what torch reserved, not allocated")
    measure = measure_of(window for window in windows if not window["warmup"])
    return maker.run(values, windows, measure, notes=notes, facts=facts)


def _timed(program: Program, training: _Training, values: Mapping[str, Any]) -> list[_Point] | str:
    """Return the points with their steps and times, or why the times are not known."""
    points, timed = training.points, list[_Point]()
    if len(points) < 2:
        return "a training with fewer than two lines of steps"
    usual = int(median(after.step - before.step for before, after in pairwise(points)))
    batch = values.get("global_batch")
    sequence = count(training.printed.get("sequence"), 1)
    before = replace(points[0], step=max(0, points[0].step - usual))
    for point in points:
        steps, step_s = point.step - before.step, point.value
        if program.timing == "ms":
            step_s *= 1e-3
        elif program.timing == "tokens_per_s":  # of a GPU: those of a copy by its GPUs
            if not (batch and sequence and values.get("gpus")):
                return "a training whose batch, sequence length or GPUs are not printed"
            step_s = batch * sequence / (point.value * values["gpus"])
        elif program.timing == "mean_samples_per_s":  # of all steps since the second
            if not batch:
                return "a training whose batch is not known; set it with --map global_batch=@N"
            total_s = (point.step - 2) * batch / point.value
            before_s = (before.step - 2) * batch / before.value if timed else 0.0
            steps = steps if timed else point.step - 2
            step_s = (total_s - before_s) / steps if steps > 0 else 0.0
        if step_s > 0 and steps > 0:
            own = steps if program.is_mean else 1
            timed.append(replace(point, steps=own, step_s=step_s))
        before = point
    return timed


def _windows(
    source: Source, points: Sequence[_Point], values: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return blocks of steps that follow each other without a pause, and notes."""
    account, notes, windows = source.account, list[str](), list[dict[str, Any]]()
    batch, gpus = values.get("global_batch"), values.get("gpus")
    begin = points[0].step - points[0].steps
    is_pause = are_pauses([point.duration_s for point in points], [each.steps for each in points])
    before: _Point | None = None
    pauses = 0
    for index, (point, is_long) in enumerate(zip(points, is_pause, strict=True)):
        is_warmup = index == 0 or point.step - point.steps - begin < _WARMUP
        if point.batch not in (None, batch):
            account.leave_out("steps of another global batch than most", point.row)
            continue
        if is_long and not is_warmup:
            account.leave_out("steps with a pause", point.row)
            pauses += 1
            continue
        account.read(point.row)
        duration_s = point.duration_s
        row = {
            "phase": "steps", "from_step": point.step - point.steps, "steps": point.steps,
            "duration_s": duration_s, "warmup": is_warmup,
            "samples": None if batch is None else batch * point.steps,
        }  # fmt: skip
        if point.t_ns is not None and point.t_ns > duration_s * 1e9:
            row["start_ns"] = point.t_ns - round(duration_s * 1e9)
        if point.energy_j is not None and gpus:
            row["gpu_energy_j"] = point.energy_j * gpus * point.steps
        if windows and before is not None and _follows(before, point, windows[-1], row):
            for name in ("steps", "duration_s", "samples", "gpu_energy_j"):
                if windows[-1].get(name) is not None:
                    windows[-1][name] += row[name]
        else:
            windows.append(row)
        before = point
    for window in windows:
        if (energy_j := window.pop("gpu_energy_j", None)) is not None:
            window.update(checked_energy({"gpu_energy_j": energy_j}, "counter", NOT_CHECKED))
            window["gpu_power_mean_w"] = energy_j / window["duration_s"] / (gpus or 1)
    if pauses:
        notes.append(f"{plural(pauses, 'line')} of steps with a pause left out")
    return windows, notes


def _follows(
    before: _Point, point: _Point, window: Mapping[str, Any], row: Mapping[str, Any]
) -> bool:
    is_next = row["from_step"] == before.step and window["warmup"] == row["warmup"]
    if not is_next or window.keys() != row.keys():
        return False
    if before.t_ns is None or point.t_ns is None:
        return True
    passed_s = (point.t_ns - before.t_ns) * 1e-9
    return abs(passed_s - point.duration_s) <= _SLACK_S + _SLACK * point.duration_s


def _values(path: Path, training: _Training) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a run that the log states, and a note on those that it does not."""
    printed = {
        name: text
        for name, text in training.printed.items()
        if text != "None" or name == "checkpointing"
    }
    _add_groups(printed)
    names = ("tp", "pp", "cp", "ep", "virtual_stages", "micro_batch", "gradient_accumulation",
             "global_batch", "gpus")  # fmt: skip
    known = {name: count(printed.get(name), 1, 10**7) for name in names}
    values: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    model_gpus = math.prod(values.get(name, 1) for name in ("tp", "pp", "cp"))
    if "gpus" not in values and (copies := _copies(printed)) is not None:
        values["gpus"] = copies * model_gpus
    if "local" in printed and values.get("pp", 1) == 1:
        values["micro_batch"] = count(printed["local"], 1)
    values |= _choices(printed, values)
    values["workload"] = re.sub(r"\s+", "-", printed.get("workload", "")) or workload_of(path)
    if "hardware" in printed:
        values["hardware"] = printed["hardware"]
    missing = [name for name in _LAYOUT if not {name} <= values.keys() | training.printed.keys()]
    notes = [f"not in the log: {', '.join(missing)}"] if missing else []
    model = {
        MODEL + name: _truth(printed[name]) if name in ("gated", "biases") else count(printed[name])
        for name in ("layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocabulary",
                     "sequence", "experts", "experts_per_token", "expert_ffn", "gated", "biases")
        if name in printed
    }  # fmt: skip
    if "untied" in printed or "tied" in printed:
        model[f"{MODEL}tied"] = _truth(printed.get("tied")) or printed.get("untied") == "False"
    model[f"{MODEL}learned_positions"] = printed.get("positions") == "learned_absolute"
    if printed.get("has_groups") == "False":
        model.pop(f"{MODEL}kv_heads", None)
    sizes = (f"{MODEL}{name}" for name in ("layers", "hidden", "heads", "vocabulary", "sequence"))
    if all(model.get(name) for name in sizes) and not _truth(printed.get("is_latent")):
        values |= {name: value for name, value in model.items() if value is not None}
    elif count(printed.get("sequence"), 1):
        notes.append("the sizes of the network are not in the log; set them with --map model.NAME")
    return values, notes


def _add_groups(printed: dict[str, str]) -> None:
    """Add sizes by the groups of ranks that NeMo prints, and by the mesh of early torchtitan."""
    for name in ("tp", "pp", "cp"):
        if groups := printed.get(f"{name}_groups"):
            first, ranks = groups.partition("]")[0], re.findall(r"\d+", groups)
            printed.setdefault(name, str(len(re.findall(r"\d+", first))))
            printed.setdefault("gpus", str(len(ranks)))
    sizes = re.findall(r"\d+", printed.get("mesh_sizes", ""))
    mesh = dict(zip(re.findall(r"\w+", printed.get("mesh", "")), map(int, sizes), strict=False))
    for name in ("tp", "pp", "cp"):
        if name in mesh:
            printed.setdefault(name, str(mesh[name]))
    if mesh:
        shards = [size for name, size in mesh.items() if name.startswith("dp_shard")]
        printed.setdefault("shards", str(math.prod(shards) if shards else mesh.get("dp", 1)))
        printed.setdefault("replicas", str(mesh.get("dp_replicate", 1)))


def _copies(printed: Mapping[str, str]) -> int | None:
    if "shards" in printed:
        shards, replicas = (count(printed.get(name), 1) for name in ("shards", "replicas"))
        return (shards or 1) * (replicas or 1)
    return count(printed.get("dp"), 1)


def _choices(printed: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are names, or true and false."""
    chosen: dict[str, Any] = {}
    stage, own = count(printed.get("zero_stage"), 0, 3), printed.get("sharding")
    if stage is not None:
        chosen["sharding"] = _ZERO[stage]
    elif own is not None:
        is_split = (count(printed.get("shards")) or 1) * values.get("cp", 1) > 1
        chosen["sharding"] = _TITAN_SHARDINGS.get(own, "fsdp") if is_split else "none"
    elif "distributed_optimizer" in printed:
        chosen["sharding"] = "zero1" if _truth(printed["distributed_optimizer"]) else "none"
    if _truth(printed.get("torch_fsdp")):
        chosen["sharding"] = "fsdp"
    text = printed.get("checkpointing", "").lower().removesuffix("ac")
    if text in ("none", "selective", "full"):
        chosen["checkpointing"] = text
    elif "recompute" in printed:
        chosen["checkpointing"] = "full" if _truth(printed["recompute"]) else "none"
    if "sequence_parallel" in printed or "tp_mode" in printed:
        is_scattered = printed.get("tp_mode") == "REDUCE_SCATTER" and values.get("tp", 1) > 1
        chosen["sequence_parallel"] = is_scattered or _truth(printed.get("sequence_parallel"))
    dtype = printed.get("dtype", "").removeprefix("torch.")
    if dtype in _PRECISIONS:
        chosen["precision"] = _PRECISIONS[dtype]
    elif "bf16" in printed or "fp16" in printed:
        known = [name for name in ("bf16", "fp16") if _truth(printed.get(name))]
        chosen["precision"] = known[0] if known else "fp32"
    return chosen


def _truth(text: str | None) -> bool:
    return (text or "").lower() == "true"


IMPORTER = TrainingLogImporter()
