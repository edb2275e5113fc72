"""One rank of a user's command: the process replaces itself with it, and ends with its parent.

With ``--launcher`` the command is a program such as torchrun that starts the ranks. They are
processes of this module too, with ``--launched``.
"""

import os
import signal
import sys
from pathlib import Path

from wattlaw.common import crash, processes
from wattlaw.common.isolation import user_environment
from wattlaw.running.instrumentation import STEPS_FOLDER, instrumented_environment
from wattlaw.running.instrumentation.hook._wattlaw.layouts import LAUNCHERS, first_number
from wattlaw.running.training.environment import AGENT_PID, FIRST_OUTPUT, LAUNCHED_RANK

LAUNCHER, LAUNCHED = "--launcher", "--launched"
#: The exit code of a shell for a command that does not exist.
_NOT_FOUND = 127


def main() -> int:
    how = sys.argv[1] if sys.argv[1] in (LAUNCHER, LAUNCHED) else None
    command = sys.argv[2:] if how else sys.argv[1:]
    processes.end_with_parent(os.getppid() if how == LAUNCHED else int(os.environ[AGENT_PID]))
    # The agent blocks SIGUSR1 for workers; a command receives signals as usual.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    # A launcher keeps the environment of wattlaw's processes, since it starts this module again.
    environment = dict(os.environ) if how == LAUNCHER else _of_command()
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - no shell
    except OSError as error:
        print(f"OSError: {command[0]}: cannot be run: {error.strerror}", file=sys.stderr)
    return _NOT_FOUND


def _of_command() -> dict[str, str]:
    environment = user_environment()
    folder, output = environment.get(STEPS_FOLDER), environment.pop(FIRST_OUTPUT, None)
    if folder is not None:
        environment = instrumented_environment(environment, Path(folder))
    rank = str(first_number(LAUNCHERS["rank"]) or 0)
    environment[LAUNCHED_RANK] = rank
    if output is not None and rank == "0":  # the node agent reads it
        os.dup2(os.open(output, os.O_WRONLY), sys.stdout.fileno())
        environment = {"PYTHONUNBUFFERED": "1", **environment}  # lines come when they are printed
    return environment


if __name__ == "__main__":
    sys.exit(crash.run(main))
