"""``wattlaw init``."""

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from wattlaw.cli.common import options as opts
from wattlaw.common.errors import BadInput
from wattlaw.common.files import naming
from wattlaw.common.formatting import number, plural
from wattlaw.common.text import join_names
from wattlaw.measure.limits.requests import Limits
from wattlaw.running import first_machine, first_run, first_study, measured_command
from wattlaw.running.first_run import Seen
from wattlaw.running.instrumentation.observer import RUN
from wattlaw.running.instrumentation.steady_state import MeasuredPart
from wattlaw.running.measured_command import MeasuredCommand
from wattlaw.running.node_setup import thread_environment
from wattlaw.running.steps import batch_that_ran
from wattlaw.running.summary import phase_summaries
from wattlaw.running.training.rank_starters import command_of_one_rank
from wattlaw.study.command import Argument, arguments
from wattlaw.study.model import Measure


def init(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="Training command to run.")
    ],
    output: Annotated[Path, opts.option("FILE", "Study file to write.", "--output", "-o")] = Path(
        "study.yaml"
    ),
    batch_argument: Annotated[
        str | None, opts.option("NAME", "Argument that sets the batch, such as --batch-size.")
    ] = None,
    partition: Annotated[
        str | None, opts.option("NAME", "Slurm partition for the runs of the study.")
    ] = None,
    steps: Annotated[
        int, opts.option("N", "Training steps to run, after 20 of warm-up.", min=1, max=10**6)
    ] = 50,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
) -> int:
    """Run a training command briefly; write a study file for it."""
    _refuse_output(output)
    _show("looking at the machine")
    one_rank, launch_with = command_of_one_rank(command)
    is_parallel = launch_with != "auto" or first_study.names_parallel_training(one_rank)
    if partition is None:
        machine = first_machine.this_machine(is_parallel=is_parallel)
    else:
        machine = first_machine.slurm_machine(partition, is_parallel=is_parallel)
    _show(f"running the command for {steps:,} steps after {Measure().warmup_steps} of warm-up")
    with tempfile.TemporaryDirectory(prefix="wattlaw-init-") as folder:
        done = measured_command.measure(
            command, Path(folder, "store"), limits=Limits(), prior_clocks_are_default=False,
            sample_hz=10.0, assume_cpu_w=None, part=MeasuredPart(steps=steps), instrument=True,
            pattern=None, variables=thread_environment(machine.launch["threads_per_worker"]),
        )  # fmt: skip
        if done.record is not None and done.record.interrupted:
            return done.exit_code
        seen = _seen(done, one_rank, launch_with, steps, is_parallel=is_parallel)
    batch = _batch(command, seen, batch_argument, asks=not yes)
    _show("writing the study")
    study = first_study.first_study(seen, batch, machine)
    with naming(output), output.open("x", encoding="utf-8") as file:
        file.write(study.text)
    unit = "GPU-hours" if machine.has_gpus else "worker-hours"
    print(first_run.seen_text(seen))
    print(f"{output}: {plural(study.settings, 'setting')} to choose from; measuring takes at most "
          f"{number(study.gpu_hours, 2)} {unit} (an estimate from the step time)")  # fmt: skip
    fixed = () if batch is not None else (first_run.fixed_batch_note(seen),)
    for note in (*fixed, *study.notes):
        print(f"note: {note}")
    name = shlex.quote(str(output))
    print("Next:")
    for line in (f"check {name}", f"run {name}", "advise wattlaw-store"):
        print(f"  wattlaw {line}")
    return 0


def _show(stage: str) -> None:
    print(f"init: {stage} ...", file=sys.stderr, flush=True)


def _refuse_output(path: Path) -> None:
    """Refuse, before anything runs, a file that exists or could not be written."""
    if os.path.lexists(path):
        raise BadInput(f"{path}: the file exists; name another one with --output")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"--output {path}: the folder does not exist")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise PermissionError(13, os.strerror(13), str(path))


def _seen(
    done: MeasuredCommand,
    command: Sequence[str],
    launch_with: str,
    asked: int,
    *,
    is_parallel: bool,
) -> Seen:
    """Return what the run has shown; ``BadInput`` if it has shown too little for a study."""
    from wattlaw.analysis.metrics.time_errors import steps_needed

    record, folder, steps = done.record, done.folder, done.steps
    if record is None or folder is None or steps is None:
        raise BadInput("init: started as one of several tasks; start it as one")
    if done.exit_code:
        raise BadInput(f"init: the command failed: {record.reason}; its output says why")
    began_at, ended_at = record.started_at, record.finished_at
    if not steps.step_time_mean_s or not steps.windows or began_at is None or ended_at is None:
        why = "; ".join(record.notes) or "it has no training steps"
        raise BadInput(f"init: no step time was measured: {why}")
    if steps.workers_work_together is False:
        raise BadInput(f"init: {'; '.join(record.notes)}")
    ranks, energy = steps.world_size or 1, phase_summaries(folder)[RUN].energy
    stepping_s = sum(window["duration_s"] for window in steps.windows)
    is_whole = (steps.steps_measured or 0) + (steps.pauses or 0) < asked
    return Seen(
        tuple(command), ranks,
        step_s=steps.step_time_mean_s,
        beside_s=max(0.0, (ended_at - began_at).total_seconds() - stepping_s),
        launch_with=launch_with,
        global_batch=batch_that_ran(steps.steps_by_samples, 0),
        gradient_accumulation=steps.gradient_accumulation,
        precision=steps.precision,
        parallelism=steps.parallelism,
        is_parallel=is_parallel or steps.backend is not None,
        threads=record.facts.threads_per_worker,
        peak_memory_bytes=steps.peak_memory_bytes,
        dataset_samples=record.facts.dataset_samples,
        has_energy=energy.total_j is not None,
        steps=steps.steps if is_whole else None,
        needed_steps=steps_needed(steps.windows),
        layout={name: value for name in first_run.LAYOUT
                if (value := getattr(steps, name)) not in (None, 1, "none")},
        network=json.loads(steps.network) if steps.network else None,
    )  # fmt: skip


def _batch(command: Sequence[str], seen: Seen, name: str | None, *, asks: bool) -> Argument | None:
    """Return the argument that carries the batch: the named one, the only one, or ask.

    None where the batch was seen and no argument has it.
    """
    if name is not None:
        return first_run.named_argument(seen, name)
    found = first_run.batch_candidates(seen)
    if len(found) == 1 or first_run.has_fixed_batch(seen):
        return next(iter(found), None)
    text = first_run.batch_text(seen)
    if found:
        text += f", and {join_names([argument.name for argument in found])} have this value"
    elif seen.global_batch is not None:
        text += ", and no argument of the command says so"
    named = (each for each in arguments(seen.command) if "batch" in each.name)
    likely = next((each.name for each in (*found, *named)), None)
    if not (asks and sys.stdin.isatty()):
        line = f"wattlaw init --batch-argument {likely or '--batch-size'} -- {shlex.join(command)}"
        if likely:
            raise BadInput(f"init: {text}; name the one that sets the batch: {line}")
        raise BadInput(
            f"init: {text}, and no argument is named after the batch; let the script take one, "
            "such as parser.add_argument('--batch-size', type=int), and train with it; then: "
            f"{line} --batch-size 64"
        )
    print(f"wattlaw: {text}")
    while True:
        try:
            given = typer.prompt("Argument that sets the batch", likely)
            return first_run.named_argument(seen, given)
        except BadInput as error:
            print(f"wattlaw: {error}")
