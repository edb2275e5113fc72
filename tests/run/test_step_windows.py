"""Runs that are measured by optimizer steps or by time, not by epochs."""

import itertools
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_training import run_here

from conftest import parsed
from made_runs import made_record
from ranks import spec_of, trained
from wattlaw.measure.telemetry.device_energy import shortest_window_s
from wattlaw.running.finish import finish, merged_windows, missing_windows
from wattlaw.running.steps import MOST_FACTOR, StepPlan, drift, drift_note
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.schema import WINDOWS
from wattlaw.study.model import Measure, RunSpec, run_id

STEPS_OF_EPOCH = 15  # of 1437 samples: 14 x 96 + 93


def plan_of(largest: Any = list, **measure: Any) -> StepPlan:
    return StepPlan(Measure(warmup_steps=0, **measure), largest)


def steps_until_complete(plan: StepPlan, step_s: float) -> tuple[int, list[str]]:
    """Return the number of steps of a single window until enough are measured, and the notes."""
    steps = next(n for n in itertools.count(1) if plan.ends_window(n, n * step_s))
    assert plan.is_complete
    plan.add(np.full(steps, step_s), steps * step_s)
    return steps, plan.notes()


@given(st.integers(1, 300), st.floats(1e-3, 10))
def test_steps_are_as_many_as_requested_or_more_until_the_energy_is_reliable(requested, step_s):
    needed_s = shortest_window_s(Measure().sample_hz)
    steps, notes = steps_until_complete(plan_of(steps=requested), step_s)
    assert requested <= steps <= MOST_FACTOR * requested
    if requested * step_s >= needed_s:
        assert steps == requested
    else:
        assert steps == MOST_FACTOR * requested or steps * step_s >= needed_s
        assert steps * step_s < 2 * needed_s + step_s
    assert [note[:13] for note in notes] == ["too few steps"] * (steps * step_s < needed_s)


@given(st.floats(0.01, 100), st.floats(1e-3, 10))
def test_seconds_are_reached_and_not_passed_by_far(seconds, step_s):
    needed_s = shortest_window_s(Measure().sample_hz)
    target_s = max(seconds, min(needed_s, MOST_FACTOR * seconds))
    steps, notes = steps_until_complete(plan_of(seconds=seconds), step_s)
    assert target_s <= steps * step_s * (1 + 1e-9)
    assert steps * step_s < target_s + 2 * step_s
    assert len(notes) == (steps * step_s < needed_s)


def test_the_last_window_is_long_enough_and_the_warmup_is_one_of_its_own():
    plan = plan_of(steps=100)
    plan.add(np.full(99, 0.1), 9.9)  # an epoch ended at step 99
    assert not plan.ends_window(1, 0.1)
    assert plan.ends_window(11, 1.1)
    plan = StepPlan(Measure(steps=100, warmup_steps=3))
    assert [plan.ends_window(n, 9.0 * n) for n in (1, 2, 3)] == [False, False, True]
    assert (plan.is_warmup, plan.is_complete) == (False, False)


def test_ranks_whose_clocks_differ_end_after_the_same_step():
    barrier, values = threading.Barrier(2), {}
    ends: dict[float, int] = {}
    agreements = []

    def rank(step_s: float) -> None:
        def largest(own: Sequence[float]) -> list[float]:
            values[step_s] = own
            barrier.wait(10)
            both = [max(pair) for pair in zip(*values.values(), strict=True)]
            barrier.wait(10)
            agreements.append(both)
            return both

        ends[step_s] = steps_until_complete(plan_of(largest, seconds=3.0), step_s)[0]

    threads = [threading.Thread(target=rank, args=(step_s,)) for step_s in (0.01, 0.013)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert ends[0.01] == ends[0.013] == 300  # of the fast rank, whose 3 s need most steps
    assert len(agreements) < 40


def noisy(count: int, seed: int = 0) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).lognormal(sigma=0.1, size=count)


def test_a_drift_is_reported_and_steady_or_few_steps_are_not():
    for seed in range(20):
        assert drift_note(noisy(300, seed)) is None
    assert drift_note(np.linspace(1, 9, 20)) is None
    for factor in (1.2, 0.8):  # its thirds have the means 1/6 and 5/6 of the way
        steps_s = noisy(300) * np.linspace(1, factor, 300)
        expected = (5 * factor + 1) / (factor + 5) - 1
        assert drift(steps_s) == pytest.approx(expected, abs=0.07)  # four standard errors
        assert f"{drift(steps_s):+.0%}" in drift_note(steps_s)


def test_a_run_by_steps_has_windows_of_steps_only(tmp_path):
    study = parsed(
        workloads=[{"name": "digits-cnn", "options": {"width": 8}}],
        sweeps=[{"gpus": [2], "global_batch": [96]}],
        measure={"steps": 20, "warmup_steps": 4, "sample_hz": 20, "assume_cpu_w": 15},
        train={"gradient_accumulation": 2},
        launch={"gpus_per_node": 2, "threads_per_worker": 1},
    )
    windows = run_here(study, tmp_path / "store").pandas("epochs").sort_values("start_ns")
    assert set(windows["phase"]) == {"steps"}
    assert windows["epoch"].isna().all()
    assert list(windows["warmup"])[:2] == [True, False]
    assert list(windows["from_step"]) == [0, *np.cumsum(windows["steps"])[:-1]]
    assert windows["steps"].iloc[0] == 4
    assert 20 <= windows["steps"].iloc[1:].sum() <= MOST_FACTOR * 20


def by_steps(gpus: int = 1, **measure: Any) -> RunSpec:
    spec = spec_of("digits-cnn", {"width": 8}, gpus=gpus, global_batch=96)
    return spec.model_copy(update={"measure": Measure(**measure)})


def test_seconds_are_measured_and_an_epoch_boundary_splits_them(tmp_path):
    rows = trained(by_steps(gpus=2, seconds=2.7, warmup_steps=0, sample_hz=10), tmp_path)
    assert not any(row["warmup"] for row in rows)
    total_s = sum(row["duration_s"] for row in rows)
    assert total_s - rows[-1]["duration_s"] < 2.7 <= total_s
    assert len(rows) > 1
    ends = [row["from_step"] + row["steps"] for row in rows]
    assert [row["from_step"] for row in rows] == [0, *ends[:-1]]
    assert all(end % STEPS_OF_EPOCH == 0 for end in ends[:-1])
    assert all(row["duration_s"] >= 1.0 for row in rows)


def record_of(spec: RunSpec, attempts: int) -> RunRecord:
    return made_record(run_id(spec), spec, attempts=attempts)


def test_a_preempted_run_by_steps_begins_again(tmp_path):
    spec, folder = by_steps(steps=12, warmup_steps=3, sample_hz=1000), RunFolder(tmp_path)
    assert [row["steps"] for row in trained(spec, tmp_path, 1, warned_at=9)] == [3]
    assert not folder.checkpoint_path.exists()
    content = json.loads((folder.live(1) / "stopped.json").read_text())
    assert (content["epoch"], content["step"]) == (0, 9)
    assert finish(record_of(spec, 1), folder).status == "failed"
    rows = trained(spec, tmp_path, 2)
    merged, attempts = merged_windows(record_of(spec, 2), folder)
    # Windows of the host "here", whose folder has no sampler.
    assert attempts == [2]
    assert len(merged) == len(rows) >= 2
    done = finish(record_of(spec, 2), folder)
    assert done.status == "done", done.reason


def table(*rows: tuple[str, int, int]) -> pa.Table:
    plain = [
        {"host": host, "phase": "steps", "warmup": False, "from_step": begin, "steps": count}
        for host, begin, count in rows
    ]
    return pa.Table.from_pylist(plain, schema=WINDOWS)


@pytest.mark.parametrize(
    ("rows", "is_complete"),
    [
        ([("a", 0, 2), ("b", 0, 2), ("a", 2, 10), ("b", 2, 10)], True),
        ([("a", 0, 2), ("b", 0, 2), ("a", 2, 15), ("b", 2, 15)], True),
        ([("a", 0, 2), ("b", 0, 2), ("a", 2, 9), ("b", 2, 9)], False),
        ([("a", 0, 2), ("b", 0, 2), ("a", 2, 10)], False),
        ([("a", 2, 10), ("b", 2, 10)], False),
        ([], False),
    ],
)
def test_a_run_is_complete_with_all_steps_on_every_host(rows, is_complete):
    spec = by_steps(gpus=2, steps=10, warmup_steps=2).model_copy(update={"nodes": 2})
    assert (missing_windows(record_of(spec, 1), table(*rows)) is None) == is_complete
    timed = record_of(by_steps(seconds=5.0, warmup_steps=2), 1)  # needs one after the warm-up
    assert missing_windows(timed, table(("a", 0, 2))) is not None
    assert missing_windows(timed, table(("a", 0, 2), ("a", 2, 1))) is None
