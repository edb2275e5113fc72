"""From records of steps to windows; records that are torn or hostile; progress in output."""

import json
from dataclasses import replace

import numpy as np
import pytest

from wattlaw.common.errors import BadInput
from wattlaw.running.instrumentation.observer import StepObserver
from wattlaw.running.instrumentation.printed_progress import ProgressReader, progress_pattern
from wattlaw.running.instrumentation.records import ProcessSteps, StepsFolder
from wattlaw.running.instrumentation.steady_state import MeasuredPart, summarise
from wattlaw.running.steps import step_time_columns

PROCESS = {"type": "process", "pid": 7, "host": "node1", "base_ns": 10**18}
T0_S = 1e9


def training(durations_s, **fields) -> ProcessSteps:
    ends_s = T0_S + np.cumsum([0.0, *durations_s])
    samples = fields.pop("samples", np.full(len(ends_s), 8.0))
    return ProcessSteps("node1", fields.pop("pid", 1), ends_s, samples, **fields)


def read(tmp_path, *records) -> list[ProcessSteps]:
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    (tmp_path / "steps.node1.7.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return StepsFolder(tmp_path).read()


def steps_record(first=0, us=(5, 20, 20), samples=8, optimizer=0):
    return {"type": "steps", "optimizer": optimizer, "first": first, "us": [*us],
            "samples": samples, "waits_us": [2] * len(us)}  # fmt: skip


def test_the_waits_of_ranks_are_their_mean_and_unknown_where_the_samples_are(tmp_path):
    record = steps_record(us=[5] + [100_000] * 20, samples=8) | {"waits_us": [3000] * 21}
    (known,) = read(tmp_path, PROCESS, record)
    idle = replace(known, data_wait_s=0 * known.data_wait_s, pid=2, rank=1)
    ranks = [replace(item, world_size=2) for item in (replace(known, rank=0), idle)]
    (window,) = summarise(ranks, MeasuredPart(warmup_steps=1)).windows
    assert window["data_wait_s"] == pytest.approx(20 * 0.003 / 2)
    (unknown,) = read(tmp_path, PROCESS, record | {"samples": None})
    (window,) = summarise([unknown], MeasuredPart(warmup_steps=1)).windows
    assert window["data_wait_s"] is None


def test_windows_leave_out_warm_up_and_pauses():
    durations_s = [0.1] * 30
    durations_s[15] = 3.0  # an evaluation in step 16
    summary = summarise([training(durations_s)], MeasuredPart(warmup_steps=5))
    warm, first, second = summary.windows
    assert (warm["warmup"], warm["from_step"], warm["steps"]) == (True, 1, 4)
    assert (first["from_step"], first["steps"], first["samples"]) == (5, 11, 88)
    assert not first["warmup"]
    assert (second["from_step"], second["steps"]) == (17, 14)
    assert first["duration_s"] == pytest.approx(1.1)
    assert first["start_ns"] == pytest.approx((T0_S + 0.4) * 1e9, abs=1000)
    assert second["start_ns"] / 1e9 == pytest.approx(T0_S + 1.5 + 3.0, abs=1e-5)
    assert (summary.steps, summary.steps_measured, summary.pauses) == (31, 25, 1)
    assert summary.pause_s == pytest.approx(3.0)
    assert summary.step_time_mean_s == pytest.approx(0.1)
    assert (summary.samples_seen, summary.samples_measured) == (31 * 8, 25 * 8)


def test_a_step_with_an_evaluation_is_a_pause_if_it_is_longer_than_the_others(tmp_path):
    us = [5, *([100_000] * 5 + [130_000] + [100_000] * 5 + [103_000]) * 2]
    (process,) = read(tmp_path, PROCESS, steps_record(us=us) | {"evaluations": [6, 12, 18, 24]})
    summary = summarise([process], MeasuredPart(warmup_steps=1))
    assert [window["from_step"] for window in summary.windows] == [1, 7, 19]
    assert (summary.pauses, summary.steps_measured) == (2, 22)
    assert summary.pause_s == pytest.approx(0.26)
    every = training(process.step_end_s[1:] - process.step_end_s[:-1], evaluated=np.ones(25, bool))
    assert summarise([every], MeasuredPart(warmup_steps=1)).pauses == 0


def test_a_batch_that_was_fetched_ahead_of_an_epoch_counts_in_the_epoch():
    """A loader fetches a batch ahead: an epoch's first step fetches three, its last step one."""
    samples = np.array([8.0, *([12, 8, 8, 8, 8, 4] * 6)])
    durations_s = [1.0, 0.1, 0.1, 0.1, 0.1, 0.1] * 6  # an evaluation before each epoch
    summary = summarise([training(durations_s, samples=samples)], MeasuredPart(warmup_steps=1))
    assert summary.pauses == 6
    assert [window["samples"] for window in summary.windows] == [40] * 6
    assert [window["steps"] for window in summary.windows] == [5] * 6
    assert summary.samples_measured == 30 * 8
    assert summary.samples_seen == 8 + 36 * 8


def test_a_limit_is_reached_when_every_rank_has_its_steps_or_seconds():
    part = MeasuredPart(warmup_steps=5, steps=10)
    enough = training([0.1] * 14, rank=0, env_world_size=2)
    assert not part.is_complete([enough])  # the other rank has not begun
    assert not part.is_complete([enough, training([0.1] * 13, rank=1, env_world_size=2)])
    assert part.is_complete([enough, training([0.1] * 14, rank=1, env_world_size=2)])
    assert summarise([training([0.1] * 30)], part).steps_measured == 10
    part = MeasuredPart(warmup_steps=5, seconds=1.0)  # from the end of the warm-up
    assert not part.is_complete([training([0.1] * 13)])
    assert part.is_complete([training([0.1] * 15)])
    assert summarise([training([0.1] * 30)], part).steps_measured in (10, 11)  # of rounding


def test_too_few_steps_are_all_warm_up():
    summary = summarise([training([0.1] * 10)], MeasuredPart(steps=100))
    assert (summary.steps, summary.steps_measured, summary.step_time_mean_s) == (11, None, None)
    assert all(window["warmup"] for window in summary.windows)
    assert "only 11 steps" in summary.notes[0]
    assert "smaller batch" in summary.notes[0]
    some = summarise([training([0.1] * 30)], MeasuredPart(steps=100))
    assert "more epochs" in some.notes[0]
    nothing = summarise([])
    assert (nothing.instrumented, nothing.steps, nothing.world_size) == (False, None, None)


def test_the_error_of_a_mean_counts_a_drift():
    """Ten blocks of steps that fall evenly from 4 to 1: sd / sqrt(10) of their means."""
    steps_s = np.linspace(4.0, 1.0, 150)
    found = step_time_columns(steps_s)
    means_s = 2.5 + 0.3 * (np.arange(10) - 4.5) * 150 / 149
    assert found["step_time_error"] == pytest.approx(means_s.std(ddof=1) / 10**0.5 / 2.5, rel=0.01)
    mixed = step_time_columns(np.random.default_rng(0).permutation(steps_s))
    assert mixed["step_time_error"] < 0.6 * found["step_time_error"]
    assert step_time_columns(steps_s[:4])["step_time_error"] == pytest.approx(
        steps_s[:4].std(ddof=1) / 2 / steps_s[:4].mean()
    )
    assert step_time_columns(steps_s[:1])["step_time_error"] is None


def test_ranks_that_share_a_copy_of_the_model_count_its_samples_once():
    """Two copies of two ranks, of which the second one of a copy reads no data."""
    facts = {"world_size": 4, "dp": 2, "tp": 1, "pp": 2, "parallelism": "pipeline"}
    ranks = [
        training(
            [0.1] * 30, pid=rank, rank=rank, data_rank=rank % 2, gradient_accumulation=2,
            samples=np.full(31, 8.0 if rank < 2 else 0.0), **facts,
        )
        for rank in range(4)
    ]  # fmt: skip
    summary = summarise(ranks)
    assert summary.samples_seen == 31 * 16
    assert (summary.micro_batch, summary.steps_by_samples) == (4, {16: 28})
    unknown = [replace(rank, data_rank=None) for rank in ranks]
    assert summarise(unknown).samples_seen is None
    assert summarise(unknown).micro_batch is None


def test_processes_at_other_times_are_not_ranks():
    later = ProcessSteps("node1", 2, T0_S + 1000 + np.arange(50.0), np.full(50, 8.0))
    summary = summarise([training([0.1] * 30), later])
    assert summary.workers_work_together is None
    assert (summary.steps, len(summary.notes)) == (50, 1)


def test_workers_without_a_process_group_do_not_work_together():
    alone = [training([0.1] * 30, pid=n, rank=n, env_world_size=3) for n in range(3)]
    assert summarise(alone).workers_work_together is False
    assert set(summarise(alone).steps_by_samples) == {3 * 8}  # as declared for three workers
    summary = summarise([training([0.1] * 30, pid=n, rank=n, world_size=3) for n in range(3)])
    assert (summary.workers_work_together, summary.world_size) == (True, 3)
    assert summary.samples_seen == 3 * 31 * 8
    assert set(summary.steps_by_samples) == {3 * 8}
    tensor = [training([0.1] * 9, rank=n, world_size=2, parallelism="tensor") for n in range(2)]
    assert not summarise(tensor).steps_by_samples
    assert summarise(tensor).samples_seen is None  # both ranks compute the same samples


def device_record(us=(3.0,), low_us=6, high_us=10):
    times = {"us": [*us], "low_us": low_us, "high_us": high_us}
    return {"type": "device", "optimizer": 0, "first": 1, **times}


HOSTILE = [
    "not json", "null", "[" * 100_000, '{"type": "steps"}',
    steps_record(3, [1, -5], 1),
    json.dumps(steps_record(3, [1], 7)).replace(": 7", ": 1e999"),
    steps_record(2 * 10**6 + 4, [100], 1),
    steps_record(3, [2**61], 1),
    steps_record(3, [7], 1),  # before the step before
    {"type": "facts", "step": 1, "batches": 1, "world_size": 10**30},
    *(device_record(us) for us in ([1e300], [float("nan")], [-3.0], [1e15] * 9, ["x"])),
    device_record(low_us=-1e300),
]  # fmt: skip


def test_a_line_that_is_damaged_is_left_out(tmp_path):
    for line in HOSTILE:
        (process,) = read(tmp_path, PROCESS, steps_record(), line, steps_record(3, (100, 20)))
        assert process.steps == 5, line
        assert len(process.problems) == 1, line
        assert process.step_end_s[-1] == pytest.approx(1e9 + 120e-6)


def test_steps_after_a_lost_line_are_not_counted(tmp_path):
    (process,) = read(tmp_path, PROCESS, steps_record(), steps_record(5, (100, 20)))
    assert process.steps == summarise([process]).steps == 3
    assert process.problems


def test_a_file_without_a_process_or_an_end_is_a_note(tmp_path):
    (tmp_path / "steps.node1.8.jsonl").touch()
    read(tmp_path, PROCESS, steps_record())
    notes = " ".join(StepObserver(tmp_path, MeasuredPart()).summary().notes)
    assert "steps.node1.8.jsonl" in notes
    assert "process 7" in notes
    read(tmp_path, PROCESS, steps_record(), {"type": "end", "time_ns": 1})
    notes = " ".join(StepObserver(tmp_path, MeasuredPart()).summary().notes)
    assert "process 7" not in notes


def test_a_torn_last_line_is_read_once_it_is_whole(tmp_path):
    path = tmp_path / "steps.node1.7.jsonl"
    text = json.dumps(steps_record())
    path.write_text(f"{json.dumps(PROCESS)}\n{text[:20]}")
    folder = StepsFolder(tmp_path)
    assert [process.steps for process in folder.read()] == [0]
    with path.open("a") as file:
        file.write(f"{text[20:]}\n")
    assert [process.steps for process in folder.read()] == [3]


def test_optimizers_in_turn_add_up_and_side_by_side_do_not(tmp_path):
    (process,) = read(
        tmp_path,
        PROCESS,
        steps_record(us=(0, 10, 10)),
        steps_record(us=(5, 10), optimizer=1),
        steps_record(us=(100, 10), optimizer=2),
    )
    assert process.steps == 5


@pytest.mark.parametrize(
    ("counts", "batches"),
    [
        ({}, {8: 30}),
        ({"several_loaders": 3, "fed_steps": 31}, {8: 30}),  # an epoch's end is in three steps
        ({"several_loaders": 31, "fed_steps": 31}, {}),
        ({"fed_steps": 62}, {}),  # another optimizer steps on every second batch
    ],
)
def test_samples_that_are_not_those_of_one_batch_are_no_batch(counts, batches, tmp_path):
    facts = {"type": "facts", "step": 31, "batches": 31, **counts}
    (process,) = read(tmp_path, PROCESS, steps_record(us=[10_000] * 31), facts)
    summary = summarise([process], MeasuredPart(warmup_steps=1))
    assert summary.steps_by_samples == batches
    assert summary.samples_seen == 31 * 8


def test_the_times_of_a_gpu_replace_those_of_the_host(tmp_path):
    (process,) = read(tmp_path, PROCESS, steps_record(us=(5, 1, 1, 9)), device_record([30.0, 40.0]))
    offsets_us = (process.step_end_s - 1e9) * 1e6
    assert offsets_us == pytest.approx([8, 38, 78, 87], abs=0.5)


def progress(pattern: str, *pieces: tuple[float, bytes]) -> ProgressReader:
    reader = ProgressReader(progress_pattern(pattern))
    for time_s, piece in pieces:
        reader.feed(piece, time_s)
    return reader


def test_steps_and_samples_are_read_from_lines():
    reader = progress(
        r"step (?P<step>\d+) seen (?P<samples>[\d,]+) loss (?P<loss>\S+)",
        (1.0, b"hello\nstep 10 seen 1,000 loss 0.5\nste"),
        (3.0, b"p 20 seen 2,000 loss nan\rstep 30 seen"),
        (5.0, b" 3,000 loss 0.25\n"),
    )
    process = reader.process()
    assert process.step_end_s[1:] == pytest.approx(np.linspace(1.2, 5.0, 20))
    assert process.samples_per_step[1:] == pytest.approx([100.0] * 20)
    assert (reader.total_steps(), reader.total_samples(), reader.last("loss")) == (30, 3000, 0.25)


def test_steps_that_count_anew_have_no_known_step_in_between_and_others_are_bounded():
    reader = progress(r"(?P<step>\d+)", *((float(n), b"%d\n" % (n % 5)) for n in range(10)))
    assert np.isnan(reader.process().step_end_s).sum() == 1
    assert reader.total_steps() is None
    windows = summarise([reader.process()], MeasuredPart(warmup_steps=1)).windows
    assert [(window["steps"], window["duration_s"]) for window in windows] == [(4, 4.0), (4, 4.0)]
    pieces = [(float(n), b"%d\n" % (9_000_000 * (n % 2))) for n in range(20)]
    reader = progress(r"(?P<step>\d+)", *pieces)
    assert reader.process().steps < 10**7 + 100


def test_lines_of_epochs_are_windows():
    reader = progress(r"Epoch (?P<epoch>\d+)/", *((n * 2.0, b"Epoch %d/4\n" % n) for n in range(4)))
    windows = [(w["epoch"], w["warmup"], w["duration_s"]) for w in reader.epoch_windows()]
    assert windows == [(0, True, 2.0), (1, False, 2.0), (2, False, 2.0)]


def test_a_huge_line_takes_no_memory():
    reader = progress(r"(?P<step>\d+)", *((float(n), b"x" * 2**16) for n in range(64)))
    assert len(reader._rest) <= 4096
    reader.feed(b"\n7\n", 99.0)
    assert [mark.step for mark in reader.marks] == [7]


def test_a_pattern_that_shows_no_progress_is_refused():
    for text in ("(", r"(?P<steps>\d+)", "step", r"(?P<loss>\d+)", "x" * 2000):
        with pytest.raises(BadInput, match="progress"):
            progress_pattern(text)
