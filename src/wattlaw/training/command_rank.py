"""One rank of a user's command: ``python -m wattlaw.training.command_rank WORDS`` under torchrun.

It becomes the command, which then ends with its agent, however the agent ends.
"""

import os
import signal
import sys

from wattlaw import crash, processes
from wattlaw.isolation import user_environment
from wattlaw.training.environment import AGENT_PID

#: What a shell says of a command that is not there.
_NOT_THERE = 127


def main() -> int:
    """Become the command; return only if that cannot be."""
    words = sys.argv[1:]
    processes.end_with_parent(int(os.environ[AGENT_PID]))
    # The agent's warnings are not for it: it gets the signal as any program does.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    try:
        os.execvpe(words[0], words, user_environment())  # noqa: S606 - no shell
    except OSError as error:
        print(f"OSError: {words[0]}: cannot be run: {error.strerror}", file=sys.stderr)
    return _NOT_THERE


if __name__ == "__main__":
    sys.exit(crash.run(main))
