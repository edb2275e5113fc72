"""The folder of a cluster: its files, and what becomes of a folder whose cluster was killed."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fake_nvml import SONAME, FakeGpus, library
from slurm.settings import UID, USER, Settings, with_user

#: Not under /tmp, which every host has for itself.
BASE = Path("/var/lib/wattlaw-test-slurm")
#: Of the file system that a test may fill.
SMALL_MB = 8
COUNTED = ("sbatch", "squeue", "scancel", "scontrol", "sacct", "sinfo", "sstat", "srun", "salloc")
#: Bash, which knows the time without another process.
WRAPPER = """#!/bin/bash
printf '%s\\t%s\\t%s\\t%s\\n' "$EPOCHREALTIME" "$HOSTNAME" {name} "$*" >> {log}
exec {real} "$@"
"""


def new_folder() -> tuple[Path, int]:
    """Return a new folder and the descriptor of its lock; remove what killed clusters left."""
    BASE.mkdir(mode=0o755, exist_ok=True)
    one_at_a_time = os.open(BASE, os.O_RDONLY)
    fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
    for old in BASE.iterdir():
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            descriptor = _locked(old)
            remove(old)
            os.close(descriptor)
    folder = Path(tempfile.mkdtemp(dir=BASE))
    folder.chmod(0o755)
    lock = _locked(folder)
    os.close(one_at_a_time)
    return folder, lock


def write(folder: Path, settings: Settings, ports: Sequence[int]) -> None:
    for name in ("etc", "munge", "state", "devices", "home", "shared", *settings.names):
        (folder / name).mkdir(mode=0o755)
    os.chown(folder / "home", UID, UID)
    (folder / "shared").chmod(0o1777)
    # Mounted before there are hosts, so that all of them have the same one.
    (folder / "small").mkdir()
    options = f"size={SMALL_MB}m,mode=1777"
    line = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder / "small")]
    subprocess.run(line, check=True)
    etc = folder / "etc"
    (etc / "slurm.conf").write_text(settings.slurm_conf(folder, ports))
    (etc / "gres.conf").write_text(settings.gres_conf(folder / "devices"))
    (etc / "topology.conf").write_text(settings.topology_conf())
    (etc / "hosts").write_text(settings.hosts())
    user = f"{USER}:x:{UID}:{UID}::{folder}/home:/bin/bash"
    (etc / "passwd").write_text(with_user(Path("/etc/passwd"), user))
    (etc / "group").write_text(with_user(Path("/etc/group"), f"{USER}:x:{UID}:"))
    for i in range(settings.boards):
        device = folder / "devices" / f"nvidia{i}"
        os.mknod(device, 0o020666, os.makedev(1, 3))  # as /dev/null
        device.chmod(0o666)
    driver, calls = folder / "driver", folder / "calls"
    driver.mkdir()
    shutil.copy(library() / SONAME, driver / SONAME)
    (etc / "ld.so.conf").write_text(f"{driver}\ninclude /etc/ld.so.conf\n")
    line = ["ldconfig", "-X", "-C", str(etc / "ld.so.cache"), "-f", str(etc / "ld.so.conf")]
    subprocess.run(line, check=True)
    (folder / "bin").mkdir()
    calls.touch()
    calls.chmod(0o666)
    for name in COUNTED:
        wrapper = folder / "bin" / name
        wrapper.write_text(WRAPPER.format(name=name, log=calls, real=shutil.which(name)))
        wrapper.chmod(0o755)


def remove(folder: Path) -> None:
    line = ["umount", "--lazy", str(folder / "small")]
    subprocess.run(line, check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def write_boards(folder: Path, settings: Settings, name: str) -> FakeGpus:
    path, number = folder / name / "boards", settings.names.index(name) + 1
    path.mkdir(exist_ok=True)
    count = settings.boards
    ids = [f"GPU-{0xFA4E0000 + i:08x}-{number:04x}-4222-8333-{i:012x}" for i in range(count)]
    boards = FakeGpus.create(path / "boards", count, root=0, uuid=ids)
    boards.path.chmod(0o666)
    return boards


def _locked(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
