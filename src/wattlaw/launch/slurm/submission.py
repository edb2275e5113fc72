"""A run's submission, as a file in its folder, and the names of a store's jobs."""

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
    """Return the path of a run's submission."""
    return folder.path / "job.json"


def claim_path(folder: RunFolder) -> Path:
    """Return the file that names the job to which a run belongs."""
    return folder.path / "job-claim"


def read_submission(folder: RunFolder) -> Submission | None:
    """Return a run's submission, None if it was never submitted.

    Raises
    ------
    BadInput
        The file is damaged.
    """
    path = submission_path(folder)
    try:
        return Submission.model_validate_json(read_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, UnicodeDecodeError):
        raise BadInput(f"{path}: cannot be read as a run's job; remove it") from None


def write_submission(folder: RunFolder, submission: Submission) -> None:
    """Write a run's submission."""
    write_text(submission_path(folder), submission.model_dump_json(indent=1) + "\n")


def existing_tag(store: Path) -> str | None:
    """Return the tag in the names of a store's jobs, None if it never had a job."""
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
    """Return the name of the job of a store's run."""
    return f"{_PREFIX}-{tag}-{run_id}"


def run_id_of(name: str, tag: str) -> str | None:
    """Return the run id in the name of a store's job, None for other jobs."""
    prefix = job_name(tag, "")
    return name.removeprefix(prefix) if name.startswith(prefix) else None
