"""The line that trains at a recommended setting, for a user to copy."""

import json
import re
import shlex
from collections.abc import Sequence

import pandas as pd

from wattlaw.analysis.advise.option import Option
from wattlaw.study.command import command_of, epochs_argument, setting_values, substitute

#: Launchers whose runs start the command of a study.
_OF_STUDIES = ("local", "slurm")
_LIMITS = {
    "power_limit_w": "--power-limit",
    "clock_limit_mhz": "--clock-limit",
    "power_profile": "--power-profile",
}
_PYTHON = re.compile(r"python[0-9.]*")


def run_command(option: Option, runs: pd.DataFrame) -> str | None:
    """Return the line that trains at an option; None if its job is no command of a study, or the
    command needs a value that only a measurement has.

    ``runs`` are the stored runs of the job. A line for several nodes is to be started on each of
    them, with the name of the first one in ``HOST``.
    """
    job = next(iter(runs["options"].dropna()), "{}")
    command = command_of(job)
    if not command or option.launcher not in _OF_STUDIES:
        return None
    values = setting_values(option.setting) | {"python": "python", "seed": 0, "repeat": 0}
    known = {key: value for key, value in values.items() if value is not None or key in _LIMITS}
    epochs = 0.0 if option.epochs is None else option.epochs.mean
    count = int(epochs) if epochs.is_integer() else None
    if count:
        known["epochs"] = count
    try:
        words = [substitute(word, known) for word in command]
    except ValueError:
        return None
    if count and (said := epochs_argument(words)) is not None:
        words[said.index] = f"{said.prefix}{count}"
    has_group = bool(runs["backend"].notna().any())
    launched = _launched(words, option, json.loads(job).get("launch_with", "auto"), has_group)
    if launched is None or not all(map(str.isprintable, launched)):
        return None
    limits = [
        f"{flag}={value:g}" if isinstance(value, float) else f"{flag}={value}"
        for name, flag in _LIMITS.items()
        if (value := getattr(option.setting, name)) is not None
    ]
    line = shlex.join([*(["wattlaw", "measure", *limits, "--"] if limits else []), *launched])
    threads = option.threads_per_worker
    return line if threads is None else f"OMP_NUM_THREADS={threads} {line}"


def _launched(
    words: Sequence[str], option: Option, program: str, has_group: bool
) -> list[str] | None:
    """Return the command of all workers; torchrun sets what several, or a process group, need."""
    nodes, workers = option.setting.nodes or 1, option.gpus
    if program == "srun":
        return ["srun", "--nodes", str(nodes), "--ntasks", str(workers), *words]
    if program == "mpirun":
        return ["mpirun", "-n", str(workers), *words]
    if workers == 1 and program != "torchrun" and not has_group:
        return [*words]
    if program == "none" or len(set(option.setting.gpus_per_node or (workers,))) > 1:
        return None
    where = ["--standalone"]
    if nodes > 1:
        where = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
    script = [*words[1:]] if _PYTHON.fullmatch(words[0]) else []
    if not script or not (script[0] == "-m" or script[0].endswith(".py")):
        script = ["--no-python", *words]
    return ["torchrun", *where, "--nproc-per-node", str(workers // nodes), *script]
