"""Recordings of fake boards by the real sampler process, and how well they tell the energy."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fake_nvml import FakeGpus
from wattlaw.measure.devices.meter import Target
from wattlaw.measure.telemetry import sampler
from wattlaw.measure.telemetry.window_energy import energy_of_windows
from wattlaw.store.live import read_live
from wattlaw.store.record import SamplerReport, device_facts
from wattlaw.store.schema import SAMPLES, WINDOWS

HOST = "here"
Row = dict[str, object]


def machine(boards: FakeGpus | None = None) -> dict[str, str]:
    """Return an environment in which the boards, if any, are those of the machine, and all ours."""
    ours = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SLURM_")
    clean = {name: told for name, told in os.environ.items() if not name.startswith(ours)}
    return clean | (boards.environment() if boards is not None else {})


def started(folder: Path, boards: FakeGpus, hz: float) -> "subprocess.Popen[bytes]":
    folder.mkdir()
    line = sampler.command(folder, HOST, Target(os.getpid(), 1 / hz))
    return subprocess.Popen(line, env=machine(boards))


@dataclass
class Recording:
    """What a sampler wrote and reported of boards."""

    boards: FakeGpus
    samples: pa.Table
    report: SamplerReport

    def of(self, board: int) -> pa.Table:
        return self.samples.filter(pc.field("device") == self.boards[board].uuid.decode())

    def facts(self, board: int) -> dict[str, object]:
        uuid = self.boards[board].uuid.decode()
        return dict(next(one.facts for one in self.report.devices if one.id == uuid))

    def windows(self, board: int, starts_ns: Sequence[int], length_s: float) -> list[Row]:
        """Return windows with their energies, and ``true_j``, the exact one."""
        asked = [{"host": HOST, "start_ns": ns, "duration_s": length_s} for ns in starts_ns]
        windows = pa.Table.from_pylist(asked, schema=WINDOWS)
        facts = device_facts([self.report])
        found = energy_of_windows(windows, self.of(board), facts).to_pylist()
        true_j = [self.boards.energy_j(board, ns, ns + round(length_s * 1e9)) for ns in starts_ns]
        return [row | {"true_j": j} for row, j in zip(found, true_j, strict=True)]

    def random_windows(self, board: int, length_s: float, count: int) -> list[Row]:
        """Return windows that begin at any moment, well within the recording."""
        dice = random.Random(board)
        t_ns = self.of(board)["t_ns"].to_numpy()
        first, last = int(t_ns.min()) + 10**9, int(t_ns.max()) - round((length_s + 0.2) * 1e9)
        return self.windows(board, [dice.randint(first, last) for _ in range(count)], length_s)


def samples_of(folder: Path) -> pa.Table:
    """Return the samples of a sampler so far, with its host's name, as a run's end adds it."""
    found = read_live(sampler.stream_path(folder, HOST), SAMPLES, HOST)
    return found.set_column(0, "host", pa.array([HOST] * len(found), pa.string()))


def report_of(folder: Path) -> SamplerReport:
    return SamplerReport.model_validate_json(sampler.report_path(folder, HOST).read_text())


def errors(rows: list[Row], column: str) -> list[float]:
    return [abs(row[column] - row["true_j"]) / row["true_j"] for row in rows]


def record(
    folders: dict[Path, FakeGpus],
    seconds: float,
    hz: float = 10,
    begun: Callable[[], object] = lambda: None,
) -> list[Recording]:
    """Record several machines at once for so many seconds; ``begun`` is called at their start."""
    processes = {folder: started(folder, boards, hz) for folder, boards in folders.items()}
    streams = [sampler.stream_path(folder, HOST) for folder in folders]
    try:
        end_s = time.monotonic() + 60
        while not all(stream.exists() for stream in streams):
            if time.monotonic() > end_s:
                raise RuntimeError("a sampler did not start")
            time.sleep(0.05)
        begun()
        time.sleep(seconds)
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(30) for process in processes.values()]
    if any(codes):
        raise RuntimeError(f"samplers ended with {codes}")
    return [
        Recording(boards, samples_of(folder), report_of(folder))
        for folder, boards in folders.items()
    ]
