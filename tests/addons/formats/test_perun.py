"""Files of perun."""

import struct
import subprocess
import sys

import pytest

import import_samples as samples
from imported import a_file, left_out, notes, windows
from wattlaw.api.imports import read_import
from wattlaw.common.errors import BadInput
from wattlaw_formats import hdf5


def test_wraps_of_a_perun_counter_are_repaired(tmp_path):
    read = read_import(a_file(tmp_path / "app.hdf5", samples.perun()))
    assert "wraps of energy counters repaired" in notes(read)
    rows = windows(read, "train")
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert [row["duration_s"] for row in rows] == pytest.approx([18.5, 19.5, 19.5])
    for row in rows:
        assert row["cpu_energy_j"] == pytest.approx(100 * row["duration_s"], rel=1e-3)
        assert row["gpu_energy_j"] == pytest.approx(300 * row["duration_s"], rel=1e-3)
        assert row["energy_verdict"] == "ok"


SCRIPT = """
import time
from perun import monitor

@monitor("epoch")
def epoch():
    time.sleep(0.4)

for _ in range(3):
    epoch()
"""


def test_regions_of_a_file_that_perun_writes_are_epochs(tmp_path):
    from perun.io.hdf5 import importHDF5

    a_file(tmp_path / "job.py", SCRIPT)
    command = [sys.executable, "-m", "perun", "monitor", "--data_out", ".", "--format", "hdf5"]
    subprocess.run([*command, "job.py"], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    read = read_import(tmp_path / "job.hdf5", map="gpus=@1")
    own = importHDF5(tmp_path / "job.hdf5")
    region = next(iter(next(iter(own.nodes.values())).nodes.values())).regions["epoch"]
    edges = region.raw_data[0].reshape(-1, 2)
    durations_s = [row["duration_s"] for row in windows(read, "train")]
    assert durations_s == pytest.approx((edges[:, 1] - edges[:, 0]).tolist())
    assert read.runs[0].record.spec.workload.name == "job"


def test_links_of_an_hdf5_file_to_other_files_are_not_followed(tmp_path):
    import h5py

    other = a_file(tmp_path / "other.hdf5", samples.perun())
    with h5py.File(tmp_path / "link.hdf5", "w") as file:
        file["app"] = h5py.ExternalLink(other, "/app")
    with pytest.raises(BadInput, match="no monitored run"):
        read_import(tmp_path / "link.hdf5")


def test_a_file_that_makes_hdf5_loop_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "_LEAST_S", 2.0)
    content = bytearray(samples.perun())
    # The heap's seventh text has one byte; a size beyond its neighbours makes HDF5 loop.
    at = content.index(struct.pack("<QQ", 7, 1), content.index(b"GCOL"))
    content[at + 8] = 221
    with pytest.raises(BadInput, match="not decoded within 2 s"):
        read_import(a_file(tmp_path / "app.hdf5", bytes(content)))


def test_calls_and_sensors_that_are_left_out_are_counted(tmp_path):
    import h5py
    import numpy as np

    path = a_file(tmp_path / "app.hdf5", samples.perun())
    with h5py.File(path, "a") as file:
        regions = file["app/nodes/2026-01-31T12:00:00/nodes/0/regions"]
        # All epochs are within one call of train; a step has no end, another one is of one rank.
        for name, ranks in {"train": [[0, 60], [0, 60]], "step": [[2, 3, 4, 5, 6], [2, 3]],
                            "val": [[21, 20]]}.items():  # fmt: skip
            region = regions.create_group(name)
            region.attrs["id"] = name
            for rank, edges in enumerate(ranks):
                region.create_dataset(f"raw_data/{rank}", data=np.array(edges, np.float32))
        gpu = file["app/nodes/2026-01-31T12:00:00/nodes/0/nodes/host1/nodes/gpu/nodes"]
        power = gpu["CUDA:0_POWER/raw_data/values"]
        seconds = gpu["CUDA:0_POWER/raw_data/timesteps"]
        seconds[5] = -1.0
        assert len(power) == 61
    read = read_import(path)
    durations_s = [row["duration_s"] for row in windows(read, "train")]
    assert durations_s == pytest.approx([18.5, 19.5, 19.5])
    assert len(windows(read, "steps")) == 1
    # RAPL's core is a part of the package, and CPU_USAGE has no energy.
    assert sorted(left_out(read).values()) == [2, 2]
    notes = " ".join(read.runs[0].record.notes)
    for words in (
        "1 call left out: a window that contains others", "1 call left out: without an end",
        "1 call left out: not of all ranks", "1 call left out: its end is not after its begin",
        "1 reading left out: negative",
    ):  # fmt: skip
        assert words in notes
