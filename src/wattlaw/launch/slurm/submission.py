"""What a run's folder tells of its job, and how a job is known for a store's."""

import contextlib
import secrets
import time
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from wattlaw.errors import BadInput, one_line
from wattlaw.files import read_text, write_text
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch

_PREFIX, _DIGITS, _TAG = "wattlaw", 8, "slurm-tag"
_TRIES = 20


class Submission(BaseModel):
    """``job.json`` in a run's folder: written before a job is submitted, and again with its id."""

    model_config = ConfigDict(frozen=True)

    launch: Launch
    at: datetime
    job_id: str | None = None


def submission_path(folder: RunFolder) -> Path:
    """Return where a run's job is told."""
    return folder.path / "job.json"


def claim_path(folder: RunFolder) -> Path:
    """Return the file by which a job makes a run its own."""
    return folder.path / "job-claim"


def read_submission(folder: RunFolder) -> Submission | None:
    """Return what is told of a run's job, None where none was ever submitted.

    Raises
    ------
    BadInput
        The file is there and is damaged.
    """
    path = submission_path(folder)
    try:
        return Submission.model_validate_json(read_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, UnicodeDecodeError):
        raise BadInput(f"{path}: cannot be read as a run's job; remove it") from None


def write_submission(folder: RunFolder, told: Submission) -> None:
    """Tell of a run's job."""
    write_text(submission_path(folder), told.model_dump_json(indent=1) + "\n")


def existing_tag(store: Path) -> str | None:
    """Return what marks a store's jobs, None where none was ever submitted."""
    return store_tag(store) if (store / _TAG).exists() else None


def store_tag(store: Path) -> str:
    """Return what marks a store's jobs, whatever the path by which a machine reaches it.

    It is drawn once and kept in the store.
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
        time.sleep(0.1)  # another process is just writing it
    raise BadInput(f"{path}: no tag of {_DIGITS} digits; remove the file if no job is in the queue")


def job_name(tag: str, run_id: str) -> str:
    """Return the name of the job of a store's run."""
    return f"{_PREFIX}-{tag}-{run_id}"


def run_id_of(name: str, tag: str) -> str | None:
    """Return the run that a job is for by its name, None for jobs of others."""
    mine = job_name(tag, "")
    return name.removeprefix(mine) if name.startswith(mine) else None
