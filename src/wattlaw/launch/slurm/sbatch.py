"""The arguments of ``sbatch`` for a run, and its batch script."""

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
    """Return the number of workers of each node.

    Raises
    ------
    BadInput
        The workers cannot be distributed evenly.
    """
    gpus, nodes = spec.setting.gpus, spec.nodes
    if gpus % nodes:
        raise BadInput(
            f"{gpus} gpus on {nodes} nodes; allowed: the same number on each node "
            "(launch.gpus_per_node)"
        )
    return gpus // nodes


def sbatch_arguments(spec: RunSpec, folder: RunFolder, launch: Launch, name: str) -> list[str]:
    """Return the arguments of ``sbatch`` for a run: options, script, and the script's arguments.

    Parameters
    ----------
    spec, folder
        The run.
    launch
        The launch settings of its study.
    name
        The name of the job.

    Raises
    ------
    BadInput
        The workers cannot be distributed evenly over the nodes.
    """
    slurm, workers = launch.slurm, workers_per_node(spec)
    arguments = [f"--job-name={name}", f"--nodes={spec.nodes}", "--ntasks-per-node=1", "--requeue"]
    arguments += [f"--signal=B:USR1@{slurm.warn_s}", "--open-mode=append", f"--chdir={Path.cwd()}"]
    arguments += [f"--output={_escape(folder.log_path.resolve())}"]
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
    driver = ["-m", "wattlaw.launch.slurm.driver"]
    arguments.append(str(folder.path.resolve() / "job.sh"))
    arguments += isolated_python(*driver, python=slurm.python or sys.executable)
    return [*arguments, str(folder.path.resolve())]


def write_script(folder: RunFolder, launch: Launch) -> None:
    """Write a run's batch script: the lines of ``launch.slurm.setup``, then its arguments.

    A line that fails ends the job, so that nothing is measured in a wrong environment.
    """
    setup = "".join(
        _LINE.format(line=line, place=place, failed=SETUP_FAILED)
        for place, line in enumerate(launch.slurm.setup)
    )
    write_text(folder.path / "job.sh", _SCRIPT.format(setup=setup))


def shell_line(arguments: list[str]) -> str:
    """Return the command with shell quotes, for display."""
    return shlex.join(["sbatch", *arguments])


def _escape(path: Path) -> str:
    """Return a path without Slurm's replacement symbols."""
    return str(path).replace("%", "%%")
