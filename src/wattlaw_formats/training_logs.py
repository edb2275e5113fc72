"""Text logs of Megatron-LM, Megatron-Bridge, nanotron, torchtitan, NeMo and DeepSpeed.

Each line of steps states a time, so that what is between lines does not count. The first line of
each training, and others within its first steps, are warm-up: they include compilation and the
first allocations. A file may have several trainings, such as restarts; each is a run.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from wattlaw.common.errors import BadInput
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.marks import time_ns_of_line
from wattlaw.importing.reading import MAX_BYTES, Source, count, number
from wattlaw.importing.runs import NOT_CHECKED, RunMaker, checked_energy, workload_of
from wattlaw.importing.timeseries import are_pauses, measure_of
from wattlaw.store.fields import MODEL, InvalidCell
from wattlaw.store.import_tables import ImportedRun
from wattlaw.store.record import Facts
from wattlaw.study.base_model import PRECISION_ALIASES
from wattlaw.study.network import Network
from wattlaw.study.out_of_memory import memory_that_ran_out
from wattlaw.study.setting import MODEL_SIZES

_ANSI = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
#: What torchrun and srun write before a line.
_RANK = re.compile(r"^\s{0,9}(?:\[(?:default|rank)(\d{1,6})\]:|(\d{1,6}): )")
_MONTH_FIRST = re.compile(r"(?<!\d)(\d\d)/(\d\d)/(\d{4}) (?=\d\d:\d\d:\d\d)")
_UNITS = {"K": 1e3, "M": 1e6, "G": 1e9}
_MAX_SEARCHED, _MAX_POINTS, _MAX_STEP = 20_000, 2_000_000, 10**9
#: Steps that are warm-up: in logs of each step, those after the first two take the usual time.
_WARMUP = 3
#: Lines of steps follow each other if the time between them is that of the steps within this.
_SLACK_S, _SLACK = 1.0, 0.05
#: Tokens per second are printed without decimals: of fewer than these, half of one is over 0.5 %.
_COARSE = 100
_TITAN_SHARDINGS = {"HSDP": "hsdp", "DDP": "none"}
_COUNTS = ("tp", "pp", "cp", "ep", "virtual_stages", "micro_batch", "gradient_accumulation",
           "global_batch", "gpus")  # fmt: skip
_NOTED = (*_COUNTS[:6], "sharding", "checkpointing", "precision")

#: ``name ..... value``, ``name: value``, ``"name": value`` and ``name=value``.
_VALUE = re.compile(
    r"""(?<![\w.])(\w{2,60})['"]?(?: ?\.{2,99} |: | ?= ?|  {1,60})['"]?([\w.+-]+)"""
)


@dataclass(frozen=True, kw_only=True)
class _Program:
    """A row of the table. ``step`` has the groups ``step`` and ``value``, and if printed ``total``,
    ``batch`` and ``energy`` (J of a GPU and step). ``keys`` are settings by the names that the
    program prints, ``facts`` other lines with settings as groups, ``memory`` peaks of a GPU with
    their unit in bytes. ``timing`` says what ``value`` is: milliseconds or seconds of a step,
    tokens per second of a GPU, or mean samples per second of all steps since the second."""

    name: str
    hints: list[str]  # in logs of this program, and in no others
    word: str  # in lines of steps
    step: re.Pattern[str]
    timing: Literal["ms", "s", "tokens_per_s", "mean_samples_per_s"]
    launch: re.Pattern[str]  # a line that begins a training
    memory: list[tuple[re.Pattern[str], float]]
    is_mean: bool = True  # over the steps since the line before, not of the last one
    is_from_0: bool = False  # the number of a step is that of the steps before it
    is_reserved: bool = False  # the memory is what torch has reserved, not allocated
    keys: dict[str, str] = field(default_factory=dict)
    facts: list[re.Pattern[str]]

    def printed(self, line: str) -> dict[str, str]:
        known = {
            name: text
            for pattern in self.facts
            if (match := pattern.search(line)) is not None
            for name, text in match.groupdict().items()
            if text is not None
        }
        for name, text in _VALUE.findall(line) if self.keys else ():
            if name in self.keys:
                known.setdefault(self.keys[name], text)
        return known


def _program(row: dict[str, Any]) -> _Program:
    patterns = {
        "step": re.compile("".join(row["step"])),
        "launch": re.compile(row["launch"]),
        "memory": [(re.compile(text), unit) for text, unit in row["memory"]],
        "facts": [re.compile("".join(parts)) for parts in row["facts"]],
    }
    return _Program(**(row | patterns))


#: It was checked against the source that prints, and against logs (docs/formats.md).
_TABLE = files("wattlaw_formats").joinpath("training_programs.toml")
#: In the order in which they are tried: Megatron-DeepSpeed prints lines of both.
_PROGRAMS = [_program(row) for row in tomllib.loads(_TABLE.read_text("utf-8"))["program"]]


@dataclass
class _Training:
    printed: dict[str, str] = field(default_factory=dict)
    points: list[dict[str, Any]] = field(default_factory=list)  # its lines of steps
    rank: str | None = None  # whose lines of steps count
    peak_bytes: float = 0.0
    out_of_memory: str = ""  # the line that says so, if no steps follow
    row: int = 0


class TrainingLogImporter:
    name = "training-log"
    description = "log of Megatron-LM, Megatron-Bridge, torchtitan, nanotron, DeepSpeed or NeMo"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        text = head.decode("utf-8", "replace")
        is_log = "\0" not in text and ":::MLLOG" not in text
        return is_log and any(hint in text for program in _PROGRAMS for hint in program.hints)

    def read(self, source: Source, options: Options) -> Imported:
        text, account = source.head(MAX_BYTES), source.account
        program = next((each for each in _PROGRAMS if each.word in text), None)
        if program is None:
            raise BadInput(f"{source.path}: no line of steps of a known program")
        maker, runs, whys = RunMaker(source.path, options), list[ImportedRun](), list[str]()
        for training in _trainings(source, program, options):
            try:
                run = _run(source, maker, program, training, options.constants)
            except InvalidCell as error:
                whys.append(str(error))
                account.reject(training.row, whys[-1])
                continue
            if isinstance(run, str):
                whys.append(run)
                account.leave_out(run, *(point["row"] for point in training.points))
            else:
                runs.append(run)
        if not runs:
            raise BadInput(f"{source.path}: {whys[0]}")
        steps = sum(row["steps"] for run in runs for row in run.windows)
        several = f"{len(runs)} trainings, " if len(runs) > 1 else ""
        return Imported(f"{program.name} log: {several}{steps:,} steps", runs)


def _trainings(source: Source, program: _Program, options: Options) -> list[_Training]:
    account, trainings, found = source.account, [_Training()], 0
    for row, line in source.lines(only_complete=True):
        text = _ANSI.sub("", line[:_MAX_SEARCHED])
        match = _RANK.match(text)
        rank = None if match is None else match[1] or match[2]
        training = trainings[-1]
        if (training.points or training.out_of_memory) and program.launch.search(text):
            trainings.append(training := _Training())
        training.row = training.row or row
        peaks = [
            unit * (number(peak) or 0.0)
            for pattern, unit in program.memory
            for peak in pattern.findall(text)
        ]
        training.peak_bytes = max([training.peak_bytes, *peaks])
        if program.word in text:
            point = _point(program, text, options)
            if (found := found + 1) > _MAX_POINTS:
                raise BadInput(f"{source.path}: more than {_MAX_POINTS:,} lines of steps")
            if isinstance(point, str):
                account.leave_out(point, row)
            elif training.points and rank != training.rank:
                account.leave_out("a line of steps of another rank", row)
            elif training.points and point["step"] <= training.points[-1]["step"]:
                account.leave_out("a step that is not after the one before", row)
            else:
                training.points.append({"row": row, **point})
                training.rank, training.out_of_memory = rank, ""
            continue
        printed = program.printed(text)
        training.printed = printed | training.printed
        if not training.out_of_memory and memory_that_ran_out(text) is not None:
            training.out_of_memory = "".join(filter(str.isprintable, text.strip()))[:200]
        if printed or peaks:
            account.read(row)
        else:
            account.leave_out("not a line of steps or of settings", row)
    return trainings


def _point(program: _Program, text: str, options: Options) -> dict[str, Any] | str:
    matches = list(program.step.finditer(text))
    if len(matches) != 1:
        return "a line of steps that is damaged, or of another form"
    texts = matches[0].groupdict()
    point: dict[str, Any] = {
        name: _number(texts.get(name)) for name in ("value", "batch", "energy", "total")
    }
    if (texts.get("batch") or "")[-1:] in _UNITS:  # 1.02K: three digits of 1024
        point["batch"] = None
    if point["total"] is not None:
        point["total"] += program.is_from_0
    step = count(texts["step"], 0, _MAX_STEP)
    if step is None or not (point["value"] or 0.0) > 0:
        return "a line of steps without a time > 0"
    t_ns = time_ns_of_line(_MONTH_FIRST.sub(r"\3-\1-\2 ", text), options.timezone)
    return {**point, "step": step + program.is_from_0, "t_s": t_ns and t_ns * 1e-9}


def _number(text: str | None) -> float | None:
    unit = _UNITS.get((text or "")[-1:])
    value = number((text or "")[: -1 if unit else None].replace(",", ""))
    return None if value is None else value * (unit or 1.0)


def _run(
    source: Source,
    maker: RunMaker,
    program: _Program,
    training: _Training,
    constants: Mapping[str, Any],
) -> ImportedRun | str:
    columns = ["row", "step", "value", "batch", "energy", "total", "t_s"]
    table = pd.DataFrame(training.points, columns=columns, dtype=float)
    table["row"] = table["row"].astype(int)
    values, notes = _values(source.path, training.printed)
    batches = table["batch"].mode()
    if len(batches) and (batch := count(float(batches[0]), 1, 10**7)) is not None:
        values["global_batch"] = batch
    known = {**values, **constants}
    facts = Facts(
        parameters=count(training.printed.get("parameters", "").replace(",", ""), 1),
        tokens_per_sample=known.get(f"{MODEL}sequence"),
        peak_memory_bytes=round(training.peak_bytes) or None,
        software={k: v for k, v in training.printed.items() if k in ("torchtitan", "deepspeed")},
    )
    if training.out_of_memory:
        source.account.read(*table["row"])
        after = f"after step {table['step'].max():,.0f}" if len(table) else "at its start"
        return maker.run(
            values, (), measure_of([{"phase": "steps"}]), line=training.row, notes=notes,
            facts=facts, failure=f"out of memory {after}: {training.out_of_memory}",
        )  # fmt: skip
    if (why := _add_times(program, table, known, training.printed)) is not None:
        return why
    windows = _windows(source, table[(table["steps"] > 0) & (table["step_s"] > 0)], known)
    measured = [window for window in windows if not window["warmup"]]
    if not measured:
        return "a training whose lines of steps are all of its warm-up"
    last, total = table.iloc[-1], count(training.printed.get("total"), 1, _MAX_STEP)
    total = last["total"] if total is None else total
    if last["step"] < total:
        notes.append(f"the log ends at step {last['step']:,.0f} of {total:,.0f}")
    if program.timing == "tokens_per_s" and (least := table["value"].min()) < _COARSE:
        notes.append(f"tokens per second are printed as {least:,.0f}: step times are rounded")
    if program.is_reserved:
        notes.append("peak memory is what torch reserved, not allocated")
    return maker.run(
        values, windows, measure_of(measured), line=training.row, notes=notes, facts=facts
    )


def _add_times(
    program: _Program, table: pd.DataFrame, values: Mapping[str, Any], printed: Mapping[str, str]
) -> str | None:
    """Add the columns ``steps`` of a line and ``step_s``; return why that is impossible."""
    batch, gpus = values.get("global_batch"), values.get("gpus")
    if len(table) < 2:
        return "a training with fewer than two lines of steps"
    step, value, gaps = table["step"], table["value"], table["step"].diff()
    often = gaps.mode()  # of a mean: steps between two lines, unless one is missing
    usual = often.iloc[0 if (often % often.iloc[0] == 0).all() else -1]
    gaps[0] = min(usual, step[0])
    step_s = value * 1e-3 if program.timing == "ms" else value
    if program.timing == "tokens_per_s":  # of a GPU: those of a copy by its GPUs
        sequence = count(printed.get("sequence"), 1)
        if not (batch and gpus and sequence):
            return "a training whose batch, sequence length or GPUs are not in the log"
        step_s = batch * sequence / (value * gpus)
    elif program.timing == "mean_samples_per_s":  # of all steps since the second
        if not batch:
            return "a training whose batch is not in the log; set it with --map global_batch=@N"
        gaps[0], total_s = step[0] - 2, (step - 2) * batch / value
        step_s = total_s.diff().fillna(total_s) / gaps.where(gaps > 0)
    if program.timing != "mean_samples_per_s":
        gaps = gaps.clip(upper=usual if program.is_mean else 1)
    table["steps"] = gaps
    table["step_s"] = step_s
    return None


def _windows(
    source: Source, table: pd.DataFrame, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return blocks of steps that follow each other without a pause."""
    batch, gpus = values.get("global_batch"), values.get("gpus")
    table = table.assign(
        first=table["step"] - table["steps"], duration_s=table["steps"] * table["step_s"]
    )
    is_warmup = table["first"] < table["first"].min() + _WARMUP
    is_warmup.iloc[:1] = True
    is_other = table["batch"].notna() & (table["batch"] != batch)
    is_pause = pd.Series(are_pauses([*table["duration_s"]], [*table["steps"]]), table.index)
    is_pause &= ~(is_warmup | is_other)
    source.account.leave_out("steps of another global batch than most", *table["row"][is_other])
    source.account.leave_out("steps with a pause", *table["row"][is_pause])
    table = table.assign(warmup=is_warmup)[~(is_other | is_pause)]
    source.account.read(*table["row"])
    late_s = (table["t_s"].diff() - table["duration_s"]).abs().fillna(0.0)
    before = table.shift()
    is_next = (table["first"] == before["step"]) & (table["warmup"] == before["warmup"])
    is_next &= late_s <= _SLACK_S + _SLACK * table["duration_s"]
    table["energy_j"] = table["energy"] * table["steps"] * (gpus or math.nan)
    blocks = table.groupby((~is_next).cumsum()).agg(
        first=("first", "first"), steps=("steps", "sum"), duration_s=("duration_s", "sum"),
        warmup=("warmup", "first"), t_s=("t_s", "first"), first_s=("duration_s", "first"),
        energy_j=("energy_j", "sum"), known=("energy_j", "count"), lines=("row", "size"),
    )  # fmt: skip
    windows = []
    for block in blocks.to_dict("records"):
        steps, duration_s, energy_j = int(block["steps"]), block["duration_s"], block["energy_j"]
        row: dict[str, Any] = {
            "phase": "steps", "from_step": int(block["first"]), "steps": steps,
            "duration_s": duration_s, "warmup": bool(block["warmup"]),
            "samples": None if batch is None else batch * steps,
        }  # fmt: skip
        if (start_s := block["t_s"] - block["first_s"]) > 0:
            row["start_ns"] = round(start_s * 1e9)
        if energy_j > 0 and block["known"] == block["lines"]:
            row |= checked_energy({"gpu_energy_j": energy_j}, "counter", NOT_CHECKED)
            row["gpu_power_mean_w"] = energy_j / duration_s / (gpus or 1)
        windows.append(row)
    return windows


def _values(path: Path, all_printed: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a run that the log states, and a note on those that it does not."""
    printed = {k: v for k, v in all_printed.items() if v != "None" or k == "checkpointing"}
    copies = _add_groups(printed)
    known = {name: count(printed.get(name), 1, 10**7) for name in _COUNTS}
    values: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
    if copies is not None:
        model_gpus = math.prod(values.get(name, 1) for name in MODEL_SIZES)
        values.setdefault("gpus", copies * model_gpus)
    if "local" in printed and values.get("pp", 1) == 1:
        values["micro_batch"] = count(printed["local"], 1)
    values |= _choices(printed, values)
    values["workload"] = re.sub(r"\s+", "-", printed.get("workload", "")) or workload_of(path)
    values |= {"hardware": printed["hardware"]} if "hardware" in printed else {}
    missing = [name for name in _NOTED if name not in values and name not in all_printed]
    notes = [f"not in the log: {', '.join(missing)}"] if missing else []
    if printed.get("has_groups") == "False":
        del printed["kv_heads"]
    sizes: dict[str, Any] = {
        name: _truth(printed[name]) if each.annotation is bool else count(printed[name])
        for name, each in Network.model_fields.items() if name in printed
    }  # fmt: skip
    sizes["tied"] = sizes.get("tied", printed.get("untied") == "False")
    sizes["learned_positions"] = printed.get("positions") == "learned_absolute"
    required = ("layers", "hidden", "heads", "vocabulary", "sequence")
    if all(sizes.get(name) for name in required) and not _truth(printed.get("is_latent")):
        values |= {MODEL + name: value for name, value in sizes.items() if value is not None}
    else:
        notes.append("the sizes of the network are not in the log; set them with --map model.NAME")
    return values, notes


def _add_groups(printed: dict[str, str]) -> int | None:
    """Add sizes by the groups of ranks that NeMo prints, and by the mesh of early torchtitan.
    Return the copies of the model, where they are printed."""
    for name in MODEL_SIZES:
        if groups := printed.get(f"{name}_groups"):
            printed[name] = str(len(re.findall(r"\d+", groups.partition("]")[0])))
            printed["gpus"] = str(len(re.findall(r"\d+", groups)))
    sizes = re.findall(r"\d+", printed.get("mesh_sizes", ""))
    mesh = dict(zip(re.findall(r"\w+", printed.get("mesh", "")), sizes, strict=False))
    printed |= {name: mesh[name] for name in MODEL_SIZES if name in mesh}
    shards = [size for name, size in mesh.items() if name.startswith("dp_shard")]
    if mesh:
        printed["shards"] = str(math.prod(map(int, shards)))
        printed["replicas"] = mesh.get("dp_replicate") or mesh.get("dp") or "1"
    if "shards" in printed:
        return (count(printed["shards"], 1) or 1) * (count(printed["replicas"], 1) or 1)
    return count(printed.get("dp"), 1)


def _choices(printed: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    stage, own = count(printed.get("zero_stage"), 0, 3), printed.get("sharding")
    if _truth(printed.get("torch_fsdp")):
        chosen["sharding"] = "fsdp"
    elif stage is not None:
        chosen["sharding"] = f"zero{stage}" if stage else "none"
    elif own is not None:
        is_split = (count(printed.get("shards")) or 1) * values.get("cp", 1) > 1
        chosen["sharding"] = _TITAN_SHARDINGS.get(own, "fsdp") if is_split else "none"
    elif "distributed_optimizer" in printed:
        chosen["sharding"] = "zero1" if _truth(printed["distributed_optimizer"]) else "none"
    text = printed.get("checkpointing", "").lower().removesuffix("ac")
    if text in ("none", "selective", "full"):
        chosen["checkpointing"] = text
    elif "recompute" in printed:
        chosen["checkpointing"] = "full" if _truth(printed["recompute"]) else "none"
    if "sequence_parallel" in printed or "tp_mode" in printed:
        is_scattered = printed.get("tp_mode") == "REDUCE_SCATTER" and values.get("tp", 1) > 1
        chosen["sequence_parallel"] = is_scattered or _truth(printed.get("sequence_parallel"))
    dtype = printed.get("dtype", "").removeprefix("torch.")
    if dtype in PRECISION_ALIASES:
        chosen["precision"] = PRECISION_ALIASES[dtype]
    elif "bf16" in printed or "fp16" in printed:
        is_half = [name for name in ("bf16", "fp16") if _truth(printed.get(name))]
        chosen["precision"] = is_half[0] if is_half else "fp32"
    return chosen


def _truth(text: str | None) -> bool:
    return (text or "").lower() == "true"


IMPORTER = TrainingLogImporter()
