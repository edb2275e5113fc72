"""All processes of a measured command: list, wait for and end them."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from types import FrameType

import psutil

from wattlaw.common.processes import adopt_orphans, children, process_tree

#: How long a command may take to end, and when its other processes get SIGTERM if it has not ended:
#: those of a data loader would otherwise end under a program that saves a checkpoint.
_GRACE_S, _COMMAND_ALONE_S = 30.0, 20.0
_KILL_S = 10.0  # a process that waits for a driver outlives SIGKILL
_POLL_S = 0.1
#: How long processes of a command that has ended may take to end as well.
_AFTER_S = 0.5
_MOST_NAMED = 10


class CommandProcesses:
    """The processes that a command starts, also in groups and sessions of their own.

    The command stays in this process's group, so that a terminal treats both alike: it may read,
    and Ctrl-Z stops both. Processes whose parents end become children of this one (prctl(2)). As a
    context, it adopts and reaps them; that takes the main thread, for SIGCHLD.
    """

    def __init__(self) -> None:
        self._command: subprocess.Popen[bytes] | None = None
        self._others = {*psutil.Process().children()}  # such as the sampler
        self._ending: threading.Thread | None = None
        self.was_killed = False

    def __enter__(self) -> "CommandProcesses":
        adopt_orphans(True)
        self._before = signal.signal(signal.SIGCHLD, self._reap)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGCHLD, self._before)
        adopt_orphans(False)

    def started(self, command: "subprocess.Popen[bytes]") -> None:  # its caller takes the code
        self._command = command
        self._reap(signal.SIGCHLD, None)

    def living(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process().children():
            for member in process_tree(child.pid) if child not in self._others else ():
                with contextlib.suppress(psutil.Error):
                    if member.status() != psutil.STATUS_ZOMBIE:
                        found.append(member)
        return found

    def end(self, *, all_at_once: bool) -> None:
        """Begin to end all processes, in a thread; a second call does nothing.

        With ``all_at_once`` each gets SIGTERM. Otherwise the command has got a signal. Once it
        has ended, or 20 s later, the others get SIGTERM. What lives after 30 s is killed.
        """
        if self._ending is None and self._command is not None:
            self._ending = threading.Thread(target=self._end, args=(self._command, all_at_once))
            self._ending.start()

    def wait_for_end(self) -> None:
        if self._ending is not None:
            self._ending.join()

    def kill(self) -> None:
        for member in self.living():
            with contextlib.suppress(psutil.Error):
                member.kill()

    def end_note(self, why: str) -> str | None:
        if self.was_killed:
            return f"the command did not end within 30 s after it {why}, and was killed"
        end_s = time.monotonic() + _AFTER_S
        while members := self.living():
            if time.monotonic() >= end_s:
                pids = ",".join(str(member.pid) for member in members[:_MOST_NAMED])
                return f"processes of the command still run ({len(members)}): see ps -p {pids}"
            time.sleep(_POLL_S / 2)
        return None

    def _end(self, command: "subprocess.Popen[bytes]", all_at_once: bool) -> None:
        begin_s = time.monotonic()
        notified: set[psutil.Process] = set()
        while members := self.living():
            passed_s = time.monotonic() - begin_s
            if passed_s > _GRACE_S + _KILL_S:
                return
            if passed_s >= _GRACE_S:
                self.was_killed = True
                self.kill()
            elif all_at_once or command.returncode is not None or passed_s >= _COMMAND_ALONE_S:
                for member in members:
                    if member not in notified and (all_at_once or member.pid != command.pid):
                        notified.add(member)
                        with contextlib.suppress(psutil.Error):
                            member.terminate()
            time.sleep(_POLL_S)

    def _reap(self, _number: int, _frame: FrameType | None) -> None:
        """Take the exit codes of adopted children; the others have waiting parents."""
        if self._command is None:  # its code must not be taken
            return
        known = {self._command.pid, *(other.pid for other in self._others)}
        for pid in children(os.getpid()) or ():
            if pid not in known:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
