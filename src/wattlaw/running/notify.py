"""Runs a command of the user for each event of a campaign, such as a run that failed.

The command gets one JSON object on its standard input: ``{event, store, run_id, reason, time}``.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

from wattlaw.common.errors import BadInput, one_line
from wattlaw.common.isolation import user_environment
from wattlaw.measure.limits.guard import RESTORE_HINT
from wattlaw.running.campaign import Observer, Outcome
from wattlaw.store.record import RunRecord, now

Event = Literal["run failed", "limits not restored", "study ended", "study decided"]

#: The longest that one call of the command may take, and all calls after the end of the study.
_TIMEOUT_S, _LAST_S = 30.0, 60.0

_OPERATORS = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>"})


def command_words(text: str) -> list[str]:
    """Return the words of a command.

    Raises ``BadInput`` if it cannot be split into words, or its program does not exist.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--notify: {text!r}: {one_line(error)}; allowed: a command") from None
    if operators := _OPERATORS.intersection(words):
        raise BadInput(
            f"--notify: {text!r}: no shell interprets {min(operators)}; allowed: a program and its "
            "arguments, such as sh -c 'COMMAND'"
        )
    if not words or shutil.which(words[0]) is None:
        raise BadInput(f"--notify: {text!r}: no such program; allowed: a program and its arguments")
    return words


class Notifications(Observer):
    """Notifies the user of failed runs, of limits that were not restored, and of the end.

    Calls are made one after the other in a thread, so that a slow command delays no run. The
    command has no shell, its output is discarded, and SIGINT does not reach it.
    """

    def __init__(self, command: Sequence[str], store: Path) -> None:
        self._command, self._store = command, store.resolve()
        self._caller = ThreadPoolExecutor(max_workers=1)
        self._calls: list[Future[None]] = []
        self._process: subprocess.Popen[str] | None = None
        self.warnings: tuple[str, ...] = ()

    def ended(self, record: RunRecord, *, is_new: bool) -> None:
        if is_new and record.state == "failed":
            self._add("run failed", record.reason, record.run_id)
        for note in record.notes if is_new else ():
            if RESTORE_HINT in note:
                self._add("limits not restored", note, record.run_id)

    def over(self, outcome: Outcome) -> None:
        reason = f"{outcome.done} done, {outcome.failed} failed, {outcome.skipped} skipped"
        reason += f", {outcome.left} left" if outcome.left else ""
        if outcome.interrupted_by:
            reason = f"stopped by {outcome.interrupted_by}: {reason}"
        if outcome.stopped_because and not outcome.interrupted_by:
            self._add("study decided", f"{outcome.stopped_because}: {reason}")
        else:
            self._add("study ended", reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the calls that are left, at most a minute."""
        late: Collection[Future[None]] = self._calls
        try:
            late = wait(self._calls, _LAST_S).not_done
        finally:  # also if SIGINT ends the waiting
            self._caller.shutdown(wait=False, cancel_futures=True)
            if late and (process := self._process) is not None:
                _kill(process)
        errors = [call.exception() for call in self._calls if call not in late]
        failures = [one_line(error) for error in errors if error is not None]
        if late:
            failures.append(f"calls were not over {_LAST_S:g} s after the end of the study")
        if failures:
            text = f"--notify: {len(failures)} call(s) failed, the last one: {failures[-1]}"
            self.warnings = (text,)

    def _add(self, event: Event, reason: str | None, run_id: str | None = None) -> None:
        time = now().isoformat()
        content = {"event": event, "store": str(self._store), "run_id": run_id}
        text = json.dumps(content | {"reason": reason, "time": time}) + "\n"
        self._calls.append(self._caller.submit(self._call, text))

    def _call(self, text: str) -> None:
        process = self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env=user_environment(),
            start_new_session=True,
        )
        try:
            process.communicate(text, _TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
            raise
        finally:
            self._process = None
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, self._command[0])


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a command and what it has started; its session has only these."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
