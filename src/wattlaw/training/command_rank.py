"""One rank of a user's command: ``python -m wattlaw.training.command_rank COMMAND`` in torchrun.

The process replaces itself with the command, which ends when its agent ends.
"""

import os
import signal
import sys

from wattlaw import crash, processes
from wattlaw.isolation import user_environment
from wattlaw.training.environment import AGENT_PID

#: The exit code of a shell for a command that does not exist.
_NOT_FOUND = 127


def main() -> int:
    """Execute the command in place of this process; return only if that fails."""
    command = sys.argv[1:]
    processes.end_with_parent(int(os.environ[AGENT_PID]))
    # The agent blocks SIGUSR1 for workers; a command receives signals as usual.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    try:
        os.execvpe(command[0], command, user_environment())  # noqa: S606 - no shell
    except OSError as error:
        print(f"OSError: {command[0]}: cannot be run: {error.strerror}", file=sys.stderr)
    return _NOT_FOUND


if __name__ == "__main__":
    sys.exit(crash.run(main))
