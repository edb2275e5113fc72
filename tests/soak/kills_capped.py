"""SIGKILLs of capped runs: afterwards each board has the limit that it had before."""

import contextlib
import os
import sys
import time
from pathlib import Path

import yaml

from fake_amdsmi import AmdMachine
from fake_nvml import VARIABLE, FakeGpus
from limiting import FAKE_BIN
from soak.killing import ENDS_S, Fault, Killer, run, started, wait_until
from soak.sandbox import remove_tree

WHAT = "SIGKILLs of capped runs"
WHAT_AMD = "SIGKILLs of capped runs on AMD GPUs"
CAP_W = 150
_KINDS = ("measure", "measure", "run", "set")
#: Roles, of which one is killed; None for any.
_VICTIMS = (
    None, None, {"owner"}, {"owner"}, {"watchdog"}, {"watchdog", "owner"}, {"sampler", "agent"},
    {"sudo", "nvidia-smi", "owner"}, {"rank", "command", "agent", "owner"},
)  # fmt: skip


class CappedRound:
    """Something with a cap, of whose processes some are killed."""

    def __init__(self, killer: Killer) -> None:
        self.killer, self.own, self.dice = killer, killer.sandbox, killer.dice
        self.kind = self.dice.choice(_KINDS)
        self.by_sudo = self.dice.random() < 0.3
        self.before_mw = [self.dice.randrange(180_001, 280_000, 2) for _ in range(2)]
        self.boards, self.environment = self._make_boards()
        self.killer.note(f"{self.kind}, by sudo: {self.by_sudo}, before: {self.before_mw} mW")

    def _make_boards(self) -> tuple[FakeGpus | AmdMachine, dict[str, str]]:
        changes = {"root": int(not self.by_sudo), "call_us": self.dice.choice([0, 2000])}
        boards = self.own.make_boards(limit_mw=self.before_mw, **changes)
        path = [str(FAKE_BIN)] if self.by_sudo else []
        path += [str(Path(sys.executable).parent), "/usr/bin", "/bin"]
        environment = self.own.environment(path=os.pathsep.join(path))
        if self.by_sudo and self.dice.random() < 0.5:
            environment["FAKE_SMI_SLOW"] = str(self.own.root)
        return boards, environment

    @property
    def limits_mw(self) -> list[int]:
        return [board.limit_mw for board in self.boards]

    def go(self) -> None:
        """Carry the round out; raise ``Fault`` where something is wrong afterwards."""
        log = self.own.work / "out.log"
        process = started(self.own, self.environment, log, *self._words())
        try:
            killed = self._kill(process.poll)
            if process.poll() is None and self.kind != "set":
                if self.dice.random() < 0.5:
                    self.killer.note("SIGTERM to the owner")
                    process.terminate()
                    wait_until(lambda: process.poll() is not None, ENDS_S)
                else:
                    killed |= {self.killer.kill_one({"owner"}) or ""}
        finally:
            with contextlib.suppress(ProcessLookupError):
                if process.poll() is None and self.kind != "set":
                    process.kill()
            wait_until(lambda: process.poll() is not None, ENDS_S)
        self._look(killed)

    def _words(self) -> list[object]:
        if self.kind == "set":
            return ["limits", "set", "--power-limit", CAP_W]
        if self.kind == "measure":
            return ["measure", "-o", "store", "--power-limit", CAP_W, "--", "sleep", "120"]
        study = {
            "name": "caps",
            "workloads": [{"name": "sleeper", "command": ["sleep", "120"]}],
            "sweeps": [{"gpus": [1], "local_batch": [1], "power_limit_w": [CAP_W]}],
            "launch": {"kind": "local", "gpus_per_node": 1},
        }
        (self.own.work / "study.yaml").write_text(yaml.safe_dump(study))
        return ["run", "study.yaml", "--store", "store"]

    def _kill(self, ended: object) -> set[str]:
        """Wait for a moment and kill; return the roles of those killed."""
        if self.dice.random() < 0.5:
            time.sleep(self.dice.uniform(0, 4))
        else:
            wait_until(lambda: CAP_W * 1000 in self.limits_mw or ended() is not None, 30)  # type: ignore[operator]
            time.sleep(self.dice.choice([0, 0, 0.01, 0.1, 1.0]) * self.dice.random())
        self.killer.note(f"limits: {self.limits_mw} mW")
        killed: set[str] = set()
        if self.dice.random() < 0.25:
            return self.killer.kill_all()
        for _ in range(self.dice.choice([1, 1, 2, 3])):
            killed.add(self.killer.kill_one(self.dice.choice(_VICTIMS)) or "")
            time.sleep(self.dice.choice([0, 0, 0.05, 0.5]) * self.dice.random())
        return killed

    def _look(self, killed: set[str]) -> None:
        time.sleep(0.05)
        for process in self.killer.living().get("command", []):  # it may outlive 'measure'
            with contextlib.suppress(Exception):
                if process.cmdline()[:1] == ["sleep"] and self.kind == "measure":
                    process.kill()
        left = self.own.wait_until_empty(ENDS_S)
        if left:
            raise Fault("a process is left", "; ".join(left))
        self.killer.note(f"all processes have ended; limits: {self.limits_mw} mW")
        may_wait = self.kind == "set" or bool(killed & {"watchdog", "nvidia-smi", "sudo"})
        if self.limits_mw != self.before_mw and not may_wait:
            raise Fault(
                "a limit is not given back though the watchdog lives",
                f"{self.before_mw} mW before, {self.limits_mw} mW after; killed: {sorted(killed)}",
            )
        code, said = run(self.own, self.environment, 240, "limits", "restore")
        if code or self.limits_mw != self.before_mw:
            raise Fault(
                "'limits restore' does not give back",
                f"exit code {code}; {self.before_mw} mW before, {self.limits_mw} mW: {said[-500:]}",
            )
        files = [path.name for path in self.own.limits.iterdir() if path.suffix != ".lock"]
        if files:
            raise Fault("a saved state is left", ", ".join(files))
        if (self.own.work / "store/runs").exists():  # else it was killed while it made the store
            code, said = run(self.own, self.environment, 240, "status", "store", "--json")
            if code:
                raise Fault("the store cannot be read", said[-500:])


class AmdRound(CappedRound):
    """The same on AMD GPUs, with and without the library of AMD SMI."""

    def _make_boards(self) -> tuple[FakeGpus | AmdMachine, dict[str, str]]:
        self.by_sudo = False
        self.before_mw = [limit // 1000 * 1000 for limit in self.before_mw]  # whole watts
        root = self.own.root / "amd"
        remove_tree(root)
        root.mkdir()
        machine = AmdMachine(root, "MI300X", 2, library=self.dice.random() < 0.7)
        for gpu, limit_mw in zip(machine.gpus, self.before_mw, strict=True):
            gpu.set(power1_cap_max=300_000_000, power1_cap=limit_mw * 1000)
        path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
        return machine, self.own.environment(path=path) | {VARIABLE: ""} | machine.environment()
