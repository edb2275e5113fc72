"""Logs of MLPerf Training: of trainings, and of the power of nodes."""

from pathlib import Path
from typing import Any

import pytest

import import_samples as samples
from import_samples import mllog
from imported import a_file, left_out, metrics, notes, windows
from public_data import public_file
from wattlaw.api.imports import Import, read_import
from wattlaw.common.errors import BadInput


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


T = 1_769_860_000_000


def read_lines(folder: Path, *lines: str) -> Import:
    return read_import(a_file(folder / "r.txt", "\n".join(lines)), map="gpus=@5")


def test_blocks_between_evaluations_and_the_last_epoch_are_not_epochs(tmp_path):
    lines = [
        mllog("global_batch_size", T, 100), mllog("train_samples", T, 10_000),
        mllog("run_start", T), mllog("epoch_start", T, epoch_num=0),
        mllog("eval_start", T + 5000, epoch_num=0.25),
        mllog("eval_stop", T + 6000, epoch_num=0.25),
        mllog("eval_start", T + 11_000, epoch_num=0.5),
        mllog("eval_stop", T + 12_000, epoch_num=0.5),
        mllog("run_stop", T + 12_000, status="success"),
        mllog("epoch_stop", T + 12_000, epoch_num=0.5),
    ]  # fmt: skip
    blocks = windows(read_lines(tmp_path, *lines), "steps")
    found = [(row["steps"], row["samples"], row["duration_s"]) for row in blocks]
    assert found == [(25, 2500, 5.0)] * 2
    with pytest.raises(BadInput, match=r"above 2\^63"):
        read_lines(tmp_path, *(line.replace("10000", "1e30") for line in lines))
    text = samples.mlperf().decode().replace(str(T + 34_000), str(T + 33_000))
    whole = read_import(a_file(tmp_path / "w.txt", text), map="gpus=@4")
    assert [row["interrupted"] for row in windows(whole, "train")] == [False, False, True]


def test_parts_of_an_epoch_are_blocks_of_steps(tmp_path):
    read = read_import(public_file("mlperf_dlrm_8gpu.txt"), map="gpus=@8")
    first, *blocks = windows(read, "steps")
    assert first["duration_s"] == pytest.approx((1759853867274 - 1759853842138) / 1000)
    # 4,195,197,692 samples of an epoch, 0.1318061 of it in a block, 55,296 in a batch.
    assert [row["steps"] for row in blocks] == [10_000] * 5
    assert metrics(read, tmp_path)["samples_per_s"].iloc[0] == pytest.approx(2.3e7, rel=0.1)


def test_an_mlperf_power_log_is_the_energy_of_its_run_by_the_rules(tmp_path):
    log = a_file(tmp_path / "result_0.txt", samples.mlperf())
    power = a_file(tmp_path / "node_0.txt", samples.mlperf_power())
    (run,) = read_import([log, power], map="gpus=@8").runs
    # 33 s from run_start to run_stop, 5000 W, 90 % of it after the conversion.
    assert run.record.site.energy_j == pytest.approx(33 * 5000 * 0.9)
    node = run.windows[0]
    assert node.get("gpu_energy_j") is None
    assert node["node_energy_j"] / node["duration_s"] == pytest.approx(5000 * 0.9)
    slow = a_file(tmp_path / "node_0.txt", samples.mlperf_power(spacing_s=2.0))
    assert "a reading every 2 s" in notes(read_import([log, slow], map="gpus=@8"))
    assert "efficiency 0.9" in notes(read_import([log, power], map="gpus=@8"))


#: Metadata of three blocks of 10 steps of 50 samples, at their start and end, and of evaluations.
CONVENTIONS = {
    "totals": lambda i: ({"samples_count": 500 * i}, {"samples_count": 500 * i + 500}, {}),
    "sizes and steps": lambda i: (
        {"samples_count": 500, "step": 10 * i}, {"samples_count": 500, "step": 10 * i + 10},
        {"samples_count": 500 * i + 500},
    ),
    "sizes": lambda i: (
        {"samples_count": 500}, {"samples_count": 500}, {"samples_count": 500 * i + 500},
    ),
    "totals of the end": lambda i: (
        {"samples_count": 500 * i + 500, "step": 10 * i},
        {"samples_count": 500 * i + 500, "step": 10 * i + 10}, {},
    ),
    "totals in the stop": lambda i: ({}, {"samples_count": 500 * i + 500}, {}),
    "sizes in the stop": lambda i: ({}, {"samples_count": 500}, {}),
    "totals in the start": lambda i: (
        {"samples_count": 500 * i}, {}, {"samples_count": 500 * i + 500},
    ),
    "totals of evaluations": lambda i: ({}, {}, {"samples_count": 500 * i + 500}),
    "steps": lambda i: ({"step": 10 * i}, {"step": 10 * i + 10}, {}),
    "steps that count samples": lambda i: (
        {"samples_count": 500 * i, "step": 500 * i},
        {"samples_count": 500 * i + 500, "step": 500 * i + 500}, {},
    ),
    "epoch_num of samples": lambda i: (
        {"epoch_num": 500 * i}, {"epoch_num": 500 * i + 500}, {"epoch_num": 500 * i + 500},
    ),
    "epoch_num of tokens": lambda i: (
        {"epoch_num": 500 * 64 * i}, {"epoch_num": 500 * 64 * (i + 1)},
        {"epoch_num": 500 * 64 * (i + 1)},
    ),
    "fractions of epochs": lambda i: (
        {"epoch_num": 500 * i / 600}, {"epoch_num": (500 * i + 500) / 600},
        {"epoch_num": (500 * i + 500) / 600},
    ),
    "first_epoch_num of samples": lambda i: (
        {"first_epoch_num": 500 * i, "epoch_count": 500}, {"first_epoch_num": 500 * i},
        {"epoch_num": 500 * i + 500},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVENTIONS)
def test_each_convention_of_blocks_gives_their_steps_and_samples(tmp_path, name):
    lines = [
        mllog("global_batch_size", T, 50), mllog("train_samples", T, 600), mllog("run_start", T),
    ]  # fmt: skip
    if "tokens" in name:
        lines.append(mllog("max_sequence_length", T, 64))
    for i in range(3):
        begin, end, evaluated = CONVENTIONS[name](i)
        t = T + 20_000 * i
        lines += [
            mllog("block_start", t, **begin),
            mllog("block_stop", t + 15_500, **end),
            mllog("eval_start", t + 15_500, **evaluated),
            mllog("eval_accuracy", t + 16_000, 0.5 + i / 10, **evaluated),
            mllog("eval_stop", t + 16_000, **evaluated),
        ]
    lines.append(mllog("run_stop", T + 60_000, status="success"))
    read = read_lines(tmp_path, *lines)
    blocks = windows(read, "steps")
    assert [(row["steps"], row["samples"]) for row in blocks] == [(10, 500)] * 3
    assert [row["duration_s"] for row in blocks] == pytest.approx([15.5] * 3)
    evaluations = windows(read, "evaluate")
    assert [row["metric"] for row in evaluations] == pytest.approx([0.5, 0.6, 0.7])
    # 500, 1000 and 1500 samples are within the first, second and third epoch of 600.
    assert [row["epoch"] for row in evaluations] == [0, 1, 2]
    assert not left_out(read)


SIZE = {"samples_count": 500}
#: Metadata of the start and the stop of blocks; their samples, and what is left out.
UNEVEN = {
    "sizes need not be equal": (
        [({"samples_count": size},) * 2 for size in (500, 500, 200)], [500, 500, 200], {},
    ),
    "steps decide where a block ended early": (
        [(SIZE | {"step": begin}, SIZE | {"step": end})
         for begin, end in ((0, 10), (10, 20), (20, 24), (24, 24))],
        [500, 500, 200], {"a block whose number of steps does not grow": 2},
    ),
    "the total before the last block is not its size": (
        [({"samples_count": 500 * i}, {}) for i in range(4)],
        [500, 500, 500], {"a block whose size is not logged": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNEVEN)
def test_blocks_of_different_sizes_have_their_own(tmp_path, name):
    blocks, expected, others = UNEVEN[name]
    lines = [mllog("global_batch_size", T, 50), mllog("run_start", T)]
    for i, (begin, end) in enumerate(blocks):
        lines += [mllog("block_start", T + 10_000 * i, **begin),
                  mllog("block_stop", T + 10_000 * i + 9000, **end)]  # fmt: skip
    read = read_lines(tmp_path, *lines, mllog("run_stop", T + 60_000, status="success"))
    assert [row["samples"] for row in windows(read)] == expected
    assert [row["steps"] for row in windows(read)] == [each // 50 for each in expected]
    assert left_out(read) == others


def test_blocks_that_cannot_be_read_are_counted_with_a_reason(tmp_path):
    def block(at_s: int, begin: int, end: int, length_s: int = 10) -> list[str]:
        return [
            mllog(f"block_{edge}", T + 1000 * at, samples_count=count)
            for edge, at, count in (("start", at_s, begin), ("stop", at_s + length_s, end))
        ]

    lines = [
        mllog("global_batch_size", T, 50), mllog("run_start", T),
        *block(0, 0, 500), *block(10, 500, 500), *block(20, 500, 1000, 0),
        mllog("block_start", T + 30_000, samples_count=500), *block(40, 500, 1500),
        mllog("epoch_start", T + 45_000, epoch_num=0), mllog("epoch_stop", T + 55_000, epoch_num=1),
        *block(60, 1500, 1520), mllog("block_stop", T + 80_000, samples_count=1600),
        mllog("tracked_stats", T + 81_000, {"throughput": 50.0}),
        mllog("run_stop", T + 90_000, status="success"),
    ]  # fmt: skip
    read = read_lines(tmp_path, *lines)
    assert [row["samples"] for row in windows(read)] == [500, 1000]
    counts = left_out(read)
    assert sum(counts.values()) == 11
    for words, count in (
        ("does not grow", 2), ("not after", 2), ("block_start without", 1), ("overlaps", 2),
        ("less than one step", 2), ("block_stop without", 1), ("tracked_stats", 1),
    ):  # fmt: skip
        assert [number for reason, number in counts.items() if words in reason] == [count], words
    assert {*(each for file in read.files for each in map(str, file.left_out))} <= {
        *read.runs[0].record.notes
    }


def test_a_training_without_blocks_is_one_window_and_says_so(tmp_path):
    lines = [
        mllog("run_start", T),
        mllog("eval_start", T + 9000, samples_count=640),
        mllog("eval_stop", T + 9500, samples_count=640),
        mllog("run_stop", T + 20_000, status="success"),
    ]
    read = read_lines(tmp_path, *lines)
    durations_s = [(row["phase"], row["duration_s"]) for row in windows(read)]
    assert durations_s == [("run", 20.0), ("evaluate", 0.5)]
    for own in (read.files[0].notes, read.runs[0].record.notes):
        assert "no epoch or block is read" in " ".join(own)


def epochs_log(start_ms: int, epochs: int, first: int = 0, **end: Any) -> list[str]:
    """Return a training of epochs of 10 s with a log of 1 s after each, and their evaluation."""
    lines = [mllog("submission_benchmark", start_ms, "net"), mllog("run_start", start_ms)]
    for epoch in range(epochs):
        t = start_ms + 12_000 * epoch
        lines += [
            mllog("block_start", t, first_epoch_num=first + epoch, epoch_count=1),
            mllog("epoch_start", t, epoch_num=first + epoch),
            mllog("epoch_stop", t + 10_000, epoch_num=first + epoch),
            mllog("eval_start", t + 10_000, epoch_num=first + epoch),
            mllog("eval_accuracy", t + 11_000, epoch / 10, epoch_num=first + epoch),
            mllog("eval_stop", t + 11_000, epoch_num=first + epoch),
            mllog("block_stop", t + 11_500, first_epoch_num=first + epoch),
        ]
    t = start_ms + 12_000 * epochs
    return [*lines, mllog("run_stop", t, **end)] if end else lines


def test_epochs_count_from_0_and_evaluations_have_the_epoch_before_them(tmp_path):
    for first in (0, 1):
        read = read_lines(tmp_path, *epochs_log(T, 3, first, status="success"))
        for phase, duration_s in (("train", 10.0), ("evaluate", 1.0)):
            rows = windows(read, phase)
            assert [row["epoch"] for row in rows] == [0, 1, 2]
            assert [row["duration_s"] for row in rows] == [duration_s] * 3


def test_trainings_in_one_file_are_runs_and_an_aborted_one_says_so(tmp_path):
    lines = [
        *epochs_log(T, 2, status="success"), *epochs_log(T + 10**6, 3), "Killed",
        *epochs_log(T + 2 * 10**6, 1, status="aborted"),
    ]  # fmt: skip
    read = read_lines(tmp_path, *lines)
    epochs = [[row["phase"] for row in run.windows].count("train") for run in read.runs]
    assert epochs == [2, 3, 1]
    notes = [" ".join(run.record.notes) for run in read.runs]
    assert ["did not reach its target" in text for text in notes] == [False, True, True]
    assert "no run_stop" in notes[1]


@pytest.mark.parametrize("prefix", ["", "{rank}: ", "[{rank}] "])
def test_a_training_that_several_ranks_log_counts_once(tmp_path, prefix):
    one = epochs_log(T, 2, status="success")
    lines = [prefix.format(rank=rank) + line for line in one for rank in range(2)]
    read = read_lines(tmp_path, *lines)
    assert [len(run.windows) for run in read.runs] == [4]
    (count,) = (n for reason, n in left_out(read).items() if "another rank" in reason)
    # Without a prefix, a name and two results that are logged twice are read twice.
    assert count == (len(one) if prefix else len(one) - 3)
    parts = read_lines(tmp_path, *one, *one)
    assert len(parts.runs) == 1
    assert sum(left_out(parts).values()) == len(one) + 4


def test_an_evaluation_beside_training_is_in_the_time_of_the_epoch(tmp_path):
    lines = [
        mllog("run_start", T),
        mllog("epoch_start", T, epoch_num=0),
        mllog("epoch_stop", T + 10_000, epoch_num=0),
        mllog("eval_start", T + 10_001, epoch_num=1),
        mllog("epoch_start", T + 10_002, epoch_num=1),
        mllog("eval_accuracy", T + 14_000, 0.5, epoch_num=1),
        mllog("eval_stop", T + 14_000, epoch_num=1),
        mllog("epoch_stop", T + 21_002, epoch_num=1),
        mllog("run_stop", T + 30_000, status="success"),
    ]
    read = read_lines(tmp_path, *lines)
    durations_s = [(row["epoch"], row["duration_s"]) for row in windows(read, "train")]
    assert durations_s == [(0, 10.0), (1, 11.0)]
    assert [row["epoch"] for row in windows(read, "evaluate")] == [0]
    assert "1 evaluation ran beside training" in read.files[0].notes[0]
