"""From a study to its runs, and the identity of each."""

import hashlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import study_of
from wattlaw.study.identity import canonical, run_id
from wattlaw.study.model import Measure, RunSpec, Setting, Study, WorkloadSpec
from wattlaw.study.plan import expand


def parsed(**changes: object) -> Study:
    return Study.model_validate_json(json.dumps(study_of(**changes)))


def spec(**changes: object) -> RunSpec:
    values = {
        "workload": WorkloadSpec(name="digits-cnn"),
        "setting": Setting(gpus=2, global_batch=64, local_batch=32),
        "repeat": 0,
        "measure": Measure(),
        "launch_kind": "local",
    }
    return RunSpec(**(values | changes))


# Written down once: an identity that drifts makes every store start over.
KNOWN = {
    "dc1249e37f69460b": spec(),
    "2d7e6ba43657ac51": spec(
        setting=Setting(gpus=4, global_batch=256, local_batch=64, power_limit_w=200.0)
    ),
    "26f2794584665af2": spec(
        measure=Measure(epochs=10, warmup_epochs=2, assume_cpu_w=15.0), repeat=2
    ),
    "03918cae620c5225": spec(
        workload=WorkloadSpec(name="digits-cnn", options={"lr": 0.1}), hardware="H200", nodes=2
    ),
}


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
    settings = {(r.spec.setting.gpus, r.spec.setting.global_batch) for r in runs}
    assert settings == {(1, 32), (2, 64), (1, 64)}
    assert len(runs) == 6
    assert len({run.run_id for run in runs}) == 6


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


def test_nodes_follow_from_gpus_per_node_but_a_local_run_has_one():
    for kind, expected in (("slurm", {1: 1, 4: 1, 5: 2, 16: 4}), ("local", {1: 1, 16: 1})):
        study = parsed(
            sweeps=[{"gpus": list(expected), "local_batch": [8]}],
            launch={"kind": kind, "gpus_per_node": 4},
        )
        assert {r.spec.setting.gpus: r.spec.nodes for r in expand(study)} == expected


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.integers(1, 64), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_every_point_and_repeat_is_there_once(gpus, batches, repeats):
    runs = expand(parsed(sweeps=[{"gpus": gpus, "local_batch": batches}], repeats=repeats))
    points = {(r.spec.setting.gpus, r.spec.setting.local_batch, r.spec.repeat) for r in runs}
    assert len(runs) == len(points) == len(set(gpus)) * len(set(batches)) * repeats


@pytest.mark.parametrize("known", KNOWN)
def test_known_identities_never_drift(known):
    assert run_id(KNOWN[known]) == known


def test_the_identity_is_a_hash_of_the_canonical_form_without_defaults():
    text = (
        '{"launch_kind":"local","measure":{},"repeat":0,'
        '"setting":{"global_batch":64,"gpus":2,"local_batch":32},'
        '"workload":{"name":"digits-cnn"}}'
    )
    assert canonical(spec()) == text
    assert run_id(spec()) == hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "change",
    [
        {"workload": WorkloadSpec(name="other")},
        {"workload": WorkloadSpec(name="digits-cnn", options={"lr": 0.1})},
        {"setting": Setting(gpus=1, global_batch=64, local_batch=64)},
        {"setting": Setting(gpus=2, global_batch=64, local_batch=32, power_limit_w=200.0)},
        {"setting": Setting(gpus=2, global_batch=64, local_batch=32, clock_limit_mhz=735.0)},
        {"setting": Setting(gpus=2, global_batch=64, local_batch=32, dataset_fraction=0.5)},
        {"repeat": 1},
        {"measure": Measure(epochs=4)},
        {"measure": Measure(assume_cpu_w=15.0)},
        {"launch_kind": "slurm"},
        {"hardware": "H200"},
        {"nodes": 2},
    ],
)
def test_whatever_was_asked_differently_is_another_run(change):
    assert run_id(spec(**change)) != run_id(spec())


def test_when_and_by_whom_do_not_matter():
    one = expand(parsed())
    two = expand(parsed(name="other", order_seed=5, launch={"gpus_per_node": 2, "timeout_s": 9.0}))
    assert {run.run_id for run in one} == {run.run_id for run in two}


def test_defaults_order_of_keys_and_kind_of_number_do_not_matter():
    given_default = Measure(epochs=3, warmup_epochs=1, sample_hz=10.0)
    assert run_id(spec(measure=given_default)) == run_id(spec())
    one = WorkloadSpec(name="x", options={"a": 200, "b": {"c": 1.5, "d": [1.0]}})
    two = WorkloadSpec(name="x", options={"b": {"d": [1], "c": 1.5}, "a": 200.0})
    assert run_id(spec(workload=one)) == run_id(spec(workload=two))


def test_identities_are_the_same_in_every_process():
    code = (
        "from wattlaw.study.model import *; from wattlaw.study.identity import run_id\n"
        "print(run_id(RunSpec(workload=WorkloadSpec(name='digits-cnn'), repeat=0,"
        "setting=Setting(gpus=2, global_batch=64, local_batch=32), measure=Measure(),"
        "launch_kind='local')))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }
    assert found == {run_id(spec())}
