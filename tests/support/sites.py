"""A node of a site that has installed the Slurm hooks, without a Slurm."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from conftest import living, setenv, wait_for
from fake_nvml import FakeGpus
from wattlaw.measure.limits.prolog_limits import VARIABLE
from wattlaw_site.__main__ import main

ASKS = "wattlaw:power_w=250"
#: Neither the default nor the maximum (400 W), as somebody has set them.
BEFORE_W = [287.5, 301.25]
GRACE_S = 0.5
SITE = f"power_w: {{min: 150, max: 350}}\ngrace_s: {GRACE_S}\n"
CLOCKS = SITE + "clock_mhz: {min: 600, max: 1300}\nprior_clocks: default\n"
NODE = f"n-{os.getpid()}"
#: Jobs of this process: other tests beside it, or a Slurm, have jobs with slurmstepds, too.
JOB = 10 * os.getpid()
OTHER, THIRD = JOB + 1, JOB + 2


class Node:
    """A node with boards and a slurmd, and the hooks on it as slurmd starts them."""

    def __init__(self, path: Path, boards: FakeGpus, patch: pytest.MonkeyPatch) -> None:
        self.path, self.boards = path, boards
        self.more_environment: dict[str, str] = {}
        self.config, self.reports = path / "site.yaml", path / "run"
        self.state, self.bin = path / "state" / "limits", path / "bin"
        self.bin.mkdir()
        self.allow(SITE)
        self.squeue(None)  # a real one of this machine could wait for a controller
        patch.setenv(VARIABLE, str(self.reports))
        name = ["/usr/sbin/slurmd", "-c", "read x", "-N", NODE]
        self.slurmd = subprocess.Popen(name, executable="/bin/bash", stdin=subprocess.PIPE)

    def kill_slurmd(self) -> None:
        self.slurmd.kill()
        self.slurmd.communicate()

    def allow(self, text: str) -> None:
        self.config.write_text(text)
        self.config.chmod(0o644)

    @property
    def devices(self) -> list[str]:
        return [board.uuid.decode() for board in self.boards]

    @property
    def limits_w(self) -> list[float]:
        return [board.limit_mw / 1000 for board in self.boards]

    @property
    def states(self) -> list[str]:
        return sorted(path.stem for path in self.state.glob("*.json"))

    @property
    def watchdogs(self) -> list[psutil.Process]:
        return living(lambda line: f"--state={self.state}" in line and "watch" in line)

    def is_clean(self) -> bool:
        return not (self.states or self.watchdogs or list(self.reports.glob("*")))

    def report(self, job: int) -> dict[str, object] | None:
        path = self.reports / f"{job}.{NODE}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def environment(self, job: int, comment: str | None, gpus: str = "0") -> dict[str, str]:
        """Return the environment of a hook, with the path of the fake driver."""
        told = {"SLURM_JOB_ID": str(job), "SLURMD_NODENAME": NODE, "SLURM_JOB_USER": "ada"}
        told |= {"SLURM_JOB_RESTART_COUNT": "0", "PATH": f"{self.bin}:/usr/bin:/bin"}
        told |= {"SLURM_JOB_GPUS": gpus} if gpus else {}
        told |= {"SLURM_JOB_COMMENT": comment} if comment is not None else {}
        return told | self.boards.environment() | self.more_environment

    def line(self, command: str) -> list[str]:
        return [command, f"--config={self.config}", f"--state={self.state}",
                f"--reports={self.reports}"]  # fmt: skip

    def start(
        self, command: str, job: int, comment: str | None = None, gpus: str = "0"
    ) -> "subprocess.Popen[str]":
        """Start a hook as slurmd does, in a group of its own with a pipe."""
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "wattlaw_site", *self.line(command)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=self.environment(job, comment, gpus), process_group=0,
        )  # fmt: skip

    def process(self, command: str, comment: str | None = None, gpus: str = "0") -> tuple[int, str]:
        """Run a hook; return its exit code and what it printed, once its pipe is closed."""
        process = self.start(command, JOB, comment, gpus)
        said = process.communicate(timeout=60)[0]
        with contextlib.suppress(ProcessLookupError):  # as slurmd does afterwards
            os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, said

    def hook(
        self, command: str, job: int = JOB, comment: str | None = None, gpus: str = "0"
    ) -> tuple[int, str]:
        """Run a hook within this process, which is quicker; only a watchdog is another one."""
        told = self.environment(job, comment, gpus)
        said = io.StringIO()
        to_said = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
        with pytest.MonkeyPatch.context() as patch, to_said[0], to_said[1]:
            for name in [name for name in os.environ if name.startswith("SLURM")]:
                patch.delenv(name)
            setenv(patch, told)
            return main(self.line(command)), said.getvalue()

    def prolog(self, job: int = JOB, comment: str | None = ASKS, gpus: str = "0") -> str:
        """Run the prolog, which never fails; return what it printed."""
        code, said = self.hook("prolog", job, comment, gpus)
        assert code == 0, said
        return said

    def squeue(self, text: str | None) -> None:
        """Let a Slurm controller say this about every question; None: it does not answer."""
        path = self.bin / "squeue"
        path.write_text(
            "#!/bin/sh\nexit 1\n" if text is None else f"#!/bin/sh\ncat <<'E'\n{text}\nE\n"
        )
        path.chmod(0o755)


def nodes(
    path: Path, fake_gpus: Callable[..., FakeGpus], patch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Node]]:
    """Give a function that makes a node; in the end no watchdog may be left."""
    made = []

    def make(count: int = 2, **changes: object) -> Node:
        limits = {"limit_mw": [round(1000 * w) for w in BEFORE_W[:count]]}
        made.append(Node(path, fake_gpus(count, **(limits | changes)), patch))
        return made[-1]

    yield make
    for node in made:
        node.kill_slurmd()
        node.boards.clear_faults()
        for state in node.state.glob("*.json"):
            state.unlink()
        wait_for(lambda node=node: not node.watchdogs, "the watchdogs to end", 20)


@contextlib.contextmanager
def stepd(job: int, step: str = "batch") -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process of root with the name of one that looks after a job."""
    line = [f"slurmstepd: [{job}.{step}]", "-c", "read x"]
    process = subprocess.Popen(line, executable="/bin/bash", stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
