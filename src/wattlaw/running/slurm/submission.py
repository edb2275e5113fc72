"""The submission of a run as a job: its arguments, script and files, and how attempts end."""

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from wattlaw.common.errors import BadInput, one_line
from wattlaw.common.files import read_text, write_text
from wattlaw.common.isolation import isolated_python
from wattlaw.measure.limits.prolog_request import limit_comment
from wattlaw.running.finish import failed
from wattlaw.running.node_setup import requested_limits
from wattlaw.running.slurm.commands import Job
from wattlaw.running.training import failures
from wattlaw.running.training.environment import DISK_FULL
from wattlaw.store.record import Interruption, RunRecord, now
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec

#: Exit codes of a job: the store does not exist on the node; a line of ``launch.slurm.setup``
#: failed; the run was interrupted, and Slurm did not requeue the job.
NO_FOLDER, SETUP_FAILED, INTERRUPTED = os.EX_NOINPUT, os.EX_CONFIG, os.EX_TEMPFAIL
REASONS = {
    SETUP_FAILED: "a line of launch.slurm.setup failed",
    NO_FOLDER: "the store does not exist on the job's first node; it must be on a file system that "
    "login node and compute nodes share",
    DISK_FULL: "the disk is full, or a quota is exceeded; free some space and start the run again",
}
#: Statuses of runs that have ended.
ENDED = ("done", "failed", "skipped")
#: A run fails after this many interruptions in a row without a checkpoint.
MAX_INTERRUPTIONS = 3
_DIGITS, _TAG, _TRIES = 8, "slurm-tag", 20


class Submission(BaseModel):
    """``job.json`` in a run's folder: written before a job is submitted, and again with its id."""

    model_config = ConfigDict(frozen=True)

    launch: Launch
    at: datetime
    job_id: str | None = None

    @staticmethod
    def path(folder: RunFolder) -> Path:
        return folder.path / "job.json"

    def write(self, folder: RunFolder) -> None:
        write_text(self.path(folder), self.model_dump_json(indent=1) + "\n")


def claim_path(folder: RunFolder) -> Path:
    return folder.path / "job-claim"


def read_submission(folder: RunFolder) -> Submission | None:
    path = Submission.path(folder)
    try:
        return Submission.model_validate_json(read_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, UnicodeDecodeError):
        raise BadInput(f"{path}: cannot be read as a run's job; remove it") from None


def existing_tag(store: Path) -> str | None:  # None: it never had a job
    return store_tag(store) if (store / _TAG).exists() else None


def store_tag(store: Path) -> str:
    """Return the tag in the names of a store's jobs.

    It is drawn once and kept in the store, because machines may reach a store by different paths.
    """
    path = store / _TAG
    with contextlib.suppress(FileExistsError), path.open("x", encoding="ascii") as file:
        file.write(secrets.token_hex(_DIGITS // 2))
    for _ in range(_TRIES):
        try:
            tag = read_text(path).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: cannot be read: {one_line(error)}") from None
        if len(tag) == _DIGITS:
            return tag
        time.sleep(0.1)  # another process is writing it
    raise BadInput(f"{path}: no tag of {_DIGITS} digits; remove the file if no job is in the queue")


def job_name(tag: str, run_id: str) -> str:
    return f"wattlaw-{tag}-{run_id}"


def by_run(jobs: Iterable[Job], tag: str) -> dict[str, Job]:
    """Return the jobs of a store by run id; of several jobs of a run, the last one."""
    prefix = job_name(tag, "")
    return {job.name.removeprefix(prefix): job for job in jobs if job.name.startswith(prefix)}


_SCRIPT = """#!/bin/bash
# One run of a study; written by 'wattlaw run' from launch.slurm.
trap 'export WATTLAW_WARNED=1' USR1
{setup}if [ -n "${{PYTHONPATH-}}" ]; then
  # wattlaw imports nothing from the working folder, which empty and relative entries mean.
  export WATTLAW_USER_PYTHONPATH=$PYTHONPATH
  IFS=: read -ra entries <<< "$PYTHONPATH"
  PYTHONPATH=
  for entry in "${{entries[@]}}"; do
    case $entry in /*) PYTHONPATH+=${{PYTHONPATH:+:}}$entry ;; esac
  done
fi
exec "$@"
"""
_LINE = """{line}
code=$?
if [ $code -ne 0 ]; then
  echo "wattlaw: launch.slurm.setup[{place}] ended with exit code $code" >&2
  exit {failed}
fi
"""


def workers_per_node(spec: RunSpec) -> int:
    gpus, nodes = spec.setting.gpus, spec.nodes
    if gpus % nodes:
        raise BadInput(
            f"{gpus} gpus on {nodes} nodes; allowed: the same number on each node "
            "(launch.gpus_per_node)"
        )
    return gpus // nodes


def sbatch_arguments(spec: RunSpec, folder: RunFolder, launch: Launch, name: str) -> list[str]:
    slurm, workers = launch.slurm, workers_per_node(spec)
    log = str(folder.log_path.resolve()).replace("%", "%%")  # not Slurm's replacement symbols
    arguments = [
        *(f"--job-name={name}", f"--nodes={spec.nodes}", "--ntasks-per-node=1", "--requeue"),
        *(f"--signal=B:USR1@{slurm.warn_s}", "--open-mode=append", f"--chdir={Path.cwd()}"),
        f"--output={log}",
    ]
    if slurm.gres is not None:
        arguments.append(f"--gres={slurm.gres}:{workers}")
    if slurm.cpus_per_worker is not None:
        arguments.append(f"--cpus-per-task={slurm.cpus_per_worker * workers}")
    if slurm.time is not None:
        arguments.append(f"--time={slurm.time}")
    options = dict(slurm.options)
    limits = requested_limits(spec.setting)
    if slurm.limits == "prolog" and not limits.are_none:
        options["comment"] = f"{limit_comment(limits)} {options.get('comment') or ''}".strip()
    for option, value in options.items():
        if value is True:
            arguments.append(f"--{option}")
        elif value is not False:
            arguments.append(f"--{option}={value}")
    path, python = folder.path.resolve(), slurm.python or sys.executable
    driver = isolated_python("-m", "wattlaw.running.slurm.driver", str(path), python=python)
    return [*arguments, str(path / "job.sh"), *driver]


def write_script(folder: RunFolder, launch: Launch) -> None:
    setup = "".join(
        _LINE.format(line=line, place=place, failed=SETUP_FAILED)
        for place, line in enumerate(launch.slurm.setup)
    )
    write_text(folder.path / "job.sh", _SCRIPT.format(setup=setup))


def has_progress(folder: RunFolder, attempt: int) -> bool:
    return (folder.live(attempt) / "checkpointed.json").exists()


def interrupted(record: RunRecord, folder: RunFolder, reason: str) -> RunRecord:
    """Return a run's record after its present attempt was interrupted.

    The run is planned again and continues from its checkpoint. It has failed if a rank failed
    before the interruption, or none of the last ``MAX_INTERRUPTIONS`` attempts saved a checkpoint.
    """
    cause = failures.cause(folder.live(record.attempts))
    if cause is not None:
        return failed(record, cause, finished_at=now())
    interruption = Interruption(
        attempt=record.attempts,
        at=now(),
        reason=reason,
        job_id=record.site.job_id if record.site else None,
        nodes=record.site.nodes if record.site else (),
        has_progress=has_progress(folder, record.attempts),
    )
    interruptions = (*record.interruptions, interruption)
    record = record.model_copy(update={"status": "planned", "interruptions": interruptions})
    last = interruptions[-MAX_INTERRUPTIONS:]
    if len(last) < MAX_INTERRUPTIONS or any(each.has_progress for each in last):
        return record
    often = f"interrupted {MAX_INTERRUPTIONS} times in a row without a checkpoint"
    return failed(record, f"{often}; last: {reason}", finished_at=now())
