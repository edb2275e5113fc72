"""From a study to its runs: grids united, duplicates merged, the order drawn, nodes counted."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import study_of
from wattlaw.errors import BadInput
from wattlaw.study.identity import run_id
from wattlaw.study.model import Study
from wattlaw.study.plan import MAX_RUNS, PlannedRun, expand


def parsed(**changes: object) -> Study:
    return Study.model_validate_json(json.dumps(study_of(**changes)))


def points(runs: list[PlannedRun]) -> list[tuple[int, int, int]]:
    """Return GPUs, global batch and repeat of each run."""
    return [(r.spec.setting.gpus, r.spec.setting.global_batch, r.spec.repeat) for r in runs]


def test_the_union_of_grids_has_each_setting_once():
    runs = expand(
        parsed(
            sweeps=[
                {"gpus": [1, 2], "local_batch": [32]},
                {"gpus": [1, 2], "global_batch": [64]},
                {"gpus": [2, 2], "global_batch": [64, 64]},
            ],
            repeats=2,
        )
    )
    settings = [(1, 32), (2, 64), (1, 64)]
    assert sorted(points(runs)) == sorted((*s, repeat) for s in settings for repeat in (0, 1))


def test_a_setting_is_one_run_whether_its_local_or_its_global_batch_was_given():
    (local,) = expand(parsed(sweeps=[{"gpus": [2], "local_batch": [32]}]))
    (by_global,) = expand(parsed(sweeps=[{"gpus": [2], "global_batch": [64]}]))
    assert local == by_global


def test_a_workload_given_twice_is_run_once_and_one_with_other_options_is_another():
    same = {"name": "digits-cnn"}
    runs = expand(parsed(workloads=[same, same, same | {"options": {"lr": 0.1}}]))
    assert [run.spec.workload.options for run in runs].count({}) == 1
    assert len(runs) == 2


def test_a_study_has_workloads_times_settings_times_repeats():
    runs = expand(
        parsed(
            workloads=[{"name": "a"}, {"name": "b"}],
            sweeps=[
                {"gpus": [1, 2, 4], "local_batch": [8, 16], "power_limit_w": [None, 200, 300]},
                {"gpus": [8], "global_batch": [64], "dataset_fraction": [0.25, 0.5]},
            ],
            repeats=3,
        )
    )
    assert len(runs) == 2 * (3 * 2 * 3 + 2) * 3


def test_both_batches_are_kept_and_agree():
    for run in expand(parsed(sweeps=[{"gpus": [1, 4], "global_batch": [64, 128]}])):
        setting = run.spec.setting
        assert setting.gpus * setting.local_batch == setting.global_batch


def test_a_random_order_depends_on_its_seed_alone_and_mixes_repeats():
    changes = {"sweeps": [{"gpus": [1, 2, 4, 8], "local_batch": [8, 16]}], "repeats": 3}
    one, same, other = (
        [run.run_id for run in expand(parsed(**changes, order_seed=seed))] for seed in (1, 1, 2)
    )
    assert one == same != other
    assert sorted(one) == sorted(other)
    repeats = [run.spec.repeat for run in expand(parsed(**changes, order_seed=1))]
    assert repeats != sorted(repeats)


def test_an_order_as_written_is_kept():
    runs = expand(
        parsed(sweeps=[{"gpus": [4, 1, 2], "local_batch": [8]}], repeats=2, order="as_written")
    )
    assert [run.spec.setting.gpus for run in runs] == [4, 1, 2, 4, 1, 2]
    assert [run.spec.repeat for run in runs] == [0, 0, 0, 1, 1, 1]


def test_nodes_follow_from_gpus_per_node_but_a_local_run_has_one():
    for kind, expected in (("slurm", {1: 1, 4: 1, 5: 2, 16: 4}), ("local", {1: 1, 16: 1})):
        study = parsed(
            sweeps=[{"gpus": list(expected), "local_batch": [8]}],
            launch={"kind": kind, "gpus_per_node": 4},
        )
        assert {r.spec.setting.gpus: r.spec.nodes for r in expand(study)} == expected


def test_a_launcher_that_was_told_no_size_of_its_nodes_is_asked_for_one():
    study = parsed(sweeps=[{"gpus": [16], "local_batch": [8]}], launch={"kind": "slurm"})
    assert [run.spec.nodes for run in expand(study)] == [1]


def test_more_runs_than_a_study_may_have_are_refused_at_once():
    most = {"gpus": [*range(1, 101)], "local_batch": [*range(1, 101)]}
    study = parsed(sweeps=[most], repeats=MAX_RUNS // 10_000 + 1)
    with pytest.raises(BadInput, match="given 210,000 runs; allowed: at most 200,000"):
        expand(study)
    endless = {"gpus": [*range(1, 2000)], "local_batch": [*range(1, 2000)]}
    with pytest.raises(BadInput, match="allowed: at most 200,000"):
        expand(parsed(sweeps=[endless] * 3, repeats=10_000))


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.integers(1, 64), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_every_point_and_repeat_is_there_once(gpus, batches, repeats):
    runs = expand(parsed(sweeps=[{"gpus": gpus, "local_batch": batches}], repeats=repeats))
    points = {(r.spec.setting.gpus, r.spec.setting.local_batch, r.spec.repeat) for r in runs}
    assert len(runs) == len(points) == len(set(gpus)) * len(set(batches)) * repeats


fractions = st.lists(st.sampled_from([0.25, 0.5, 1, 1.0]), min_size=1, max_size=3)
caps = st.lists(st.sampled_from([None, 200, 200.0, 300]), min_size=1, max_size=3)
batches = st.lists(st.sampled_from([12, 24, 36]), min_size=1, max_size=2)
grids = st.tuples(
    st.sampled_from(["local_batch", "global_batch"]),
    batches,
    st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3),
    caps,
    fractions,
).map(
    lambda grid: {
        grid[0]: grid[1], "gpus": grid[2], "power_limit_w": grid[3], "dataset_fraction": grid[4],
    }
)  # fmt: skip


@given(st.lists(grids, min_size=1, max_size=3), st.integers(1, 2), st.integers(0, 3))
def test_every_run_has_an_identity_of_its_own(sweeps, repeats, seed):
    runs = expand(parsed(sweeps=sweeps, repeats=repeats, order_seed=seed))
    assert len({run.run_id for run in runs}) == len({run.spec.model_dump_json() for run in runs})
    assert len({run.run_id for run in runs}) == len(runs)
    assert all(run.run_id == run_id(run.spec) for run in runs)
    in_order = expand(parsed(sweeps=sweeps, repeats=repeats, order="as_written"))
    assert {run.run_id for run in runs} == {run.run_id for run in in_order}
