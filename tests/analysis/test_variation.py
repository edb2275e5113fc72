"""What sessions and nodes add to intervals, and slow nodes that are named."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from made_studies import coverage, placed
from made_tables import Tables, frames, run_row, window_row
from public_data import public_csv
from wattlaw.analysis.advise.possible_options import options_of_runs
from wattlaw.analysis.advise.whole_job import needed_epochs
from wattlaw.analysis.metrics.comparable_runs import ComparableRuns, comparable_runs
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.metrics.variation import PRIOR, Variation, slow_nodes, variation
from wattlaw.analysis.predict.job import jobs_of
from wattlaw.study.question import Question

#: What ``variation`` needs beside hosts and session.
PLACED = {"slow_log": 0.0, "launcher": "slurm", "nodes": 1}


def drawn(sds: tuple[float, float, float], shape: tuple[int, ...] = (60, 4, 3, 3)) -> Variation:
    """Return the variation of settings that ran on sets of nodes, in sessions there, repeated."""
    dice = np.random.default_rng(0)
    logs = sum(
        dice.normal(0, sd, (*shape[: 4 - at], *(1,) * at)) for at, sd in enumerate(sds)
    ) + np.zeros(shape)
    setting, hosts, session, _ = np.indices(shape).reshape(4, -1)
    rows = pd.DataFrame({"hosts": hosts.astype(str), "session": session})
    return variation(pd.Series(np.exp(logs.ravel())), pd.Series(setting), rows.assign(**PLACED))


@pytest.mark.parametrize("sds", [(0.02, 0.01, 0.03), (0.01, 0.06, 0.02), (0.1, 0.0, 0.05)])
def test_components_of_the_variation_are_recovered(sds):
    found = drawn(sds)
    assert np.sqrt(found.variances) == pytest.approx(sds, rel=0.15, abs=0.012)
    error = np.sqrt(np.array(sds) ** 2 @ [1 / 36, 1 / 12, 1 / 4])
    assert found.half.mean() == pytest.approx(1.96 * error, rel=0.15)


def test_what_no_run_shows_has_the_prior():
    found = drawn((0.02, 0.0, 0.0), (40, 1, 1, 3))
    assert np.sqrt(found.variances[1:]) == pytest.approx([PRIOR["session"][0], PRIOR["nodes"][0]])
    assert found.variances[0] == pytest.approx(0.02**2, rel=0.3)


@pytest.mark.parametrize(("noise", "settings", "repeats"), [(0.01, 4, 3), (0.2, 2, 2), (0.2, 8, 3)])
def test_intervals_of_few_repeats(noise, settings, repeats):
    """Of 95 %; with the prior of a run, 2 x 2 runs would have 82 % at a noise of 20 %.

    ``benchmarks/placement.py --few`` has all cases.
    """
    first, others = coverage(noise, settings, repeats, count=400)
    assert 0.93 <= (first + (settings - 1) * others) / settings <= 0.99


def test_a_setting_that_varies_more_than_others_has_a_wider_interval():
    """Its coverage is below 95 %, since few repeats hardly show it; pooled alone, it is .71."""
    first, others = coverage(0.05, 4, 2, noisier=4.0, count=300)
    assert 0.76 <= first <= 0.95
    assert others >= 0.93


def test_the_prior():
    """The same job on other nodes of a cluster: placements that are permutations of one another."""
    table = pd.read_csv(public_csv("pollux_t4.csv", "public"), dtype={"gpus_per_node": str})
    table = table.dropna(subset="gpus_per_node")
    kind = table["gpus_per_node"].map(lambda digits: "".join(sorted(digits)))
    logs = np.log(table["step_time_s"])
    logs -= logs.groupby([table["workload"], kind, table["local_batch"]]).transform("mean")
    rows = table.assign(hosts=table["gpus_per_node"], session=0, **PLACED)
    found = variation(np.exp(logs), table.groupby(["workload", kind]).ngroup(), rows)
    assert np.sqrt(found.variances[[0, 2]]) == pytest.approx([0.028, 0.032], abs=0.001)


@cache
def comparable(seed: int, **values: object) -> tuple[ComparableRuns, dict[object, float], Tables]:
    made, truth = placed(seed, **values)
    table = run_metrics(made.runs, made.epochs)
    return comparable_runs(table, "job"), truth, (table, made.epochs)


@pytest.mark.parametrize("values", [{"repeats": 1}, {"elsewhere": True}])
def test_a_slow_node_is_named_and_equal_ones_are_not(values):
    shares = []
    for seed in range(4):
        found, slow_log = slow_nodes(comparable(seed, **values)[0].rows)
        assert {name for item in found for name in item.names} <= {"n3"}
        if found:
            shares.append(found[0].slower)
            assert found[0].interval[0] < found[0].slower < found[0].interval[1]
            assert found[0].peers == 7
            assert slow_log.max() == pytest.approx(np.log1p(found[0].slower))
        assert slow_nodes(comparable(seed, slow=0.0, **values)[0].rows)[0] == []
    assert len(shares) >= 3
    assert np.mean(shares) == pytest.approx(0.25, abs=0.05)


def test_nodes_that_only_ran_together_are_named_together():
    runs, windows = [], []
    for number in range(24):
        hosts = (("a", "b"), ("c", "d"), ("c", "e"), ("d", "e"))[number % 4]
        time_s = (1.3 if "a" in hosts else 1.0) * (1 + number % 3 / 100)
        limit = 100.0 * (number % 3)
        runs.append(run_row(f"{number}", gpus=2, nodes=2, power_limit_w=limit, repeat=number))
        windows += [window_row(f"{number}", 1, host=host, duration_s=time_s) for host in hosts]
    (found,), _ = slow_nodes(run_metrics(*frames(runs, windows)))
    assert found.names == ("a", "b")
    assert found.peers == 3
    assert found.slower == pytest.approx(0.3, abs=0.02)


def test_intervals_contain_the_time_on_other_nodes_and_decisions_name_the_slow_one():
    is_in, of_slow = [], []
    for seed in range(8):
        job, truth, (table, epochs) = comparable(seed)
        options = options_of_runs(job, needed_epochs(job, epochs, Question(epochs=1))[0])
        for item in options:
            local_batch, limit = int(item.setting.local_batch), item.setting.power_limit_w
            is_in.append(
                item.time_s.low <= truth[item.gpus, local_batch, limit] <= item.time_s.high
            )
            of_slow.append(item.slow_log > 0)
        (model,) = jobs_of(table, "job")
        codes = [{item.code for item in source.warnings} for source in (job, model)]
        assert ("slow-node" in codes[0]) == ("slow-node" in codes[1]) == any(of_slow[-18:])
    assert np.mean(is_in) >= 0.95  # 0.38 by repeats alone
    assert 0.1 < np.mean(of_slow) < 0.5


def test_the_model_predicts_settings_that_ran_on_a_slow_node_without_what_it_adds():
    found, truth, _ = comparable(1)
    (model,) = jobs_of(found.rows, "job")
    on_slow = {item.setting: item.slow_log for item in model.observations if item.slow_log}
    ((named,), _) = slow_nodes(found.rows)
    assert 0 < len(on_slow) < len(set(model.settings))
    assert [*on_slow.values()] == pytest.approx([np.log1p(named.slower)] * len(on_slow))
    times_s = np.median(model.amounts([*on_slow])[0], axis=0)
    true_s = [truth[at.gpus, int(at.local_batch), at.power_limit_w] for at in on_slow]
    assert np.log(times_s / true_s) == pytest.approx(0, abs=0.05)
