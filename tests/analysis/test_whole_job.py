"""The whole job: start-up, evaluation and checkpoints beside the training, by hand-worked cases."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from asking import advise
from made_tables import frames, run_row, window_row
from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.advise.option import PREDICTED, Quantity
from wattlaw.analysis.advise.whole_job import with_whole_job
from wattlaw.analysis.decide.regret import missed
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.metrics.run_overhead import Overheads, nearest
from wattlaw.common.formatting import change, duration_text
from wattlaw.report.topics.advice_text import answer, summary
from wattlaw.report.topics.verdict import settings
from wattlaw.study.launching import parse_time_limit, time_limit
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

BEGIN = datetime(2026, 5, 4, tzinfo=UTC)
ALL = ["start-up", "evaluation", "checkpoints"]


def at(seconds: float) -> int:
    return round((BEGIN + timedelta(seconds=seconds)).timestamp() * 1e9)


def run_of(run_id: str, ended_s: float, **changes: object) -> dict[str, object]:
    ended = BEGIN + timedelta(seconds=ended_s)
    return run_row(run_id, **{"started_at": BEGIN, "finished_at": ended} | changes)


def epochs_of(run_id: str, count: int = 4, slower: float = 1.0) -> list[dict[str, object]]:
    """Return epochs of 100 s, the first, a warm-up, of 130 s, from second 20 on.

    An evaluation of 10 s follows every second epoch, and a checkpoint of 5 s every epoch.
    """
    rows, now_s = [], 20.0
    for epoch in range(count):
        train_s = (130.0 if epoch == 0 else 100.0) * slower
        rows.append(window_row(run_id, epoch, start_ns=at(now_s), duration_s=train_s,
                               warmup=epoch == 0))  # fmt: skip
        now_s += train_s
        if epoch % 2:
            rows.append(window_row(run_id, epoch, phase="evaluate", start_ns=at(now_s),
                                   duration_s=10.0, metric=0.9))  # fmt: skip
            now_s += 10.0
        now_s += 5.0
    return rows


#: The end of the run above: 20 s, 430 s of training, 20 s of evaluation, and 20 s of checkpoints.
ENDED_S = 490.0


def advice(*runs: tuple[dict[str, object], list[dict[str, object]]], **asked: object) -> Advice:
    rows, windows = frames([row for row, _ in runs], [item for _, own in runs for item in own])
    return advise(run_metrics(rows, windows), windows, "digits-cnn", **asked)


def test_the_parts_of_a_run_add_up_to_all_of_it():
    run = run_metrics(*frames([run_of("a", ENDED_S)], epochs_of("a"))).iloc[0]
    parts = run[["startup_s", "end_s", "between_s", "evals_per_epoch", "eval_time_s"]]
    assert parts.tolist() == pytest.approx([20 + 30, 5, 5, 0.5, 10])
    whole = advice((run_of("a", ENDED_S), epochs_of("a"))).recommended.to_dict()
    assert whole["train_time_s"] == pytest.approx(400)
    assert whole["whole_job_s"] == pytest.approx(ENDED_S)
    assert whole["whole_job_without"] == []


@pytest.mark.parametrize(("epochs", "evaluations"), [(1, 0), (3, 1), (90, 45)])
def test_other_numbers_of_epochs_take_their_share(epochs, evaluations):
    option = advice((run_of("a", ENDED_S), epochs_of("a")), epochs=epochs).recommended
    expected_s = 50 + 5 + 100 * epochs + 10 * evaluations + 5 * (epochs - 1)
    assert option.whole_job_s.mean == pytest.approx(expected_s)


def test_the_time_limit_is_the_upper_bound_for_one_job_in_steps_of_5_minutes():
    of = {"local": False, "slurm": True}  # whether a time limit is said
    for launcher, is_said in of.items():
        runs = [
            (run_of(f"{i}", 600.0, repeat=i, launcher=launcher), epochs_of(f"{i}", 4, 1 + i / 50))
            for i in range(3)
        ]
        assert ("--time=" in " ".join(summary(advice(*runs, epochs=900)))) is is_said
    option = advice(*runs, epochs=900).recommended
    whole, training = option.whole_job_s, option.train_time_s
    assert whole.low < whole.mean < whole.high
    assert whole.high / whole.mean > training.high / training.mean  # of a job, not of the mean
    limit_s = parse_time_limit(option.slurm_time)
    assert whole.high <= limit_s < whole.high + 300
    assert limit_s % 300 == 0
    assert option.slurm_time.startswith("1-")
    assert f"--time={option.slurm_time}" in " ".join(summary(advice(*runs, epochs=900)))
    assert [time_limit(9900), time_limit(86400)] == ["02:45:00", "1-00:00:00"]


@pytest.mark.parametrize("changes", [{"launcher": "imported"}, {"attempts": 2}])
def test_what_was_not_measured_is_missing_and_not_zero(changes):
    row, windows = run_of("a", ENDED_S, **changes), epochs_of("a")
    run = run_metrics(*frames([row], windows)).iloc[0]
    assert run[["startup_s", "end_s", "between_s", "evals_per_epoch"]].isna().all()
    found = advice((row, windows))
    option = found.recommended.to_dict()
    assert (option["whole_job_s"], option["whole_job_without"]) == (pytest.approx(400), ALL)


def test_one_epoch_does_not_show_what_lies_between_epochs():
    windows = [row | {"warmup": False} for row in epochs_of("a", 1)]
    one = advice((run_of("a", 160.0), windows)).recommended
    assert (one.whole_job_s.mean, one.whole_job_without) == (pytest.approx(160), ())
    three = advice((run_of("a", 160.0), windows), epochs=3).recommended
    assert three.whole_job_without == ("evaluation", "checkpoints")


def test_measured_steps_show_the_start_up_alone():
    row = run_of("a", 99.0, dataset_samples=6400)
    blocks = [{"start_ns": at(20), "duration_s": 7.0, "steps": 10, "warmup": True},
              {"start_ns": at(27), "duration_s": 10.0, "steps": 20}]  # fmt: skip
    windows = [window_row("a", 0, phase="steps", **{"samples": None} | own) | {"epoch": None}
               for own in blocks]  # fmt: skip
    option = advice((row, windows)).recommended
    assert option.unit == "epoch"
    assert option.train_time_s.mean == pytest.approx(50)  # 100 steps
    assert option.whole_job_s.mean == pytest.approx(50 + 20 + 2)
    assert option.whole_job_without == ("evaluation", "checkpoints")


def test_a_process_is_the_whole_job_and_a_step_has_none():
    process = window_row("a", 0, phase="run", start_ns=at(1), duration_s=80.0, samples=None,
                         steps=None) | {"epoch": None}  # fmt: skip
    option = advice((run_of("a", 82.0), [process])).recommended
    assert (option.whole_job_s.mean, option.whole_job_without) == (pytest.approx(80), ())
    steps = window_row("a", 0, phase="steps", start_ns=at(1), samples=None) | {"epoch": None}
    row = run_of("a", 82.0, global_batch=None, local_batch=None)
    option = advice((row, [steps])).recommended
    assert (option.unit, option.whole_job_s, option.slurm_time) == ("step", None, None)


def test_bounds_are_those_of_the_whole_job():
    runs = [(run_of(f"{i}", ENDED_S, repeat=i), epochs_of(f"{i}")) for i in range(3)]
    for bound in ({"deadline_s": 480}, {"max_gpu_hours": 480 / 3600}):
        missed = advice(*runs, **bound)  # the training takes 400 s, the job 490 s
        assert missed.recommended is None
        assert missed.nearest.job_time_s.mean == pytest.approx(ENDED_S)
    met = advice(*runs, deadline_s=600)
    assert met.recommended.job_time_s.high <= 600
    barely = advice(*runs, deadline_s=491)
    assert barely.recommended is not None
    assert "only-the-mean-meets" in {warning.code for warning in barely.warnings}


def test_savings_and_the_choice_are_of_the_whole_job_where_its_length_is_stated():
    """Half the power limit trains in half the time here, but starts for 400 s longer."""
    runs = []
    for repeat in range(2):
        name = f"slow{repeat}", f"fast{repeat}"
        started = {"started_at": BEGIN - timedelta(seconds=40)}
        runs.append((run_of(name[0], ENDED_S, repeat=repeat, **started), epochs_of(name[0])))
        limited = {"started_at": BEGIN - timedelta(seconds=440), "power_limit_w": 200.0}
        runs.append((run_of(name[1], ENDED_S - 215, repeat=repeat, **limited),
                     epochs_of(name[1], slower=0.5)))  # fmt: skip
    asked = {"minimize": "time", "baseline": {"power_limit_w": 200.0, "gpus": 1}}
    of_training = advice(*runs, **asked)  # no length is stated
    assert of_training.recommended.setting.power_limit_w == 200
    assert next(item.name for item in answer(of_training).figures) == "time of 4 epochs"
    assert "time of training" in settings(of_training).headings[2]
    found = advice(*runs, **asked, epochs=4)
    option, base = found.recommended, found.baseline
    assert (option.setting.power_limit_w, base.setting.power_limit_w) == (None, 200)
    assert (option.train_time_s.mean, base.train_time_s.mean) == pytest.approx((400, 200))
    whole = found.to_dict()["recommended"]["whole_job_s"]
    assert whole == pytest.approx(ENDED_S + 40)
    saved = found.to_dict()["savings"]["time"]
    assert saved == pytest.approx(whole / (ENDED_S - 215 + 440) - 1)
    figure, *_ = answer(found).figures
    assert figure.value == duration_text(option.job_time_s)
    assert figure.name == "time of a job of 4 epochs"
    assert figure.note.startswith(change(1 + saved))
    table = settings(found)
    assert table is not None
    assert "time of a job" in table.headings[2]
    means = [row[2].partition(" (")[0] for row in table.plain_rows[:2]]
    assert means == ["8.83", "11.9"]  # min, of whole jobs
    assert option.gpu_hours.mean == pytest.approx(whole / 3600)
    (beside,) = (str(item) for item in found.warnings if item.code == "startup-decides")
    assert beside.startswith("Start-up and other work outside training take 25 % of the job")
    assert any(beside in line for line in summary(found))


def test_a_predicted_setting_takes_what_the_nearest_one_has_beside_its_training():
    measured = advice((run_of("a", ENDED_S), epochs_of("a"))).recommended
    fast = Quantity(50.0, 45.0, 55.0)
    setting = replace(measured.setting, gpus=4, nodes=None, gpus_per_node=None)
    predicted = replace(measured, setting=setting, source=PREDICTED, time_s=fast, parts={})
    found = with_whole_job(predicted, [measured])
    assert found.whole_job_s.mean == pytest.approx(4 * 50 + ENDED_S - 400)
    assert found.whole_job_s.low < 4 * 45 + 90 < 4 * 55 + 90 < found.whole_job_s.high
    assert found.overhead_from == measured.label
    without = with_whole_job(predicted, [replace(measured, whole_job_without=tuple(ALL))])
    assert (without.job_time_s, without.overhead_from) == (without.train_time_s, None)
    own = [Setting(2), Setting(8), Setting(8, precision="bf16")]
    assert [nearest(Setting(gpus), own) for gpus in (1, 3, 16)] == [0, 0, 1]


def test_a_decision_counts_what_jobs_take_beside_their_training():
    rows = run_metrics(*frames([run_of("a", ENDED_S)], epochs_of("a")))
    overheads = Overheads.of(rows, [Setting(2)])
    time_s, energy_j = overheads.beside([Setting(2), Setting(4)], [4, 8])
    assert time_s.tolist() == pytest.approx([90, 50 + 5 + 7 * 5 + 4 * 10])
    assert energy_j.shape == (2,)
    question = Question("energy", deadline_s=480.0, samples=4.0)
    times = np.array([[100.0, 80.0]])  # of an epoch
    beside = time_s, energy_j
    shares = missed(question, [Setting(2), Setting(4)], times, None, beside)
    assert shares[0].tolist() == pytest.approx([490 / 480 - 1, 0.0])
