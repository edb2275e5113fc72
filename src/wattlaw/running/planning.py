"""Plans of study files, what is known of their runs before the start, and the GPU-hours of them."""

import contextlib
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from wattlaw.common import registry
from wattlaw.common.errors import BadInput
from wattlaw.common.files import read_bytes
from wattlaw.common.formatting import plural
from wattlaw.common.processes import run_captured
from wattlaw.common.text import join_names, nearest
from wattlaw.running.launcher import GROUP, Launcher
from wattlaw.running.training.environment import RUN_FOLDER
from wattlaw.running.training.rank_starters import find_rank_starter
from wattlaw.store.record import RunRecord
from wattlaw.study.model import RunSpec, Study, Train, WorkloadSpec
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.plan import PlannedRun, expand, read_study
from wattlaw.study.setting import LAYOUT, Setting
from wattlaw.study.sweep import Sweep
from wattlaw.workloads import catalogue

#: The most reasons of skipped runs that are shown before the start.
_MOST_REASONS = 5
_HOUR_S = 3600.0
_STATUSES = (
    *("done", OUT_OF_MEMORY, "failed", "skipped"),
    *("interrupted", "running", "queued", "planned", "damaged"),
)
#: Launchers that start no command.
_START_NOTHING = ("replay", "simulated")
_MAX_SCRIPT_BYTES = 1_000_000
#: Launchers that train, in any layout; others know data-parallel jobs.
_TRAINING = ("local", "slurm")
#: What they can train of a layout; a command of a user may do more.
_SHARDINGS = ("none", "zero2", "zero3", "fsdp")
_CHECKPOINTINGS = ("none", "full")
_OWN = "or a command of your own"


@dataclass(frozen=True)
class Planned:
    study: Study
    runs: list[PlannedRun]


def plan_study(
    path: Path,
    launch_kind: str | None = None,
    hardware: str | None = None,
    table: Path | None = None,
) -> Planned:
    """Read a study file, check everything that can be checked without running, and expand it.

    ``launch_kind`` replaces ``launch.kind``, ``hardware`` that of ``launch.simulation``, and
    ``table`` ``launch.table``, which is relative to the study file.
    """
    study = read_study(path)
    launch, kind = study.launch, launch_kind or study.launch.kind
    if kind not in registry.names(GROUP):
        where = "launch" if launch_kind else f"{path}: launch.kind"
        allowed = ", ".join(registry.names(GROUP))
        near = nearest(kind[:60], registry.names(GROUP))
        raise BadInput(f"{where}: unknown launcher {kind!r}{near}; allowed: {allowed}")
    if hardware is not None and kind != "simulated":
        raise BadInput(f"run: --hardware requires the launcher simulated, not {kind}")
    if table is not None and kind != "replay":
        raise BadInput(f"run: --table requires the launcher replay, not {kind}")
    if table is None and launch.table is not None:
        table = path.parent / launch.table
    changes = {
        "kind": kind,
        "simulation": launch.simulation.model_copy(
            update={} if hardware is None else {"hardware": hardware}
        ),
        "table": None if table is None else str(table),
    }
    study = study.model_copy(update={"launch": launch.model_copy(update=changes)})
    launcher: type[Launcher] = registry.load(GROUP, kind)
    try:
        study = catalogue.checked(launcher.resolve(study))
        check_own_ranks(study)
        planned = Planned(study, expand(study))
        for run in planned.runs:
            if kind in _TRAINING:
                check_layout(run.spec)
            elif run.setting.layout:
                names = ", ".join(run.setting.layout)
                allowed = f"the launchers {' and '.join(_TRAINING)}"
                raise BadInput(f"{names}: given for the launcher {kind}; allowed: {allowed}")
        return planned
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def check_layout(spec: RunSpec) -> None:
    """Raise ``BadInput`` for a layout of a workload that cannot be trained here."""
    setting, name = spec.setting, spec.workload.name
    if spec.workload.command is not None:
        return
    for size in ("pp", "cp", "ep", "virtual_stages"):
        if (given := getattr(setting, size)) != 1:
            raise BadInput(f"{size}: given {given} for {name}; allowed: 1, {_OWN}")
    for choice, allowed in (("sharding", _SHARDINGS), ("checkpointing", _CHECKPOINTINGS)):
        if (given := getattr(setting, choice)) not in allowed:
            text = f"{choice}: given {given} for {name}"
            raise BadInput(f"{text}; allowed: {', '.join(allowed)}, {_OWN}")
    if setting.tp == 1 and setting.sharding == setting.checkpointing == "none":
        return
    if not catalogue.entry(name).shares_layers:
        text = f"tp, sharding and checkpointing: given for {name}"
        raise BadInput(f"{text}; allowed: for gpt, {_OWN}")
    if spec.local_batch is None:
        text = f"global_batch: given {spec.global_batch} for {setting.gpus} GPUs"
        raise BadInput(f"{text}; allowed: a multiple of them, {_OWN}")
    if setting.tp > 1 or setting.sharding != "none":
        _check_shared(spec, catalogue.validated(spec.workload))


def _check_shared(spec: RunSpec, options: Any) -> None:
    setting, measure = spec.setting, spec.measure
    shared = ["heads", "kv_heads", "ffn", "vocabulary"]
    for option in [*shared, "sequence"] if setting.sequence_parallel else shared:
        if (count := getattr(options, option)) % setting.tp:
            raise BadInput(f"tp: given {setting.tp} for {option} {count}; allowed: a divisor of it")
    if measure.evaluate and not measure.is_by_steps and options.evaluation_samples % setting.dp:
        text = f"evaluation_samples: given {options.evaluation_samples} for dp {setting.dp}"
        raise BadInput(f"{text}; allowed: a multiple of it, or measure.evaluate false")
    if setting.precision == "fp16":  # ranks would differ on which steps overflow
        raise BadInput("precision: given fp16 with tp or sharding; allowed: fp32, tf32, bf16")
    if spec.train.save_model or spec.train.checkpoint_every is not None:
        given = "save_model" if spec.train.save_model else "checkpoint_every"
        raise BadInput(f"train.{given}: given with tp or sharding; allowed: without them")


def check_own_ranks(study: Study) -> None:
    """Raise ``BadInput`` if a command certainly starts other ranks than its settings have."""
    if study.launch.kind in _START_NOTHING:
        return
    for index, spec in enumerate(study.workloads):
        starter = find_rank_starter(spec.command or ())
        most = max(max(sweep.gpus) for sweep in _sweeps(study, spec))
        if starter is not None and (started := starter.fault(most)) is not None:
            times = "once" if most == 1 else f"once per GPU, up to {most} times"
            own = starter.program if starter.program in ("torchrun", "mpirun", "srun") else None
            how = f"; launch_with: {own} starts the ranks with {own}" if own else ""
            raise BadInput(
                f"workloads[{index}].command: given {starter.program}, which {started}, while "
                f"wattlaw starts the command {times}; allowed: the command of one rank, such as "
                f"[python, train.py], which gets torchrun's variables (RANK, WORLD_SIZE){how}"
            )


def command_warnings(study: Study, runs: Sequence[PlannedRun]) -> list[str]:
    if study.launch.kind in _START_NOTHING:
        return []
    sentences = list[str]()
    for index, spec in enumerate(study.workloads):
        if spec.command is not None:
            settings = {run.setting for run in runs if run.spec.workload.name == spec.name}
            found = _unused_values(spec, study, settings)
            sentences += [f"workloads[{index}].command: {sentence}" for sentence in found]
    return sentences


def _unused_values(
    spec: WorkloadSpec, study: Study, settings: Collection[Setting]
) -> Iterator[str]:
    words = spec.command or ()
    texts = [*words]
    for word in words:
        if word.endswith((".py", ".sh")) and "{" not in word:
            with contextlib.suppress(OSError, ValueError):
                texts.append(read_bytes(Path(word), _MAX_SCRIPT_BYTES).decode("utf-8", "replace"))
    if any(RUN_FOLDER in text for text in texts):
        return  # the command may read its setting in the folder of the run
    taken = {name for word in words for name in re.findall(r"\{(\w+)\}", word)}
    taken |= {"local_batch"} if "micro_batch" in taken else set()  # it follows from the batch
    differs = {
        "local_batch": len({setting.local_batch for setting in settings}) > 1,
        **{
            name: {getattr(setting, name) for setting in settings} != {getattr(Setting(1), name)}
            for name in ("precision", "dataset_fraction", *LAYOUT)
        },
        "epochs": any(sweep.epochs is not None for sweep in _sweeps(study, spec)),
    }
    for name in (name for name, does in differs.items() if does):
        names = ("global_batch", "local_batch") if name == "local_batch" else (name,)
        if not taken.intersection(names):
            what = "batch sizes" if name == "local_batch" else f"values of {name}"
            braces = " or ".join(f"{{{item}}}" for item in names)
            yield (
                f"the {what} of the sweep do not reach the command, so that every run uses the "
                f"script's own; insert {braces}, such as --{name.replace('_', '-')} '{{{name}}}'"
            )
    fields: dict[str, Any] = Train.model_fields
    changed = [
        f"train.{name}"
        for name, known in fields.items()
        if name != "seed" and getattr(study.train, name) != known.default
    ]
    if changed:
        yield (
            f"{join_names(changed)} set the training loop of wattlaw's workloads and do not reach "
            "a command; pass them to the script as arguments"
        )


def _sweeps(study: Study, spec: WorkloadSpec) -> list[Sweep]:
    return [sweep for sweep in study.sweeps if spec.name in (sweep.workloads or [spec.name])]


class Forecast(NamedTuple):
    """What is known of runs before they start."""

    skipped: dict[str, str]  # the reason by run id
    warnings: list[str]  # sentences on what may be wrong
    missing: list[str]  # sentences on what stops every run
    is_of_machine: bool  # another machine may execute the runs that are skipped


def forecast(planned: Planned, runs: Iterable[PlannedRun]) -> Forecast:
    study = planned.study
    launcher: type[Launcher] = registry.load(GROUP, study.launch.kind)
    examined = launcher.examine(study.launch)
    by_setting: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        by_setting[_setting(run.spec)].append(run)
    skipped, specs = dict[str, str](), [repeats[0].spec for repeats in by_setting.values()]
    for repeats in by_setting.values():
        if (reason := examined.unsupported_reason(repeats[0].spec)) is not None:
            skipped |= {run.run_id: reason for run in repeats}
    warnings = [*command_warnings(study, planned.runs), *examined.warnings(specs)]
    placed = {(spec.setting.tp, spec.setting.gpus // spec.nodes) for spec in specs}
    wide = [f"tp {tp} with {gpus} GPUs of a node" for tp, gpus in sorted(placed) if gpus % tp]
    if wide:
        warnings.insert(
            0,
            f"{', '.join(wide)}: tensor parallelism between nodes exchanges data in every layer; "
            "most networks slow it",
        )
    return Forecast(skipped, warnings, [*examined.missing(study)], examined.is_of_machine)


def skipped_text(reasons: Iterable[str], runs: int) -> list[str]:
    count = Counter(reasons)
    # One more reason takes no more space than the sentence on the others.
    shown = count.most_common(None if len(count) == _MOST_REASONS + 1 else _MOST_REASONS)
    sentences = [
        f"{plural(number, 'run')} of {runs:,} will be skipped: {reason}" for reason, number in shown
    ]
    if len(count) > len(shown):
        others = count.total() - sum(number for _, number in shown)
        sentences.append(
            f"{plural(others, 'run')} of {runs:,} will be skipped for "
            f"{len(count) - len(shown):,} other reasons ('wattlaw status' lists them later)"
        )
    return sentences


def count_statuses(statuses: Iterable[str]) -> dict[str, int]:
    count = Counter(statuses)
    return {status: count[status] for status in _STATUSES if count[status]}


def git_commit(directory: Path) -> str | None:
    """Return the commit of the user's code, with ``-dirty`` if it was changed since, or None."""
    # --dirty would start the program that a repository names as its file system monitor.
    line = ["git", "-c", "core.fsmonitor=false", "-C", str(directory)]
    line += ["describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
    try:
        described = run_captured(line, timeout_s=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None  # empty outside a repository


@dataclass(frozen=True)
class GpuHours:
    measured: float
    measured_runs: int
    unknown_runs: int


def gpu_hours(runs: Sequence[PlannedRun], done: Iterable[RunRecord]) -> GpuHours:
    """Estimate the GPU-hours of runs: each takes as long as the mean of its repeats in ``done``."""
    times_s: dict[str, list[float]] = defaultdict(list)
    for record in done:
        is_timed = record.status == "done" and record.attempts <= 1  # else only the last attempt is
        is_timed = is_timed and record.spec.launch_kind != "simulated"  # on the simulator's clock
        if is_timed and record.started_at and record.finished_at:
            duration = record.finished_at - record.started_at
            times_s[_setting(record.spec)].append(duration.total_seconds())
    measured = [
        run.setting.gpus * fmean(repeats_s) / _HOUR_S
        for run in runs
        if (repeats_s := times_s.get(_setting(run.spec)))
    ]
    return GpuHours(sum(measured, 0.0), len(measured), len(runs) - len(measured))


def _setting(spec: RunSpec) -> str:
    return spec.model_copy(update={"repeat": 0}).model_dump_json()
