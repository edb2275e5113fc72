"""What is asked of Slurm for a run: the words of ``sbatch``, and the batch script."""

import shlex
import sys
from pathlib import Path

from wattlaw.errors import BadInput
from wattlaw.files import write_text
from wattlaw.isolation import isolated_python
from wattlaw.launch.limits import requested_limits
from wattlaw.launch.slurm.codes import SETUP_FAILED
from wattlaw.limits.prolog_limits import limit_comment
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec

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
    """Return how many workers each node of a run has.

    Raises
    ------
    BadInput
        They cannot be spread evenly.
    """
    gpus, nodes = spec.setting.gpus, spec.nodes
    if gpus % nodes:
        raise BadInput(
            f"{gpus} gpus on {nodes} nodes; allowed: as many on each (launch.gpus_per_node)"
        )
    return gpus // nodes


def sbatch_arguments(spec: RunSpec, folder: RunFolder, launch: Launch, name: str) -> list[str]:
    """Return the words after ``sbatch`` for a run: options, script, and the script's own words.

    Parameters
    ----------
    spec, folder
        The run.
    launch
        What its study says of jobs.
    name
        Of the job.

    Raises
    ------
    BadInput
        The run cannot be spread over nodes.
    """
    slurm, workers = launch.slurm, workers_per_node(spec)
    words = [f"--job-name={name}", f"--nodes={spec.nodes}", "--ntasks-per-node=1", "--requeue"]
    words += [f"--signal=B:USR1@{slurm.warn_s}", "--open-mode=append", f"--chdir={Path.cwd()}"]
    words += [f"--output={_literally(folder.log_path.resolve())}"]
    if slurm.gres is not None:
        words.append(f"--gres={slurm.gres}:{workers}")
    if slurm.cpus_per_worker is not None:
        words.append(f"--cpus-per-task={slurm.cpus_per_worker * workers}")
    if slurm.time is not None:
        words.append(f"--time={slurm.time}")
    options = dict(slurm.options)
    limits = requested_limits(spec.setting)
    if slurm.limits == "prolog" and not limits.are_none:
        options["comment"] = f"{limit_comment(limits)} {options.get('comment') or ''}".strip()
    for option, value in options.items():
        if value is True:
            words.append(f"--{option}")
        elif value is not False:
            words.append(f"--{option}={value}")
    driver = ["-m", "wattlaw.launch.slurm.driver"]
    words.append(str(folder.path.resolve() / "job.sh"))
    words += isolated_python(*driver, python=slurm.python or sys.executable)
    return [*words, str(folder.path.resolve())]


def write_script(folder: RunFolder, launch: Launch) -> None:
    """Write a run's batch script: the user's own lines, then whatever words it is given.

    A line that fails ends it: what was measured in another environment would look like a result.
    """
    setup = "".join(
        _LINE.format(line=line, place=place, failed=SETUP_FAILED)
        for place, line in enumerate(launch.slurm.setup)
    )
    write_text(folder.path / "job.sh", _SCRIPT.format(setup=setup))


def shell_line(words: list[str]) -> str:
    """Return the command as one would type it, for people to look at."""
    return shlex.join(["sbatch", *words])


def _literally(path: Path) -> str:
    """Return a path in which Slurm replaces nothing."""
    return str(path).replace("%", "%%")
