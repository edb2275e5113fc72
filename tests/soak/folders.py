"""A working folder with modules of the names of others': no process of ours imports them."""

import subprocess
import sys
from pathlib import Path

import yaml

from soak.killing import Fault, Killer

WHAT = "hostile working folders"
_NAMES = """
    abc ast argparse array atexit base64 bisect calendar collections contextlib copy csv ctypes
    dataclasses datetime decimal enum fcntl fnmatch fractions functools gc getpass glob gzip
    hashlib heapq importlib inspect io ipaddress itertools json logging math mmap multiprocessing
    numbers operator os pathlib pickle platform pprint queue random re resource secrets select
    selectors shlex shutil signal site sitecustomize socket stat statistics string struct
    subprocess sys syslog tempfile textwrap threading time traceback types typing unittest
    usercustomize uuid warnings weakref zipfile zlib psutil yaml numpy pandas pyarrow pydantic
    rich typer torch pynvml duckdb altair wattlaw torchvision sklearn scipy tokenizers
"""
_MODULES = _NAMES.split()
_EVIL = """\
import os
with open({path!r}, "a") as file:
    file.write(f"{{__name__}} {{os.getpid()}}\\n")
raise ImportError("hostile")
"""


class FolderRound:
    """One command in such a folder."""

    def __init__(self, killer: Killer) -> None:
        self.killer, self.own, self.dice = killer, killer.sandbox, killer.dice
        self.boards = self.own.make_boards(1, root=1, limit_mw=250_001)
        self.environment = self.own.environment()

    def go(self) -> None:
        """Carry the round out; raise ``Fault`` where something is wrong."""
        chosen = self.dice.sample(_MODULES, self.dice.choice([1, 3, 10, len(_MODULES)]))
        for name in chosen:
            text = _EVIL.format(path=str(self.own.root / "executed"))
            if self.dice.random() < 0.2:
                (self.own.work / name).mkdir()
                (self.own.work / name / "__init__.py").write_text(text)
            else:
                (self.own.work / f"{name}.py").write_text(text)
        executed = self.own.root / "executed"
        executed.unlink(missing_ok=True)
        words, allowed = self.dice.choice(self._lines())
        self.killer.note(f"wattlaw {words}; modules: {chosen}")
        line = [sys.executable, "-P", "-m", "wattlaw", *words]
        try:
            done = subprocess.run(
                line, cwd=self.own.work, env=self.environment, capture_output=True, text=True,
                stdin=subprocess.DEVNULL, timeout=180, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Fault("a command does not end", str(words)) from None
        if executed.exists():
            names = sorted({text.split()[0] for text in executed.read_text().splitlines()})
            raise Fault(f"{words[0]} imports from the working folder", ", ".join(names))
        said = done.stdout + done.stderr
        if done.returncode not in allowed or "Traceback" in said:
            raise Fault(f"exit code {done.returncode} of {words[0]}", said[-800:])
        if "the sampler of" in said:
            raise Fault(f"{words[0]} loses its sampler", said[-800:])
        if self.boards[0].limit_mw != 250_001:
            raise Fault("a limit is not given back", f"{self.boards[0].limit_mw} mW")

    def _lines(self) -> list[tuple[tuple[str, ...], set[int]]]:
        study = {
            "name": "folder", "workloads": [{"name": "command", "command": ["sleep", "0.2"]}],
            "sweeps": [{"gpus": [1], "local_batch": [1], "power_limit_w": [None, 150]}],
            "launch": {"gpus_per_node": 1},
        }  # fmt: skip
        self._write("study.yaml", study)
        small = study | {
            "workloads": [{"name": "digits-cnn"}],
            "sweeps": [{"gpus": [1], "local_batch": [64]}],
        }
        self._write("small.yaml", small | {"measure": {"epochs": 1, "warmup_epochs": 0}})
        return [
            (("run", "study.yaml", "--store", "store"), {0}),
            (("run", "small.yaml", "--store", "store"), {0}),
            (("measure", "-o", "store", "--power-limit", "150", "--", "sleep", "0.2"), {0}),
            (("devices", "--json"), {0}),
            (("check", "study.yaml"), {0}),
            (
                (
                    "simulate",
                    "--workload",
                    "resnet50",
                    "--hardware",
                    "mit-v100",
                    "--local-batch",
                    "8",
                ),
                {0},
            ),
            (
                (
                    "run",
                    "small.yaml",
                    "--store",
                    "store",
                    "--launch",
                    "simulated",
                    "--hardware",
                    "mit-v100",
                ),
                {0},
            ),
            (("workloads", "profile", "digits-cnn"), {0}),
        ]

    def _write(self, name: str, study: dict[str, object]) -> None:
        Path(self.own.work / name).write_text(yaml.safe_dump(study))
