"""Small files of foreign formats that unpack, decode or expand to gigabytes."""

import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

MIB = 2**20


def hdf5_of_links(path: Path) -> None:
    import h5py

    with h5py.File(path, "w", libver="latest") as file:
        ones = np.ones(10**6)
        file.create_dataset("a/d", data=ones, compression="gzip", chunks=(10**6,))
        for number in range(300):
            file[f"a/d{number}"] = file["a/d"]


def _record(content: bytes) -> bytes:
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(content))
    sums = (struct.pack("<I", masked_crc32c(text)) for text in (length, content))
    return length + next(sums) + content + next(sums)


_VERSION = _record(struct.pack("<Bd", 9, 1.7e9) + b"\x1a\x0dbrain.Event:2")


def events_of_a_huge_record(path: Path) -> None:
    from tensorboardX.record_writer import masked_crc32c

    head = struct.pack("<Q", 8 * 2**30)
    path.write_bytes(_VERSION + head + struct.pack("<I", masked_crc32c(head)) + bytes(100))


def study_of_aliases(path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for number in range(1, 10):
        aliases = ", ".join([f"*a{number - 1}"] * 10)
        lines.append(f"a{number}: &a{number} [{aliases}]")
    path.write_text("\n".join(lines) + "\n")


def json_of_lists(path: Path) -> None:
    path.write_bytes(b'{"log_history": [' + b"[]," * (15 * 10**6) + b"1]}")


@dataclass(frozen=True)
class Bomb:
    make: Callable[[Path], None]
    name: str
    command: tuple[str, ...]


_IMPORT = ("import", "BOMB", "--map", "gpus=@1", "--store", "store")
BOMBS = {
    each.make.__name__: each
    for each in (
        Bomb(hdf5_of_links, "b.hdf5", _IMPORT),
        Bomb(events_of_a_huge_record, "events.out.tfevents.1", _IMPORT),
        Bomb(study_of_aliases, "b.yaml", ("check", "BOMB")),
        Bomb(json_of_lists, "trainer_state.json", _IMPORT),
    )
}  # fmt: skip


@dataclass
class Peak:
    """What a command has used at most, with its processes, in bytes."""

    memory: int = 0
    disk: int = 0


def run_watched(line: list[str], work: Path, tmp: Path, timeout_s: float) -> tuple[int, str, Peak]:
    """Run a command with ``tmp`` for temporary files; return exit code, stderr and peak."""
    import os

    process = subprocess.Popen(
        [sys.executable, "-m", "wattlaw", *line], cwd=work, env=os.environ | {"TMPDIR": str(tmp)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    peak = Peak()
    watcher = threading.Thread(target=watch, args=(process.pid, [work, tmp], peak), daemon=True)
    watcher.start()
    try:
        _, said = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    watcher.join()
    return process.returncode, said, peak


def watch(pid: int, folders: list[Path], peak: Peak) -> None:
    while True:
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            if root.status() == psutil.STATUS_ZOMBIE:
                return
            sizes = [each.memory_info().rss for each in (root, *root.children(recursive=True))]
            peak.memory = max(peak.memory, sum(sizes))
        with suppress(OSError):
            files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
            peak.disk = max(peak.disk, sum(path.stat().st_blocks * 512 for path in files))
        if not psutil.pid_exists(pid):
            return
        time.sleep(0.02)
