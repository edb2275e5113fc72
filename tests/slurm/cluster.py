"""A real Slurm on this machine: four nodes with names, places, processes and boards of their own.

Everything lies in one folder and is ended with the process that made it. README.md says what is
real in it and what is not.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import psutil

from conftest import WAIT_S, wait_for
from fake_nvml import FakeGpus
from slurm.folder import COUNTED, new_folder, remove, write, write_boards
from slurm.settings import UID, USER, Settings, free_ports

CONTROLLER, LOGINS = "controller", ("login1", "login2")
DRIVER = "/run/wattlaw-fake-nvml"
PROGRAMS = ("slurmctld", "slurmd", "munged", "unshare", "nsenter", "setpriv", "ldconfig", *COUNTED)


class Cluster:
    """A running cluster, from `with Cluster() as cluster` to the end of the block."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.names = self.settings.names
        self.folder, self._lock = new_folder()
        #: On every host; the folders of tests lie here.
        self.shared = self.folder / "shared"
        #: The same, of a few MB.
        self.small = self.folder / "small"
        self.conf = self.folder / "etc" / "slurm.conf"
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.boards: dict[str, FakeGpus] = {}

    # ---- life ----
    def __enter__(self) -> Self:
        try:
            ports = free_ports(len(self.names) + 1)
            write(self.folder, self.settings, ports)
            for name in self.names:
                self.boards[name] = write_boards(self.folder, self.settings, name)
            munge = self.folder / "munge"
            (munge / "key").write_bytes(secrets.token_bytes(128))
            (munge / "key").chmod(0o400)
            files = [f"--{name}-file={munge}/{name}" for name in ("key", "pid", "log", "seed")]
            self._start("munged", ["munged", "--foreground", f"--socket={munge}/socket", *files])
            self.wait_for((munge / "socket").exists, "munged")
            hosts = (CONTROLLER, *self.names, *LOGINS)
            for name in hosts:
                self._start_host(name)
            for name in hosts:
                self._answer(name, "ready")
                self._tell(name, "start")
            self.wait_idle()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for name in list(self._processes):
            self._gone(name)
        remove(self.folder)
        os.close(self._lock)

    # ---- clients ----
    def environment(self) -> dict[str, str]:
        """Return the environment of a user of this cluster; its Slurm calls are counted."""
        foreign = ("SLURM", "SBATCH", "SRUN", "SQUEUE", "CUDA_", "WATTLAW_", "PYTEST_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k != "TMPDIR"}
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        return kept | {
            "SLURM_CONF": str(self.conf),
            "PATH": path,
            "HOME": str(self.folder / "home"),
            "USER": USER,
            "LOGNAME": USER,
        }

    def on(self, host: str, *line: object, root: bool = False) -> list[str]:
        """Return the command line that runs a line on a host, as the user unless told.

        On a login host the process is the one that is started (a signal reaches it); on a node it
        is a child of it.
        """
        pid = self._init(host).pid
        enter = ["nsenter", f"--target={pid}", "--mount", "--uts", f"--wd={self.shared}"]
        if host in self.names:
            enter.append("--pid")
        become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--"]
        return [*enter, *([] if root else become), *map(str, line)]

    def run(
        self, *line: object, host: str = "login1", root: bool = False, check: bool = True
    ) -> str:
        environment = self.environment() | {"PATH": os.environ["PATH"]}
        done = subprocess.run(
            self.on(host, *line, root=root),
            capture_output=True, text=True, timeout=120, check=False, env=environment,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(map(str, line))} ended with {done.stderr or done}")
        return done.stdout.strip() if check else done.stdout + done.stderr

    def sbatch(self, script: str, *options: str, host: str = "login1") -> str:
        fresh = self.fresh_folder()
        (fresh / "script").write_text(f"#!/bin/bash\n{script}\n")
        output = f"--output={fresh}/%j.out"
        line = ["sbatch", "--parsable", output, f"--chdir={fresh}", *options, fresh / "script"]
        return self.run(*line, host=host)

    def output(self, job: str) -> str:
        """Return what a job of `sbatch` has written so far."""
        return "".join(path.read_text() for path in self.shared.glob(f"*/{job}.out"))

    def fresh_folder(self) -> Path:
        path = Path(tempfile.mkdtemp(dir=self.shared))
        path.chmod(0o755)
        os.chown(path, UID, UID)
        return path

    def calls(self, *names: str) -> list[tuple[float, str, str, str]]:
        """Return the counted calls so far: time, host, program, arguments. No names: of all."""
        rows = (line.split("\t", 3) for line in (self.folder / "calls").read_text().splitlines())
        return [(float(at), host, *row) for at, host, *row in rows if not names or row[0] in names]

    # ---- state ----
    def state(self, job: str) -> str:
        """Return a job's state as squeue says it; "" once Slurm has forgotten it."""
        line = ["squeue", "--states=all", "--noheader", "--format=%T", f"--jobs={job}"]
        return self.run(*line, check=False).partition("\n")[0] if self.knows(job) else ""

    def knows(self, job: str) -> bool:
        return "JobId=" in self.run("scontrol", "show", "job", job, check=False)

    def wait_state(self, job: str, *states: str, seconds: float = WAIT_S) -> str:
        what = f"job {job} to be {' or '.join(states)}"
        wanted = lambda: (found := self.state(job)) in states and found  # noqa: E731
        return str(self.wait_for(wanted, what, seconds))

    def node_state(self, name: str) -> str:
        return self.run(
            "sinfo", "--noheader", "--Node", "--partition=normal", "--format=%T", f"--nodes={name}"
        )

    def wait_idle(self) -> None:
        line = ["sinfo", "--noheader", "--Node", "--partition=normal", "--format=%T"]
        idle = lambda: set(self.run(*line).split()) == {"idle"}  # noqa: E731
        self.wait_for(idle, "all nodes to be idle")

    def answers(self) -> bool:
        return "is UP" in self.run("scontrol", "ping", check=False)

    def wait_for(
        self, condition: Callable[[], object], what: str, seconds: float = WAIT_S
    ) -> object:
        return wait_for(condition, f"{what}; see {self.folder}", seconds)

    def place(self, host: str, path: str) -> Path:
        """Return where a host's private folder (/tmp, /var/tmp or /run) lies for us."""
        return self.folder / host / path.strip("/").replace("/", "-")

    # ---- what goes wrong ----
    def kill_node(self, name: str) -> None:
        self._init(name).kill()
        self._gone(name)

    def start_node(self, name: str) -> None:
        shutil.rmtree(self.place(name, "/tmp"))  # noqa: S108
        shutil.rmtree(self.place(name, "/run"))
        self._start_host(name)
        self._answer(name, "ready")
        self._tell(name, "start")

    def declare_down(self, name: str) -> None:
        """Let the controller know at once that a node is lost, as an admin would."""
        line = ["scontrol", "update", f"nodename={name}", "state=down", "reason=lost"]
        self.run(*line, root=True)

    def kill_daemon(self, name: str) -> None:
        """Kill a node's slurmd; its jobs go on."""
        self._tell(name, f"kill {int(signal.SIGKILL)}")

    def start_daemon(self, name: str) -> None:
        self._tell(name, "start")

    def stop_controller(self) -> None:
        self._tell(CONTROLLER, f"kill {int(signal.SIGTERM)}")

    def start_controller(self) -> None:
        self._tell(CONTROLLER, "start")
        self.wait_for(self.answers, "the controller")

    def resume(self, name: str) -> None:
        """Let a node that was drained or marked down take jobs; one that came back by itself too.

        A node whose daemon registers is let in by the controller, which then refuses a resume.
        """
        out = lambda: self.node_state(name).startswith(("down", "drain"))  # noqa: E731
        line = ["scontrol", "update", f"nodename={name}", "state=resume"]
        said = self.run(*line, root=True, check=False) if out() else ""
        if out():
            raise RuntimeError(f"{name} is {self.node_state(name)}: {said}")

    def repair(self) -> None:
        for name in (CONTROLLER, *self.names):
            if name not in self._processes:
                self.start_node(name)
                continue
            # The daemon is the child of a host's first process that is not a job.
            program = "slurmctld" if name == CONTROLLER else "slurmd"
            if not any(child.name() == program for child in self._init(name).children()):
                self._tell(name, "start")
        self.wait_for(self.answers, "the controller")
        self.run("scancel", f"--user={USER}", check=False)
        for name in self.names:
            self.resume(name)
        self.wait_idle()
        for name in self.names:
            self.boards[name] = write_boards(self.folder, self.settings, name)

    # ---- making ----

    def _start_host(self, name: str) -> None:
        folder, etc = self.folder / name, self.conf.parent
        binds = [(str(self.place(name, path)), path) for path in ("/tmp", "/var/tmp", "/run")]  # noqa: S108
        for place, path in binds:
            Path(place).mkdir(parents=True, exist_ok=True)
            Path(place).chmod(0o755 if path == "/run" else 0o1777)
        files = ["hosts", "passwd", "group", *(["ld.so.cache"] if name in self.names else [])]
        binds += [(str(etc / file), f"/etc/{file}") for file in files]
        daemon: list[str] = []
        enter = ["unshare", "--mount", "--uts"]
        if name == CONTROLLER:
            daemon = ["slurmctld", "-D", "-f", str(self.conf)]
        if name in self.names:
            binds += [(str(folder / "boards"), DRIVER), (str(etc), "/etc/slurm")]
            (folder / "spool").mkdir(exist_ok=True)
            daemon = ["slurmd", "-D", "-N", name, "-f", str(self.conf)]
        if daemon:
            enter += ["--pid", "--fork", "--mount-proc", "--kill-child"]
        spec = {
            "name": name,
            "folder": str(folder),
            "reachable": [sys.base_prefix, sys.prefix, str(Path(__file__).parents[2])],
            "binds": binds,
            "daemon": daemon,
        }
        (folder / "spec").write_text(json.dumps(spec))
        own = Path(__file__).with_name("host.py")
        self._start(name, [*enter, sys.executable, "-I", "-S", str(own), str(folder / "spec")])

    def _start(self, name: str, line: Sequence[str]) -> None:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        with (self.folder / f"{name}.printed").open("a") as printed:
            self._processes[name] = subprocess.Popen(
                [shutil.which("setpriv"), "--pdeathsig=KILL", *line],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, text=True,
                start_new_session=True, cwd="/",
                env={"PATH": path, "LANG": "C.UTF-8", "SLURM_CONF": str(self.conf)},
            )  # fmt: skip

    def _tell(self, name: str, order: str) -> None:
        stdin = self._processes[name].stdin
        stdin.write(f"{order}\n")
        stdin.flush()
        self._answer(name, order.partition(" ")[0])

    def _answer(self, name: str, expected: str) -> None:
        answer = self._processes[name].stdout.readline().strip()
        if answer != expected:
            printed = (self.folder / f"{name}.printed").read_text()
            raise RuntimeError(f"{name} did not {expected}: {answer}{printed}")

    def _init(self, name: str) -> psutil.Process:
        process = psutil.Process(self._processes[name].pid)
        return process if name in LOGINS else process.children()[0]

    def _gone(self, name: str) -> None:
        process = self._processes.pop(name)
        process.wait()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
