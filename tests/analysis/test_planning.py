"""What a decision costs, the value of a measurement, and the choice of the next runs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from public_data import public_csv
from wattlaw.analysis.decide.evidence import Candidate, may_fit_memory
from wattlaw.analysis.decide.next_runs import (
    BUDGET,
    CERTAIN,
    LIKE_RUN,
    LONGER_RUN,
    MOST_SHORT,
    NEIGHBOUR,
    NOT_MET,
    NOTHING_LEFT,
    OWN_RUN,
    Belief,
    plan,
)
from wattlaw.analysis.decide.regret import expected_regrets, explained, regrets
from wattlaw.analysis.decide.surprises import fit_with_repeats, noise_of_repeats, noise_prior
from wattlaw.analysis.predict import Observation
from wattlaw.analysis.predict.parameters import Prior
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

NODE = 4
STEPS = 100


def packed(gpus, batch=32.0, **values):
    return Setting.packed(gpus, NODE, local_batch=batch, **values)


SCALING = [packed(gpus) for gpus in (1, 2, 4, 8)]
TIMES = arrays(float, (5, len(SCALING)), elements=st.floats(0.1, 10.0))
QUESTIONS = st.builds(
    Question,
    minimize=st.sampled_from(["energy", "time", "gpu_hours", "edp"]),
    deadline_s=st.none() | st.floats(0.1, 10.0),
    max_slowdown=st.none() | st.floats(0.01, 1.0),
    energy_budget_j=st.none() | st.floats(1.0, 1000.0),
    max_gpu_hours=st.none() | st.floats(0.001, 0.1),
)


class TestRegrets:
    @given(QUESTIONS, TIMES)
    def test_some_setting_has_none_and_no_setting_less(self, question, times):
        shown = regrets(question, SCALING, times, times * 100)
        assert (shown >= -1e-12).all()
        assert shown.min(1) == pytest.approx(0.0, abs=1e-9)

    @pytest.mark.parametrize(
        ("question", "regret"),
        [
            # The first takes 1.5 GPU-seconds and is 50 % late; the second takes 1.6.
            (Question("gpu_hours", deadline_s=1.0), [1.0, 0.0]),
            # Of 60 trainings, 0.025 GPU-hours are allowed; the second takes 0.0267.
            (Question("time", max_gpu_hours=0.025, samples=60.0), [0.0, 2 / 15]),
        ],
    )
    def test_a_missed_bound_costs_twice_its_share(self, question, regret):
        shown = regrets(question, SCALING[:2], np.array([[1.5, 0.8]]), None)
        assert shown[0] == pytest.approx(regret)

    def test_samples_by_batch_count(self):
        question = Question("time", samples_by_batch={32.0: 100.0, 64.0: 300.0})
        assert [question.allows(item) for item in SCALING] == [True, True, False, False]
        shown = regrets(question, SCALING[:2], np.array([[1.0, 0.5]]), None)
        assert shown[0] == pytest.approx([0.0, 0.5])


class TestExpectedRegrets:
    dice = np.random.default_rng(0)
    better = dice.random(400) < 0.5
    regrets = np.where(better[:, None], [0.0, 0.2], [0.2, 0.0])

    def after(self, shown, noise=0.01):
        outcomes = [(shown[:, None], np.array([noise]))]
        return float(expected_regrets(self.regrets, outcomes, seed=0)[0])

    def test_a_run_that_tells_nothing_does_not_help(self):
        now = self.regrets.mean(0).min()
        unrelated = np.random.default_rng(1).standard_normal(400)
        assert self.after(unrelated, noise=3.0) == pytest.approx(now, abs=0.01)

    def test_a_run_that_settles_the_question_leaves_none(self):
        assert self.after(np.where(self.better, 0.0, 1.0)) < 0.001


def observed(*settings_of_runs, per_sample_s=0.01):
    """Return runs that scale well: a fixed part, and a part for each sample."""
    return [
        Observation(item, 0.02 * (1 + 0.05 * item.gpus) + per_sample_s * item.local_batch)
        for item in settings_of_runs
    ]


GRID = [packed(gpus, batch) for gpus in (1, 2, 4, 8) for batch in (8.0, 16.0, 32.0)]
CANDIDATES = [Candidate(item, STEPS) for item in GRID]


def left(*made):
    return [item for item in CANDIDATES if item.setting not in made]


class TestExplained:
    """Runs that show a regret, the size of one, or nothing about it."""

    dice = np.random.default_rng(0)
    regret = dice.exponential(1.0, 2000)
    unrelated = dice.standard_normal(2000)
    sign = np.where(dice.random(2000) < 0.5, -1.0, 1.0)

    def share(self, shown, noise=0.01):
        outcomes = [(shown[:, None], np.array([noise]))]
        return float(explained(self.regret, outcomes, seed=0)[0])

    def test_a_run_explains_what_it_shows(self):
        assert self.share(self.regret) == pytest.approx(1.0, abs=0.01)
        assert self.share(self.regret, noise=1.0) == pytest.approx(0.5, abs=0.1)
        assert self.share(self.unrelated) == 0.0

    def test_the_size_of_an_outcome_explains_as_its_sign_does(self):
        """Large errors of the model, in whichever direction, make the regret uncertain."""
        assert self.share(self.sign * np.sqrt(self.regret)) > 0.9


class TestPlan:
    question = Question("gpu_hours")

    def test_first_runs_are_cheap_and_at_the_ends_of_the_axes(self):
        found = plan(self.question, CANDIDATES, [], at_once=4)
        chosen = [item.candidate.setting for item in found.proposals]
        assert chosen == [packed(1, 8.0), packed(1, 32.0), packed(2, 8.0), packed(8, 8.0)]
        assert found.setting is None

    def test_both_ends_of_the_limits_are_measured_first(self):
        """A clock that was never locked is not known: the decision must not rest on it."""
        limits = [{}, {"power_limit_w": 100.0}, {"power_limit_w": 200.0}]
        limits += [{"clock_limit_mhz": 700.0}, {"clock_limit_mhz": 1400.0}]
        grid = [Candidate(packed(1, **values), STEPS) for values in limits]
        found = plan(self.question, grid, [], at_once=9)
        chosen = [item.candidate.setting for item in found.proposals]
        assert {item.clock_limit_mhz for item in chosen} == {None, 700.0, 1400.0}
        assert {item.power_limit_w for item in chosen} == {None, 100.0}

    def test_larger_batches_than_one_that_was_out_of_memory_do_not_fit(self):
        able = [item for item in CANDIDATES if may_fit_memory(item.setting, [packed(2, 16.0)])]
        assert {item.setting.local_batch for item in able} == {8.0}

    def test_first_runs_are_of_settings_that_the_question_allows(self):
        found = plan(replace(self.question, max_gpus=1), CANDIDATES, [], at_once=9)
        assert {item.candidate.setting.gpus for item in found.proposals} == {1}

    def test_nothing_affordable_is_a_spent_budget(self):
        question = Question("gpu_hours", tolerance=1e-4, confidence=0.999)
        seen = observed(packed(1, 8.0), packed(1, 32.0), packed(2, 8.0), packed(8, 8.0))
        rest = left(*(item.setting for item in seen))
        found = plan(question, rest, seen, hours_left=1e-9)
        assert (found.stopped_because, found.proposals) == (BUDGET, ())

    def test_a_clear_case_is_certain_and_right(self):
        seen = observed(packed(1, 8.0), packed(1, 32.0), packed(2, 8.0), packed(8, 8.0))
        seen += observed(packed(4, 32.0), packed(1, 16.0), packed(4, 8.0))
        rest = left(*(item.setting for item in seen))
        found = plan(Question("time", tolerance=0.1), rest, seen)
        assert found.stopped_because == CERTAIN
        assert found.setting == packed(8, 32.0)
        assert found.probability >= 0.9
        found = plan(Question("time", tolerance=0.1), rest, seen, is_modelled=False)
        assert (found.stopped_because, found.setting.gpus) == (None, 8)
        assert [item.candidate.setting for item in found.proposals] == [found.setting]

    def test_a_short_run_of_the_leading_setting_is_not_certain_and_is_repeated(self):
        seen, question, leading = observed(*GRID), Question("time"), packed(8, 32.0)
        repeats = [Candidate(leading, STEPS)]
        assert plan(question, [], seen).stopped_because == CERTAIN
        seen = [replace(item, is_short=item.setting == leading) for item in seen]
        assert plan(question, [], seen).stopped_because == NOTHING_LEFT
        found = plan(question, repeats, seen)
        assert (found.setting, found.stopped_because) == (leading, None)
        assert (found.probability, found.missing) == (MOST_SHORT, LONGER_RUN)
        assert [item.candidate for item in found.proposals] == repeats
        assert plan(question, [], [*seen, *observed(leading)]).stopped_because == CERTAIN

    def test_a_single_setting_is_certain_after_a_run_of_it_even_a_short_one(self):
        only = packed(1)
        repeats = [Candidate(only, STEPS)]
        assert plan(Question("time"), repeats, [], settings=[only]).stopped_because is None
        seen = [replace(item, is_short=True) for item in observed(only)]
        found = plan(Question("time"), repeats, seen, settings=[only])
        assert (found.stopped_because, found.probability, found.missing) == (CERTAIN, 1.0, None)
        assert found.others == ()

    def test_cheap_neighbours_of_a_leading_setting_are_measured_before_a_decision(self):
        """Kernels that suit the largest batch least are seen on the one half as large."""
        grid = [packed(1, 2.0 ** (power / 2)) for power in range(6, 26)]
        question = Question("time", tolerance=0.5)
        seen = [
            Observation(item, 0.02 + 1e-4 * item.local_batch) for item in (*grid[:-3], *grid[-2:])
        ]
        rest = [Candidate(item, STEPS) for item in grid if item not in [o.setting for o in seen]]
        costly = [Candidate(grid[0], 1e7)]  # a repeat, next to which others are cheap
        found = plan(question, [*rest, *costly], seen)
        assert found.setting == grid[-1]
        assert (found.proposals[0].candidate.setting, found.missing) == (grid[-3], NEIGHBOUR)
        seen.append(Observation(grid[-3], 0.02 + 1e-4 * grid[-3].local_batch))
        rest = [item for item in rest if item.setting != grid[-3]]
        assert plan(question, [*rest, *costly], seen).stopped_because == CERTAIN

    def test_cheap_settings_on_other_gpus_are_measured_before_a_decision(self):
        """A network may suit one placement: a run shows the next smaller one."""
        grid = [packed(gpus, 8.0) for gpus in (1, 2, 4, 8, 16)]
        question = Question("time", tolerance=0.5)
        seen = [Observation(item, 0.1) for item in (*grid[:3], grid[-1])]
        rest = [Candidate(grid[3], STEPS), Candidate(grid[0], 1e5)]
        found = plan(question, rest, seen)
        assert (found.setting, found.proposals[0].candidate.setting) == (grid[-1], grid[3])
        seen.append(Observation(grid[3], 0.1))
        assert plan(question, rest[1:], seen).stopped_because == CERTAIN

    @pytest.mark.parametrize(
        ("deadline_s", "meets", "reason"), [(1e-9, 0.0, NOT_MET), (1e9, 1.0, CERTAIN)]
    )
    def test_bounds_that_no_setting_meets_are_never_certain(self, deadline_s, meets, reason):
        question = Question("gpu_hours", deadline_s=deadline_s)
        found = plan(question, [], observed(*GRID))
        assert (found.meets, found.stopped_because) == (meets, reason)

    def test_a_setting_that_rather_misses_a_bound_does_not_lead(self):
        """150 W need the least energy, but are 10.3 % slower where 10 % are allowed."""
        runs = {250: (0.1, 200), 200: (0.1005, 190), 150: (0.1103, 148), 100: (0.15, 99)}
        seen = [
            Observation(packed(1, power_limit_w=limit_w), step_s, power_w)
            for limit_w, (step_s, power_w) in runs.items()
        ]
        found = plan(Question("energy", max_slowdown=0.1, tolerance=0.05), [], seen)
        assert (found.setting, found.stopped_because) == (seen[1].setting, NOTHING_LEFT)

    @pytest.mark.parametrize(("measured", "odds"), [(5, 1), (6, 2)])
    def test_odds_are_higher_than_draws_say_where_enough_was_measured(self, measured, odds):
        seen, rest = observed(*GRID[:measured]), left(*GRID[:measured])
        question = Question("gpu_hours", tolerance=0.02)
        found = plan(question, rest, seen)
        settings = [*(item.setting for item in rest), *GRID[:measured]]
        belief = Belief.of(fit_with_repeats(seen, 0), settings)
        shares = (belief.regrets(question, settings) <= question.tolerance).mean(0)
        share = shares[settings.index(found.setting)]
        stated = found.probability / (1 - found.probability)
        assert stated == pytest.approx(odds * share / (1 - share))

    def test_what_a_decision_refers_to_is_measured_first(self):
        """Runs on 1 to 4 GPUs say nothing of what happens on 32."""
        grid = [packed(2**power, batch) for power in range(6) for batch in (8.0, 16.0, 32.0)]
        made = [item for item in grid if item.gpus <= 8]
        rest = [Candidate(item, STEPS) for item in grid if item not in made]
        seen = observed(*made)
        question = Question("time", tolerance=0.5)
        found = plan(question, rest, seen)
        assert found.probability >= question.confidence
        check = found.proposals[0].setting
        assert check.local_batch == found.setting.local_batch
        assert found.setting.gpus / 2 <= check.gpus
        spent = plan(question, rest, seen, hours_left=1e-9)
        assert (spent.setting, spent.stopped_because) == (found.setting, BUDGET)
        assert spent.missing == OWN_RUN
        assert found.missing == (OWN_RUN if check == found.setting else LIKE_RUN)
        assert plan(question, [], seen, settings=grid).stopped_because == NOTHING_LEFT

        # The leading setting was measured, and the fastest one that bounds it was not.
        slow = replace(question, minimize="gpu_hours", max_slowdown=50.0)
        found = plan(slow, rest, seen)
        assert found.setting in made
        assert found.proposals[0].setting.gpus >= 16
        seen += observed(found.proposals[0].setting)
        assert plan(slow, rest, seen).setting in made


class TestNoiseOfRuns:
    def test_a_repeat_comes_before_a_decision_where_it_is_cheap(self):
        cells = [packed(gpus, batch) for gpus in (1, 2, 4) for batch in (8.0, 16.0, 32.0)]
        seen = observed(*cells[:3], packed(2, 8.0))
        once = [Candidate(item, STEPS) for item in cells if item not in [o.setting for o in seen]]
        question = Question("gpu_hours", tolerance=0.3)
        assert plan(question, once, seen).stopped_because == CERTAIN
        again = plan(question, [*once, Candidate(cells[0], STEPS)], seen)
        assert again.proposals[0].candidate.setting == cells[0]

    @given(st.floats(0.001, 0.5), st.integers(2, 6))
    def test_the_noise_follows_what_repeats_show(self, spread, count):
        prior = Prior(np.log(0.009), 2.0)
        logs = spread * np.resize([-1.0, 1.0], count)
        after = noise_prior(prior, [[0.0, 0.0], *([list(logs)] * 20)])
        assert after.sd < prior.sd
        assert np.exp(after.mean) == pytest.approx(np.std(logs), rel=0.5)

    def test_without_repeats_the_noise_is_that_of_the_prior(self):
        assert noise_of_repeats(fit_with_repeats(observed(packed(1, 8.0)), seed=0)) == 0.0
        calm, rough = (
            noise_of_repeats(fit_with_repeats(twice, seed=0))
            for twice in (
                [*observed(packed(1, 8.0)), *observed(packed(1, 8.0))],
                [Observation(packed(1, 8.0), 0.1), Observation(packed(1, 8.0), 0.15)],
            )
        )
        assert rough > 5 * calm > 0


def test_only_given_settings_are_decided_for():
    seen = observed(packed(1), packed(8))
    question = Question("time", tolerance=0.05)
    assert plan(question, [], seen).setting == packed(8)
    assert plan(question, [], seen, settings=[packed(1), packed(4)]).setting == packed(4)
    assert plan(question, [], seen, settings=[]).stopped_because == NOTHING_LEFT


def test_runs_of_unknown_length_are_not_all_first_runs():
    candidates = [Candidate(item, 0.0, 10.0) for item in GRID]
    assert len(plan(Question(), candidates, [], at_once=99).proposals) < len(GRID) // 2


def test_decisions_on_public_runs_rest_on_the_setting_that_bounds_them():
    """ImageNet on T4, at most twice as slow as the fastest: 10 seeds, each certain at 0.9.

    Once 5 of 30 were wrong: 64 GPUs, 16 % worse than 32, at a stated 0.96. Now 1 of 30 is (seed 0).
    """
    table = pd.read_csv(public_csv("pollux_t4.csv", "public"))
    table = table[(table["workload"] == "imagenet") & table["local_batch"].isin([40, 115])]
    times = {}
    for (gpus, nodes, batch), rows in table.groupby(["gpus", "nodes", "local_batch"]):
        setting = packed(gpus, float(batch))
        if gpus & (gpus - 1) == 0 and nodes == setting.nodes:
            times[setting] = rows["step_time_s"].to_numpy()
    question = Question("gpu_hours", max_slowdown=1.0, tolerance=0.05)
    truth = np.array([[np.median(shown) / item.samples for item, shown in times.items()]])
    regret = dict(zip(times, regrets(question, [*times], truth, None)[0], strict=True))

    right = 0
    for seed in range(10):
        rest, seen = [Candidate(item, STEPS) for item in times], []
        dice = np.random.default_rng([seed, 1])
        found = plan(question, rest, seen, seed=seed, at_once=len(rest))
        while not found.stopped_because:
            for chosen in [item.candidate for item in found.proposals]:
                rest.remove(chosen)
                shown = times[chosen.setting]
                seen.append(Observation(chosen.setting, float(shown[dice.integers(len(shown))])))
            found = plan(question, rest, seen, seed=seed)
        assert found.stopped_because == CERTAIN
        right += regret[found.setting] <= question.tolerance
        assert any(packed(gpus, 115.0) in {item.setting for item in seen} for gpus in (32, 64))
    assert right >= 9
