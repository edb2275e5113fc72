"""Windows and powers of Zeus."""

import pytest

from imported import gpus, joules, left_out, made, metrics, refusal, windows
from public_data import public_file
from wattlaw.api.imports import Import, read_import


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


def zeus(*windows: tuple[str, float, float], gpus: int = 1, clock_s: float = 1.7e9) -> list[str]:
    """Return a log of windows: name, start and seconds; each GPU draws 200 W."""
    energies = ",".join(f"gpu{i}_energy" for i in range(gpus))
    head = f"start_time,window_name,elapsed_time,{energies}"
    return [
        head,
        *(f"{clock_s + start},{name},{s}" + f",{200.0 * s}" * gpus for name, start, s in windows),
    ]


EPOCHS = [("epoch", 10.0, 50.0), ("epoch", 60.0, 50.0), ("epoch", 110.0, 50.0)]


def phases(read: Import) -> list[tuple[str, float]]:
    return [(row["phase"], row["duration_s"]) for run in read.runs for row in run.windows]


@pytest.mark.parametrize("name", ["training", "total", "train", "epochs_all", "whole run"])
@pytest.mark.parametrize("clock_s", [1.7e9, 5e5])
def test_an_outer_window_is_no_epoch(tmp_path, name, clock_s):
    path = made(tmp_path, "z.csv", *zeus(*EPOCHS, (name, 5.0, 160.0), clock_s=clock_s))
    read = read_import(path)
    assert phases(read) == [("train", 50.0)] * 3
    assert [row["epoch"] for row in read.runs[0].windows] == [0, 1, 2]
    assert joules(read) == [pytest.approx(200 * 150)]
    assert left_out(read) == {"an outer window: it contains windows that count": 1}


def test_windows_inside_epochs_do_not_count_twice(tmp_path):
    steps = [(f"step_{i}", 10.0 + 5 * i, 4.9) for i in range(30)]
    steps += [("train_forward", 11.0, 2.0), ("eval", 55.0, 4.0)]
    read = read_import(made(tmp_path, "z.csv", *zeus(*steps, *EPOCHS)))
    assert phases(read) == [("train", 50.0)] * 3
    assert left_out(read) == {"inside a window that counts, or overlaps it": 32}


def test_evaluations_between_epochs_are_kept_in_the_order_of_time(tmp_path):
    windows = [("epoch_1", 60.0, 50.0), ("val_epoch_0", 50.01, 9.0), ("epoch_0", 0.0, 50.02)]
    read = read_import(made(tmp_path, "z.csv", *zeus(*windows)))
    assert phases(read) == [("train", 50.02), ("evaluate", 9.0), ("train", 50.0)]
    assert [row["epoch"] for row in read.runs[0].windows] == [0, 0, 1]


def test_windows_of_which_none_can_be_read_are_named_with_the_reason(tmp_path, capsys):
    path = made(tmp_path, "z.csv", "start_time,window_name,elapsed_time,gpu0_energy",
                "1700000000,epoch, 1,100,5000")  # fmt: skip
    assert "line 2 left out: another number of cells" in refusal(path, capsys)


def test_repeated_overlapping_and_torn_windows_are_counted(tmp_path):
    late = ("epoch", 130.0, 60.0)
    log = zeus(*EPOCHS, EPOCHS[1], late)
    read = read_import(made(tmp_path, "z.csv", *log, log[1][:-2].replace("200", "-200"), "1,e"))
    assert joules(read) == [pytest.approx(200 * 150)]
    assert sum(left_out(read).values()) == 4


def test_windows_of_another_number_of_gpus_are_another_run(tmp_path):
    log = [*zeus(*EPOCHS), *zeus(("epoch", 500.0, 30.0), gpus=4)]
    read = read_import(made(tmp_path, "z.csv", *log))
    assert (gpus(read), joules(read)) == ([1, 4], [30_000.0, 24_000.0])


def test_power_logs_of_several_gpus_are_not_one_gpu(tmp_path):
    files = [made(tmp_path, f"{name}.power.log", "Time,Power",
                  *(f"2026-01-31 12:00:{s:02}.5,{1000 * watts}" for s in range(30)))
             for name, watts in (("bs32+gpu0", 200), ("bs32+gpu1", 300))]  # fmt: skip
    read = read_import(files)
    assert (gpus(read), joules(read)) == ([2], [pytest.approx(500 * 29)])
