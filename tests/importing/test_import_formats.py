"""What each format becomes: values worked out by hand, or read by the tool that wrote the file.

nvidia-smi, DCGM and amd-smi need a GPU to write a file, CodeCarbon and Zeus many packages: their
files here follow their documentation, and ``public_file`` has some that the tools wrote.
"""

import importlib.util
import json
import struct
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import import_samples as samples
from import_samples import mllog
from public_data import public_file
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.api.imports import Import, read_import
from wattlaw.common.errors import BadInput
from wattlaw.store.store import Store
from wattlaw.store.tables import read_stores
from wattlaw_formats import hdf5


def a_file(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def metrics(read: Import, folder: Path) -> pd.DataFrame:
    read.write(folder / "store")
    return run_metrics(*read_stores([Store(folder / "store")]))


def windows(read: Import, *phases: str) -> list[dict[str, Any]]:
    rows = [row for run in read.runs for row in run.windows]
    return [row for row in rows if not phases or row["phase"] in phases]


def notes(read: Import) -> str:
    return "\n".join(
        [*read.notes, *read.left_out, *(note for file in read.files for note in file.notes)]
    )


def left_out(read: Import) -> list[int]:
    """Return how many rows are left out for each reason."""
    return [each.count for file in read.files for each in file.left_out]


# nvidia-smi


def test_active_phases_of_a_log_get_energy_by_the_checks_of_our_own(tmp_path):
    read = read_import(a_file(tmp_path / "gpu.csv", samples.nvidia_smi()))
    assert "2 GPUs, 120 readings over" in read.files[0].description
    assert "UTC assumed" in read.files[0].description
    assert "1 active phase by utilisation" in notes(read)
    (run,) = read.runs
    assert (run.record.spec.setting.gpus, run.record.spec.hardware) == (2, "NVIDIA A100")
    (row,) = run.windows
    assert row["phase"] == "run"
    assert row["duration_s"] == pytest.approx(40, abs=1.1)
    # 300 W and 301 W for the time of the window; at its edges power changes over a second.
    assert row["gpu_energy_j"] == pytest.approx(601 * row["duration_s"], rel=0.02)
    assert (row["energy_source"], row["energy_verdict"]) == ("integral", "ok")
    assert row["sm_util_mean"] == pytest.approx(0.9, abs=0.03)
    assert row["power_limit_mean_w"] == 400
    assert run.telemetry is not None
    assert run.telemetry.num_rows > 100


def test_a_window_is_in_the_zone_that_the_user_names(tmp_path):
    path = a_file(tmp_path / "gpu.csv", samples.nvidia_smi())
    window = "2026-01-31T12:00:20+01:00..2026-01-31T12:00:40+01:00"
    read = read_import(path, timezone="+01:00", windows=[window])
    (row,) = windows(read)
    assert row["start_ns"] == 1_769_857_220 * 10**9
    assert row["gpu_energy_j"] == pytest.approx(20 * 601)
    berlin = read_import(path, timezone="Europe/Berlin", windows=[window])
    assert windows(berlin)[0]["gpu_energy_j"] == row["gpu_energy_j"]
    with pytest.raises(BadInput, match="no reading is within a window; --timezone"):
        read_import(path, windows=[window])
    with pytest.raises(BadInput, match="--timezone"):
        read_import(path, timezone="Mars/Base")
    for text in ("12:00..13:00", "2026-01-31T12:00:40..2026-01-31T12:00:20", "5"):
        with pytest.raises(BadInput, match=r"START\.\.END"):
            read_import(path, windows=[text])


def test_units_may_be_in_the_header_alone_and_values_missing(tmp_path):
    rows = [f"2026/01/31 12:00:{i:02}.000, GPU-a, 250.50, 75, [N/A], [Not Supported]"
            for i in range(60)]  # fmt: skip
    head = "timestamp, uuid, power.draw.instant [W], utilization.gpu [%], clocks.sm [MHz], name"
    # A second header where the log was appended to, torn lines, and a last line without its end.
    lines = [head, *rows[:30], "2026/01/31 12:00", "2026/01/31 12:00:29.5, GPU-a, 25", head,
             *rows[30:], "2026/01/31 12:01:00.000, GPU-a, 2"]  # fmt: skip
    read = read_import(a_file(tmp_path / "gpu.log", "\n".join(lines)))
    assert left_out(read) == [2, 1]  # torn lines, and the last one
    (row,) = windows(read)
    assert row["gpu_energy_j"] == pytest.approx(250.5 * row["duration_s"], rel=1e-6)
    assert row["sm_util_mean"] == 0.75
    assert row.get("sm_clock_mean_mhz") is None


def test_the_devices_of_a_run_can_be_named(tmp_path):
    path = a_file(tmp_path / "gpu.csv", samples.nvidia_smi(gpus=4))
    with pytest.raises(BadInput, match="4 GPUs"):
        read_import(path, map="gpus=@2")
    read = read_import(path, map="gpus=@2,global_batch=@64", devices=["0", "3"])
    assert read.runs[0].record.spec.setting.local_batch == 32
    assert windows(read)[0]["gpu_power_mean_w"] == pytest.approx(301.5, rel=0.02)
    with pytest.raises(BadInput, match="--device"):
        read_import(path, devices=["9"])


def test_epochs_of_a_second_file_get_the_energy_of_the_log(tmp_path):
    log = a_file(tmp_path / "gpu.csv", samples.nvidia_smi())
    read = read_import([log, a_file(tmp_path / "marks.csv", samples.windows())])
    table = metrics(read, tmp_path)
    assert table["epoch_time_s"].tolist() == [20.0]
    assert table["energy_per_epoch_j"].tolist() == pytest.approx([20 * 601], rel=0.02)
    assert table["samples_per_epoch"].tolist() == [1000]
    by_lines = read_import(
        [log, a_file(tmp_path / "train.log", samples.log())], pattern=r"epoch (?P<epoch>\d+) done"
    )
    assert [row["epoch"] for row in windows(by_lines)] == [1, 2, 3, 4]
    assert [row["duration_s"] for row in windows(by_lines)] == [10.0] * 4
    by_steps = read_import([log, tmp_path / "train.log"], pattern=r"epoch (?P<step>\d+) done")
    assert [row["steps"] for row in windows(by_steps, "steps")] == [1] * 4


# DCGM and amd-smi


def test_dcgm_energies_are_of_its_counter_and_blanks_are_missing(tmp_path):
    read = read_import(a_file(tmp_path / "x.prom", samples.dcgm_text()))
    (row,) = windows(read)
    assert (row["energy_source"], row["energy_verdict"]) == ("counter", "ok")
    assert row["gpu_energy_j"] == pytest.approx(2 * 300.5 * row["duration_s"], rel=1e-6)
    assert row["sm_util_mean"] == pytest.approx(0.9)
    assert row["host"] == "n1"
    assert left_out(read) == [2, 2]  # comments, blank values


def test_range_queries_of_several_metrics_are_one_time_series(tmp_path):
    energy = json.loads(samples.dcgm_json())
    for result in energy["data"]["result"]:
        result["metric"]["__name__"] = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
        result["values"] = [[t, str(1000 * 300.5 * i)] for i, (t, _) in enumerate(result["values"])]
    files = [a_file(tmp_path / "power.json", samples.dcgm_json()),
             a_file(tmp_path / "energy.json", json.dumps(energy))]  # fmt: skip
    (row,) = windows(read_import(files))
    assert row["energy_verdict"] == "ok"
    assert row["gpu_energy_counter_j"] == pytest.approx(row["gpu_energy_integral_j"])


def test_a_scrape_without_times_is_refused(tmp_path):
    text = "\n".join(line.rsplit(" ", 1)[0] if "{" in line else line
                     for line in samples.dcgm_text().decode().splitlines())  # fmt: skip
    with pytest.raises(BadInput, match="without a time"):
        read_import(a_file(tmp_path / "x.prom", text))


def test_amd_smi_has_joules_and_percent(tmp_path):
    (row,) = windows(read_import(a_file(tmp_path / "amd.csv", samples.amd_smi())))
    assert row["gpu_energy_counter_j"] == pytest.approx(1000 * row["duration_s"], rel=1e-6)
    assert (row["energy_verdict"], row["sm_util_mean"]) == ("ok", pytest.approx(0.95))


# Zeus


def test_zeus_windows_named_epoch_are_epochs(tmp_path):
    table = metrics(read_import(a_file(tmp_path / "z.csv", samples.zeus())), tmp_path)
    assert table["epoch_time_s"].tolist() == [31.0]
    assert table["energy_per_epoch_j"].tolist() == [12_102.0]
    assert table["energy_is"].tolist() == ["gpu, counter, suspect"]


def test_windows_of_a_zeus_optimizer_are_runs_with_its_power_limits(tmp_path):
    rows = [f"{i}.5,__GlobalPowerLimitOptimizer_{limit},{10 + i}.0,{1000 * i},{1000 * i + 1}"
            for i, limit in enumerate((300, 200, 100), 1)]  # fmt: skip
    head = "start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy"
    read = read_import(a_file(tmp_path / "z.csv", "\n".join([head, *rows, "9.5,torn"])))
    table = metrics(read, tmp_path).sort_values("power_limit_w")
    assert table["power_limit_w"].tolist() == [100, 200, 300]
    assert table["energy_j"].tolist() == [6001, 4001, 2001]
    assert {row["start_ns"] for row in windows(read)} == {None}  # a clock that began at the boot


def test_a_real_zeus_optimizer_gives_a_run_for_each_power_limit(tmp_path):
    read = read_import(public_file("zeus_windows_4gpu.csv"))
    table = metrics(read, tmp_path).sort_values("power_limit_w")
    assert table["power_limit_w"].tolist() == [100, 125, 150, 175, 200, 225, 250, 275, 300]
    assert set(table["gpus"]) == {4}
    at_300 = table.iloc[-1]
    assert at_300["time_s"] == 33.27751154080033
    assert at_300["energy_j"] == pytest.approx(16_520.0, abs=0.1)  # the sum of the file's line


def test_zeus_power_is_in_milliwatts():
    (row,) = windows(read_import(public_file("zeus_power_monitor.csv")))
    assert row["gpu_power_mean_w"] == pytest.approx(32.3, abs=0.1)


# CodeCarbon


def test_ranks_of_one_machine_do_not_count_it_twice(tmp_path):
    path = a_file(tmp_path / "emissions.csv", samples.codecarbon())
    read = read_import(path)
    first, second = windows(read)
    assert first["gpu_energy_j"] == pytest.approx(0.01 * 3.6e6)
    assert first["dram_energy_j"] == pytest.approx(0.0001 * 3.6e6)
    assert second["gpu_energy_j"] == pytest.approx(0.02 * 3.6e6)
    assert "lines 2, 3" in notes(read)
    assert {row["energy_source"] for row in windows(read)} == {"estimated"}
    two_nodes = windows(read_import(path, map="nodes=@2"))
    assert two_nodes[0]["gpu_energy_j"] == pytest.approx(0.0199 * 3.6e6)


@pytest.mark.parametrize(
    ("name", "duration_s", "energies_kwh"),
    [
        ("codecarbon_2021.csv", 175.7496521, (None, 0.001079437, 0.000618153)),
        ("codecarbon_3.csv", 161.20380687713623, (None, None, 0.00057442898176)),
    ],
)
def test_each_generation_of_emissions_is_read(name, duration_s, energies_kwh):
    (row,) = windows(read_import(public_file(name), map="gpus=@1"))
    assert row["duration_s"] == duration_s
    for column, kwh in zip(("gpu", "cpu", "dram"), energies_kwh, strict=True):
        assert row.get(f"{column}_energy_j") == (
            None if kwh is None else pytest.approx(kwh * 3.6e6)
        )


def test_versions_of_emissions_have_other_columns_and_updates_of_a_line(tmp_path):
    first = "timestamp,project_name,duration,emissions,energy_consumed"
    path = a_file(tmp_path / "v1.csv", f"{first}\n2026-01-31T12:00:00,p,60,0.1,0.5\n")
    (run,) = read_import(path, map="gpus=@1").runs
    assert run.windows[0]["energy_verdict"] == "unavailable"
    assert run.record.site is not None
    assert run.record.site.energy_j == 0.5 * 3.6e6
    lines = samples.codecarbon().decode().splitlines()
    update = lines[3].replace("13:00:00", "13:01:00").replace("120.0", "180.0", 1)
    update = update.replace(",0.02,", ",0.03,")
    read = read_import(a_file(tmp_path / "v3.csv", "\n".join([lines[0], lines[3], update])))
    (row,) = windows(read)
    assert (row["duration_s"], row["gpu_energy_j"]) == (180.0, pytest.approx(0.03 * 3.6e6))
    assert left_out(read) == [1]
    with pytest.raises(BadInput, match="none of its 1 rows"):
        read_import(path).write(tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_the_first_generation_has_an_energy_of_the_machine_only():
    (run,) = read_import(public_file("codecarbon_1.csv"), map="gpus=@1").runs
    assert run.windows[0]["energy_verdict"] == "unavailable"
    assert run.record.site is not None
    assert run.record.site.energy_j == pytest.approx(0.001308618772068 * 3.6e6)


def test_lines_that_add_up_those_before_count_once():
    read = read_import(public_file("codecarbon_2.4.csv"))
    longest = max(windows(read), key=lambda row: row["duration_s"])
    assert longest["duration_s"] == 2486.815047979355
    assert len(read.runs) == 9  # of 19 lines
    assert left_out(read) == [7]


# perun


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
    rows = windows(read, "train")
    assert [row["duration_s"] for row in rows] == pytest.approx(
        (edges[:, 1] - edges[:, 0]).tolist()
    )
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
    with pytest.raises(BadInput, match="did not read it within 2 s"):
        read_import(a_file(tmp_path / "app.hdf5", bytes(content)))


# MLPerf


def test_an_mlperf_log_has_epochs_evaluations_and_its_batch(tmp_path):
    read = read_import(a_file(tmp_path / "result_0.txt", samples.mlperf()), map="gpus=@8")
    (run,) = read.runs
    assert (run.record.spec.workload.name, run.record.spec.setting.local_batch) == ("resnet", 32)
    assert [row["duration_s"] for row in windows(read, "train")] == [10.0] * 3
    assert [row["metric"] for row in windows(read, "evaluate")] == [0.5, 0.6, 0.7]
    assert "33.000 s" in run.record.notes[-1]


def test_epochs_of_a_real_mlperf_log_are_as_its_lines_say():
    read = read_import(public_file("mlperf_retinanet_8gpu.txt"), map="gpus=@8")
    (run,) = read.runs
    assert "3,317.7 s to train" in read.files[0].description
    rows = windows(read, "train")
    assert [row["interrupted"] for row in rows] == [False] * 4 + [True]
    assert rows[1]["duration_s"] == pytest.approx((1759554590860 - 1759554286086) / 1000)
    assert [round(row["metric"], 3) for row in windows(read, "evaluate")] == [
        0.236, 0.290, 0.327, 0.342,
    ]  # fmt: skip
    assert (run.record.spec.setting.global_batch, run.record.facts.metric) == (256, "eval_accuracy")


def test_blocks_between_evaluations_and_the_last_epoch_are_not_epochs(tmp_path):
    t = 1_769_860_000_000
    lines = [
        mllog("global_batch_size", t, 100), mllog("train_samples", t, 10_000),
        mllog("run_start", t), mllog("epoch_start", t, epoch_num=0),
        mllog("eval_start", t + 5000, epoch_num=0.25),
        mllog("eval_stop", t + 6000, epoch_num=0.25),
        mllog("eval_start", t + 11_000, epoch_num=0.5),
        mllog("eval_stop", t + 12_000, epoch_num=0.5),
        mllog("run_stop", t + 12_000, status="success"),
        mllog("epoch_stop", t + 12_000, epoch_num=0.5),
    ]  # fmt: skip
    read = read_import(a_file(tmp_path / "r.txt", "\n".join(lines)), map="gpus=@4")
    blocks = windows(read, "steps")
    assert [(row["steps"], row["samples"], row["duration_s"]) for row in blocks] == [
        (25, 2500, 5.0), (25, 2500, 5.0),
    ]  # fmt: skip
    many = "\n".join(lines).replace("10000", "1e30")
    with pytest.raises(BadInput, match=r"above 2\^63"):
        read_import(a_file(tmp_path / "m.txt", many), map="gpus=@4")
    text = samples.mlperf().decode().replace(str(t + 34_000), str(t + 33_000))
    whole = read_import(a_file(tmp_path / "w.txt", text), map="gpus=@4")
    assert [row["interrupted"] for row in windows(whole, "train")] == [False, False, True]


def test_parts_of_an_epoch_are_blocks_of_steps(tmp_path):
    read = read_import(public_file("mlperf_dlrm_8gpu.txt"), map="gpus=@8")
    blocks = windows(read, "steps")
    assert len(blocks) == 6
    assert blocks[0]["duration_s"] == pytest.approx((1759853867274 - 1759853842138) / 1000)
    # 4,195,197,692 samples of an epoch, 0.1318061 of it in a block, 55,296 in a batch.
    assert [row["steps"] for row in blocks[1:]] == [10_000] * 5
    table = metrics(read, tmp_path)
    assert table["samples_per_s"].iloc[0] == pytest.approx(2.3e7, rel=0.1)


def test_an_mlperf_power_log_is_the_energy_of_its_run_by_the_rules(tmp_path):
    log = a_file(tmp_path / "result_0.txt", samples.mlperf())
    power = a_file(tmp_path / "node_0.txt", samples.mlperf_power())
    (run,) = read_import([log, power], map="gpus=@8").runs
    assert run.record.site is not None
    # 33 s from run_start to run_stop, 5000 W, 90 % of it after the conversion.
    assert run.record.site.energy_j == pytest.approx(33 * 5000 * 0.9)
    assert run.windows[0].get("gpu_energy_j") is None
    node = run.windows[0]
    assert node["node_energy_j"] / node["duration_s"] == pytest.approx(5000 * 0.9)
    slow = a_file(tmp_path / "node_0.txt", samples.mlperf_power(spacing_s=2.0))
    assert "a reading every 2 s" in notes(read_import([log, slow], map="gpus=@8"))
    assert "efficiency 0.9" in notes(read_import([log, power], map="gpus=@8"))


def test_a_run_without_success_says_so(tmp_path):
    text = samples.mlperf().decode().replace('"status": "success"', '"status": "aborted"')
    read = read_import(a_file(tmp_path / "r.txt", text), map="gpus=@8")
    assert "did not reach its target" in notes(read)
    none = a_file(tmp_path / "none.txt", text.replace("run_st", "x").replace("epoch_st", "x"))
    with pytest.raises(BadInput, match="no training"):
        read_import(none, map="gpus=@8")


# Slurm


def test_jobs_have_gpu_hours_and_an_energy_where_it_was_measured(tmp_path):
    read = read_import(a_file(tmp_path / "jobs.txt", samples.slurm_text()))
    assert "204.0 GPU-hours, 1 with an energy" in read.files[0].description  # 8 x (25 + 0.5) h
    one, other = (run.record for run in read.runs)
    assert (one.spec.setting.gpus, one.spec.nodes, one.spec.hardware) == (8, 2, "a100")
    assert (one.spec.workload.name, one.spec.repeat, other.spec.repeat) == ("resnet-101", 0, 0)
    assert one.site is not None
    assert other.site is not None
    assert (one.site.energy_j, other.site.energy_j) == (3e8, None)
    assert [row["duration_s"] for row in windows(read)] == [90_000.0, 1800.0]
    job = read_import(a_file(tmp_path / "jobs.json", samples.slurm_json())).runs[0].record
    assert job.site is not None
    assert (job.site.energy_j, job.site.cluster, job.spec.hardware) == (2.5e6, "c1", "h100")


def test_jobs_without_a_result_or_a_gpu_are_left_out_with_their_sums(tmp_path):
    text = samples.slurm_text().decode()
    failed = text.replace("102|resnet|gpu|ml|COMPLETED", "102|r|gpu|ml|FAILED")
    file = read_import(a_file(tmp_path / "jobs.txt", failed)).files[0]
    assert [(each.reason, each.count, each.first) for each in file.left_out] == [
        ("a job of state FAILED", 1, 4)
    ]
    assert any("1 job of state FAILED left out, with 4.00 GPU-hours" in note for note in file.notes)
    century = samples.slurm_json().decode().replace('"elapsed": 3600', '"elapsed": 4e9')
    (reason,) = read_import(a_file(tmp_path / "jobs.json", century)).files[0].rejected
    assert "job 103: a window" in reason
    text = text.replace("gres/gpu:a100=8,gres/gpu=8,", "")
    file = read_import(a_file(tmp_path / "jobs.txt", text)).files[0]
    assert {each.reason: each.count for each in file.left_out} == {
        "a job without GPUs": 2, "a step of a job that is not imported": 1,
    }  # fmt: skip
    assert not file.rejected


SACCT = "Cluster|JobID|JobName|State|ElapsedRaw|Start|NNodes|AllocTRES|ConsumedEnergyRaw"


def a_job(job_id: str, energy: object = 0, **changes: str) -> str:
    """Return a line of sacct: an hour on 2 nodes with 8 GPUs."""
    cells = {
        "Cluster": "c", "JobID": job_id, "JobName": "train", "State": "COMPLETED",
        "ElapsedRaw": "3600", "Start": "2026-01-31T12:00:00", "NNodes": "2",
        "AllocTRES": "cpu=8,gres/gpu=8,node=2", "ConsumedEnergyRaw": str(energy), **changes,
    }  # fmt: skip
    return "|".join(cells.values())


def jobs_of(folder: Path, *lines: str, header: str = SACCT, **settings):
    text = "\n".join([header, *lines, ""])
    return read_import(a_file(folder / "jobs.txt", text), **settings)


def energies_of(read) -> list[float | None]:
    return [run.record.site.energy_j for run in read.runs]


def test_attempts_of_a_requeued_job_are_jobs_with_their_own_steps(tmp_path):
    other = {"Start": "2026-02-01T12:00:00"}
    read = jobs_of(
        tmp_path,
        a_job("7", State="REQUEUED"), a_job("7.0", 2e6, State="CANCELLED"),
        a_job("7", **other), a_job("7.0", 3e6, **other),
        a_job("7", **other), a_job("8.0", 9e6),
    )  # fmt: skip
    assert energies_of(read) == [3e6]
    file = read.files[0]
    assert any("REQUEUED left out, with 8.00 GPU-hours and 2.000 MJ" in note for note in file.notes)
    assert {each.reason: each.first for each in file.left_out} == {
        "a job of state REQUEUED": 2, "a step of a job that is not imported": 3,
        "a job that is in the file twice, with the same start": 6,
        "a step without a line of its job": 7,
    }  # fmt: skip


STEPS = [  # hours from the start, hours, joules; the energy of the job
    ([(0, 1, 4e6), (1, 1, 5e6), (0, 2, 6e6)], 9e6, True),  # two in turn, within the third
    ([(0, 1, 4e6), (0.5, 1, 5e6), (1.5, 0.5, 1e6)], 6e6, True),  # the second overlaps the first
    ([(0, 1, 4e6), (0.995, 1, 5e6)], 9e6, False),  # the clean-up of the first
    ([(0, 1, 4e6), (0, 1, 4e6)], 4e6, True),
    ([(0, 1, 4e6)], 4e6, False),
]


@pytest.mark.parametrize(("steps", "expected", "is_bound"), STEPS)
def test_steps_add_up_where_they_do_not_overlap(tmp_path, steps, expected, is_bound):
    lines = [a_job("7", ElapsedRaw="7200")]
    for number, (after_h, hours, joules) in enumerate(steps):
        start = (datetime(2026, 1, 31, 12) + timedelta(hours=after_h)).isoformat()
        lines.append(a_job(f"7.{number}", joules, Start=start, ElapsedRaw=str(int(hours * 3600))))
    read = jobs_of(tmp_path, *lines)
    assert energies_of(read) == [expected]
    assert any("a lower bound" in note for note in read.runs[0].record.notes) == is_bound


ENERGIES = [  # ConsumedEnergyRaw of an hour on two nodes; joules, and why they are unknown
    ("7200000", 7.2e6, None), ("7.2M", 7.2e6, None), ("0", None, None), ("", None, None),
    ("4294967295", None, "no value"), ("8589934588", None, "no value"),
    ("18446744073709551615", None, "no value"), ("-2", None, "negative"),
    ("lots", None, "no number"), ("900000000", None, "power that no node has"),
    ("100", None, "power that no node has"),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "expected", "why"), ENERGIES)
def test_an_energy_that_no_node_can_have_is_unknown_with_the_reason(tmp_path, cell, expected, why):
    read = jobs_of(tmp_path, a_job("7", cell))
    assert energies_of(read) == [expected]
    notes = "; ".join(read.runs[0].record.notes)
    assert (why or "imported") in notes
    assert ("energy unknown" in notes) == (why is not None)


def test_ids_and_gpus_are_read_as_slurm_writes_them(tmp_path):
    gpus = {
        "gres/gpu:a100:4": 4, "cpu=4,gres/gpu:a100=4,gres/gpumem=40G,gres/gpuutil=90": 4,
        "gres/gpu=6,gres/gpu:a100=2,gres/gpu:h100=4": 6, "gres/gpu:v100=1,gres/gpu:t4=2": 3,
    }  # fmt: skip
    ids = ("12_3", "12+0", "13", "14")
    lines = [a_job(name, AllocTRES=tres, NNodes="1") for name, tres in zip(ids, gpus, strict=True)]
    lines += [a_job("15", AllocTRES="gres/gpumem=40G"), a_job("16", AllocTRES="gres/shard=2")]
    lines += [a_job("17_[1-4]", State="PENDING", Start="Unknown"), a_job("18", State="RUNNING")]
    read = jobs_of(tmp_path, *lines, header=f"* maintenance on Monday *\n{SACCT}")
    assert [run.record.site.job_id for run in read.runs] == [*ids]
    assert [run.record.spec.setting.gpus for run in read.runs] == [*gpus.values()]
    assert {each.reason: each.count for each in read.files[0].left_out} == {
        "before the header": 1, "a job without GPUs": 1, "a job that has not ended": 2,
        "a job with a share of a GPU (gres/shard)": 1,
    }  # fmt: skip
    assert any("heterogeneous" in note for note in read.runs[1].record.notes)


@pytest.mark.parametrize(
    ("elapsed", "expected"),
    [("1-02:03:04", 93_784), ("02:19:48", 8388), ("00:45.123", 45.123), ("19:48", 1188)],
)
def test_elapsed_has_the_forms_of_slurm(tmp_path, elapsed, expected):
    header = "JobID|State|Elapsed|AllocTRES|"
    read = jobs_of(tmp_path, f"7|COMPLETED|{elapsed}|gres/gpu=1|", header=header)
    assert windows(read)[0]["duration_s"] == expected
    assert any("ConsumedEnergyRaw" in note for note in read.files[0].notes)


def test_a_job_that_timed_out_counts_but_its_time_is_no_training_time(tmp_path):
    read = jobs_of(tmp_path, a_job("7", 7.2e6, State="TIMEOUT"), a_job("8", 7e6))
    assert energies_of(read) == [7.2e6, 7e6]
    assert [row["interrupted"] for row in windows(read)] == [True, False]
    assert any("time limit" in note for note in read.runs[0].record.notes)


def test_jobs_of_one_name_are_one_workload_only_if_the_user_says_so(tmp_path):
    lines = [a_job("7"), a_job("8", AllocTRES="gres/gpu=16")]

    def workloads(**settings):
        read = jobs_of(tmp_path, *lines, **settings)
        said = any("workload of its own" in note for note in read.files[0].notes)
        return {run.record.spec.workload.model_dump_json() for run in read.runs}, said

    apart, said = workloads()
    assert (len(apart), said) == (2, True)
    for settings in ({"map": "workload=JobName"}, {"workload": "train"},
                     {"map": "workload=@train"}):  # fmt: skip
        together, said = workloads(**settings)
        assert (len(together), said) == (1, False)
    with pytest.raises(BadInput, match='no column "Name"; the jobs have: AllocTRES'):
        workloads(map="workload=Name")
    with pytest.raises(BadInput, match="allowed for this format"):
        workloads(map="gpus=NNodes")


@pytest.mark.parametrize(
    ("version", "wrap", "state"),
    [("21.08", lambda value: value, "COMPLETED"),
     ("25.11", lambda value: {"set": True, "infinite": False, "number": value}, ["COMPLETED"])],
)  # fmt: skip
def test_versions_of_json_are_read_alike(tmp_path, version, wrap, state):
    def energy_of(allocated: float | None, steps: tuple[float, ...]):
        tres = [{"type": "gres", "name": "gpu", "count": 4}]
        tres += [{"type": "energy", "name": "", "count": allocated}] if allocated else []
        job = {
            "job_id": 60, "name": "bert", "association": {}, "allocation_nodes": 1,
            "array": {"job_id": 57, "task_id": wrap(3)}, "state": {"current": state},
            "time": {"elapsed": wrap(3600), "start": wrap(1_769_860_000)},
            "tres": {"allocated": tres},
            "steps": [
                {"step": {"id": str(i) if version == "21.08" else {"step_id": str(i)}},
                 "statistics": {"energy": {"consumed": wrap(joules)}}}
                for i, joules in enumerate(steps)
            ],
        }  # fmt: skip
        read = read_import(a_file(tmp_path / "jobs.json", json.dumps({"jobs": [job]})))
        (record,) = (run.record for run in read.runs)
        assert (record.site.job_id, record.spec.setting.gpus) == ("57_3", 4)
        return record.site.energy_j, any("energy" in note for note in record.notes)

    assert energy_of(6e6, (3e6, 3e6)) == (6e6, False)
    assert energy_of(None, (3e6, 2e6)) == (3e6, True)  # the steps may overlap: a lower bound
    assert energy_of(4e8, (2e8, 2e8)) == (4e8, True)  # 111 kW, but the steps agree
    assert energy_of(4e8, (3e6, 2e6)) == (3e6, True)
    assert energy_of(4e9, (2e9, 2e9)) == (None, True)
    assert energy_of(2**64 - 2, (0, 0)) == (None, True)


def test_accounting_that_cannot_be_read_names_the_remedy(tmp_path):
    fixed = (
        "JobID           State    Elapsed\n------------ ---------- ----------\n7 COMPLETED 1:00\n"
    )
    bare, few = (
        "7|a|COMPLETED|01:00:00|gres/gpu=1\n",
        "JobID|State|Elapsed|\n7|COMPLETED|1:00:00|\n",
    )
    banner = "Welcome\n" + samples.slurm_json().decode()
    commas = "JobID,State,Elapsed,AllocTRES\n7,COMPLETED,1:00:00,cpu=1,gres/gpu=1\n"
    for text in (fixed, bare, few, banner, commas):
        with pytest.raises(BadInput, match="sacct --parsable2"):
            read_import(a_file(tmp_path / "jobs.txt", text))


# Training frameworks


def test_throughput_of_lightning_is_steps_and_their_time(tmp_path):
    read = read_import(a_file(tmp_path / "metrics.csv", samples.lightning()), map="gpus=@2")
    (block,) = windows(read, "steps")
    assert (block["steps"], block["duration_s"], block["samples"]) == (90, 9.0, 90 * 64 * 2)
    assert [row["metric"] for row in windows(read, "evaluate")] == [0.45, 0.5]
    assert metrics(read, tmp_path)["step_time_s"].tolist() == pytest.approx([0.1])


def test_a_file_that_lightning_writes_is_read(tmp_path):
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ThroughputMonitor
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.loggers import CSVLogger

    class Model(BoringModel):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.step(batch))

    trainer = Trainer(
        max_epochs=2, limit_train_batches=20, limit_val_batches=2, log_every_n_steps=5,
        logger=CSVLogger(tmp_path), enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, accelerator="cpu",
        callbacks=[ThroughputMonitor(batch_size_fn=lambda batch: batch.size(0), window_size=2)],
    )  # fmt: skip
    trainer.fit(Model())
    path = next(tmp_path.rglob("metrics.csv"))
    table = pd.read_csv(path)
    timed = table[table["train/time"].notna()]
    read = read_import(path, map="gpus=@1")
    (block,) = windows(read, "steps")
    assert block["steps"] == timed["step"].iloc[-1] - timed["step"].iloc[0]
    assert block["duration_s"] == pytest.approx(
        timed["train/time"].iloc[-1] - timed["train/time"].iloc[0]
    )
    assert windows(read, "evaluate")[-1]["loss"] == pytest.approx(
        table["val_loss"].dropna().iloc[-1]
    )


def test_lightning_without_times_says_how_to_log_them(tmp_path):
    path = a_file(tmp_path / "metrics.csv", "epoch,step,train_loss\n0,10,1.5\n")
    with pytest.raises(BadInput, match="ThroughputMonitor"):
        read_import(path, map="gpus=@1")


def test_tensorboard_steps_are_those_between_evaluations(tmp_path):
    path = a_file(tmp_path / "events.out.tfevents.1.h", samples.tensorboard())
    read = read_import(path, map="gpus=@2")
    blocks = windows(read, "steps")
    # Steps 10 to 50 take 4 s; the interval with the validation of 5 s, to step 60, is left out.
    assert [row["steps"] for row in blocks] == [40, 40]
    assert [row["duration_s"] for row in blocks] == pytest.approx([4.0, 4.0], abs=1e-3)
    assert [row["metric"] for row in windows(read, "evaluate")] == pytest.approx([0.55, 0.6])
    cut = a_file(tmp_path / "events.out.tfevents.2.h", samples.tensorboard()[:-70])
    assert "cut off" in notes(read_import(cut, map="gpus=@2"))


def test_a_trainer_state_has_steps_without_its_evaluations(tmp_path):
    path = a_file(tmp_path / "trainer_state.json", samples.huggingface())
    read = read_import(path, map="gpus=@2,global_batch=@8")
    (block,) = windows(read, "steps")
    assert (block["steps"], block["duration_s"], block["samples"]) == (20, 8.0, 160)
    assert [row["metric"] for row in windows(read, "evaluate")] == [0.6, 0.7]
    assert metrics(read, tmp_path)["time_per_sample_s"].tolist() == [0.05]
    early = json.loads(samples.huggingface())
    early["log_history"].pop()
    with pytest.raises(BadInput, match="save_state"):
        read_import(a_file(path, json.dumps(early)), map="gpus=@2")


def test_a_state_that_the_trainer_writes_is_read(tmp_path):
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    model = BertForSequenceClassification(
        BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=50)
    )
    data = [{"input_ids": torch.arange(8), "labels": torch.tensor(i % 2)} for i in range(40)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, num_train_epochs=2,
        eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:8])
    result = trainer.train().metrics
    trainer.save_state()
    read = read_import(tmp_path / "trainer_state.json", map="gpus=@1")
    (block,) = windows(read, "steps")
    evaluated_s = sum(row["duration_s"] for row in windows(read, "evaluate"))
    assert (block["steps"], block["samples"]) == (20, 80)
    assert block["duration_s"] == pytest.approx(result["train_runtime"] - evaluated_s)


# Tables with units


UNITS = [
    ("step_time_ms=dt", "dt", "250", 0.25),
    ("step_time_s=dt_ms", "dt_ms", "250", 0.25),
    ("step_time_s=step_time_ms", "step_time_ms", "250", 0.25),
    ("step_time_ms=dt_s", "dt_s", "250", "unit s is unclear or another one; allowed: step_time_ns"),
    ("step_time_s=elapsedMs", "elapsedMs", "250", 0.25),
    ("step_time_s=step_ms_mean", "step_ms_mean", "250", 0.25),
    ("step_time=ms/step", "ms/step", "250", 0.25),
    ("step_time_s=s/it", "s/it", "0.25", 0.25),
    ("step_time_s=Time per iteration (ms)", "Time per iteration (ms)", "250", 0.25),
    ("step_time_s=ms_per_epoch", "ms_per_epoch", "250", "per epoch"),
    ("step_time_s=s/sample", "s/sample", "1", "per sample"),
    ("step_time_s=samples/s", "samples/s", "256", "a rate; map it to throughput"),
    ("step_time_s=t_min", "t_min", "0.5", 30.0),
    ("step_time=t_h", "t_h", "0.5", 1800.0),
    ("step_time_s=dt_W", "dt_W", "1", "unit W is unclear or another one"),
    ("step_time=dt", "dt", "250", "step_time_min, step_time_h, step_time_d.*hh:mm:ss"),
    ("step_time_s=dt_ms/1000", "dt_ms", "250", "converted already"),
    ("step_time_s=dt_ms*2", "dt_ms", "125", 0.25),
    ("step_time_ms=dt*2", "dt", "125", 0.25),
    ("throughput=samples/min", "samples/min", "15360", 0.25),
    ("steps_per_s=rate", "rate", "4,0", 0.25),
    ("step_time=dt_ms", "dt_ms", "250", 0.25),
    ("step_time=time [ms]", "time [ms]", "250", 0.25),
    ("step_time=dt", "dt", "250 ms", 0.25),
    ("step_time=dt", "dt", "00:00:00.25", 0.25),
    ("step_time=dt", "dt", "250", "is unclear"),
    ("step_time_s=total_ms/count", "total_ms", "2500", 0.25),
    ("throughput=samples/s", "samples/s", "256", 0.25),
    ("throughput=img_per_sec", "img_per_sec", "256", 0.25),
    ("throughput=samples/s/gpu", "samples/s/gpu", "128", 0.25),
    ("steps_per_s=rate", "rate", "4", 0.25),
    ("tokens_per_s_per_gpu=rate,tokens_per_sample=@1024", "rate", str(128 * 1024), 0.25),
    ("throughput=rate", "rate", "4", "unit of the throughput is unclear"),
    ("tokens_per_s=rate", "rate", "4", "tokens_per_sample"),
]


@pytest.mark.parametrize(("mapping", "column", "cell", "expected"), UNITS)
def test_units_are_read_where_they_are_written(tmp_path, mapping, column, cell, expected):
    column, cell = column or "dt_ms", cell or "1"
    path = a_file(tmp_path / "t.csv", f"n;count;{column}\n2;10;{cell}\n")
    mapping = f"gpus=n,global_batch=@64,{mapping}"
    if isinstance(expected, str):
        with pytest.raises(BadInput, match=expected):
            read_import(path, map=mapping)
        return
    (row,) = windows(read_import(path, map=mapping))
    assert row["duration_s"] == pytest.approx(expected)
    assert (row["steps"], row["samples"]) == (1, 64)


POWERS = [
    ("power=p", "259.97 W", 259.97), ("power=p_mW", "259970", 259.97),
    ("power=p [kW]", "2.5", 2500), ("power_w=p*n", "100.0", 200.0),
    ("power_w=p*n", "0.1 kW", 200.0), ("power=p_mw", "1", "unclear"),
    ("power=p*n", "100", "unit is unclear"), ("power_w=p_kWh", "1", "another one"),
    ("power_w=p_kW", "2.5", 2500), ("power_w=p_mw", "1", "unclear"),
    ("power_MW=p_mw", "0.0005", 500), ("power_w=power_per_gpu_w", "100", "per gpu"),
    ("power_w=p_W_per_gpu", "100", "per gpu"), ("power_w=power_per_gpu_w*n", "100.0", 200.0),
    ("power_w=p_kW_avg", "0.2", 200.0), ("power_w=p_min", "200", 200.0),
    ("power_w=p/zero", "1", "zero is 0"), ("power_w=p*q", "1", 'no column "q"'),
]  # fmt: skip


def test_the_least_of_a_time_is_not_in_minutes(tmp_path):
    path = a_file(tmp_path / "t.csv", "n,t_min,t_max\n1,0.2,0.3\n")
    assert windows(read_import(path, map="gpus=n,epoch_time_s=t_min"))[0]["duration_s"] == 0.2
    with pytest.raises(BadInput, match="unit of the column is unclear"):
        read_import(path, map="gpus=n,epoch_time=t_min")


def test_units_of_a_row_below_the_header_and_shares_are_converted(tmp_path):
    path = a_file(tmp_path / "t.csv", "n,t,e,u,util_share\n[-],[ms],[Wh],[%],\n1,250,0.05,97,0.9\n")
    mapping = "gpus=n,epoch_time_s=t,gpu_energy=e,sm_util=u,mem_util_percent=util_share"
    read = read_import(path, map=mapping)
    (row,) = windows(read)
    found = [row[name] for name in ("duration_s", "gpu_energy_j", "sm_util_mean", "mem_util_mean")]
    assert found == pytest.approx([0.25, 180, 0.97, 0.9])
    assert 'epoch_time_s: column "t" is converted from ms' in notes(read)


@pytest.mark.parametrize(("mapping", "cell", "expected"), POWERS)
def test_products_of_columns_and_units_in_cells_are_power(tmp_path, mapping, cell, expected):
    column = mapping.partition("=")[2].split("*")[0].split("/")[0]
    path = a_file(tmp_path / "t.csv", f"n,t,zero,{column}\n2,10,0,{cell}\n")
    mapping = f"gpus=n,epoch_time_s=t,{mapping}"
    if not isinstance(expected, str):
        (row,) = windows(read_import(path, map=mapping))
        assert row["gpu_energy_j"] == pytest.approx(10 * expected)
    elif "is 0" in expected:
        assert expected in read_import(path, map=mapping).files[0].rejected[0]
    else:
        with pytest.raises(BadInput, match=expected):
            read_import(path, map=mapping)


@pytest.mark.parametrize(
    ("package", "script"),
    [
        ("codecarbon", """
from codecarbon import OfflineEmissionsTracker
tracker = OfflineEmissionsTracker(country_iso_code="DEU", measure_power_secs=1, log_level="error")
tracker.start()
import time; time.sleep(3)
tracker.stop()
"""),
    ],
)  # fmt: skip
def test_a_file_that_an_installed_tool_writes_is_read(tmp_path, package, script):
    """CodeCarbon brings 15 packages, so that it is not among those of the tests."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=120)
    table = pd.read_csv(tmp_path / "emissions.csv")
    (run,) = read_import(tmp_path / "emissions.csv", map="gpus=@1").runs
    assert run.windows[0]["duration_s"] == pytest.approx(table["duration"][0])
    assert run.windows[0]["cpu_energy_j"] == pytest.approx(table["cpu_energy"][0] * 3.6e6)
