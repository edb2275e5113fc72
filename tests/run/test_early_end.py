"""Runs that a decision does not need to their end."""

import pytest

from conftest import decide_table, records
from decide_studies import QUESTION, run_with
from launchers import ScriptedAttempt
from made_runs import made_record
from wattlaw.analysis.metrics.time_errors import step_time_so_far
from wattlaw.api import results
from wattlaw.api.deciding import StoreDecider
from wattlaw.api.studies import load_study
from wattlaw.running.campaign import STOPPED_EARLY
from wattlaw.running.replay import ReplayLauncher
from wattlaw.store.live import open_windows, write_window
from wattlaw.store.store import Store


class Surprising(ReplayLauncher):
    """Replays, except for the batch that was expected to be the best: its steps take 1 s."""

    def __init__(self, table):
        super().__init__(table)
        self.attempts = []

    def start(self, record, folder, allocation):
        if record.spec.setting.local_batch != 64:
            return super().start(record, folder, allocation)
        row = {"start_ns": 1, "samples": 64 * 20, "steps": 20, "loss": 1.0}
        with open_windows(folder.live(record.attempts), "here") as windows:
            for begin, warmup in ((0, True), (20, False)):
                own = {"warmup": warmup, "duration_s": 20.0, "from_step": begin}
                write_window(windows, "here", phase="steps", epoch=None, **row, **own)
        self.attempts.append(ScriptedAttempt(lambda: None, allocation))
        return self.attempts[-1]


@pytest.mark.timeout(60)
def test_a_hopeless_run_is_stopped_early_and_keeps_what_it_measured(write_decide, tmp_path):
    store = tmp_path / "store"
    sweeps = [{"gpus": [1], "local_batch": [8, 32, 64]}]
    measure = {"steps": 100_000, "warmup_steps": 20}
    study = write_decide(
        QUESTION, decide_table((8, 32, 64)), sweeps=sweeps, repeats=2, measure=measure
    )
    launcher = Surprising.open(load_study(study).plan.study.launch, store)
    outcome = run_with(study, store, launcher)
    assert results.open(store).decision["setting"]["local_batch"] == 32
    assert (outcome.failed, outcome.left) == (0, 0)
    stopped = [item for item in records(store).values() if item.spec.setting.local_batch == 64
               and item.status == "done"]  # fmt: skip
    assert [attempt.stopped for attempt in launcher.attempts] == [True] * len(stopped)
    assert len(stopped) >= 1
    assert all(any(STOPPED_EARLY in note for note in record.notes) for record in stopped)
    frame = results.open(store).metrics
    steps = frame[frame["local_batch"] == 64]["time_per_sample_s"]
    assert steps.tolist() == pytest.approx([1 / 64] * len(stopped))


@pytest.mark.parametrize(
    ("measure", "error", "is_enough"),
    [
        ({"steps": 1000}, 0.004, True),
        ({"steps": 1000}, 0.006, False),
        ({"steps": 1000}, None, False),
        ({"epochs": 3}, 0.004, False),
    ],
)
def test_a_run_is_long_enough_once_its_error_does_not_matter(
    write_decide, tmp_path, measure, error, is_enough
):
    loaded = load_study(write_decide(QUESTION | {"tolerance": "2%"}, measure=measure))
    Store(tmp_path / "store").create()
    decider = StoreDecider(loaded.plan.study, loaded.plan.runs, tmp_path / "store")
    (first,) = decider.choose(loaded.plan.runs, []).runs
    reason = decider._planner.stop_reason(decider._evidence, first.run_id, 0.1, error)
    assert (reason is not None) == is_enough


@pytest.mark.parametrize(
    ("durations_s", "variation", "error"),
    [
        ([20.0], 0.1, None),
        ([2.0, 2.0, 2.0], 0.1, "too short"),
        ([10.0] * 4, 0.1, 0.1 / 80**0.5),
        ([9.0, 10.0, 11.0], 0.0, 0.1 / 3**0.5),
    ],
)
def test_the_error_of_a_step_time_is_that_of_steps_or_of_windows(
    write_decide, tmp_path, durations_s, variation, error
):
    loaded = load_study(write_decide(QUESTION))
    spec = next(item.spec for item in loaded.plan.runs if item.spec.nodes == 1)
    folder = Store(tmp_path / "store").folder("a")
    folder.write(made_record("a", spec, status="running", attempts=1))
    folder.live(1).mkdir(parents=True)
    values = {"start_ns": 1, "samples": 640, "steps": 20, "loss": 1.0, "step_time_cv": variation}
    with open_windows(folder.live(1), "here") as windows:
        for index, duration_s in enumerate([99.0, *durations_s]):
            own = {"warmup": index == 0, "duration_s": duration_s, "from_step": 20 * index}
            write_window(windows, "here", phase="steps", epoch=None, **values, **own)
    measured = step_time_so_far(folder.windows(1).to_pylist(), 1)
    if error == "too short":
        assert measured is None
        return
    step_s, found = measured
    assert step_s == pytest.approx(sum(durations_s) / (20 * len(durations_s)))
    assert found == (error and pytest.approx(error, rel=0.01))
