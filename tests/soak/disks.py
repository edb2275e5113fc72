"""Full disks: what is written says so, leaves nothing behind, and succeeds once there is room."""

import ctypes
import os
import shutil
import subprocess

import yaml

from soak.killing import Fault, Killer, run
from soak.templates import MAP, TABLE

WHAT = "full disks"
_NEWNS = 0x00020000
_FIELDS = ",".join(f for f in MAP.split(",") if not f.startswith("power_limit"))
_COMMANDS = ("run", "run", "import", "export", "report", "measure", "simulated run")


def missing() -> str | None:
    """Return why no small disk can be made here; else make a mount namespace of our own."""
    if os.geteuid() != 0:
        return "only root may mount a small disk"
    if ctypes.CDLL(None, use_errno=True).unshare(_NEWNS) != 0:
        return f"no mount namespace: {os.strerror(ctypes.get_errno())}"
    try:
        _system("mount", "--make-rprivate", "/")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no private mounts: {error}"
    return None


class DiskRound:
    """One command that writes to a disk with little room."""

    def __init__(self, killer: Killer) -> None:
        self.killer, self.own, self.dice = killer, killer.sandbox, killer.dice
        self.disk = self.own.root / "disk"
        self.command = self.dice.choice(_COMMANDS)
        self.environment = self.own.environment() | {"CUDA_VISIBLE_DEVICES": ""}
        self.own.make_boards()

    def go(self) -> None:
        """Carry the round out; raise ``Fault`` where something is wrong."""
        self.disk.mkdir(exist_ok=True)
        kib = self.dice.choice([16, 48, 100, 300])
        _system("mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(self.disk))
        try:
            about, free = os.statvfs(self.disk), self.dice.randrange(1 + kib // 4) * 1024
            size = max(0, about.f_bavail * about.f_frsize - free)
            (self.disk / "filler").write_bytes(bytes(size))
            self.killer.note(f"{self.command} with {kib} KiB")
            code, said = self._wattlaw()
            if code not in (0, 1, 2, 3):
                raise Fault(f"exit code {code} of {self.command}", said[-800:])
            if "No space left" in said and str(self.disk) not in said and "disk/" not in said:
                raise Fault(f"a message of {self.command} names no path", said[-500:])
            if left := [str(path) for path in self.disk.rglob(".*")]:
                raise Fault(f"a temporary file of {self.command} is left", ", ".join(left[:4]))
            (self.disk / "filler").unlink(missing_ok=True)
            _system("mount", "-o", "remount,size=64m", str(self.disk))
            code, said = self._wattlaw()
            if code:
                raise Fault(f"{self.command} fails with room", f"exit code {code}: {said[-800:]}")
        finally:
            self.own.end_all()
            _system("umount", "-l", str(self.disk))

    def _wattlaw(self) -> tuple[int, str]:
        store, work = self.disk / "store", self.own.work
        (work / "table.csv").write_text(TABLE)
        sound = work / "sound"
        if self.command in ("export", "report") and not sound.exists():
            self._run("import", "table.csv", "--map", _FIELDS, "--store", sound)
        study = {
            "name": "disk",
            "workloads": [{"name": "command", "command": ["true"]}],
            "sweeps": [{"gpus": [1], "local_batch": [1]}],
            "repeats": 2,
            "launch": {"gpus_per_node": 1},
        }
        if self.command == "simulated run":
            study |= {"workloads": [{"name": "resnet50"}], "launch": {}}
        (work / "study.yaml").write_text(yaml.safe_dump(study))
        simulated = ("--launch", "simulated", "--hardware", "mit-v100")
        lines: dict[str, tuple[object, ...]] = {
            "run": ("run", "study.yaml", "--store", store),
            "simulated run": ("run", "study.yaml", "--store", store, *simulated),
            "import": ("import", "table.csv", "--map", _FIELDS, "--store", store),
            "export": ("export", sound, "runs", "-o", self.disk / "runs.csv"),
            "report": ("report", sound, "-o", self.disk / "report.html"),
            "measure": ("measure", "-o", store, "--", "true"),
        }
        return self._run(*lines[self.command])

    def _run(self, *words: object) -> tuple[int, str]:
        code, said = run(self.own, self.environment, 600, *words)
        self.killer.note(f"{words[0]}: exit code {code}: {said[-300:]}")
        return code, said


def _system(program: str, *words: str) -> None:
    found = shutil.which(program) or program
    subprocess.run([found, *words], check=True, capture_output=True)
