"""Small files that unpack to gigabytes: refused in one line, with little memory and disk."""

import os
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
import pytest

MIB = 2**20


def hdf5_of_links(path: Path) -> None:
    import h5py

    with h5py.File(path, "w", libver="latest") as file:
        ones = np.ones(10**6)
        file.create_dataset("a/d", data=ones, compression="gzip", chunks=(10**6,))
        for number in range(300):
            file[f"a/d{number}"] = file["a/d"]


def events_of_a_huge_record(path: Path) -> None:
    from tensorboardX.record_writer import masked_crc32c

    version = struct.pack("<Bd", 9, 1.7e9) + b"\x1a\x0dbrain.Event:2"
    parts = struct.pack("<Q", len(version)), version, struct.pack("<Q", 8 * 2**30)
    with_sums = (part + struct.pack("<I", masked_crc32c(part)) for part in parts)
    path.write_bytes(b"".join(with_sums) + bytes(100))


def json_of_lists(path: Path) -> None:
    path.write_bytes(b'{"log_history": [' + b"[]," * (15 * 10**6) + b"1]}")


BOMBS: dict[Callable[[Path], None], str] = {
    hdf5_of_links: "b.hdf5",
    events_of_a_huge_record: "events.out.tfevents.1",
    json_of_lists: "trainer_state.json",
}


@dataclass
class Peak:
    """What a command has used at most, with its processes, in bytes."""

    memory: int = 0
    disk: int = 0


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


@pytest.mark.parametrize("make", BOMBS)
def test_a_bomb_is_refused_with_little_memory_and_disk(make, tmp_path):
    path, work, tmp = tmp_path / BOMBS[make], tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    tmp.mkdir()
    make(path)
    line = [sys.executable, "-m", "wattlaw", "import", str(path), "--map", "gpus=@1"]
    process = subprocess.Popen(
        [*line, "--store", "store"], cwd=work, env=os.environ | {"TMPDIR": str(tmp)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    peak = Peak()
    watcher = threading.Thread(target=watch, args=(process.pid, [work, tmp], peak), daemon=True)
    watcher.start()
    try:
        _, said = process.communicate(timeout=100)
    finally:
        process.kill()
    watcher.join()
    size = path.stat().st_size
    assert process.returncode == 2, said
    assert str(path) in said
    assert len(said.splitlines()) == 1, said
    assert peak.memory < 800 * MIB + 2 * size, f"{peak.memory / MIB:.0f} MiB"
    assert peak.disk < 150 * MIB, f"{peak.disk / MIB:.0f} MiB"
    assert [*work.iterdir(), *tmp.iterdir()] == []
