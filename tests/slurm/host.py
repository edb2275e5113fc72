"""The first process of a host's namespaces: ``unshare ... python host.py SPEC``.

It gives the host its name and its private places, starts and kills the host's daemon as told on
standard input, and reaps what its processes leave behind. It ends when its input is closed, so no
host outlives the tests. SPEC is the JSON of cluster.py: name, binds, reachable, daemon.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path


def mount(*arguments: str) -> None:
    subprocess.run(["/bin/mount", *arguments], check=True)


def reach(paths: list[str], aside: Path) -> None:
    """Let every user of this host reach paths, also those in somebody's home (/root/.pyenv)."""
    wanted = {}
    for path in map(Path, paths):
        for way in [*reversed(path.parents), path]:
            if not way.stat().st_mode & 0o001:  # the first that only its owner may enter
                wanted[path] = way
                break
    for i, path in enumerate(wanted):
        (aside / str(i)).mkdir(parents=True, exist_ok=True)
        mount("--bind", str(path), str(aside / str(i)))
    for closed in set(wanted.values()):
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(closed))
    for i, path in enumerate(wanted):
        path.mkdir(parents=True, exist_ok=True)
        mount("--bind", str(aside / str(i)), str(path))


@contextlib.contextmanager
def kept(paths: list[str], hidden: list[str], folder: str) -> Iterator[None]:
    """Keep paths where they are though folders above them get another content (a clone in /tmp)."""
    aside = Path(folder) / "kept"
    below = [Path(path) for path in paths if any(Path(path).is_relative_to(one) for one in hidden)]
    for i, path in enumerate(below):
        (aside / str(i)).mkdir(parents=True, exist_ok=True)
        mount("--bind", str(path), str(aside / str(i)))
    yield
    for i, path in enumerate(below):
        path.mkdir(parents=True, exist_ok=True)
        mount("--bind", str(aside / str(i)), str(path))


class Host:
    def __init__(self, command: list[str]) -> None:
        self.command, self.pid = command, 0

    def start(self) -> None:
        if self.command:
            self.pid = os.posix_spawnp(self.command[0], self.command, os.environ)

    def kill(self, number: int) -> None:
        """End the daemon alone, and wait for it: what it has started lives on."""
        if self.pid:
            os.kill(self.pid, number)
        while self.pid:
            time.sleep(0.01)

    def obey(self) -> None:
        """Do what standard input says, and end the host with it."""
        for line in sys.stdin:
            order, _, number = line.strip().partition(" ")
            if order == "start":
                self.start()
            elif order == "kill":
                self.kill(int(number))
            print(order, flush=True)
        os._exit(0)

    def reap(self) -> None:
        """Wait for children and orphans, for ever."""
        while True:
            try:
                if os.wait()[0] == self.pid:
                    self.pid = 0
            except ChildProcessError:
                time.sleep(0.02)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    socket.sethostname(spec["name"])
    reach(spec["reachable"], Path(spec["folder"]) / "aside")
    with kept(spec["reachable"], [target for _, target in spec["binds"]], spec["folder"]):
        for source, target in spec["binds"]:
            Path(target).exists() or Path(target).mkdir(parents=True)
            mount("--bind", source, target)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Control-C is for pytest, which ends us
    host = Host(spec["daemon"])
    print("ready", flush=True)
    threading.Thread(target=host.obey, daemon=True).start()
    host.reap()


main()
