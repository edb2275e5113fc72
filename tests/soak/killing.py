"""What both campaigns of kills share: who is there to be killed, and how a round is replayed."""

import contextlib
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from soak.sandbox import Sandbox, command_line

#: How long processes may take to end by themselves after the last kill.
ENDS_S = 40.0
_ROLES = {
    "wattlaw.measure.limits.watchdog": "watchdog",
    "wattlaw.measure.telemetry.sampler": "sampler",
    "wattlaw.running.training.agent": "agent",
    "wattlaw.running.training.worker": "rank",
    "wattlaw.running.training.command_rank": "rank",
    "nvidia-smi": "nvidia-smi",
    "sudo": "sudo",
}


class Fault(Exception):
    """What must not be after a kill; the first argument is the cause, the second the detail."""


@dataclass
class Killer:
    """Kills processes of a sandbox at moments that a seed decides."""

    sandbox: Sandbox
    dice: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic)

    def note(self, words: str) -> None:
        self.log.append(f"{time.monotonic() - self.begun_s:7.3f} s  {words}")

    def living(self) -> dict[str, list[psutil.Process]]:
        """Return the sandbox's living processes by role."""
        found: dict[str, list[psutil.Process]] = {}
        for process in self.sandbox.processes():
            with contextlib.suppress(psutil.Error):
                found.setdefault(role(process.cmdline()), []).append(process)
        return found

    def kill_one(self, roles: set[str] | None = None) -> str | None:
        living = self.living()
        names = sorted(name for name in living if roles is None or name in roles)
        if not names:
            return None
        name = self.dice.choice(names)
        process = self.dice.choice(sorted(living[name], key=lambda one: one.pid))
        return name if self.kill(process, name) else None

    def kill(self, process: psutil.Process, name: str) -> bool:
        """Kill a process; return whether it was there."""
        try:
            process.kill()
        except psutil.Error:
            return False
        self.kills[name] += 1
        self.note(f"SIGKILL to the {name}, pid {process.pid}")
        return True

    def kill_all(self) -> set[str]:
        """Kill all processes at once, as a scheduler does with a control group."""
        found = self.living()
        order = [(name, one) for name in sorted(found) for one in found[name]]
        self.dice.shuffle(order)
        return {name for name, one in order if self.kill(one, name)}


def role(line: list[str]) -> str:
    for word in line[:6]:
        for sign, name in _ROLES.items():
            if word == sign or word.endswith("/" + sign):
                return name
    if "wattlaw" in line[:4]:
        return "owner"
    return "loader" if any("multiprocessing" in word for word in line) else "command"


def started(
    sandbox: Sandbox, environment: Mapping[str, str], log: Path, *words: object
) -> "subprocess.Popen[bytes]":
    """Start wattlaw in a session of its own; what it prints goes to a file."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command_line(*words),
            env=dict(environment),
            cwd=sandbox.work,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def run(
    sandbox: Sandbox, environment: Mapping[str, str], seconds: float, *words: object
) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command_line(*words),
            env=dict(environment),
            cwd=sandbox.work,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = b"".join(filter(None, (error.stdout, error.stderr))).decode("utf-8", "replace")
        detail = f"wattlaw {words[0]}, {seconds:g} s: {said}"
        raise Fault("a command does not end", detail) from None
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    if "Traceback (most recent call last)" in said:
        raise Fault(f"a traceback of wattlaw {words[0]}", said[-1500:])
    return done.returncode, said


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())
