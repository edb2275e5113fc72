"""Checks of the commands of a study before they run: ranks of their own, unused values."""

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.files import read_bytes
from wattlaw.common.text import join_names
from wattlaw.running.training.environment import RUN_FOLDER
from wattlaw.running.training.rank_starters import find_rank_starter
from wattlaw.study.model import Study, Train, WorkloadSpec
from wattlaw.study.plan import PlannedRun
from wattlaw.study.setting import LAYOUT, Setting
from wattlaw.study.sweep import Sweep

#: Launchers that start no command.
_START_NOTHING = ("replay", "simulated")
_MAX_SCRIPT_BYTES = 1_000_000


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
        "precision": {setting.precision for setting in settings} != {"fp32"},
        "dataset_fraction": {setting.dataset_fraction for setting in settings} != {1.0},
        **{
            name: {getattr(setting, name) for setting in settings} != {getattr(Setting(1), name)}
            for name in LAYOUT
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
